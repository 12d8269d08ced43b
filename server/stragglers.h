// A node's dealings with the slow: its own deadline, who is degraded, and what it reports of both.
//
// Everything runs on the node's event loop.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "aggregation/deadline.h"
#include "aggregation/pace.h"
#include "aggregation/participation.h"
#include "aggregation/round.h"
#include "server/config.h"
#include "tributary/v1/model.pb.h"

namespace tributary::server {

// How a round was waited for; for rounds.jsonl.
struct WaitReport {
  double deadline = 0;                // seconds, as this node set it
  std::string closed_by;              // "answers", "target", "maximum", "deadline", "told"
  uint64_t asked = 0;                 // members that got a task
  uint64_t gone = 0;                  // of them, given up
  uint64_t unanswered = 0;            // of them, awaited to the end
  uint64_t carried = 0;               // updates of earlier rounds that count in this one
  std::vector<std::string> degraded;  // members that are slow now, ascending
  uint64_t offers = 0;                // uploads that waited for a grant
  uint64_t unused_grants = 0;         // taken back: the upload did not begin in time
};

// The policy as the root's config has it.
v1::Stragglers StragglersProto(const StragglerConfig& config, const CohortConfig& cohort);

class Stragglers {
 public:
  Stragglers() = default;

  // Before each TRAIN round: its soft deadline here, the spec's or less.
  void BeginRound(const v1::RoundSpec& spec);
  absl::Duration soft_deadline() const { return deadline_; }
  aggregation::WithinRound within() const { return adaptive_.Within(); }
  aggregation::Late late() const { return late_; }
  uint64_t max_staleness() const { return max_staleness_; }
  double Preference(const std::string& id) const { return pace_.Preference(id); }

  // What this node's clients' updates are folded with, where the run weighs by the inverse of how
  // often they are in; else `weight`. Never more than `weight`, never less than 1.
  int64_t Weight(const std::string& id, int64_t weight) const;
  const aggregation::Participation& participation() const { return participation_; }
  const aggregation::PaceTracker& pace() const { return pace_; }

  // The share of its steps that it is asked for in its next task; 1: all.
  double Work(const std::string& id) const;
  // How long it may train, from when it has its task, so that its update is in while the round is
  // open; 0: it is not told. `began`: since the round began; `left`: of it at most.
  double Seconds(const std::string& id, absl::Duration began, absl::Duration left) const;
  // These of who takes part in the round alone. Of asynchronous runs they do nothing: no round ends
  // that would forget who is gone.
  void TaskSent(const std::string& id, absl::Duration now);
  void Downloaded(const std::string& id, absl::Duration took);  // the model
  // Its update is ready, or its upload or partial sum begins; the last of several.
  void OfferSeen(const std::string& id, absl::Duration now);
  void Whole(const std::string& id, uint64_t bytes, bool aggregator, absl::Duration now);
  // The round has closed: learns from its times, and names in the log who became slow or well.
  WaitReport EndRound(const aggregation::RoundMachine& machine, absl::Duration elapsed);

  // Evaluations have a soft deadline of their own, learnt from themselves: what is slow there must
  // not hold up the next round. Adaptive as rounds are, and where there are none (asynchronous).
  absl::Duration evaluation_deadline() const { return evaluations_.Next(); }
  aggregation::WithinRound evaluation_within() const { return evaluations_.Within(); }
  void EndEvaluation(const aggregation::RoundMachine& machine, absl::Duration elapsed);

 private:
  struct Mark {
    absl::Duration task, offer, download;
    double work = 1;
  };
  v1::Stragglers policy_;
  bool measures_ = true;
  aggregation::Late late_ = aggregation::Late::kDrop;
  uint64_t max_staleness_ = 0;
  absl::Duration deadline_;
  aggregation::AdaptiveDeadline adaptive_{{}};
  aggregation::AdaptiveDeadline evaluations_{
      {.adaptive = true, .ceiling = absl::InfiniteDuration()}};
  aggregation::PaceTracker pace_{{}};
  aggregation::Participation participation_;      // of this node's clients
  absl::flat_hash_map<std::string, Mark> marks_;  // of this round
};

}  // namespace tributary::server
