// How the SDK comes by the base model: inline, held, or downloaded and checked.
#include "tests/client/sdk_fixture.h"

namespace tributary::client::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(SdkTest, AnInlineModelIsUsedWithoutADownload) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_THAT(trainer_.bases(), ElementsAre(model_));
  EXPECT_EQ(server_.downloads(), 0);
}

TEST_F(SdkTest, AnInlineModelThatDoesNotMatchItsHashIsDownloadedInstead) {
  RunningClient client = StartClient();
  v1::Task task = Task(1);
  (*task.mutable_model())[5] ^= 1;
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_THAT(trainer_.bases(), ElementsAre(model_));
  EXPECT_EQ(server_.downloads(), 1);
}

TEST_F(LargeModelTest, ALargeModelIsDownloadedInChunks) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_TRUE(trainer_.bases()[0] == model_);
  EXPECT_EQ(server_.downloads(), 1);
  EXPECT_EQ(client->stats().downloaded_bytes, model_.size());
}

TEST_F(LargeModelTest, AModelThatIsHeldIsNotDownloadedAgain) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::EVALUATE, false));
  ASSERT_TRUE(server_.WaitForReports(1));
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_TRUE(trainer_.bases()[0] == model_);
  EXPECT_EQ(server_.downloads(), 1);
}

TEST_F(SdkTest, TheNextModelReplacesTheHeldOne) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.SendOutcome(1, true);
  const std::string first = model_;
  model_ = MakeModel(*layout_, 1);
  server_.SetModel(model_, 1);
  server_.SendTask(Task(2, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_THAT(trainer_.bases(), ElementsAre(first, model_));
  EXPECT_EQ(server_.downloads(), 2);
}

TEST_F(SdkTest, JoiningAgainNamesTheHeldModel) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.DropSession();
  ASSERT_TRUE(server_.WaitForJoins(2));
  EXPECT_EQ(server_.joins()[1].held_sha256(), Sha(model_));
}

class DamagedDownloadTest : public LargeModelTest,
                            public ::testing::WithParamInterface<DownloadScript::Fault> {};

TEST_P(DamagedDownloadTest, IsFetchedAgain) {
  server_.ScriptDownload({GetParam()});
  server_.ScriptDownload({GetParam()});
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_TRUE(trainer_.bases()[0] == model_);
  EXPECT_EQ(server_.downloads(), 3);
}

TEST_P(DamagedDownloadTest, EachTimeDeclinesTheRoundAfterTheLastAttempt) {
  ClientOptions options = Options({server_.endpoint()});
  options.upload_attempts = 3;
  for (int i = 0; i < 3; ++i) server_.ScriptDownload({GetParam()});
  RunningClient client = StartClient(options);
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForReports(1));
  EXPECT_THAT(server_.reports()[0].declined(),
              AllOf(HasSubstr("base model"), HasSubstr("3 attempts")));
  EXPECT_EQ(server_.downloads(), 3);
  EXPECT_EQ(trainer_.rounds().size(), 0u);
  server_.SendTask(Task(2, v1::TRAIN, false));  // and goes on
  ASSERT_TRUE(server_.WaitForUploads(1));
}

std::string FaultName(const ::testing::TestParamInfo<DownloadScript::Fault>& info) {
  constexpr const char* kNames[] = {"None", "BadCrc", "BadBytes", "TooLong", "CutOff", "NotFound"};
  return kNames[info.param];
}
INSTANTIATE_TEST_SUITE_P(Faults, DamagedDownloadTest,
                         ::testing::Values(DownloadScript::kBadCrc, DownloadScript::kBadBytes,
                                           DownloadScript::kTooLong, DownloadScript::kCutOff,
                                           DownloadScript::kNotFound),
                         FaultName);

TEST_F(SdkTest, ALayoutThatIsNotItsHashEndsRun) {
  v1::Joined joined = JoinedMessage();
  joined.set_layout_hash(std::string(32, 'x'));
  server_.SetJoined(joined);
  RunningClient client = StartClient();
  EXPECT_EQ(client.Join().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tributary::client::testing
