// What must hold, from books that the machines do not see.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/aggregation/sim/scenario.h"

namespace tributary::sim {

Scenario::Scenario(uint64_t seed, std::map<std::string, int>* seen, Flaw flaw,
                   std::function<bool()> failed)
    : seed_(seed),
      flaw_(flaw),
      failed_(failed ? std::move(failed) : [] { return ::testing::Test::HasFailure(); }),
      world_(seed, seen) {}

uint64_t Scenario::Run() {
  Build();
  for (auto& edge : edges_) {
    world_.Later(world_.Seconds(2), [this, &e = *edge] { Join(e); });
  }
  for (auto& node : nodes_) {
    if (node->parent == nullptr) continue;
    world_.Later(world_.Seconds(1), [this, &n = *node] { JoinParent(n); });
  }
  world_.At(root(), world_.Seconds(3), [this] { NextRound(); });
  ScheduleFaults();
  EXPECT_TRUE(world_.Run([this] {
    CheckAll();
    return failed_();
  })) << "it spins";
  if (!failed_()) CheckEnd();
  return world_.trace();
}

const Sums& Scenario::ValueOf(const UpdateKey& key) {
  const auto [it, fresh] = values_.try_emplace(key);
  if (!fresh) return it->second;
  for (size_t i = 0; i < it->second.size(); ++i) {
    it->second[i] = SeededHash(seed_, "value", absl::StrCat(key.first, "/", key.second, "/", i));
  }
  return it->second;
}

// By hand: the weight, or a carried one's share of it, rounded once.
uint64_t Scenario::WeightOf(const UpdateKey& key, uint64_t round) const {
  const auto weight = static_cast<double>(clients_.at(key.first)->weight);
  const double late = static_cast<double>(round - key.second);
  return static_cast<uint64_t>(std::max(1.0, std::nearbyint(weight / std::sqrt(1 + late))));
}

// After every event, whatever it was.
void Scenario::CheckAll() {
  for (auto& node : nodes_) {
    if (!node->machine) {
      EXPECT_EQ(node->budget->used(), 0u) << node->id << " has no round, and holds memory";
      continue;
    }
    Check(*node);
    if (node->ledger_checked != node->ledger_changes) CheckSums(*node);
    node->ledger_checked = node->ledger_changes;
  }
  EXPECT_GE(version_, newest_version_) << "rounds go back";
  EXPECT_EQ(version_, committed_round_);
  newest_version_ = version_;
  EXPECT_EQ(model_, model_by_books_)
      << "version " << version_ << " is not the sum over the contributors that it names";
}

// What has been counted so far, worked out anew.
void Scenario::CheckSums(Node& node) {
  std::vector<std::string> named;
  uint64_t weight = 0;
  Sums sums{};
  for (const auto& [key, w] : node.ledger.updates) {
    EXPECT_EQ(w, WeightOf(key, node.plan.round)) << key.first;
    named.push_back(key.first);
    weight += w;
    const Sums& value = ValueOf(key);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += w * value[i];
  }
  std::sort(named.begin(), named.end());
  EXPECT_EQ(node.machine->Result().contributors, named) << node.id;
  EXPECT_EQ(node.machine->weight(), weight) << node.id << ": the contributors' weights are not W";
  EXPECT_EQ(node.ledger.sums, sums) << node.id << ": the sum is not that of its contributors";
}

void Scenario::Check(const Node& node) {
  const RoundMachine& machine = *node.machine;
  EXPECT_EQ(node.armed, machine.open() && !node.finished) << node.id << ": a wait without a timer";
  EXPECT_EQ(node.closed, machine.closed() ? 1 : 0) << node.id;
  if (machine.open()) {
    EXPECT_LE(*machine.NextTimer(), std::max(node.deadline_at, world_.now())) << node.id;
    // A timer that is late may have been set anew by an event meanwhile, and be late again.
    const absl::Duration latest =
        std::max(node.deadline_at, node.paused_until) + absl::Seconds(2 * lateness_);
    EXPECT_LE(world_.now(), latest) << node.id << " hangs";
  } else {
    // Only folds hold a close up, and each of them ends.
    EXPECT_EQ(machine.closed(), node.attempts.empty()) << node.id;
    for (const auto& [ticket, attempt] : node.attempts) EXPECT_TRUE(attempt.folding) << node.id;
  }
  uint64_t reserved = 0;
  for (const auto& [ticket, attempt] : node.attempts) reserved += attempt.reserved;
  EXPECT_EQ(node.budget->used(), reserved) << node.id << ": memory that nobody holds";
  EXPECT_LE(node.budget->used(), node.budget->limit()) << node.id;
  EXPECT_EQ(machine.weight(), node.ledger.weight) << node.id;
  EXPECT_LE(node.held_weight, node.plan.max_weight) << node.id;
  if (node.plan.maximum > 0) {
    EXPECT_LE(node.held_clients, node.plan.maximum) << node.id;
  }
}

void Scenario::CheckClosed(const Node& node) {
  const aggregation::RoundResult result = node.machine->Result();
  std::set<std::string> contributors;
  uint64_t weight = 0;
  Sums sums{};
  for (const auto& [key, w] : node.ledger.updates) {
    EXPECT_TRUE(contributors.insert(key.first).second) << key.first << " twice in " << node.id;
    EXPECT_FALSE(node.first.updates.contains(key)) << key.first << " in both sums of " << node.id;
    EXPECT_LE(key.second, node.plan.round);
    if (node.plan.late != aggregation::Late::kCarry) {
      EXPECT_EQ(key.second, node.plan.round);
    }
    EXPECT_LE(node.plan.round - key.second, node.plan.max_staleness);
    EXPECT_EQ(w, WeightOf(key, node.plan.round)) << key.first;
    if (node.plan.cohort_count == 0) {
      EXPECT_TRUE(aggregation::InCohort(seed_, key.second, key.first, base_plan_.cohort_fraction));
    }
    weight += w;
    const Sums& value = ValueOf(key);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += w * value[i];
  }
  EXPECT_EQ(std::set<std::string>(result.contributors.begin(), result.contributors.end()),
            contributors)
      << node.id;
  EXPECT_EQ(result.contributors.size(), contributors.size());
  EXPECT_EQ(result.clients, contributors.size()) << node.id;
  EXPECT_EQ(result.weight, weight) << node.id << ": the contributors' weights are not W";
  EXPECT_EQ(node.ledger.sums, sums) << node.id << ": the sum is not that of its contributors";
  EXPECT_LE(result.weight, node.plan.max_weight) << node.id;
  EXPECT_EQ(result.success, result.clients >= node.plan.minimum) << node.id;
  EXPECT_EQ(node.budget->used(), 0u) << node.id << " has closed, and holds memory";
}

void Scenario::CheckCommit(const Node& root) {
  EXPECT_GT(root.plan.round, committed_round_) << "rounds go back";
  EXPECT_EQ(root.base, version_) << "it was trained on another model than it is applied to";
  EXPECT_FALSE(root.ledger.updates.empty()) << "nothing is published as a model";
  CheckClosed(root);
  for (const auto& [key, weight] : root.ledger.updates) {
    EXPECT_TRUE(counted_.insert(key).second) << "the update of " << key.first << " for round "
                                             << key.second << " is in a committed model twice";
  }
  for (const std::string& id : root.machine->Result().contributors) {
    const auto update = root.ledger.updates.lower_bound({id, 0});
    ASSERT_TRUE(update != root.ledger.updates.end() && update->first.first == id) << id;
    const uint64_t weight = WeightOf(update->first, root.plan.round);
    const Sums& value = ValueOf(update->first);
    for (size_t i = 0; i < value.size(); ++i) model_by_books_[i] += weight * value[i];
  }
}

void Scenario::CheckEnd() {
  EXPECT_TRUE(done_) << "the run hangs at round " << round_;
  for (const auto& node : nodes_) {
    EXPECT_EQ(node->budget->used(), 0u) << node->id;
    EXPECT_EQ(node->budget->waiting(), 0u) << node->id;
    if (!node->machine) continue;
    EXPECT_FALSE(node->machine->open()) << node->id << " waits for ever";
  }
}

}  // namespace tributary::sim
