// The collector's choice of who takes part in a round, and on what terms.
#include <numeric>

#include "aggregation/cohort.h"
#include "server/collector.h"

namespace tributary::server {

aggregation::RoundMachine::Member Collector::MemberOf(const std::string& id,
                                                      const Child& child) const {
  return {.id = id,
          .aggregator = child.aggregator,
          .epoch = child.epoch,
          .preference = stragglers_.Preference(id),
          .owes = child.owes,
          .settled = child.settled,
          .clients = child.aggregator ? child.clients : 0};
}

aggregation::RoundPlan Collector::PlanOf(const v1::RoundSpec& spec, uint32_t minimum) const {
  const bool train = spec.kind() == v1::TRAIN;
  aggregation::RoundPlan plan;
  plan.round = spec.round();
  plan.seed = spec.seed();
  plan.cohort_fraction = train ? spec.cohort_fraction() : 1;
  if (train && spec.cohort_count() > 0) {
    plan.cohort_count = shares_.at("").count;
    plan.cohort_fraction = 0;  // a share of nothing is nobody
  }
  plan.target = train ? spec.target() : 0;
  plan.quorum = spec.quorum();
  plan.minimum = minimum;
  plan.maximum = train ? spec.maximum() : 0;
  plan.deadline = absl::Milliseconds(spec.deadline_ms());
  plan.max_weight = spec.admit_weight() > 0 ? spec.admit_weight() : grid_.max_weight;
  plan.max_client_weight = spec.max_client_weight();
  // The tiers below have to be done, and to have forwarded, before this one is.
  plan.last_call = absl::Milliseconds(spec.stragglers().supplement_wait_ms());
  if (MayClaim()) plan.last_call = plan.last_call * 0.4;
  plan.reopens = MayClaim();
  if (train) {
    plan.soft_deadline = stragglers_.soft_deadline();
    plan.within = stragglers_.within();
    plan.enough = std::max<uint64_t>(1, spec.minimum());
    plan.late = stragglers_.late();
    plan.max_staleness = stragglers_.max_staleness();
  } else {
    plan.soft_deadline = stragglers_.evaluation_deadline();
    plan.within = stragglers_.evaluation_within();
  }
  return plan;
}

// The spec's count, target, minimum and maximum, split by the clients behind each child as they are
// now.
void Collector::SplitCohort() {
  shares_.clear();
  std::vector<std::string> names = {""};
  std::vector<uint64_t> sizes = {0};
  std::map<std::string, uint64_t> aggregators;
  for (const auto& [id, child] : children_) {
    if (child.aggregator) {
      aggregators[id] = child.clients;
    } else {
      ++sizes[0];
    }
  }
  for (const auto& [id, clients] : aggregators) {
    names.push_back(id);
    sizes.push_back(clients);
  }
  const auto counts = aggregation::SplitCount(spec_.cohort_count(), sizes);
  const auto targets = aggregation::SplitCount(spec_.target(), sizes);
  const auto minimums = aggregation::SplitCount(spec_.minimum(), sizes);
  // A sum with more clients than there is room for is refused whole: so the racks' parts of a
  // maximum never add up to more. Of what is left over each has the same, and who may still come.
  const auto maximums = aggregation::SplitCount(spec_.maximum(), sizes);
  const uint64_t taken = std::accumulate(maximums.begin(), maximums.end(), uint64_t{0});
  spare_maximum_ = (spec_.maximum() - taken) / (names.size() + 1);
  for (size_t i = 0; i < names.size(); ++i) {
    shares_[names[i]] = {counts[i], targets[i], minimums[i], maximums[i] + spare_maximum_};
  }
  // Where fewer are here than are wanted, those who still come are asked here.
  if (!aggregators.empty() && sizes[0] == 0) return;
  const uint64_t given = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  shares_[""].count += spec_.cohort_count() - given;
}

void Collector::TakeShare(const std::string& id, v1::RoundSpec* spec) const {
  const auto own = shares_.find(id);
  const Shares share = own == shares_.end() ? Shares{.maximum = spare_maximum_} : own->second;
  const auto nobody = [spec] {
    spec->set_cohort_count(0);
    spec->set_cohort_fraction(0);
  };
  // One that joined since has no share of a fixed count: it sits this round out.
  if (spec_.cohort_count() > 0) {
    nobody();
    spec->set_cohort_count(share.count);
    spec->set_target(share.target);
  }
  // What of the round's need is its, before which it must not be in a hurry.
  spec->set_minimum(static_cast<uint32_t>(std::max<uint64_t>(1, share.minimum)));
  if (spec_.maximum() == 0) return;
  spec->set_maximum(static_cast<uint32_t>(share.maximum));
  if (share.maximum == 0) nobody();  // where 0 is no limit
}

}  // namespace tributary::server
