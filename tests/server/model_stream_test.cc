// Models over a link: whole or as steps, what the child keeps for its own children, and what it
// does with steps that lead elsewhere.
#include "server/model_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "aggregation/model_delta.h"
#include "tests/aggregation/testing.h"
#include "transport/sim.h"

namespace tributary::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
using ::testing::HasSubstr;

// 1.2 MB: two chunks whole, one in steps.
const std::shared_ptr<const aggregation::ModelLayout>& Layout() {
  static const auto* layout =
      new std::shared_ptr<const aggregation::ModelLayout>(*aggregation::ModelLayout::Create(
          {{"w", {3, 100'000}, aggregation::DType::kF32, aggregation::Policy::kMean}}));
  return *layout;
}

std::shared_ptr<const ModelVersion> Exact(uint64_t version) {
  std::vector<uint8_t> bytes(Layout()->model_bytes());
  PhiloxStream random(version);
  for (size_t i = 0; i < bytes.size(); i += 4) {
    const auto x = static_cast<float>(random.NextDouble());
    std::memcpy(bytes.data() + i, &x, 4);
  }
  return ModelVersion::Make(version, Layout(), std::move(bytes));
}

class ModelStreamTest : public testing::Test {
 protected:
  ModelStreamTest()
      : parent_(transport::MakeSimFabric(network_, network_.AddNode())),
        child_(transport::MakeSimFabric(network_, network_.AddNode())) {
    transport::LinkOptions options;
    options.slots = 2;
    auto listener = parent_->Listen("", options);
    EXPECT_TRUE(listener.ok()) << listener.status();
    auto out = child_->Connect((*listener)->address(), options);
    auto in = (*listener)->Accept(Deadline::After(kPatience));
    EXPECT_TRUE(out.ok() && in.ok());
    down_ = *std::move(in);
    up_ = *std::move(out);
    versions_ = {Exact(0)};
  }
  void Publish(const Publisher& publisher) {
    versions_.push_back(publisher.Publish(Exact(versions_.size()), *versions_.back()));
  }
  static std::unique_ptr<Publisher> MakePublisher(const std::string& codec, uint32_t steps) {
    auto publisher =
        Publisher::Create({.codec = "fp32", .downlink = codec, .downlink_steps = steps}, 5);
    EXPECT_TRUE(publisher.ok());
    return *std::move(publisher);
  }
  // Sends and receives one model.
  absl::StatusOr<std::shared_ptr<const ModelVersion>> Travel(const ModelVersion& model,
                                                             const std::string& held) {
    std::thread sender([&] {
      const absl::Status status =
          SendModelStream(*down_, model, held, kPatience, [] { return false; });
      EXPECT_TRUE(status.ok()) << status;
      sent_ = BytesToSend(model, held);
    });
    absl::StatusOr<std::shared_ptr<const ModelVersion>> got = nullptr;
    StreamReader reader;
    while (got.ok() && *got == nullptr) {
      auto chunk = up_->Receive(Deadline::After(kPatience));
      if (!chunk.ok()) {
        got = chunk.status();
        break;
      }
      const auto what = reader.Feed(*chunk);
      if (!what.ok()) {
        got = what.status();
        break;
      }
      got = receiver_.Take(Layout(), reader, *what, *std::move(chunk));
    }
    sender.join();
    return got;
  }

  transport::SimNetwork network_;
  std::unique_ptr<transport::Fabric> parent_, child_;
  std::unique_ptr<transport::Link> down_, up_;
  ModelReceiver receiver_;
  SentBytes sent_;
  std::vector<std::shared_ptr<const ModelVersion>> versions_;
};

TEST_F(ModelStreamTest, TheFirstComesWholeTheNextAsStepsWithTheSameBits) {
  const auto publisher = MakePublisher("int8", 4);
  ASSERT_TRUE(Travel(*versions_[0], receiver_.held_sha256()).ok());
  EXPECT_EQ(sent_.saved, 0u);
  for (int v = 1; v <= 3; ++v) {
    Publish(*publisher);
    const auto got = Travel(*versions_[v], receiver_.held_sha256());
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_TRUE((*got)->bytes == versions_[v]->bytes);
    EXPECT_EQ((*got)->version, static_cast<uint64_t>(v));
    EXPECT_LT(sent_.sent, Layout()->model_bytes() / 3);
    EXPECT_EQ(sent_.sent + sent_.saved, Layout()->model_bytes());
  }
}

TEST_F(ModelStreamTest, TheChildServesTheStepsThatItsParentServes) {
  const auto publisher = MakePublisher("topk(0.01)", 3);
  ASSERT_TRUE(Travel(*versions_[0], "").ok());
  for (int v = 1; v <= 2; ++v) Publish(*publisher);
  ASSERT_TRUE(Travel(*versions_[2], receiver_.held_sha256()).ok());  // two steps at once
  for (int v = 3; v <= 5; ++v) Publish(*publisher);
  std::shared_ptr<const ModelVersion> got;
  for (int v = 3; v <= 5; ++v) got = *Travel(*versions_[v], receiver_.held_sha256());
  ASSERT_EQ(got->steps.size(), 3u);
  for (int held = 0; held <= 5; ++held) {
    const auto own = StepsFrom(*got, versions_[held]->sha256);
    const auto parents = StepsFrom(*versions_[5], versions_[held]->sha256);
    ASSERT_EQ(own.size(), parents.size()) << held;
    for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(own[i]->bytes == parents[i]->bytes);
  }
}

TEST_F(ModelStreamTest, AWholeModelBeginsTheWindowAfresh) {
  const auto publisher = MakePublisher("int8", 4);
  ASSERT_TRUE(Travel(*versions_[0], "").ok());
  Publish(*publisher);
  const auto got = Travel(*versions_[1], "");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE((*got)->steps.empty()) << "it knows of no step";
  EXPECT_TRUE((*got)->bytes == versions_[1]->bytes);
}

// As if memory had been damaged: the step is taken, and its end is not what was announced.
TEST_F(ModelStreamTest, StepsThatLeadElsewhereAreDataLossAndNothingIsHeld) {
  const auto publisher = MakePublisher("int8", 4);
  ASSERT_TRUE(Travel(*versions_[0], "").ok());
  Publish(*publisher);
  ModelVersion damaged = *versions_[1];
  auto step = std::make_shared<ModelStep>(*damaged.steps[0]);
  step->bytes[100] ^= 1;
  damaged.steps = {step};
  const auto got = Travel(damaged, receiver_.held_sha256());
  EXPECT_EQ(got.status().code(), absl::StatusCode::kDataLoss) << got.status();
  EXPECT_THAT(std::string(got.status().message()), HasSubstr("asked for whole"));
  EXPECT_EQ(receiver_.held_sha256(), "");
  const auto whole = Travel(*versions_[1], receiver_.held_sha256());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_TRUE((*whole)->bytes == versions_[1]->bytes);
}

TEST_F(ModelStreamTest, StepsFromAModelThatIsNotHeldAreDataLoss) {
  const auto publisher = MakePublisher("int8", 4);
  Publish(*publisher);
  const auto got = Travel(*versions_[1], versions_[0]->sha256);
  EXPECT_EQ(got.status().code(), absl::StatusCode::kDataLoss) << got.status();
  EXPECT_THAT(std::string(got.status().message()), HasSubstr("not held"));
}

}  // namespace
}  // namespace tributary::server
