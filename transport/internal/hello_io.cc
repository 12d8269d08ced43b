// Says hello and reads the answer.
#include "transport/internal/hello_io.h"

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"
#include "transport/internal/posix_io.h"

namespace tributary::transport::internal {

absl::StatusOr<v1::LinkHelloReply> ExchangeHello(int fd, const v1::LinkHello& hello,
                                                 const Deadline& deadline) {
  // A peer that refuses may close before it has read all: its words count, not our write error.
  const absl::Status written = WriteAll(fd, EncodeHello(hello), deadline);
  std::array<uint8_t, kHelloPrefixBytes> prefix;
  const absl::Status read = ReadAll(fd, prefix.data(), prefix.size(), deadline);
  if (!read.ok()) return written.ok() ? read : written;
  absl::StatusOr<size_t> length = DecodePrefix(prefix);
  if (!length.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("what answers there is no Tributary link port: ", length.status().message()));
  }
  std::vector<uint8_t> message(*length);
  RETURN_IF_ERROR(ReadAll(fd, message.data(), message.size(), deadline));
  return DecodeReply(message);
}

absl::Status CheckAnswer(const v1::LinkHello& theirs, const LinkOptions& ours,
                         absl::string_view transport) {
  RETURN_IF_ERROR(CheckControlHello(theirs));
  RETURN_IF_ERROR(CheckFit(theirs, ours, transport));
  if (theirs.lanes() <= ours.lanes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the peer wants ", theirs.lanes(),
                                                    " lanes, more than the ", ours.lanes,
                                                    " offered; it breaks the link protocol"));
}

}  // namespace tributary::transport::internal
