// The connecting side of a link whose acceptor speaks another version: told in words, and at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/transport/harness.h"
#include "tests/transport/silent_listener.h"
#include "transport/internal/hello.h"
#include "transport/internal/posix_io.h"

namespace tributary::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Answers one hello, read whole, with these bytes; then waits for the other side to go.
void AnswerOne(int listening, const std::string& answer) {
  const auto limit = Deadline::After(absl::Seconds(60));
  ASSERT_TRUE(internal::PollOne(listening, POLLIN, limit));
  const internal::Fd fd(accept4(listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  std::array<uint8_t, internal::kHelloPrefixBytes> prefix;
  ASSERT_TRUE(internal::ReadAll(fd.get(), prefix.data(), prefix.size(), limit).ok());
  std::vector<uint8_t> hello(*internal::DecodePrefix(prefix));
  ASSERT_TRUE(internal::ReadAll(fd.get(), hello.data(), hello.size(), limit).ok());
  ASSERT_TRUE(internal::WriteAll(fd.get(), answer, limit).ok());
  uint8_t waste = 0;
  while (internal::ReadAll(fd.get(), &waste, 1, limit).ok()) {
  }
}

struct Answer {
  std::string name;
  std::string bytes;
  std::string words;  // of the peer's, to be passed on
};
void PrintTo(const Answer& answer, std::ostream* out) { *out << answer.name; }

std::string Message(const std::string& bytes) {
  return "TRIBLINK" + std::string(1, static_cast<char>(bytes.size())) + std::string(7, '\0') +
         bytes;
}

// As a later version might answer, byte by byte: field 1 is its version, 3 its words.
std::vector<Answer> Answers() {
  const std::string version("\x08\x02", 2);
  const std::string words = "version 1 is too old";
  const std::string told = "\x1a" + std::string(1, static_cast<char>(words.size())) + words;
  return {{"Accepts", Message(version + std::string("\x22\x02\x08\x02", 4)), ""},
          {"SaysItsVersionAlone", Message(version), ""},
          {"HasAnotherPlaceForItsHello", Message(version + std::string("\x2a\x03xyz", 5)), ""},
          {"Refuses", Message(version + std::string("\x10\x09", 2) + told), words}};
}

class OtherVersion : public ::testing::TestWithParam<std::tuple<std::string, Answer>> {};

TEST_P(OtherVersion, OfTheAcceptorIsNamedBesideOursWithTheMend) {
  const auto& [kind, answer] = GetParam();
  const auto harness = MakeHarness(kind);
  const SilentListener by_name;
  const SilentPort by_port;
  const bool shm = kind == "shm";
  const std::string address = shm ? by_name.address() : by_port.address();
  LinkOptions options = SmallOptions("rack");
  options.connect_timeout = absl::Seconds(50);  // not what ends it: that has another code
  std::thread acceptor(AnswerOne, shm ? by_name.fd() : by_port.fd(), answer.bytes);
  const absl::Status status = harness->client().Connect(address, options).status();
  acceptor.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("link to " + address + ": "),
                    HasSubstr("the peer speaks version 2 of the link protocol, this side version "
                              "1; run the same release of tributary on both"),
                    HasSubstr(answer.words)));
}

INSTANTIATE_TEST_SUITE_P(Kinds, OtherVersion,
                         ::testing::Combine(::testing::Values("tcp", "shm", "roce"),
                                            ::testing::ValuesIn(Answers())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace tributary::transport
