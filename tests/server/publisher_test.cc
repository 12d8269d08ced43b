// Which models are published, which steps are kept, and which of them lead from what one holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "aggregation/model_delta.h"
#include "server/downlink.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kElements = 8192;

std::shared_ptr<const aggregation::ModelLayout> Layout() {
  static const auto* layout =
      new std::shared_ptr<const aggregation::ModelLayout>(*aggregation::ModelLayout::Create(
          {{"w", {2, kElements / 2}, aggregation::DType::kF32, aggregation::Policy::kMean}}));
  return *layout;
}

// Walks by about 0.01 a version.
std::shared_ptr<const ModelVersion> Exact(uint64_t version) {
  std::vector<float> x(kElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    x[i] = std::sin(static_cast<float>(i)) +
           0.01f * static_cast<float>(version) * std::cos(static_cast<float>(7 * i + version));
  }
  std::vector<uint8_t> bytes(kElements * 4);
  std::memcpy(bytes.data(), x.data(), bytes.size());
  return ModelVersion::Make(version, Layout(), std::move(bytes));
}

std::unique_ptr<Publisher> MakePublisher(const std::string& codec, uint32_t steps = 16) {
  auto publisher = Publisher::Create({.codec = "fp32", .downlink = codec, .downlink_steps = steps},
                                     /*seed=*/5);
  EXPECT_TRUE(publisher.ok()) << publisher.status();
  return publisher.ok() ? *std::move(publisher) : nullptr;
}

// Versions 0 to `last`, as they are published.
std::vector<std::shared_ptr<const ModelVersion>> Published(const Publisher& publisher,
                                                           uint64_t last) {
  std::vector<std::shared_ptr<const ModelVersion>> out = {Exact(0)};
  for (uint64_t v = 1; v <= last; ++v) out.push_back(publisher.Publish(Exact(v), *out.back()));
  return out;
}

std::vector<uint64_t> VersionsOf(std::span<const std::shared_ptr<const ModelStep>> steps) {
  std::vector<uint64_t> versions;
  for (const auto& step : steps) versions.push_back(step->version);
  return versions;
}

TEST(PublisherTest, WithoutACodecTheModelItselfIsPublished) {
  const auto publisher = MakePublisher("none");
  const auto exact = Exact(1);
  EXPECT_EQ(publisher->Publish(exact, *Exact(0)), exact);
  EXPECT_EQ(publisher->codec(), "");
}

TEST(PublisherTest, StepsAsLargeAsTheModelAreNotTaken) {
  const auto publisher = MakePublisher("fp32");
  const auto exact = Exact(1);
  EXPECT_EQ(publisher->Publish(exact, *Exact(0)), exact) << "all of it changes: it goes whole";
}

TEST(PublisherTest, AModelThatIsNotFiniteGoesDownWholeAndStepsBeginAfreshBehindIt) {
  const auto publisher = MakePublisher("int8");
  std::vector<uint8_t> bytes = Exact(1)->bytes;
  const float odd = NAN;
  std::memcpy(bytes.data(), &odd, 4);
  const auto broken = ModelVersion::Make(1, Layout(), std::move(bytes));
  const auto published = publisher->Publish(broken, *Exact(0));
  EXPECT_EQ(published, broken);
  const auto mended = publisher->Publish(Exact(2), *published);
  EXPECT_EQ(mended->sha256, Exact(2)->sha256) << "from a NaN no step leads anywhere";
  EXPECT_THAT(VersionsOf(publisher->Publish(Exact(3), *mended)->steps), ElementsAre(3));
}

TEST(PublisherTest, TheSameModelsArePublishedAgainBySeed) {
  const auto one = Published(*MakePublisher("int4"), 3), two = Published(*MakePublisher("int4"), 3);
  EXPECT_EQ(one.back()->sha256, two.back()->sha256);
  EXPECT_NE(one.back()->sha256, Exact(3)->sha256);
  auto other = Publisher::Create({.codec = "fp32", .downlink = "int4", .downlink_steps = 16}, 6);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(Published(**other, 3).back()->sha256, one.back()->sha256);
}

TEST(PublisherTest, TheWindowHoldsTheLastStepsAndNoMore) {
  const auto versions = Published(*MakePublisher("topk(0.01, values=ternary)", 3), 5);
  EXPECT_TRUE(versions[0]->steps.empty());
  EXPECT_THAT(VersionsOf(versions[1]->steps), ElementsAre(1));
  EXPECT_THAT(VersionsOf(versions[3]->steps), ElementsAre(1, 2, 3));
  EXPECT_THAT(VersionsOf(versions[5]->steps), ElementsAre(3, 4, 5));
  EXPECT_EQ(versions[5]->keep_steps, 3u);
}

