// A rack whose steps came out wrong: it forgets its model and joins anew, so that its parent sends
// the whole one.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "server/model_stream.h"
#include "tests/server/held_parent.h"
#include "transport/tcp.h"

namespace tributary::server {
namespace {

std::shared_ptr<const aggregation::ModelLayout> Layout() {
  static const auto* layout =
      new std::shared_ptr<const aggregation::ModelLayout>(*aggregation::ModelLayout::Create(
          {{"w", {8, 512}, aggregation::DType::kF32, aggregation::Policy::kMean}}));
  return *layout;
}

// Every element 1 + version / 64.
std::shared_ptr<const ModelVersion> Exact(uint64_t version) {
  const std::vector<float> x(4096, 1 + static_cast<float>(version) / 64);
  std::vector<uint8_t> bytes(4096 * 4);
  std::memcpy(bytes.data(), x.data(), bytes.size());
  return ModelVersion::Make(version, Layout(), std::move(bytes));
}

class Child final : public DeafChild {
 public:
  void OnModel(std::shared_ptr<const ModelVersion> model) override {
    std::lock_guard lock(mu_);
    models_.push_back(std::move(model));
    changed_.notify_all();
  }
  // The n-th model that came, from 0.
  std::shared_ptr<const ModelVersion> Model(size_t n) {
    std::unique_lock lock(mu_);
    const bool there = changed_.wait_for(lock, absl::ToChronoSeconds(HeldParent::kLimit),
                                         [&] { return models_.size() > n; });
    EXPECT_TRUE(there) << "model " << n << " never came";
    return there ? models_[n] : nullptr;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<const ModelVersion>> models_;
};

TEST(UplinkStepsTest, StepsThatLeadElsewhereMakeTheRackJoinAnewHoldingNothing) {
  HeldParent parent(Layout());
  Child child;
  const auto uplink =
      Uplink::Start({.id = "rack", .epoch = 1, .parents = {parent.endpoint()}, .transport = {}},
                    transport::MakeTcpFabric(), &child);
  const auto publisher = *Publisher::Create({.downlink = "int8"}, 5);
  const auto zero = Exact(0), one = publisher->Publish(Exact(1), *zero),
             two = publisher->Publish(Exact(2), *one);
  ASSERT_EQ(two->steps.size(), 2u);
  const auto send = [](transport::Link& link, const ModelVersion& model, const std::string& held) {
    const absl::Status status =
        SendModelStream(link, model, held, HeldParent::kLimit, [] { return false; });
    EXPECT_TRUE(status.ok()) << status;
  };

  v1::TierHello hello;
  const auto accept = [&] {
    hello.Clear();
    auto accepted = parent.Accept();
    EXPECT_TRUE(accepted != nullptr && hello.ParseFromString(accepted->hello()));
    return accepted;
  };
  auto link = accept();
  EXPECT_TRUE(hello.takes_steps());
  EXPECT_EQ(hello.held_sha256(), "");
  send(*link, *zero, "");
  ASSERT_NE(child.Model(0), nullptr);
  uplink->SetHeld(zero->sha256);  // as the rack does
  send(*link, *one, zero->sha256);
  EXPECT_EQ(child.Model(1)->sha256, one->sha256);
  uplink->SetHeld(one->sha256);

  // A link that is cut is made again, and the next step is taken from what it holds.
  link->Cancel("the test cuts it");
  link = accept();
  EXPECT_EQ(hello.held_sha256(), one->sha256);

  ModelVersion damaged = *two;
  auto step = std::make_shared<ModelStep>(*two->steps.back());
  step->bytes[50] ^= 1;
  damaged.steps = {step};
  const size_t joins = parent.helds().size();
  send(*link, damaged, one->sha256);
  link = accept();
  while (hello.held_sha256() != "") link = accept();
  send(*link, *two, hello.held_sha256());
  EXPECT_EQ(child.Model(2)->sha256, two->sha256);
  ASSERT_GT(parent.helds().size(), joins) << "it has joined anew";
  EXPECT_EQ(parent.helds().back(), "");
}

}  // namespace
}  // namespace tributary::server
