// Steps of a rack's own model.
#include "server/rack_rounds.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "aggregation/local_rounds.h"
#include "base/status.h"

namespace tributary::server {
namespace {

// Versions of models that are a rack's own: beyond any of a root's, which counts rounds.
constexpr uint64_t kOwnVersions = uint64_t{1} << 40;

}  // namespace

uint64_t OwnRoundNumber(const v1::RoundSpec& parent, uint64_t own) {
  const uint64_t k = std::max<uint64_t>(parent.rack_rounds(), 1);
  if (parent.kind() != v1::TRAIN || parent.round() == 0) return parent.round() * k;
  return (parent.round() - 1) * k + own;
}

absl::StatusOr<std::unique_ptr<RackRounds>> RackRounds::Create(
    const v1::RoundSpec& parent, const aggregation::Grid& grid,
    std::shared_ptr<const ModelVersion> base, absl::Duration now, absl::Duration deadline,
    int threads) {
  auto layout = base->layout;
  std::unique_ptr<RackRounds> rounds(new RackRounds(parent, grid, std::move(base), now + deadline));
  ASSIGN_OR_RETURN(rounds->mean_,
                   aggregation::MakeServerOptimizer({.threads = threads}, std::move(layout)));
  return rounds;
}

v1::RoundSpec RackRounds::Spec(absl::Duration now) const {
  v1::RoundSpec spec = parent_;
  spec.clear_rack_rounds();
  spec.set_round(OwnRoundNumber(parent_, own_));
  spec.set_base_version(model_->version);
  spec.set_base_sha256(model_->sha256);
  const absl::Duration left = std::max(until_ - now, absl::ZeroDuration());
  const absl::Duration share = left / static_cast<int64_t>(rounds() - own_ + 1);
  spec.set_deadline_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(share)));
  return spec;
}

void RackRounds::Take(CollectedRound round) {
  result_ = round.result;
  contributors_.insert(result_.contributors.begin(), result_.contributors.end());
  children_.insert(result_.children.begin(), result_.children.end());
  weight_ = std::max(weight_, result_.weight);
  // Added up over the rounds; all else is the last one's, of metrics the last that has some.
  for (const auto& [reason, count] : round_.result.rejected) round.result.rejected[reason] += count;
  round.result.late += round_.result.late;
  round.bytes.from_clients += round_.bytes.from_clients;
  round.bytes.from_aggregators += round_.bytes.from_aggregators;
  round.bytes.below += round_.bytes.below;
  round.bytes.AddModels(round_.bytes);
  round.seconds += round_.seconds;
  if (round.metrics.empty()) round.metrics = round_.metrics;
  round_ = std::move(round);
}

absl::Status RackRounds::Step(aggregation::ExactAccumulator* sum) {
  if (result_.clients > 0) {
    std::vector<uint8_t> next(model_->bytes.size());
    RETURN_IF_ERROR(
        mean_->Apply({.sum = *sum, .grid = grid_, .weight = result_.weight}, model_->bytes, next));
    mean_->Commit();
    model_ = ModelVersion::Make(kOwnVersions + OwnRoundNumber(parent_, own_), model_->layout,
                                std::move(next));
  }
  if (!last() || contributors_.empty()) return absl::OkStatus();
  return aggregation::ReplaceByDifference(base_->bytes, model_->bytes, weight_, grid_, sum);
}

CollectedRound RackRounds::Merged() const {
  CollectedRound merged = round_;
  merged.result.contributors.assign(contributors_.begin(), contributors_.end());
  merged.result.children.assign(children_.begin(), children_.end());
  merged.result.clients = contributors_.size();
  merged.result.weight = weight_;
  merged.result.success = !contributors_.empty();
  return merged;
}

}  // namespace tributary::server