TEST(PublisherTest, TheWindowIsSmallerThanTheModel) {
  // A step is a quarter and a bit: three of them are less than the model, four are not.
  const auto versions = Published(*MakePublisher("int8", 16), 6);
  EXPECT_THAT(VersionsOf(versions[6]->steps), ElementsAre(4, 5, 6));
  EXPECT_LT(ChainBytes(versions[6]->steps), versions[6]->bytes.size());
}

TEST(StepsFromTest, FindsTheFewestStepsFromWhatIsHeld) {
  const auto versions = Published(*MakePublisher("topk(0.01)", 3), 5);
  const ModelVersion& newest = *versions[5];
  EXPECT_THAT(VersionsOf(StepsFrom(newest, versions[4]->sha256)), ElementsAre(5));
  EXPECT_THAT(VersionsOf(StepsFrom(newest, versions[3]->sha256)), ElementsAre(4, 5));
  EXPECT_THAT(VersionsOf(StepsFrom(newest, versions[2]->sha256)), ElementsAre(3, 4, 5));
  EXPECT_TRUE(StepsFrom(newest, versions[1]->sha256).empty()) << "too far behind";
  EXPECT_TRUE(StepsFrom(newest, versions[5]->sha256).empty()) << "it is there";
  EXPECT_TRUE(StepsFrom(newest, Exact(4)->sha256).empty()) << "the exact one was never published";
  EXPECT_TRUE(StepsFrom(newest, "").empty());
  EXPECT_TRUE(StepsFrom(newest, std::string(32, '\xff')).empty());
  EXPECT_TRUE(StepsFrom(newest, versions[4]->sha256.substr(0, 31)).empty());
}

TEST(StepsFromTest, LeadToTheBitsThatWerePublished) {
  for (const char* codec : {"int8", "int4", "bf16", "topk(0.02, values=ternary)", "sign",
                            "eden(bits=1)", "topk(0.05) | zstd"}) {
    SCOPED_TRACE(codec);
    const auto versions = Published(*MakePublisher(codec), 4);
    std::vector<uint8_t> held = versions[3]->bytes;
    for (const auto& step : StepsFrom(*versions[4], versions[3]->sha256)) {
      ASSERT_TRUE(aggregation::ApplyModelDelta(*Layout(), step->bytes, held).ok());
      EXPECT_EQ(Sha256Of(held), step->sha256);
    }
    EXPECT_EQ(Sha256Of(held), versions[4]->sha256);
  }
}

// What is published strays from the model by one step's loss: int8's is under a 127th of the
// largest element of a difference, whatever went before.
TEST(PublisherTest, ThePublishedModelStaysWithinOneStepOfTheModel) {
  const auto versions = Published(*MakePublisher("int8"), 30);
  for (uint64_t v = 1; v <= 30; ++v) {
    std::vector<float> exact(kElements), now(kElements), before(kElements);
    std::memcpy(exact.data(), Exact(v)->bytes.data(), kElements * 4);
    std::memcpy(now.data(), versions[v]->bytes.data(), kElements * 4);
    std::memcpy(before.data(), versions[v - 1]->bytes.data(), kElements * 4);
    double largest = 0;
    for (uint64_t i = 0; i < kElements; ++i)
      largest = std::max(largest, std::abs(static_cast<double>(exact[i]) - before[i]));
    for (uint64_t i = 0; i < kElements; ++i)
      ASSERT_LE(std::abs(static_cast<double>(exact[i]) - now[i]), largest / 127 + 0x1p-22)
          << "version " << v << ", element " << i;
  }
}

TEST(PutModelTest, TakesStepsWhereTheyLeadThereAndFit) {
  const auto versions = Published(*MakePublisher("topk(0.01)"), 2);
  const ModelVersion& newest = *versions[2];
  v1::Task task;
  const SentBytes put = PutModel(newest, versions[0]->sha256, 10'000, &task);
  EXPECT_EQ(put.sent, task.model().size());
  EXPECT_EQ(put.sent + put.saved, newest.bytes.size());
  ASSERT_EQ(task.chain().steps_size(), 2);
  EXPECT_EQ(task.chain().base_sha256(), versions[0]->sha256);
  EXPECT_EQ(task.chain().steps(0).sha256(), "") << "clients need no names";
  v1::Task far;
  EXPECT_EQ(PutModel(newest, "", 10'000, &far).sent, 0u);
  EXPECT_EQ(far.model(), "") << "32 KiB are too much: it is downloaded";
  v1::Task whole;
  const SentBytes all = PutModel(newest, "", 40'000, &whole);
  EXPECT_EQ(all.sent, newest.bytes.size());
  EXPECT_EQ(all.saved, 0u);
  EXPECT_EQ(whole.chain().steps_size(), 0);
}

}  // namespace
}  // namespace tributary::server
