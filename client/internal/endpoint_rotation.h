// Which endpoint to try next, and when: pure arithmetic on times that the caller gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "base/philox.h"

namespace tributary::client::internal {

// The wait before attempt `failures` + 1, failures >= 1: minimum * 2^(failures - 1), at most
// `maximum`, times a factor in [0.5, 1) from `random`, so that clients that lost the same
// aggregator do not come back in step.
absl::Duration JitteredBackoff(absl::Duration minimum, absl::Duration maximum, uint32_t failures,
                               PhiloxStream* random);

// Each endpoint has a time before which it is not tried again. The next one is that which may be
// tried earliest; of equals, the one that follows in the list. Not thread-safe.
class EndpointRotation {
 public:
  // `count` > 0 endpoints; `key` seeds the jitter.
  EndpointRotation(size_t count, absl::Duration backoff_min, absl::Duration backoff_max,
                   uint64_t key);

  size_t current() const { return current_; }
  // The current endpoint took us in: its failures are forgotten.
  void Succeeded() { endpoints_[current_].failures = 0; }
  // The current endpoint failed at `now`, or sent us away for `retry_after`. Moves on, and returns
  // the time at which to try the endpoint that is now current.
  absl::Duration Next(absl::Duration now, absl::Duration retry_after);

 private:
  struct Endpoint {
    uint32_t failures = 0;
    absl::Duration not_before = -absl::InfiniteDuration();
  };
  std::vector<Endpoint> endpoints_;
  absl::Duration backoff_min_;
  absl::Duration backoff_max_;
  PhiloxStream random_;
  size_t current_ = 0;
};

}  // namespace tributary::client::internal
