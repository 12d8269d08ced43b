// Backoff and the order of endpoints.
#include "client/internal/endpoint_rotation.h"

#include <algorithm>

namespace tributary::client::internal {

absl::Duration JitteredBackoff(absl::Duration minimum, absl::Duration maximum, uint32_t failures,
                               PhiloxStream* random) {
  const uint32_t doublings = std::min<uint32_t>(failures > 0 ? failures - 1 : 0, 30);
  const absl::Duration full = std::min(maximum, minimum * (int64_t{1} << doublings));
  return full * (0.5 + 0.5 * random->NextDouble());
}

EndpointRotation::EndpointRotation(size_t count, absl::Duration backoff_min,
                                   absl::Duration backoff_max, uint64_t key)
    : endpoints_(count), backoff_min_(backoff_min), backoff_max_(backoff_max), random_(key) {}

absl::Duration EndpointRotation::Next(absl::Duration now, absl::Duration retry_after) {
  Endpoint& failed = endpoints_[current_];
  ++failed.failures;
  failed.not_before = now + std::max(retry_after, JitteredBackoff(backoff_min_, backoff_max_,
                                                                  failed.failures, &random_));
  const auto due = [&](size_t i) { return std::max(endpoints_[i].not_before, now); };
  const size_t left = current_;
  current_ = (left + 1) % endpoints_.size();
  for (size_t step = 2; step <= endpoints_.size(); ++step) {
    const size_t candidate = (left + step) % endpoints_.size();
    if (due(candidate) < due(current_)) current_ = candidate;
  }
  // A free endpoint is tried almost at once; the spread keeps a thousand orphans from coming as
  // one.
  const absl::Duration spread = backoff_min_ * 0.5 * random_.NextDouble();
  return std::max(endpoints_[current_].not_before, now + spread);
}

}  // namespace tributary::client::internal
