// The root's own evaluation: lines to and from a program, what becomes of programs in disorder, and
// its place in the round.
#include "server/evaluator.h"

#include <gmock/gmock.h>

#include <thread>

#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<std::string> Shell(const std::string& script) { return {"sh", "-c", script}; }

const Clock* Real() {
  static const RealClock clock;
  return &clock;
}

// Answers with the path's length and its own process id.
constexpr char kHonest[] =
    "while read p; do echo \"{\\\"count\\\": ${#p}, \\\"pid\\\": $$, \\\"words\\\": \\\"x\\\"}\"; "
    "done";

TEST(EvaluatorTest, OneProgramAnswersModelAfterModelWithNumbers) {
  Evaluator evaluator(Shell(kHonest), Real());
  const auto first = evaluator.Evaluate("/a/model", kPatience);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = evaluator.Evaluate("/longer/model", kPatience);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->at("count"), 8);
  EXPECT_EQ(second->at("count"), 13);
  EXPECT_EQ(first->at("pid"), second->at("pid"));
  EXPECT_EQ(first->size(), 2u) << "words are no numbers";
}

TEST(EvaluatorTest, AProgramThatDiesIsStartedAnewForTheNextModel) {
  Evaluator evaluator(Shell("read p; echo '{\"loss\": 2.5}'; read p; exit 3"), Real());
  for (int life = 0; life < 2; ++life) {
    const auto numbers = evaluator.Evaluate("m", kPatience);
    ASSERT_TRUE(numbers.ok()) << numbers.status();
    EXPECT_THAT(*numbers, ElementsAre(Pair("loss", 2.5)));
    const auto dead = evaluator.Evaluate("m", kPatience);
    EXPECT_EQ(dead.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(dead.status().message()), HasSubstr("ended with code 3"));
  }
}

TEST(EvaluatorTest, ASilentProgramIsKilledAfterTheLimit) {
  Evaluator evaluator(Shell("read p; exec sleep 1000"), Real());
  EXPECT_EQ(evaluator.Evaluate("m", absl::Milliseconds(100)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

// The calendar is not asked: an operator may set it while a program is at work.
class LeapingClock final : public Clock {
 public:
  absl::Duration Monotonic() const override { return absl::Hours(++asked_); }
  absl::Time Now() const override {
    ADD_FAILURE() << "a limit was measured by the calendar";
    return absl::UnixEpoch();
  }

 private:
  mutable int asked_ = 0;
};

TEST(EvaluatorTest, TheLimitIsOfTheMonotonicClock) {
  LeapingClock clock;
  Evaluator evaluator(Shell("read p; exec sleep 1000"), &clock);
  EXPECT_EQ(evaluator.Evaluate("m", absl::Hours(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(EvaluatorTest, CancelEndsTheWaitFromAnotherThreadAndForGood) {
  Evaluator evaluator(Shell("read p; exec sleep 1000"), Real());
  std::thread other([&] { evaluator.Cancel(); });
  EXPECT_EQ(evaluator.Evaluate("m", absl::Hours(1)).status().code(), absl::StatusCode::kCancelled);
  other.join();
  EXPECT_EQ(evaluator.Evaluate("m", absl::Hours(1)).status().code(), absl::StatusCode::kCancelled);
}

TEST(EvaluatorTest, AnswersThatAreNoneAreRefusedAndErrorsPassedOn) {
  const auto says = [](const std::string& script) {
    Evaluator evaluator(Shell("while read p; do " + script + "; done"), Real());
    return evaluator.Evaluate("m", kPatience).status();
  };
  EXPECT_EQ(says("echo hello").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(says("echo '[1]'").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(says("echo '{\"loss\": \"low\"}'").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(says("echo '{\"loss\": 1e999}'").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(says("head -c 300000 /dev/zero | tr '\\0' x").code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status error = says("echo '{\"error\": \"no such data\"}'");
  EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(error.message(), "no such data");
}

TEST(EvaluatorTest, AProgramThatIsNotThereIsNamed) {
  Evaluator evaluator({"/no/such/program"}, Real());
  EXPECT_THAT(std::string(evaluator.Evaluate("m", kPatience).status().message()),
              HasSubstr("/no/such/program"));
}

class RootEvaluationTest : public NodeTest {
 protected:
  // Three rounds of two clients; their reports.
  std::vector<RoundReport> Play(const std::string& evaluation) {
    TestNode node(Config("[evaluation]\n" + evaluation + "\n", 3));
    RawClient a(node.endpoint(), "a", kEpoch), b(node.endpoint(), "b", kEpoch);
    std::vector<RoundReport> reports;
    for (size_t round = 0; round < 3; ++round) {
      a.AwaitTask();
      b.AwaitTask();
      EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
      EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
      reports.push_back(node.Round(round));
      EXPECT_TRUE(reports.back().committed);
    }
    EXPECT_TRUE(node.End().ok());
    return reports;
  }
};

// The file that is named is the round's: its size is told, and its hash by the report's.
TEST_F(RootEvaluationTest, StandsBesideTheRoundInItsReport) {
  const auto reports = Play(
      "command = [\"sh\", \"-c\", \"while read p; do echo \\\"{\\\\\\\"bytes\\\\\\\": $(wc -c < "
      "$p), "
      "\\\\\\\"accuracy\\\\\\\": 0.25}\\\"; done\"]\nevery = 2");
  EXPECT_TRUE(reports[0].root_evaluation.empty());
  EXPECT_EQ(ToJson(reports[0]).find("root_evaluation"), std::string::npos);
  for (size_t round : {1, 2}) {  // the second, and the last
    ASSERT_EQ(reports[round].root_evaluation_failed, "");
    EXPECT_EQ(reports[round].root_evaluation.at("accuracy"), 0.25);
    EXPECT_GT(reports[round].root_evaluation.at("bytes"), TestLayout()->model_bytes());
    EXPECT_THAT(ToJson(reports[round]),
                HasSubstr("\"root_evaluation\":{\"accuracy\":0.25,\"bytes\":"));
    EXPECT_THAT(ToText(reports[round]), HasSubstr("at the root 25.00 %"));
  }
}

TEST_F(RootEvaluationTest, ThatFailsIsSaidAndStopsNoRound) {
  const auto reports = Play("command = [\"sh\", \"-c\", \"read p; exit 9\"]");
  for (const RoundReport& report : reports) {
    EXPECT_TRUE(report.root_evaluation.empty());
    EXPECT_THAT(report.root_evaluation_failed, HasSubstr("code 9"));
    EXPECT_THAT(ToJson(report), HasSubstr("\"root_evaluation_failed\":"));
  }
}

TEST_F(RootEvaluationTest, ThatHangsDoesNotKeepARootFromEnding) {
  TestNode node(
      Config("[evaluation]\ncommand = [\"sh\", \"-c\", \"read p; exec sleep "
             "1000\"]\ntimeout_s = 100000\n",
             2));
  RawClient a(node.endpoint(), "a", kEpoch), b(node.endpoint(), "b", kEpoch);
  a.AwaitTask();
  b.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_TRUE(a.AwaitOutcome().included());
  node.Shutdown();
  EXPECT_TRUE(node.End().ok());
  // Committed, so told of, though not evaluated.
  EXPECT_TRUE(node.Round(0).committed);
}

}  // namespace
}  // namespace tributary::server
