// The SDK when things break: uploads, sessions, aggregators.
#include "base/status.h"
#include "tests/client/sdk_fixture.h"

namespace tributary::client::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(LargeModelTest, AnUploadBrokenHalfWayIsSentAgainByteForByte) {
  UploadScript broken;
  broken.break_after_messages = 2;
  server_.ScriptUpload(broken);
  RunningClient client = StartClient();
  const v1::Task task = Task(1, v1::TRAIN, false);
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_FALSE(server_.uploads()[0].whole);
  EXPECT_TRUE(server_.uploads()[1].whole);
  EXPECT_TRUE(server_.uploads()[1].segments == Expected(task));
  EXPECT_EQ(server_.uploads()[1].header.SerializeAsString(),
            server_.uploads()[0].header.SerializeAsString());
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1));
}

TEST_F(SdkTest, RetrySendsTheUpdateAgain) {
  UploadScript damaged;
  damaged.answer = v1::UploadResponse::RETRY;
  damaged.reason = "checksum";
  server_.ScriptUpload(damaged);
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_EQ(server_.uploads()[0].segments, server_.uploads()[1].segments);
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1));
}

TEST_F(SdkTest, AnUpdateIsGivenUpAfterItsAttemptsAndTheAggregatorIsTold) {
  ClientOptions options = Options({server_.endpoint()});
  options.upload_attempts = 3;
  UploadScript damaged;
  damaged.answer = v1::UploadResponse::RETRY;
  damaged.reason = "checksum";
  for (int i = 0; i < 3; ++i) server_.ScriptUpload(damaged);
  RunningClient client = StartClient(options);
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForReports(1));
  EXPECT_EQ(server_.uploads().size(), 3u);
  EXPECT_THAT(server_.reports()[0].declined(),
              AllOf(HasSubstr("3 attempts"), HasSubstr("checksum")));
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForUploads(4));
  EXPECT_EQ(server_.uploads()[3].header.round(), 2u);
}

TEST_F(SdkTest, ARejectedUpdateIsNotSentAgainAndTheOutcomeSaysWhy) {
  UploadScript rejected;
  rejected.answer = v1::UploadResponse::REJECTED;
  rejected.reason = "bound";
  server_.ScriptUpload(rejected);
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.SendOutcome(1, false);
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_FALSE(trainer_.outcomes()[0].included);
  EXPECT_THAT(trainer_.outcomes()[0].reason, HasSubstr("bound"));
  EXPECT_EQ(server_.uploads().size(), 1u);
  EXPECT_EQ(client->stats().accepted, 0u);
}

TEST_F(SdkTest, AStaleUpdateIsDropped) {
  UploadScript stale;
  stale.answer = v1::UploadResponse::STALE;
  server_.ScriptUpload(stale);
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.SendOutcome(1, false, "late");
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_EQ(trainer_.outcomes()[0].reason, "late");
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_EQ(server_.uploads()[1].header.round(), 2u);
}

TEST_F(SdkTest, RetryElsewhereTakesTheUpdateToTheNextEndpoint) {
  FakeAggregator second;
  Serve(second);
  server_.SetOpenTask(Task(1));
  second.SetOpenTask(Task(1));
  UploadScript full;
  full.answer = v1::UploadResponse::RETRY_ELSEWHERE;
  full.reason = "full";
  server_.ScriptUpload(full);
  RunningClient client = StartClient(Options({server_.endpoint(), second.endpoint()}));
  ASSERT_TRUE(second.WaitForUploads(1));
  EXPECT_EQ(second.uploads()[0].segments, server_.uploads()[0].segments);
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1));
}

TEST_F(SdkTest, AnAggregatorThatDiesAndComesBackGetsTheUpdateAgainWithoutTraining) {
  RunningClient client = StartClient();
  const int port = server_.port();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.Kill();
  FakeAggregator again(port, [&](FakeAggregator& server) { Serve(server); });
  ASSERT_EQ(again.port(), port);
  again.SendTask(Task(1));
  ASSERT_TRUE(again.WaitForUploads(1));
  EXPECT_EQ(again.uploads()[0].segments, server_.uploads()[0].segments);
  again.SendOutcome(1, true);
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1));
  EXPECT_EQ(client->stats().reconnects, 1u);
  EXPECT_EQ(client->stats().accepted, 1u);
}

TEST_F(SdkTest, AnotherBaseModelForTheSameRoundIsTrainedForAnew) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  model_ = MakeModel(*layout_, 1);
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1, 1));
}

