// How the SDK steps from the model it holds to the next, and what it does where steps are not to be
// had or lead elsewhere.
#include "aggregation/model_delta.h"
#include "tests/client/sdk_fixture.h"

namespace tributary::client::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Steps {
  v1::DeltaChain chain;
  std::string deltas;
};

constexpr char kDownlink[] = "int8; small = int8";  // the model is a vector

// A run whose model is 400 KB and goes from one version to the next in int8 steps.
class SdkStepsTest : public SdkTest {
 protected:
  SdkStepsTest() : SdkTest(100'000) {
    // Numbers of a model's size: in the fixture's, most steps would be rounded away.
    for (size_t i = 0; i < 100'000; ++i) {
      const float x = 0.001f * static_cast<float>(i % 1009);
      std::memcpy(model_.data() + 4 * i, &x, 4);
    }
    server_.SetModel(model_);
  }

  // The next model, and the step to it; `model_` is what is published.
  Steps Next(uint64_t round) {
    std::vector<uint8_t> target(model_.begin(), model_.end());
    for (size_t i = 0; i < 100'000; ++i) {
      float x = 0;
      std::memcpy(&x, target.data() + 4 * i, 4);
      x += 0.01f * static_cast<float>((i * 7 + round) % 13);
      std::memcpy(target.data() + 4 * i, &x, 4);
    }
    std::vector<uint8_t> published(model_.begin(), model_.end());
    const auto codec = aggregation::ParseDownlinkCodec(kDownlink);
    const auto delta = aggregation::EncodeModelDelta(
        *layout_, **codec, {1, 2}, static_cast<uint32_t>(round), published, target);
    EXPECT_TRUE(delta.ok()) << delta.status();
    EXPECT_TRUE(aggregation::ApplyModelDelta(*layout_, *delta, published).ok());
    Steps steps;
    steps.chain.set_base_sha256(Sha(model_));
    steps.chain.add_steps()->set_bytes(delta->size());
    steps.deltas.assign(delta->begin(), delta->end());
    model_.assign(published.begin(), published.end());
    return steps;
  }
  v1::Task StepTask(uint64_t round) const {
    v1::Task task = Task(round, v1::TRAIN, /*inlined=*/false);
    task.mutable_spec()->set_downlink_codec(kDownlink);
    return task;
  }
  // Round 1 from the first model, which is downloaded whole.
  void First() {
    server_.SendTask(StepTask(1));
    ASSERT_TRUE(server_.WaitForUploads(1));
    server_.SendOutcome(1, true);
  }
  void Offer(const Steps& steps, uint64_t version) {
    server_.SetModel(model_, version);
    server_.SetSteps(steps.chain, steps.deltas);
  }
  // The base of the last training is the model published, to the bit.
  void ExpectLastBaseIsTheModel() {
    ASSERT_FALSE(trainer_.bases().empty());
    EXPECT_TRUE(trainer_.bases().back() == model_);
  }
};

TEST_F(SdkStepsTest, TheModelHeldIsSteppedFrom) {
  RunningClient client = StartClient();
  First();
  uint64_t bytes = model_.size();
  for (uint64_t round = 2; round <= 4; ++round) {
    const std::string held = Sha(model_);
    const Steps steps = Next(round);
    bytes += steps.deltas.size();
    Offer(steps, round - 1);
    server_.SendTask(StepTask(round));
    ASSERT_TRUE(server_.WaitForUploads(round));
    server_.SendOutcome(round, true);
    ExpectLastBaseIsTheModel();
    EXPECT_EQ(server_.helds().back(), held);
  }
  EXPECT_EQ(server_.helds()[0], "") << "there was none at first";
  EXPECT_EQ(client->stats().downloaded_bytes, bytes);
  EXPECT_LT(bytes, 2 * model_.size());
  EXPECT_THAT(trainer_.notices(), IsEmpty());
}

TEST_F(SdkStepsTest, SeveralStepsAtOnceAreTakenInTheirOrder) {
  RunningClient client = StartClient();
  First();
  Steps all = Next(2);
  for (uint64_t round = 3; round <= 4; ++round) {
    const Steps more = Next(round);
    all.chain.add_steps()->set_bytes(more.deltas.size());
    all.deltas += more.deltas;
  }
  ASSERT_LT(all.deltas.size(), model_.size());
  Offer(all, 3);
  server_.SendTask(StepTask(4));
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_EQ(client->stats().downloaded_bytes, model_.size() + all.deltas.size());
}

