// The SDK in an undisturbed run: joining, training, evaluating, uploading, ending.
#include <atomic>

#include "base/status.h"
#include "tests/client/sdk_fixture.h"

namespace tributary::client::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

TEST_F(SdkTest, JoinSaysWhoItIs) {
  ClientOptions options = Options({server_.endpoint()});
  options.run = "r";
  options.software = "test 1";
  RunningClient client = StartClient(options);
  ASSERT_TRUE(server_.WaitForJoins(1));
  const v1::Join join = server_.joins()[0];
  EXPECT_EQ(join.protocol(), 1u);
  EXPECT_EQ(join.run(), "r");
  EXPECT_EQ(join.id(), "c1");
  EXPECT_EQ(join.role(), v1::CLIENT);
  EXPECT_EQ(join.epoch(), 42u);
  EXPECT_EQ(join.examples(), 7u);
  EXPECT_EQ(join.held_sha256(), "");
  EXPECT_EQ(join.committed_round(), 0u);
  EXPECT_EQ(join.software(), "test 1");
}

TEST_F(SdkTest, TrainsUploadsAndLearnsTheOutcome) {
  RunningClient client = StartClient();
  const v1::Task task = Task(1);
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForUploads(1));
  const ReceivedUpload upload = server_.uploads()[0];
  EXPECT_EQ(upload.header.run(), "r");
  EXPECT_EQ(upload.header.round(), 1u);
  EXPECT_EQ(upload.header.id(), "c1");
  EXPECT_EQ(upload.header.epoch(), 42u);
  EXPECT_EQ(upload.header.base_version(), 0u);
  EXPECT_EQ(upload.header.layout_hash(), layout_->hash());
  EXPECT_EQ(upload.header.weight(), 7);
  EXPECT_EQ(upload.segments, Expected(task));
  EXPECT_EQ(upload.header.encoded_bytes(), upload.segments.size());
  server_.SendOutcome(1, true);
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_THAT(trainer_.outcomes(), ElementsAre(AllOf(Field(&RoundOutcome::round, 1),
                                                     Field(&RoundOutcome::committed, true),
                                                     Field(&RoundOutcome::included, true))));
  server_.SendStop(v1::Stop::FINISHED);
  EXPECT_EQ(client.Join(), absl::OkStatus());
  EXPECT_EQ(client->stats().rounds_trained, 1u);
  EXPECT_EQ(client->stats().accepted, 1u);
  EXPECT_EQ(client->stats().included, 1u);
  EXPECT_EQ(client->stats().uploaded_bytes, upload.segments.size());
}

TEST_F(SdkTest, ASmallUpdateIsOneMessageWithHeaderSegmentsAndTrailer) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  const ReceivedUpload upload = server_.uploads()[0];
  EXPECT_EQ(upload.messages, 1u);
  EXPECT_TRUE(upload.whole);
  EXPECT_EQ(upload.trailer.encoded_bytes(), upload.segments.size());
  EXPECT_EQ(
      upload.trailer.crc32c(),
      Crc32c({reinterpret_cast<const uint8_t*>(upload.segments.data()), upload.segments.size()}));
}

TEST_F(LargeModelTest, ALargeUpdateStartsWithItsHeaderAloneAndKeepsMessagesToAMebibyte) {
  RunningClient client = StartClient();
  const v1::Task task = Task(1, v1::TRAIN, false);
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForUploads(1));
  const ReceivedUpload upload = server_.uploads()[0];
  ASSERT_GE(upload.messages, 4u);
  EXPECT_EQ(upload.message_segment_bytes[0], 0u);
  for (const size_t bytes : upload.message_segment_bytes) EXPECT_LE(bytes, 1572864u);
  EXPECT_EQ(upload.segments, Expected(task));
  EXPECT_TRUE(upload.whole);
  EXPECT_EQ(
      upload.trailer.crc32c(),
      Crc32c({reinterpret_cast<const uint8_t*>(upload.segments.data()), upload.segments.size()}));
}

TEST_F(SdkTest, FinishedSegmentsAreSentAsTheyAre) {
  const auto segments = std::make_shared<const std::vector<std::vector<uint8_t>>>(
      std::vector<std::vector<uint8_t>>{{1, 2, 3}, {4, 5}});
  trainer_.train = [&](const TrainTask&, const auto&) {
    TrainResult result;
    result.encoded = segments;
    return result;
  };
  RunningClient client = StartClient();
  for (uint64_t round = 1; round <= 2; ++round) {
    server_.SendTask(Task(round));
    ASSERT_TRUE(server_.WaitForUploads(round));
    const ReceivedUpload upload = server_.uploads()[round - 1];
    EXPECT_EQ(upload.segments, std::string("\1\2\3\4\5"));
    EXPECT_EQ(upload.trailer.encoded_bytes(), 5u);
    // CRC32C (Castagnoli) of 01 02 03 04 05, by a bitwise implementation in Python.
    EXPECT_EQ(upload.trailer.crc32c(), 0x53518fabu);
    server_.SendOutcome(round, true);
  }
}

