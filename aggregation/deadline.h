// How long a round may take, learnt from the rounds before.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "absl/time/time.h"

namespace tributary::aggregation {

struct DeadlineOptions {
  bool adaptive = false;                       // else: always the ceiling
  absl::Duration floor = absl::Seconds(5);     // never less
  absl::Duration ceiling = absl::Minutes(10);  // never more; and until enough is known
  double quantile = 0.8;                       // of the completion times of the last rounds
  double margin = 2;                           // times that
  double participation = 0.75;                 // share of the asked that the pacer wants to be in
  uint32_t window = 5;                         // rounds that are remembered
  uint32_t minimum_times = 3;                  // times known before the first adaptive deadline
};

// What a round is to do about its own soft deadline while nothing is known of earlier rounds: once
// `quantile` of the members asked (the given up left out), `least` at least, are accepted, the
// quantile is known of this round, and the deadline follows: `margin` times the time since its
// beginning, `floor` at least.
struct WithinRound {
  double quantile = 0;  // 0: nothing
  double margin = 2;
  absl::Duration floor = absl::Seconds(5);
  uint32_t least = 10;
};

// deadline = pace * margin * quantile, within floor and ceiling. Members that had not answered when
// their round closed count as slower than any that had: where the quantile falls among them, it is
// not known, and the deadline grows by half. The pacer (after Oort's, Lai et al., OSDI 2021) trades
// speed for participation: each round in which too few were in raises `pace` by a quarter, each
// other lets it sink back, never below 1.
// Not thread-safe; no clock inside. Each tier has its own, fed with its own members' times, so that
// a rack's wait for its slowest does not become the root's measure.
class AdaptiveDeadline {
 public:
  explicit AdaptiveDeadline(const DeadlineOptions& options) : options_(options) {}

  // For the round that begins.
  absl::Duration Next() const;
  // Where Next() does not know, how the round that begins is to find its own.
  WithinRound Within() const;
  // Of a round that has closed: how long each member that was accepted took, and
  // absl::InfiniteDuration() for each that was still awaited. Those that were given up, declined or
  // were refused say nothing about time and are left out.
  void Observe(std::span<const absl::Duration> times);

  double pace() const { return pace_; }

 private:
  DeadlineOptions options_;
  std::deque<std::vector<absl::Duration>> rounds_;
  absl::Duration last_ = absl::InfiniteDuration();  // what the last quantile gave, before limits
  double pace_ = 1;
};

// A child aggregator's deadline within its parent's: what is left, less the time that its
// forwarding takes, but at least half.
inline absl::Duration ChildDeadline(absl::Duration left, absl::Duration forwarding) {
  return left - std::min(forwarding, left / 2);
}

}  // namespace tributary::aggregation
