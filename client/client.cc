// Checks the options and makes the client.
#include "client/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "client/internal/participant.h"
#include "compression/policy.h"

namespace tributary::client {
namespace {

absl::Status Check(const ClientOptions& options) {
  if (options.endpoints.empty()) {
    return absl::InvalidArgumentError("no endpoints; give at least one \"host:port\"");
  }
  for (const std::string& endpoint : options.endpoints) {
    if (endpoint.find(':') == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("endpoint \"", endpoint, "\" is no \"host:port\""));
    }
  }
  const bool printable = std::none_of(options.id.begin(), options.id.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (options.id.empty() || options.id.size() > 256 || !printable) {
    return absl::InvalidArgumentError(
        absl::StrCat("the id has ", options.id.size(),
                     " bytes or control characters; 1 to 256 printable bytes are allowed"));
  }
  if (options.backoff_min <= absl::ZeroDuration() || options.backoff_max < options.backoff_min) {
    return absl::InvalidArgumentError(
        absl::StrCat("backoff_min ", absl::FormatDuration(options.backoff_min), " and backoff_max ",
                     absl::FormatDuration(options.backoff_max), ": 0 < min <= max is needed"));
  }
  if (options.connect_timeout <= absl::ZeroDuration() || options.upload_attempts == 0) {
    return absl::InvalidArgumentError("connect_timeout and upload_attempts must be positive");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options, Trainer* trainer) {
  RETURN_IF_ERROR(Check(options));
  if (trainer == nullptr) return absl::InvalidArgumentError("a client needs a trainer");
  if (options.epoch == 0) options.epoch = static_cast<uint64_t>(absl::ToUnixMicros(absl::Now()));
  return std::make_unique<internal::Participant>(std::move(options), trainer,
                                                 compression::CodecPolicy::Parse);
}

}  // namespace tributary::client