TEST_F(SdkTest, ASessionLostDuringTrainingComesBackInTheBackground) {
  server_.SetOpenTask(Task(1));
  trainer_.train = [&](const TrainTask& task, const std::function<bool()>& cancelled) {
    server_.DropSession();
    EXPECT_TRUE(server_.WaitForJoins(2));
    EXPECT_TRUE(server_.WaitForHeartbeats(1, "train"));
    EXPECT_FALSE(cancelled());
    return DeltaOf(*task.layout, 1);
  };
  RunningClient client = StartClient();
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1));
}

TEST_F(SdkTest, TheSecondEndpointIsUsedWhereTheFirstIsDead) {
  RunningClient client = StartClient(Options({DeadEndpoint(), server_.endpoint()}));
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
}

TEST_F(SdkTest, AnAggregatorThatGoesAwayIsLeftForTheNext) {
  FakeAggregator second;
  Serve(second);
  RunningClient client = StartClient(Options({server_.endpoint(), second.endpoint()}));
  server_.SendStop(v1::Stop::GOING_AWAY, 3'600'000);
  ASSERT_TRUE(second.WaitForJoins(1));
  second.SendTask(Task(1));
  ASSERT_TRUE(second.WaitForUploads(1));
  EXPECT_EQ(server_.joins().size(), 1u);
}

TEST_F(SdkTest, RefusalForGoodEndsRunWithTheReason) {
  v1::SessionResponse refused;
  refused.mutable_refused()->set_reason("no such run");
  server_.AnswerJoinsWith(refused);
  RunningClient client = StartClient();
  const absl::Status end = client.Join();
  EXPECT_EQ(end.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(end.message()),
              AllOf(HasSubstr("no such run"), HasSubstr(server_.endpoint())));
}

TEST_F(SdkTest, RefusalForNowIsTriedAgain) {
  v1::SessionResponse refused;
  refused.mutable_refused()->set_reason("starting");
  refused.mutable_refused()->set_retry_after_ms(1);
  server_.AnswerJoinsWith(refused);
  server_.AnswerJoinsWith(refused);
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_EQ(server_.joins().size(), 3u);
}

TEST_F(SdkTest, NothingThatAnswersIsGivenUp) {
  ClientOptions options = Options({DeadEndpoint(), DeadEndpoint()});
  options.give_up_after = absl::Milliseconds(50);
  RunningClient client = StartClient(options);
  const absl::Status end = client.Join();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(end.message()),
              AllOf(HasSubstr(options.endpoints[0]), HasSubstr(options.endpoints[1])));
}

TEST_F(SdkTest, ShutdownWhileNothingAnswersEndsRun) {
  RunningClient client = StartClient(Options({DeadEndpoint()}));
  EXPECT_EQ(client.Stop().code(), absl::StatusCode::kCancelled);
}

TEST_F(SdkTest, AnOutcomeMissedWhileAwayIsLearntOnJoining) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  v1::Joined joined = JoinedMessage();
  joined.set_committed_round(1);
  joined.mutable_last_outcome()->set_round(1);
  joined.mutable_last_outcome()->set_committed(true);
  joined.mutable_last_outcome()->set_included(true);
  server_.SetJoined(joined);
  server_.DropSession();
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_THAT(trainer_.outcomes(), ElementsAre(AllOf(Field(&RoundOutcome::round, 1),
                                                     Field(&RoundOutcome::included, true))));
  server_.DropSession();
  ASSERT_TRUE(server_.WaitForJoins(3));
  EXPECT_EQ(server_.joins()[1].committed_round(), 0u);
  EXPECT_EQ(server_.joins()[2].committed_round(), 1u);
  EXPECT_EQ(client->stats().included, 1u);
}

// Another aggregator, which knows only its own clients.
TEST_F(SdkTest, OneThatIsNewToItIsAskedForTheOutcomeThatWasMissed) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  v1::Joined joined = JoinedMessage();
  joined.set_committed_round(1);
  joined.mutable_last_outcome()->set_round(1);
  joined.mutable_last_outcome()->set_committed(true);
  server_.SetJoined(joined);
  server_.ScriptFate(1, true);
  server_.DropSession();
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_THAT(trainer_.outcomes(), ElementsAre(AllOf(Field(&RoundOutcome::round, 1),
                                                     Field(&RoundOutcome::included, true))));
  EXPECT_THAT(server_.inquiries(), ElementsAre(1));
  EXPECT_EQ(client->stats().included, 1u);
}