TEST_F(SdkTest, MetricsTravelInTheHeader) {
  trainer_.train = [&](const TrainTask& task, const auto&) {
    TrainResult result = DeltaOf(*task.layout, 1);
    v1::Metric& loss = result.metrics.emplace_back();
    loss.set_name("loss");
    loss.set_value(0.5);
    loss.set_weight(7);
    return result;
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  const ReceivedUpload upload = server_.uploads()[0];
  ASSERT_EQ(upload.header.metrics_size(), 1);
  EXPECT_EQ(upload.header.metrics(0).name(), "loss");
  EXPECT_EQ(upload.header.metrics(0).value(), 0.5);
}

TEST_F(SdkTest, EvaluationIsReportedAsExactSums) {
  trainer_.evaluate = [](const TrainTask&) {
    v1::Metric accuracy;
    accuracy.set_name("accuracy");
    accuracy.set_value(0.75);
    accuracy.set_weight(4);
    return std::vector<v1::Metric>{accuracy};
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(3, v1::EVALUATE));
  ASSERT_TRUE(server_.WaitForReports(1));
  const v1::Report report = server_.reports()[0];
  EXPECT_EQ(report.round(), 3u);
  EXPECT_EQ(report.kind(), v1::EVALUATE);
  EXPECT_EQ(report.contributors(), 1u);
  EXPECT_EQ(report.declined(), "");
  ASSERT_EQ(report.metrics_size(), 1);
  EXPECT_EQ(report.metrics(0).sum(), int64_t{3} << 30);  // 4 examples * 0.75 * 2^30
  EXPECT_EQ(report.metrics(0).weight(), 4u);
}

TEST_F(SdkTest, ATrainingErrorDeclinesTheRoundAndTheNextOneRuns) {
  trainer_.train = [&](const TrainTask& task, const auto&) -> absl::StatusOr<TrainResult> {
    if (task.spec.round() == 1) return absl::InternalError("the disk is full");
    return DeltaOf(*task.layout, task.spec.round());
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForReports(1));
  EXPECT_THAT(server_.reports()[0].declined(), HasSubstr("the disk is full"));
  EXPECT_EQ(server_.reports()[0].kind(), v1::TRAIN);
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_EQ(server_.uploads()[0].header.round(), 2u);
}

TEST_F(SdkTest, ADeltaOfTheWrongSizeDeclinesTheRoundNamingTheTensor) {
  trainer_.train = [&](const TrainTask& task, const auto&) {
    TrainResult result = DeltaOf(*task.layout, 1);
    result.floats[0].pop_back();
    return result;
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForReports(1));
  EXPECT_THAT(server_.reports()[0].declined(),
              AllOf(HasSubstr("\"w\""), HasSubstr("99"), HasSubstr("100")));
}

TEST_F(SdkTest, AFractionalWeightIsSentInTheGridsUnits) {
  trainer_.train = [&](const TrainTask& task, const auto&) {
    TrainResult result = DeltaOf(*task.layout, 1);
    result.weight = 2.5;
    return result;
  };
  RunningClient client = StartClient();
  v1::Task task = Task(1);
  task.mutable_spec()->mutable_grid()->set_weight_fraction_bits(16);
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_EQ(server_.uploads()[0].header.weight(), 163840);  // 2.5 * 65,536
}

TEST_F(SdkTest, AWeightThatTheRunCannotTakeDeclinesTheRoundWithTheMend) {
  std::atomic<double> weight = 2.5;
  trainer_.train = [&](const TrainTask& task, const auto&) {
    TrainResult result = DeltaOf(*task.layout, task.spec.round());
    result.weight = weight;
    return result;
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForReports(1));
  EXPECT_THAT(server_.reports()[0].declined(),
              AllOf(HasSubstr("2.5"), HasSubstr("fractional_weights = true")));
  weight = 0;
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForReports(2));
  EXPECT_THAT(server_.reports()[1].declined(), HasSubstr("a weight of 0 examples"));
}

TEST_F(SdkTest, ATaskOfAnotherLayoutIsDeclined) {
  RunningClient client = StartClient();
  v1::Task task = Task(1);
  task.mutable_spec()->set_layout_hash(std::string(32, 'x'));
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForReports(1));
  EXPECT_THAT(server_.reports()[0].declined(), HasSubstr("layout"));
}

