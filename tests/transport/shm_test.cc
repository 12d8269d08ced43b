// What links through shared memory promise beyond the suites of all: memory that cannot be pulled
// away, nothing left behind, and a peer that writes nonsense breaks its link and nothing else.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/checksum.h"
#include "tests/transport/harness.h"
#include "tests/transport/log_capture.h"
#include "tests/transport/peer_process.h"
#include "tests/transport/silent_listener.h"
#include "transport/internal/hello.h"
#include "transport/internal/hello_io.h"
#include "transport/shm.h"
#include "transport/shm/region.h"
#include "transport/shm/unix_socket.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

std::unique_ptr<Listener> ListenHere(const LinkOptions& options) {
  auto listener = MakeShmFabric()->Listen("@", options);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return std::move(listener).value();
}

constexpr shm::Shape kShape = {.chunk_bytes = 100'000, .acceptor_slots = 3, .connecter_slots = 5};

TEST(ShmMemory, IsReservedAndCannotBeResized) {
  auto memory = shm::Region::CreateMemory(kShape);
  ASSERT_TRUE(memory.ok()) << memory.status();
  struct stat about {};
  ASSERT_EQ(fstat(memory->get(), &about), 0);
  EXPECT_EQ(static_cast<size_t>(about.st_size), kShape.total_bytes());
  EXPECT_GE(static_cast<size_t>(about.st_blocks) * 512, kShape.total_bytes());  // pages are there
  EXPECT_NE(ftruncate(memory->get(), 4096), 0);
  EXPECT_NE(ftruncate(memory->get(), about.st_size + 4096), 0);
}

// No file of this process may grow beyond `bytes` while it lives, a link's memory among them: what
// a kernel without memory to give refuses in the same call.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit low = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  rlimit before_{};
  void (*const handler_)(int) = signal(SIGXFSZ, SIG_IGN);
};

TEST(ShmMemory, ThatCannotBeReservedIsRefusedBeforeAnybodyTouchesIt) {
  const FileLimit limit(size_t{64} << 10);
  const absl::Status status = shm::Region::CreateMemory(kShape).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("lower the link's slots"));
}

TEST(ShmLink, MemoryThatCannotBeReservedIsToldOnBothSidesAndTheNextLinkIsMade) {
  const LogCapture log;
  auto listener = ListenHere(SmallOptions("server"));
  {
    const FileLimit limit(size_t{64} << 10);
    const absl::Status status =
        MakeShmFabric()->Connect(listener->address(), SmallOptions("client")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("MiB of shared memory"));
  }
  auto client = MakeShmFabric()->Connect(listener->address(), SmallOptions("client"));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(listener->Accept(Soon()).ok());
  EXPECT_EQ(listener->refused(), 1u);
  listener.reset();  // its thread has said what it had to say
  EXPECT_THAT(log.text(), HasSubstr("MiB of shared memory"));
}

TEST(ShmMemory, SlotsAndRingsOfBothDirectionsDoNotOverlap) {
  auto memory = shm::Region::CreateMemory(kShape);
  ASSERT_TRUE(memory.ok());
  auto region = shm::Region::Map(*memory, kShape);
  ASSERT_TRUE(region.ok()) << region.status();
  std::vector<std::pair<const uint8_t*, size_t>> parts;
  for (const shm::Direction* direction : {&region->to_acceptor(), &region->to_connecter()}) {
    const uint32_t n = direction->slots;
    const auto add = [&](const void* at, size_t bytes) {
      parts.emplace_back(static_cast<const uint8_t*>(at), bytes);
    };
    add(direction->head, sizeof(*direction->head));
    add(direction->entries, n * sizeof(shm::Entry));
    add(direction->freed, n * sizeof(uint32_t));
    for (uint32_t i = 0; i < n; ++i) add(direction->slot(i), kShape.chunk_bytes);
  }
  EXPECT_EQ(parts.size(), 2 * 3 + 3 + 5);
  std::sort(parts.begin(), parts.end());
  for (size_t i = 1; i < parts.size(); ++i) {
    EXPECT_LE(parts[i - 1].first + parts[i - 1].second, parts[i].first);
  }
  EXPECT_LE(static_cast<size_t>(parts.back().first + parts.back().second - parts.front().first),
            kShape.total_bytes());
}

TEST(ShmMemory, OfAnotherShapeOrWithoutSealsIsRefused) {
  auto memory = shm::Region::CreateMemory(kShape);
  ASSERT_TRUE(memory.ok());
  shm::Shape other = kShape;
  other.acceptor_slots = 4;
  EXPECT_EQ(shm::Region::Map(*memory, other).status().code(),
            absl::StatusCode::kFailedPrecondition);
  internal::Fd unsealed(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), static_cast<off_t>(kShape.total_bytes())), 0);
  EXPECT_THAT(std::string(shm::Region::Map(unsealed, kShape).status().message()),
              HasSubstr("not sealed"));
}

