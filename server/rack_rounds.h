// A rack's own rounds between two of its parent's (HierFAVG, aggregation/local_rounds.h): which one
// runs, on which model, and what all of them come to.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aggregation/optimizer.h"
#include "server/collector.h"
#include "server/model_version.h"

namespace tributary::server {

// Rounds as children of the rack count them: of the parent's round g with k rounds of the rack,
// (g - 1) k + 1 to g k. For an EVALUATE task g k: what the last of them made is over.
uint64_t OwnRoundNumber(const v1::RoundSpec& parent, uint64_t own);

// Of one TRAIN round of the parent, with rack_rounds above 1. Not thread-safe: Step may run on
// another thread, while nothing else is called.
class RackRounds {
 public:
  // `parent`: its spec; `base`: the model that it names. `deadline`: from now, for all rounds.
  static absl::StatusOr<std::unique_ptr<RackRounds>> Create(
      const v1::RoundSpec& parent, const aggregation::Grid& grid,
      std::shared_ptr<const ModelVersion> base, absl::Duration now, absl::Duration deadline,
      int threads);

  uint64_t own() const { return own_; }  // the one that runs, from 1
  uint64_t rounds() const { return parent_.rack_rounds(); }
  bool last() const { return own_ >= rounds(); }
  // For the collector: the parent's, with own numbers, base, and an even share of the time left.
  v1::RoundSpec Spec(absl::Duration now) const;
  const std::shared_ptr<const ModelVersion>& model() const { return model_; }

  // The round that runs has closed with this.
  void Take(CollectedRound round);
  // Then: moves the model by the mean of the round's sum, where somebody is in it; after the last
  // round the sum is replaced by that of all rounds. Takes as long as two passes over the model.
  absl::Status Step(aggregation::ExactAccumulator* sum);
  void Next() { ++own_; }
  // What the parent is told: the last round's figures, but contributors of all rounds, their counts
  // of refusals and bytes, and the weight of the weightiest round (the same in each, as long as the
  // same clients take part).
  CollectedRound Merged() const;

 private:
  RackRounds(const v1::RoundSpec& parent, const aggregation::Grid& grid,
             std::shared_ptr<const ModelVersion> base, absl::Duration until)
      : parent_(parent), grid_(grid), base_(base), model_(std::move(base)), until_(until) {}

  const v1::RoundSpec parent_;
  const aggregation::Grid grid_;
  const std::shared_ptr<const ModelVersion> base_;
  std::shared_ptr<const ModelVersion> model_;
  const absl::Duration until_;
  std::unique_ptr<aggregation::ServerOptimizer> mean_;
  uint64_t own_ = 1;
  CollectedRound round_;  // of the last closed, with what Merged says in place of its own
  aggregation::RoundResult result_;  // the last closed round's own
  std::set<std::string> contributors_, children_;
  uint64_t weight_ = 0;
};

}  // namespace tributary::server