TEST_F(SdkTest, HeartbeatsGoOnDuringALongTraining) {
  trainer_.train = [&](const TrainTask& task, const auto&) {
    EXPECT_TRUE(server_.WaitForHeartbeats(3, "train"));
    return DeltaOf(*task.layout, 1);
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  for (const v1::Heartbeat& beat : server_.heartbeats()) {
    if (beat.phase() == "train") {
      EXPECT_EQ(beat.round(), 1u);
    }
  }
}

TEST_F(SdkTest, TrainingIsCancelledByTheOutcomeOfItsRoundAndSendsNothing) {
  trainer_.train = [&](const TrainTask& task, const std::function<bool()>& cancelled) {
    if (task.spec.round() == 1) {
      EXPECT_FALSE(cancelled());
      server_.SendOutcome(1, false, "too late");
      while (!cancelled()) std::this_thread::yield();
    }
    return DeltaOf(*task.layout, task.spec.round());
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_EQ(trainer_.outcomes()[0].reason, "too late");
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_EQ(server_.uploads()[0].header.round(), 2u);
}

TEST_F(SdkTest, TrainingIsCancelledByANewerTask) {
  trainer_.train = [&](const TrainTask& task, const std::function<bool()>& cancelled) {
    if (task.spec.round() == 1) {
      server_.SendTask(Task(2));
      while (!cancelled()) std::this_thread::yield();
    }
    return DeltaOf(*task.layout, task.spec.round());
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_EQ(server_.uploads()[0].header.round(), 2u);
}

TEST_F(SdkTest, TheRunsEndIsWhatRunReturns) {
  const std::vector<std::pair<v1::Stop::Kind, absl::StatusCode>> ends = {
      {v1::Stop::FINISHED, absl::StatusCode::kOk},
      {v1::Stop::FAILED, absl::StatusCode::kAborted},
      {v1::Stop::SUPERSEDED, absl::StatusCode::kAlreadyExists}};
  for (const auto& [kind, code] : ends) {
    RunningClient client = StartClient();
    server_.SendStop(kind);
    EXPECT_EQ(client.Join().code(), code) << v1::Stop::Kind_Name(kind);
    ASSERT_TRUE(server_.WaitForNoSession());
  }
}

TEST_F(SdkTest, AnOutcomeBeforeTheEndIsStillTold) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.SendOutcome(1, true);
  server_.SendStop(v1::Stop::FINISHED);
  EXPECT_EQ(client.Join(), absl::OkStatus());
  EXPECT_EQ(trainer_.outcomes().size(), 1u);
}

TEST_F(SdkTest, ShutdownWhileWaitingLeavesPolitely) {
  RunningClient client = StartClient();
  ASSERT_TRUE(server_.WaitForHeartbeats(1, "idle"));
  EXPECT_EQ(client.Stop().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(server_.leaves(), ElementsAre("shut down"));
}

TEST_F(SdkTest, ShutdownDuringTrainingCancelsItAndSendsNothing) {
  trainer_.train = [&](const TrainTask& task, const std::function<bool()>& cancelled) {
    while (!cancelled()) std::this_thread::yield();
    return DeltaOf(*task.layout, 1);
  };
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(trainer_.WaitForTrainings(1));
  EXPECT_EQ(client.Stop().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server_.uploads().size(), 0u);
}

TEST_F(SdkTest, ShutdownBeforeRunEndsItAtOnce) {
  auto client = Client::Create(Options({server_.endpoint()}), &trainer_);
  ASSERT_TRUE(client.ok());
  (*client)->Shutdown();
  EXPECT_EQ((*client)->Run().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ((*client)->Run().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SdkTest, ManyClientsShareOneConnection) {
  constexpr int kClients = 20;
  std::vector<std::unique_ptr<RecordingTrainer>> trainers;  // outlive the clients
  std::vector<std::unique_ptr<RunningClient>> clients;
  server_.SetOpenTask(Task(1));
  for (int i = 0; i < kClients; ++i) {
    ClientOptions options = Options({server_.endpoint()});
    options.id = "c" + std::to_string(i);
    options.own_connection = false;
    trainers.push_back(std::make_unique<RecordingTrainer>());
    auto client = Client::Create(options, trainers.back().get());
    ASSERT_TRUE(client.ok());
    clients.push_back(std::make_unique<RunningClient>(*std::move(client)));
  }
  ASSERT_TRUE(server_.WaitForUploads(kClients));
  EXPECT_EQ(server_.peers().size(), 1u);
}

TEST(ClientOptionsTest, AreCheckedBeforeAnythingStarts) {
  RecordingTrainer trainer;
  const auto code = [&](const std::function<void(ClientOptions&)>& change) {
    ClientOptions options;
    options.endpoints = {"localhost:1"};
    options.id = "c";
    change(options);
    return Client::Create(options, &trainer).status().code();
  };
  EXPECT_EQ(code([](ClientOptions&) {}), absl::StatusCode::kOk);
  const auto bad = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(code([](ClientOptions& o) { o.endpoints.clear(); }), bad);
  EXPECT_EQ(code([](ClientOptions& o) { o.endpoints = {"localhost"}; }), bad);
  EXPECT_EQ(code([](ClientOptions& o) { o.id = ""; }), bad);
  EXPECT_EQ(code([](ClientOptions& o) { o.id = std::string(257, 'x'); }), bad);
  EXPECT_EQ(code([](ClientOptions& o) { o.id = "a\nb"; }), bad);
  EXPECT_EQ(code([](ClientOptions& o) { o.backoff_min = absl::ZeroDuration(); }), bad);
  EXPECT_EQ(code([](ClientOptions& o) { o.upload_attempts = 0; }), bad);
  EXPECT_EQ(Client::Create({}, nullptr).status().code(), bad);
}

}  // namespace
}  // namespace tributary::client::testing