TEST_F(SdkStepsTest, NoStepsAreAskedForWhereTheRunSendsModelsWhole) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.SendOutcome(1, true);
  Offer(Next(2), 1);
  server_.SendTask(Task(2, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_THAT(server_.helds(), ElementsAre("", "")) << "its memory was free for the next";
}

TEST_F(SdkStepsTest, AnAggregatorWithoutStepsSendsTheWholeModel) {
  RunningClient client = StartClient();
  First();
  Next(2);
  server_.SetModel(model_, 1);
  server_.SendTask(StepTask(2));
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_EQ(server_.downloads(), 2);
}

TEST_F(SdkStepsTest, ARestartedClientAsksForTheWholeModel) {
  {
    RunningClient client = StartClient();
    First();
  }
  ASSERT_TRUE(server_.WaitForNoSession());
  Offer(Next(2), 1);
  ClientOptions again = Options({server_.endpoint()});
  again.epoch = 43;
  RunningClient client = StartClient(again);
  server_.SendTask(StepTask(2));
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_THAT(server_.helds(), ElementsAre("", ""));
}

// One bit of a step is wrong and every checksum of the transfer right: the SHA-256 of the model
// alone tells, and it is fetched whole, in the same round.
TEST_F(SdkStepsTest, StepsThatLeadElsewhereAreSaidAndTheWholeModelIsFetched) {
  RunningClient client = StartClient();
  First();
  const std::string held = Sha(model_);
  Steps steps = Next(2);
  steps.deltas[1000] ^= 1;
  Offer(steps, 1);
  server_.SendTask(StepTask(2));
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_THAT(server_.helds(), ElementsAre("", held, ""));
  EXPECT_THAT(trainer_.notices(), ElementsAre(HasSubstr("downloaded whole")));
}

TEST_F(SdkStepsTest, StepsThatDoNotReadAreSaidAndTheWholeModelIsFetched) {
  RunningClient client = StartClient();
  First();
  Steps steps = Next(2);
  steps.deltas[6] = 9;  // the segment's version
  Offer(steps, 1);
  server_.SendTask(StepTask(2));
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_THAT(trainer_.notices(), ElementsAre(HasSubstr("model delta")));
}

TEST_F(SdkStepsTest, WhoseStepsAlwaysLeadElsewhereStopsAskingForThem) {
  RunningClient client = StartClient();
  First();
  for (uint64_t round = 2; round <= 6; ++round) {
    Steps steps = Next(round);
    steps.deltas[1000] ^= 1;
    Offer(steps, round - 1);
    server_.SendTask(StepTask(round));
    ASSERT_TRUE(server_.WaitForUploads(round));
    server_.SendOutcome(round, true);
    ExpectLastBaseIsTheModel();
  }
  EXPECT_EQ(trainer_.notices().size(), 3u);
  EXPECT_THAT(trainer_.notices().back(), HasSubstr("from now on always"));
  EXPECT_EQ(server_.downloads(), 1 + 3 * 2 + 2);
}

TEST_F(SdkStepsTest, StepsThatAddUpToMoreOrToAModelAreRefusedAndTheWholeOneIsFetched) {
  RunningClient client = StartClient();
  First();
  uint64_t round = 2;
  for (const int64_t off : {int64_t{1}, int64_t{-1}, int64_t{1} << 40, int64_t{-1} << 62}) {
    Steps steps = Next(round);
    v1::ModelStep* step = steps.chain.mutable_steps(0);
    step->set_bytes(step->bytes() + static_cast<uint64_t>(off));
    Offer(steps, round - 1);
    server_.SendTask(StepTask(round));
    ASSERT_TRUE(server_.WaitForUploads(round));
    server_.SendOutcome(round, true);
    ExpectLastBaseIsTheModel();
    ++round;
  }
  Steps large = Next(round);
  large.deltas.append(model_.size(), '\0');
  large.chain.mutable_steps(0)->set_bytes(large.deltas.size());
  Offer(large, round - 1);
  server_.SendTask(StepTask(round));
  ASSERT_TRUE(server_.WaitForUploads(round));
  ExpectLastBaseIsTheModel();
}

TEST_F(SdkStepsTest, StepsInTheTaskNeedNoDownload) {
  RunningClient client = StartClient();
  First();
  const Steps steps = Next(2);
  v1::Task task = StepTask(2);
  *task.mutable_chain() = steps.chain;
  task.set_model(steps.deltas);
  server_.SetModel(model_, 1);
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_EQ(server_.downloads(), 1);
}

TEST_F(SdkStepsTest, StepsInTheTaskFromAnotherModelAreNotTaken) {
  RunningClient client = StartClient();
  First();
  Next(2);
  const Steps steps = Next(3);  // from a model that this client has not seen
  v1::Task task = StepTask(3);
  *task.mutable_chain() = steps.chain;
  task.set_model(steps.deltas);
  server_.SetModel(model_, 2);
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_EQ(server_.downloads(), 2);
  EXPECT_THAT(trainer_.notices(), IsEmpty());
}

// The next model is made in the memory of the last, but not where somebody still has it.
TEST_F(SdkStepsTest, AModelThatTheTrainerKeepsDoesNotChange) {
  ModelBytes kept;
  trainer_.train = [&](const TrainTask& task, const std::function<bool()>&) {
    if (task.spec.round() == 1) kept = task.base;
    return DeltaOf(*task.layout, task.spec.round());
  };
  RunningClient client = StartClient();
  const std::string first = model_;
  First();
  Offer(Next(2), 1);
  server_.SendTask(StepTask(2));
  ASSERT_TRUE(server_.WaitForUploads(2));
  ExpectLastBaseIsTheModel();
  EXPECT_TRUE(std::string(kept->begin(), kept->end()) == first);
}

}  // namespace
}  // namespace tributary::client::testing