TEST_F(SdkTest, AsksWhereItIsToldToAndBeforeItTrainsForAnotherRound) {
  RunningClient client = StartClient();
  server_.ScriptFate(1, false);
  server_.ScriptFate(2, true);
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  v1::SessionResponse ask;
  ask.mutable_outcome()->set_round(1);
  ask.mutable_outcome()->set_committed(true);
  ask.mutable_outcome()->set_ask(true);
  server_.Send(ask);
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_FALSE(trainer_.outcomes()[0].included);
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForUploads(2));
  server_.SendTask(Task(3));  // and no word of round 2
  ASSERT_TRUE(server_.WaitForUploads(3));
  EXPECT_THAT(
      trainer_.outcomes(),
      ElementsAre(AllOf(Field(&RoundOutcome::round, 1), Field(&RoundOutcome::included, false)),
                  AllOf(Field(&RoundOutcome::round, 2), Field(&RoundOutcome::included, true))));
  EXPECT_THAT(server_.inquiries(), ElementsAre(1, 2));
}

TEST_F(SdkTest, WhereTheRoundsTaskComesAgainItDoesNotWaitForAnAnswer) {
  RunningClient client = StartClient();
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.AnswerInquiries(false);
  server_.SendTask(Task(1));  // of an aggregator that is behind
  ASSERT_TRUE(server_.WaitForInquiries(1));
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_THAT(trainer_.rounds(), ElementsAre(2)) << "the kept update was sent again";
}

// What it asks about is decided when the round ends that its task is of: nobody is to wait for it.
TEST_F(SdkTest, WhoWaitsLongForAnAnswerDeclinesTheTasksThatCome) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.AnswerInquiries(false);
  server_.SendTask(Task(2));
  ASSERT_TRUE(server_.WaitForReports(1));
  server_.SendTask(Task(2, v1::EVALUATE));
  ASSERT_TRUE(server_.WaitForReports(2));
  for (const v1::Report& report : server_.reports()) {
    EXPECT_EQ(report.round(), 2u);
    EXPECT_THAT(report.declined(), HasSubstr("awaits the outcome of round 1"));
  }
  v1::SessionResponse answer;
  answer.mutable_outcome()->set_round(1);
  answer.mutable_outcome()->set_committed(true);
  answer.mutable_outcome()->set_included(true);
  answer.mutable_outcome()->set_answer(true);
  server_.Send(answer);
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_TRUE(trainer_.outcomes()[0].included);
  server_.Send(answer);  // once more: it is nobody's question any more
  server_.SendTask(Task(3));
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1, 3));
  EXPECT_EQ(trainer_.outcomes().size(), 1u);
}

// As the benchmark's sink, or an aggregator of an earlier release.
TEST_F(SdkTest, OneThatAnswersNoInquiriesIsNotAsked) {
  v1::Joined joined = JoinedMessage();
  joined.set_answers_inquiries(false);
  server_.SetJoined(joined);
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.SendTask(Task(2));  // and no word of round 1
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_THAT(trainer_.outcomes(), ElementsAre(AllOf(Field(&RoundOutcome::round, 1),
                                                     Field(&RoundOutcome::included, false))));
  EXPECT_THAT(server_.inquiries(), IsEmpty());
}

TEST_F(SdkTest, ARoundOfWhichNobodyKnowsAnyMoreCountsAsNotIncluded) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  v1::Joined joined = JoinedMessage();
  joined.set_committed_round(5);
  server_.SetJoined(joined);
  server_.DropSession();
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_EQ(trainer_.outcomes()[0].round, 1u);
  EXPECT_FALSE(trainer_.outcomes()[0].included);
  EXPECT_THAT(trainer_.outcomes()[0].reason, HasSubstr("missed"));
}

TEST_F(SdkTest, ARunResumedFromAnOlderCheckpointIsFollowedBack) {
  RunningClient client = StartClient();
  for (const uint64_t round : {1, 2, 2}) {
    server_.SendTask(Task(round));
    ASSERT_TRUE(server_.WaitForUploads(trainer_.outcomes().size() + 1));
    server_.SendOutcome(round, true);
    ASSERT_TRUE(trainer_.WaitForOutcomes(server_.uploads().size()));
  }
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1, 2, 2));
}

}  // namespace
}  // namespace tributary::client::testing
