// What a RoCE link says of a request that failed, over fake verbs: the cause, told from what
// follows it, with all that is needed to look for it. And where requests go while all is well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/transport/roce_fixture.h"

namespace tributary::transport {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;

// The immediate of a probe, which is no chunk's.
constexpr uint32_t kProbe = 0xffffffff;

// The number of a chunk, as transport/roce/README.md has it: sequence mod 2^22 << 10 | slot.
uint64_t SequenceIn(uint32_t immediate) { return immediate >> 10; }

class RoceCauses : public Roce {
 protected:
  absl::Status ClientError() {
    absl::Status status;
    while (status.ok()) status = client_->Receive(Soon()).status();
    return status;
  }
  // The queue pair that was given chunk `sequence`; the client's, where it alone sends.
  uint32_t PairOfChunk(uint64_t sequence) const {
    for (const FakeVerbs::Posted& one : verbs_->posted()) {
      if (one.opcode == IBV_WR_RDMA_WRITE_WITH_IMM && one.immediate != kProbe &&
          SequenceIn(one.immediate) == sequence) {
        return one.pair;
      }
    }
    ADD_FAILURE() << "chunk " << sequence << " was not posted";
    return 0;
  }
};

// A status, how the device comes to it, and what is to be read of it.
struct Cause {
  int status;
  const char* words;  // of ibv_wc_status_str
  const char* hint;
  void (*order)(FakeVerbs&);
};
void PrintTo(const Cause& cause, std::ostream* out) { *out << "status " << cause.status; }

class RoceCausesOf : public RoceCauses, public ::testing::WithParamInterface<Cause> {};

// The second chunk, so that it is not the first queue pair that any error would name.
TEST_P(RoceCausesOf, IsToldOnBothSidesWithPeerQueuePairStatusAndHint) {
  const Cause& cause = GetParam();
  ASSERT_EQ(Link(), absl::OkStatus());
  ASSERT_EQ(SendOne(1, 5000), absl::OkStatus());
  ExpectOne(1, 5000);
  cause.order(*verbs_);
  ASSERT_EQ(SendOne(2, 5000), absl::OkStatus());
  const absl::Status status = ClientError();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  const std::string number = absl::StrCat(PairOfChunk(1));
  EXPECT_THAT(Words(status),
              AllOf(HasSubstr("peer \"rack\" (127.0.0.1:"),
                    ContainsRegex(absl::StrCat("queue pair 1 \\(", number, " to [0-9]+\\)")),
                    HasSubstr(absl::StrCat("a send failed: ", cause.words, " (status ",
                                           cause.status, ", vendor 0); ")),
                    HasSubstr(cause.hint)));
  EXPECT_EQ(client_->Borrow(Soon()).status(), status);  // it sticks
  const absl::Status told = FirstError();
  EXPECT_EQ(told.code(), absl::StatusCode::kUnavailable) << told;
  EXPECT_THAT(Words(told), AllOf(HasSubstr("ended the link: "),
                                 HasSubstr(absl::StrCat("(status ", cause.status, ", "))));
}

INSTANTIATE_TEST_SUITE_P(
    Statuses, RoceCausesOf,
    ::testing::Values(
        Cause{4, "local protection error", "our device refused our own local key or address",
              [](FakeVerbs& verbs) { verbs.ForgetNextLocalKey(); }},
        Cause{10, "remote access error", "the peer's device refused the remote key or the address",
              [](FakeVerbs& verbs) { verbs.RefuseNextWrite(); }},
        Cause{12, "transport retry counter exceeded",
              "the path drops large packets (MTU) or whole bursts (PFC, ECN), UDP port 4791 is "
              "filtered, or the GID is of another network",
              [](FakeVerbs& verbs) { verbs.DropLargerThan(1000); }},
        Cause{13, "RNR retry counter exceeded", "the peer had no receive request posted",
              [](FakeVerbs& verbs) { verbs.FindNoNextReceive(); }}),
    [](const auto& info) { return absl::StrCat("Status", info.param.status); });

// Devices promise no order between what was flushed and what it was flushed for.
TEST_F(RoceCauses, FlushesThatComeBeforeTheirCauseDoNotHideIt) {
  ASSERT_EQ(Link(), absl::OkStatus());
  verbs_->FlushBeforeTheCause(true);
  verbs_->RefuseNextWrite();
  ASSERT_EQ(SendOne(1, 5000), absl::OkStatus());
  const absl::Status status = ClientError();
  const std::vector<ibv_wc_status> polled = verbs_->polled_failures();
  ASSERT_FALSE(polled.empty());
  EXPECT_EQ(polled.front(), IBV_WC_WR_FLUSH_ERR);
  EXPECT_THAT(polled, ::testing::Contains(IBV_WC_REM_ACCESS_ERR).Times(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Words(status),
              AllOf(HasSubstr("peer \"rack\""), HasSubstr("queue pair 0"),
                    HasSubstr("remote access error (status 10"), Not(HasSubstr("status 5"))));
}

// In both directions at once, so that each side's grants go between its chunks.
TEST_F(RoceCauses, ChunkIGoesByQueuePairIModNWhateverElseIsSentBetween) {
  constexpr uint64_t kChunks = 30;
  ASSERT_EQ(Link(), absl::OkStatus());  // three lanes
  for (uint64_t i = 0; i < kChunks; ++i) {
    for (class Link* const from : {client_.get(), server_.get()}) {
      auto chunk = from->Borrow(Soon());
      ASSERT_TRUE(chunk.ok()) << chunk.status();
      chunk->set_size(1000);
      ASSERT_EQ(from->Send(std::move(*chunk)), absl::OkStatus());
    }
    for (class Link* const to : {client_.get(), server_.get()}) {
      ASSERT_TRUE(to->Receive(Soon()).ok());
    }
  }
  std::map<uint32_t, std::vector<uint64_t>> chunks;  // by the queue pair's number
  std::set<uint32_t> granting, probed;
  for (const FakeVerbs::Posted& one : verbs_->posted()) {
    if (one.opcode == IBV_WR_SEND_WITH_IMM) granting.insert(one.pair);
    if (one.opcode != IBV_WR_RDMA_WRITE_WITH_IMM) continue;
    if (one.immediate == kProbe) {
      probed.insert(one.pair);
    } else {
      chunks[one.pair].push_back(SequenceIn(one.immediate));
    }
  }
  std::vector<uint64_t> each[3];
  for (uint64_t i = 0; i < kChunks; ++i) each[i % 3].push_back(i);
  std::set<uint32_t> firsts, all;
  size_t sides[3] = {0, 0, 0};
  for (const auto& [pair, carried] : chunks) {
    ASSERT_EQ(carried, each[carried.front() % 3]) << "queue pair " << pair;
    ++sides[carried.front() % 3];
    if (carried.front() == 0) firsts.insert(pair);
    all.insert(pair);
  }
  EXPECT_THAT(sides, ElementsAre(2u, 2u, 2u));
  EXPECT_EQ(probed, all);
  EXPECT_EQ(granting, firsts);  // all grants of a side go by its queue pair 0
}

TEST_F(RoceCauses, PortWhoseMessagesAreShorterThanAChunkIsRefusedWithTheNumbers) {
  // A chunk of 64 KiB and 64 bytes for its header.
  verbs_->port_attributes.max_msg_sz = 65599;
  const absl::Status status = Link();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Words(status), HasSubstr("port 1 sends at most 65599 bytes in a message, a chunk "
                                       "takes 65600; lower chunk_bytes"));
  listener_.reset();  // its threads ask the port too
  verbs_->port_attributes.max_msg_sz = 65600;
  ASSERT_EQ(Link(), absl::OkStatus());
  ASSERT_EQ(SendOne(9, 65536), absl::OkStatus());
  ExpectOne(9, 65536);
}

}  // namespace
}  // namespace tributary::transport
