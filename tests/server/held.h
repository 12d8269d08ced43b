// A collector's peers without gRPC: sessions that tests hold in their hands, work on its loop, and
// the round that it is told to begin.
#pragma once

#include <atomic>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/collector.h"

namespace tributary::server {

// Keeps what is sent down it. Touched on the loop, or while the loop waits for the test.
class HeldSession final : public Session {
 public:
  // `held_sha256`: the model that it says to have.
  HeldSession(const std::string& id, v1::Role role, uint64_t epoch,
              const std::string& held_sha256 = "") {
    join_.set_id(id);
    join_.set_role(role);
    join_.set_epoch(epoch);
    if (role == v1::AGGREGATOR) join_.set_clients(1);
    join_.set_examples(10);
    join_.set_held_sha256(held_sha256);
  }
  const v1::Join& join() const override { return join_; }
  std::string peer() const override { return "test"; }
  absl::Duration last_heard() const override { return RealClock().Monotonic(); }
  void Send(std::shared_ptr<const v1::SessionResponse> message) override {
    std::lock_guard lock(mu_);
    if (message->has_joined()) offer_above_bytes = message->joined().offer_above_bytes();
    if (message->has_grant()) grants_.push_back(message->grant().round());
    if (message->has_claims()) claims_.push_back(message->claims());
    if (message->has_outcome()) outcomes_.push_back(message->outcome());
    for (const auto& verdict : message->verdicts().verdicts()) verdicts_.push_back(verdict);
    changed_.notify_all();
  }
  void Finish() override {}
  void Cancel() override {}
  void Handled() override { ++handled; }

  std::vector<uint64_t> grants() {
    std::lock_guard lock(mu_);
    return grants_;
  }
  // The answers to its claims.
  std::vector<v1::ClaimsAnswer> claims() {
    std::lock_guard lock(mu_);
    return claims_;
  }
  std::vector<v1::Outcome> outcomes() {
    std::lock_guard lock(mu_);
    return outcomes_;
  }
  // The answers to a rack's inquiries.
  std::vector<v1::Verdict> verdicts() {
    std::lock_guard lock(mu_);
    return verdicts_;
  }
  bool AwaitGrant(absl::Duration limit) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, absl::ToChronoSeconds(limit), [&] { return !grants_.empty(); });
  }
  uint64_t offer_above_bytes = 0;
  std::atomic<int> handled = 0;

 private:
  v1::Join join_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<uint64_t> grants_;
  std::vector<v1::ClaimsAnswer> claims_;
  std::vector<v1::Outcome> outcomes_;
  std::vector<v1::Verdict> verdicts_;
};

// Runs it on the loop, after all that was posted before, and waits for its end.
template <typename Work>
void RunOn(EventLoop& loop, const Work& work) {
  std::promise<void> done;
  loop.Post([&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

// A training round of run "run" that takes in everybody.
inline v1::RoundSpec RoundForAll(uint64_t round, const aggregation::ModelLayout& layout,
                                 const aggregation::Grid& grid) {
  v1::RoundSpec spec;
  spec.set_run("run");
  spec.set_round(round);
  spec.set_kind(v1::TRAIN);
  spec.set_layout_hash(layout.hash());
  *spec.mutable_grid() = grid.ToProto();
  spec.set_codec("fp32");
  spec.set_cohort_fraction(1);
  spec.set_quorum(1);
  spec.set_deadline_ms(60'000);
  spec.set_max_client_weight(1000);
  return spec;
}

// Version 0, all zeros.
inline std::shared_ptr<const ModelVersion> ZeroModel(
    const std::shared_ptr<const aggregation::ModelLayout>& layout) {
  return ModelVersion::Make(0, layout, std::vector<uint8_t>(layout->model_bytes()));
}

}  // namespace tributary::server