size_t OpenDescriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// As many as the room for one takes in: that is padded.
TEST(ShmMemory, MoreDescriptorsThanOneAreRefusedAndClosed) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const internal::Fd ours(ends[0]), theirs(ends[1]);
  std::string word("TRIBSHM1memory\0\0", 16);
  iovec piece{word.data(), word.size()};
  const int two[2] = {0, 0};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(two))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(two));
  std::memcpy(CMSG_DATA(header), two, sizeof(two));
  ASSERT_EQ(sendmsg(theirs.get(), &message, 0), 16);
  const size_t before = OpenDescriptors();
  EXPECT_FALSE(shm::ReceiveDescriptor(ours.get(), Soon()).ok());
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(ShmAddress, IsAnAbstractNameOrMadeUp) {
  EXPECT_EQ(*shm::CheckName("@tributary-rack0"), "@tributary-rack0");
  EXPECT_NE(*shm::CheckName("@"), *shm::CheckName("@"));
  for (const std::string& bad :
       {std::string("rack0"), std::string("/tmp/x"), std::string("10.0.0.1:7"),
        "@" + std::string(200, 'x'), std::string("@a\0b", 4)}) {
    EXPECT_EQ(shm::CheckName(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  auto listener = ListenHere(SmallOptions("first"));
  EXPECT_THAT(
      std::string(
          MakeShmFabric()->Listen(listener->address(), SmallOptions("second")).status().message()),
      HasSubstr(listener->address()));
}

TEST(ShmLink, NothingIsLeftWhenThePeerIsKilled) {
  std::string name;
  {
    auto listener = ListenHere(SmallOptions("server"));
    name = listener->address().substr(1);
    EXPECT_THAT(ReadAll("/proc/net/unix"), HasSubstr(name));
    PeerProcess peer("shm", listener->address(), 1000);
    auto link = listener->Accept(Soon());
    ASSERT_TRUE(link.ok()) << link.status();
    ASSERT_TRUE((*link)->Receive(Soon()).ok());
    EXPECT_THAT(ReadAll("/proc/self/maps"), HasSubstr("memfd:tributary-link"));
    peer.Signal(SIGKILL);
    absl::Status status;
    while (status.ok()) status = (*link)->Receive(Soon()).status();
  }
  EXPECT_THAT(ReadAll("/proc/net/unix"), ::testing::Not(HasSubstr(name)));
  EXPECT_THAT(ReadAll("/proc/self/maps"), ::testing::Not(HasSubstr("memfd:tributary-link")));
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    EXPECT_THAT(std::filesystem::read_symlink(fd.path(), gone).string(),
                ::testing::Not(HasSubstr("tributary-link")));
  }
}

// The listening side is the one that is killed: a process of its own, which tells its address.
TEST(ShmLink, NothingIsLeftWhenTheListenerIsKilled) {
  int told[2];
  ASSERT_EQ(pipe2(told, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto listener = MakeShmFabric()->Listen("@", SmallOptions("server"));
    if (!listener.ok()) _exit(1);
    const std::string address = (*listener)->address();
    if (write(told[1], address.data(), address.size()) < 0) _exit(1);
    close(told[1]);
    auto link = (*listener)->Accept(Deadline::Infinite());
    pause();
    _exit(0);
  }
  close(told[1]);
  char buffer[256];
  const ssize_t n = read(told[0], buffer, sizeof(buffer));
  close(told[0]);
  ASSERT_GT(n, 0);
  const std::string address(buffer, static_cast<size_t>(n));
  auto link = MakeShmFabric()->Connect(address, SmallOptions("client"));
  ASSERT_TRUE(link.ok()) << link.status();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ((*link)->Receive(Soon()).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(ReadAll("/proc/net/unix"), ::testing::Not(HasSubstr(address.substr(1))));
}

// The recorded hello of version 1, as an older peer says it, and the word that its answer ends
// with.
TEST(ShmLink, BytesOfVersionOneStillMakeALink) {
  const std::string golden =
      ReadAll(std::string(TRIBUTARY_SOURCE_DIR) + "/tests/golden/link/shm_v1.bin");
  const size_t at = golden.size() - internal::kHelloPrefixBytes;
  LinkOptions options;  // whose slots are as long as the recorded peer's
  options.name = "server";
  auto listener = ListenHere(options);
  const auto deadline = Deadline::After(absl::Seconds(20));
  const auto fd = shm::ConnectTo(listener->address(), deadline);
  ASSERT_TRUE(fd.ok()) << fd.status();
  ASSERT_TRUE(internal::WriteAll(fd->get(), golden.substr(0, at), deadline).ok());
  std::vector<uint8_t> answer(internal::kHelloPrefixBytes);
  ASSERT_TRUE(internal::ReadAll(fd->get(), answer.data(), answer.size(), deadline).ok());
  const auto length = internal::DecodePrefix(answer);
  ASSERT_TRUE(length.ok()) << length.status();
  answer.resize(*length);
  ASSERT_TRUE(internal::ReadAll(fd->get(), answer.data(), answer.size(), deadline).ok());
  const auto reply = internal::DecodeReply(answer);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->hello().name(), "server");
  internal::PollOne(fd->get(), POLLIN, deadline);
  char word[internal::kHelloPrefixBytes];
  iovec piece{.iov_base = word, .iov_len = sizeof(word)};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  ASSERT_EQ(recvmsg(fd->get(), &message, MSG_CMSG_CLOEXEC), static_cast<ssize_t>(sizeof(word)));
  EXPECT_EQ(std::string(word, sizeof(word)), golden.substr(at));
  const cmsghdr* const with = CMSG_FIRSTHDR(&message);
  ASSERT_NE(with, nullptr);
  EXPECT_EQ(with->cmsg_type, SCM_RIGHTS);
  int memory = -1;
  std::memcpy(&memory, CMSG_DATA(with), sizeof(memory));
  close(memory);
  auto link = listener->Accept(Soon());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ((*link)->peer(), "rack0");
}

TEST(ShmLink, ConnectEndsAtItsTimeoutWhereNobodyAnswers) {
  const SilentListener silent;
  LinkOptions options = SmallOptions("client");
  options.connect_timeout = absl::Milliseconds(200);
  const absl::Status status = MakeShmFabric()->Connect(silent.address(), options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST(ShmLink, AnotherUsersProcessIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  auto listener = ListenHere(SmallOptions("server"));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setuid(65534) != 0) _exit(2);
    const auto link = MakeShmFabric()->Connect(listener->address(), SmallOptions("other"));
    _exit(absl::IsPermissionDenied(link.status()) ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A peer made by hand, which can write whatever it likes.
class HandMadePeer {
 public:
  explicit HandMadePeer(Listener& listener) {
    const auto deadline = Deadline::After(absl::Seconds(20));
    const LinkOptions options = SmallOptions("evil");
    auto fd = shm::ConnectTo(listener.address(), deadline);
    EXPECT_TRUE(fd.ok()) << fd.status();
    control_ = std::move(*fd);
    const v1::LinkHello ours =
        internal::ControlHello(options, internal::RandomLinkId(), internal::RandomEpoch());
    const auto reply = internal::ExchangeHello(control_.get(), ours, deadline);
    EXPECT_TRUE(reply.ok()) << reply.status();
    auto memory = shm::ReceiveDescriptor(control_.get(), deadline);
    EXPECT_TRUE(memory.ok()) << memory.status();
    auto region = shm::Region::Map(*memory, {.chunk_bytes = options.chunk_bytes,
                                             .acceptor_slots = reply->hello().slots(),
                                             .connecter_slots = options.slots});
    EXPECT_TRUE(region.ok()) << region.status();
    region_ = std::move(*region);
    auto link = listener.Accept(Soon());
    EXPECT_TRUE(link.ok()) << link.status();
    link_ = std::move(*link);
  }
  const shm::Direction& out() const { return region_.to_acceptor(); }
  const shm::Direction& in() const { return region_.to_connecter(); }
  // Publishes entry `at` with these fields.
  void Publish(uint64_t at, uint32_t slot, const internal::ChunkHeader& header) const {
    shm::Entry& entry = out().entries[at % out().slots];
    entry.slot = slot;
    entry.header = internal::EncodeChunkHeader(header);
    entry.published.store(at + 1, std::memory_order_release);
    out().head->arrived.Ring();
  }
  Link& link() const { return *link_; }  // the honest side

 private:
  internal::Fd control_;
  shm::Region region_;
  std::unique_ptr<Link> link_;
};

internal::ChunkHeader HeaderOf(uint64_t sequence, uint32_t bytes, uint32_t crc) {
  return {.payload_bytes = bytes, .sequence = sequence, .tag = {}, .payload_crc32c = crc};
}

TEST(ShmPeer, HandMadeChunkIsTakenWhereItIsRight) {
  auto listener = ListenHere(SmallOptions("server"));
  HandMadePeer peer(*listener);
  std::memcpy(peer.out().slot(2), "123456789", 9);
  // The check value of CRC-32C for these nine bytes (RFC 3720's polynomial).
  peer.Publish(0, 2, HeaderOf(0, 9, 0xe3069283));
  auto chunk = peer.link().Receive(Soon());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(chunk->data()), chunk->size()), "123456789");
  EXPECT_EQ(chunk->memory_kind(), MemoryKind::kShared);
}

struct Nonsense {
  std::string name;
  std::function<void(const HandMadePeer&)> act;
  absl::StatusCode code;
  std::string words;
};

class ShmNonsense : public ::testing::TestWithParam<Nonsense> {};

TEST_P(ShmNonsense, BreaksItsLinkAndNothingElse) {
  auto listener = ListenHere(SmallOptions("server"));
  HandMadePeer peer(*listener);
  GetParam().act(peer);
  absl::Status status;
  while (status.ok()) {
    // Both ways look: the one that finds the nonsense fails the link for both.
    status = peer.link().Borrow(Soon()).status();
    if (status.ok()) status = peer.link().Receive(Deadline::After(absl::Milliseconds(20))).status();
    if (absl::IsDeadlineExceeded(status)) status = absl::OkStatus();
  }
  EXPECT_EQ(status.code(), GetParam().code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().words));
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer \"evil\""));
  // The listener goes on.
  auto client = MakeShmFabric()->Connect(listener->address(), SmallOptions("good"));
  EXPECT_TRUE(client.ok()) << client.status();
}

const Nonsense kNonsense[] = {
    {"SlotOutOfRange", [](const HandMadePeer& p) { p.Publish(0, 4, HeaderOf(0, 0, 0)); },
     absl::StatusCode::kDataLoss, "in slot 4"},
    {"HugeSlotNumber", [](const HandMadePeer& p) { p.Publish(0, ~0U, HeaderOf(0, 0, 0)); },
     absl::StatusCode::kDataLoss, "breaks the link protocol"},
    {"LongerThanItsSlot",
     [](const HandMadePeer& p) { p.Publish(0, 0, HeaderOf(0, 64 * 1024 + 1, 0)); },
     absl::StatusCode::kDataLoss, "65537"},
    {"AnotherSequence", [](const HandMadePeer& p) { p.Publish(0, 0, HeaderOf(7, 0, 0)); },
     absl::StatusCode::kDataLoss, "chunk 7"},
    {"SameSlotTwice",
     [](const HandMadePeer& p) {
       p.Publish(0, 1, HeaderOf(0, 0, 0));
       p.Publish(1, 1, HeaderOf(1, 0, 0));
       EXPECT_EQ(p.link().status(), absl::OkStatus());
       auto held = std::make_shared<absl::StatusOr<Chunk>>(p.link().Receive(Soon()));
       EXPECT_TRUE(held->ok());
       // Taken in while the first is still held.
       EXPECT_FALSE(p.link().Receive(Soon()).ok());
     },
     absl::StatusCode::kFailedPrecondition, "slot"},
    {"DamagedHeader",
     [](const HandMadePeer& p) {
       p.out().entries[0].header = {};
       p.out().entries[0].published.store(1);
     },
     absl::StatusCode::kDataLoss, "header"},
    {"DamagedPayload", [](const HandMadePeer& p) { p.Publish(0, 0, HeaderOf(0, 9, 0xe3069283)); },
     absl::StatusCode::kDataLoss, "CRC32C"},
    {"GivesBackWhatItNeverHad",
     [](const HandMadePeer& p) {
       p.in().freed[0].store(0);
       p.in().head->returned.store(1);
     },
     absl::StatusCode::kFailedPrecondition, "does not hold"},
    {"GivesBackForEver",
     [](const HandMadePeer& p) {
       p.in().freed[0].store(~0U);
       p.in().head->returned.store(~uint64_t{0});
     },
     absl::StatusCode::kFailedPrecondition, "does not hold"},
};

INSTANTIATE_TEST_SUITE_P(All, ShmNonsense, ::testing::ValuesIn(kNonsense),
                         [](const auto& info) { return info.param.name; });

// A wait ends by the bell whether it spins or sleeps, and by its deadline.
TEST(ShmBell, WakesSleepersOfAnyThreadAndKeepsDeadlines) {
  shm::Bell bell{};
  internal::Spinner spinner;
  const uint32_t before = bell.Count();
  EXPECT_FALSE(shm::SpinFor(spinner, bell, before));
  bell.Sleep(before, Deadline::After(absl::Milliseconds(20)));  // returns
  std::thread sleeper([&] {
    while (bell.Count() == before) bell.Sleep(before, Deadline::Infinite());
  });
  while (bell.sleepers.load() == 0) std::this_thread::yield();
  bell.Ring();
  sleeper.join();
  EXPECT_TRUE(shm::SpinFor(spinner, bell, before));
  bell.Sleep(before, Deadline::Infinite());  // rung since: does not sleep
}

}  // namespace
}  // namespace tributary::transport
