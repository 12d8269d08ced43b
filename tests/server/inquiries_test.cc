// Who missed an outcome learns it: from the node that counted the update, or through a rack that
// never saw it.
#include <gmock/gmock.h>

#include "tests/server/collector_fixture.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- Nodes

v1::Outcome Ask(RawClient& client, uint64_t round) {
  v1::SessionRequest request;
  request.mutable_inquiry()->set_round(round);
  client.Send(request);
  const auto answer =
      client.Await([&](const auto& m) { return m.has_outcome() && m.outcome().round() == round; });
  EXPECT_TRUE(answer.has_value()) << "no answer on round " << round;
  return answer.has_value() ? answer->outcome() : v1::Outcome();
}

class InquiriesTest : public NodeTest {
 protected:
  std::string Alone(uint32_t rounds) {
    return Config("[straggler]\nrejoin_grace_s = 0\n", rounds, 1);
  }
  static std::string Rack(const TestNode& root, const std::string& name) {
    return absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = \"%s\"\n[transport]\n"
        "listen = \"127.0.0.1:0\"\n",
        name, root.endpoint());
  }
};

TEST_F(InquiriesTest, TheRootKnowsOfRoundsBeforeTheLastAndOfAResumedRunsLast) {
  const std::string config = Alone(20);
  uint64_t last = 0;
  {
    TestNode node(config);
    {
      RawClient a(node.endpoint(), "a");
      for (const size_t round : {0, 1}) {
        a.AwaitTask();
        a.Upload(EncodeTest(1));
        EXPECT_TRUE(node.Round(round).committed);
      }
    }
    RawClient b(node.endpoint(), "b");  // a round without anybody may have failed meanwhile
    last = b.AwaitTask().spec().round();
    b.Upload(EncodeTest(2));
    EXPECT_TRUE(node.Round(last - 1).committed);
    RawClient a(node.endpoint(), "a", 2);
    EXPECT_FALSE(a.AwaitJoined().last_outcome().included());
    const v1::Outcome counted = Ask(a, 2);
    EXPECT_TRUE(counted.committed());
    EXPECT_TRUE(counted.included());
    const v1::Outcome missing = Ask(a, last);
    EXPECT_FALSE(missing.included());
    EXPECT_FALSE(missing.unknown());
  }
  ASSERT_GT(last, 2u);
  TestNode node(config);
  RawClient a(node.endpoint(), "a", 3), b(node.endpoint(), "b", 3);
  EXPECT_TRUE(b.AwaitJoined().last_outcome().included());
  EXPECT_TRUE(Ask(b, last).included());
  EXPECT_FALSE(Ask(a, last).included());
  const v1::Outcome forgotten = Ask(a, 2);
  EXPECT_TRUE(forgotten.unknown());
  EXPECT_FALSE(forgotten.included());
  EXPECT_THAT(forgotten.reason(), HasSubstr("nobody knows"));
}

TEST_F(InquiriesTest, OfARoundThatRunsTheAnswerComesWhenItIsOver) {
  TestNode node(Config("", 1, 2));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  a.Upload(EncodeTest(1));
  v1::SessionRequest request;
  request.mutable_inquiry()->set_round(1);
  a.Send(request);
  b.Upload(EncodeTest(2));
  EXPECT_TRUE(a.AwaitOutcome().included());
  EXPECT_TRUE(a.AwaitOutcome().included()) << "the outcome, and the answer";
}

TEST_F(InquiriesTest, ARackAsksItsParentForAClientOfARackThatDied) {
  TestNode root(Config("[straggler]\nrejoin_grace_s = 0\n", 3, 2));
  auto first = std::make_unique<TestNode>(Rack(root, "rack-0"));
  TestNode second(Rack(root, "rack-1"));
  auto a = std::make_unique<RawClient>(first->endpoint(), "a");
  RawClient b(second.endpoint(), "b");
  a->AwaitTask();
  b.AwaitTask();
  a->Upload(EncodeTest(1));
  b.Upload(EncodeTest(2));
  EXPECT_EQ(root.Round(0).collected.result.contributors, (std::vector<std::string>{"a", "b"}));
  a.reset();
  first.reset();
  b.AwaitOutcome();
  RawClient again(second.endpoint(), "a", 2), never(second.endpoint(), "never");
  EXPECT_FALSE(again.AwaitJoined().last_outcome().included()) << "rack-1 did not count it";
  EXPECT_TRUE(Ask(again, 1).included());
  const v1::Outcome not_counted = Ask(never, 1);
  EXPECT_FALSE(not_counted.included());
  EXPECT_FALSE(not_counted.unknown());
}

TEST_F(InquiriesTest, OfAnAsynchronousRunWhatIsSaidNotToCountNeverWill) {
  TestNode root(
      Config("[aggregation]\nmode = \"async\"\nfractional_weights = true\n"
             "max_round_weight = 4096\n[async]\nbuffer = 2\n",
             3, 2));
  auto first = std::make_unique<TestNode>(Rack(root, "rack-0"));
  TestNode second(Rack(root, "rack-1"));
  auto a = std::make_unique<RawClient>(first->endpoint(), "a");
  RawClient b(second.endpoint(), "b"), c(second.endpoint(), "c");
  a->AwaitTask();
  b.AwaitTask();
  c.AwaitTask();
  constexpr int64_t kExample = 65536;
  a->Upload(EncodeTest(1), kExample);
  b.Upload(EncodeTest(2), kExample);
  EXPECT_EQ(root.Round(0).collected.result.contributors, (std::vector<std::string>{"a", "b"}));
  a.reset();
  first.reset();
  EXPECT_TRUE(b.AwaitOutcome().included());
  RawClient again(second.endpoint(), "a", 2);
  EXPECT_TRUE(Ask(again, 1).included());
  EXPECT_FALSE(Ask(c, 1).included());
  // It is sent for all that: the root has said no, and its rack's sum is refused for it.
  EXPECT_EQ(c.Upload(EncodeTest(3), kExample).status(), v1::UploadResponse::ACCEPTED);
  b.AwaitTask();
  b.Upload(EncodeTest(4), kExample);
  const v1::Outcome outcome = c.AwaitOutcome();
  EXPECT_FALSE(outcome.included());
  EXPECT_TRUE(outcome.ask());
  EXPECT_FALSE(Ask(c, 1).included());
}

// ---- A rack's collector

class RackInquiriesTest : public CollectorFixture {
 protected:
  RackInquiriesTest() {
    claim_ = [](const v1::Claims&) {};
    inquire_ = [this](const v1::Inquiry& inquiry) { asked_.push_back(inquiry); };
    Start(LimitsConfig());
  }
  void Inquire(const std::string& id, uint64_t round) {
    v1::SessionRequest request;
    request.mutable_inquiry()->set_round(round);
    collector_->OnMessage(sessions_[id], request);
    OnLoop([] {});
  }
  void Verdict(const std::string& id, uint64_t round, bool included, bool unknown = false) {
    v1::Verdict verdict;
    verdict.set_id(id);
    verdict.mutable_outcome()->set_round(round);
    verdict.mutable_outcome()->set_included(included);
    verdict.mutable_outcome()->set_unknown(unknown);
    OnLoop([&] { collector_->ParentKnows(verdict); });
  }
  std::vector<v1::Inquiry> asked_;
};

TEST_F(RackInquiriesTest, AnswersForItsOwnAndPassesOnTheOthers) {
  Join("mine");
  BeginRound(1);
  const Segments segments = EncodeTest(1);
  const auto upload = Upload("mine", segments);
  Complete(upload, segments);
  CloseRound();
  FinishRound();
  Join("other");
  Inquire("mine", 1);
  EXPECT_THAT(asked_, IsEmpty());
  ASSERT_THAT(sessions_["mine"]->outcomes(), SizeIs(2));
  EXPECT_TRUE(sessions_["mine"]->outcomes()[1].included());
  Inquire("other", 1);
  Inquire("other", 1);
  ASSERT_THAT(asked_, SizeIs(1)) << "asked once";
  EXPECT_EQ(asked_[0].id(), "other");
  EXPECT_EQ(asked_[0].round(), 1u);
  EXPECT_THAT(sessions_["other"]->outcomes(), IsEmpty());
  OnLoop([this] { collector_->AskAgain(); });  // the parent was restarted
  EXPECT_THAT(asked_, SizeIs(2));
  Verdict("nobody", 1, true);
  Verdict("other", 2, true);
  EXPECT_THAT(sessions_["other"]->outcomes(), IsEmpty());
  Verdict("other", 1, true);
  ASSERT_THAT(sessions_["other"]->outcomes(), SizeIs(1));
  EXPECT_TRUE(sessions_["other"]->outcomes()[0].included());
  Verdict("other", 1, false);
  EXPECT_THAT(sessions_["other"]->outcomes(), SizeIs(1)) << "answered once";
}

TEST_F(RackInquiriesTest, TellsToAskWhereTheParentHasNotSaidWhetherItCountsElsewhere) {
  Join("mine");
  BeginRound(1);
  Join("moved");  // within the round: claimed, and the parent says nothing
  const Segments segments = EncodeTest(1);
  const auto upload = Upload("mine", segments);
  Complete(upload, segments);
  CloseRound();
  FinishRound();
  EXPECT_TRUE(sessions_["mine"]->outcomes().back().included());
  ASSERT_THAT(sessions_["moved"]->outcomes(), SizeIs(1));
  EXPECT_TRUE(sessions_["moved"]->outcomes()[0].ask());
}

TEST_F(RackInquiriesTest, TellsToAskWhereItGaveUpWithoutTheParentsWord) {
  Join("mine");
  BeginRound(1);
  const Segments segments = EncodeTest(1);
  const auto upload = Upload("mine", segments);
  Complete(upload, segments);
  CloseRound();
  OnLoop([this] { collector_->Finish({.why_not = "given up", .known = false}); });
  ASSERT_THAT(sessions_["mine"]->outcomes(), SizeIs(1));
  EXPECT_TRUE(sessions_["mine"]->outcomes()[0].ask());
  BeginRound(2);
  const auto second = Upload("mine", segments);
  Complete(second, segments);
  CloseRound();
  FinishRound(false, "refused");  // the parent's word
  EXPECT_FALSE(sessions_["mine"]->outcomes()[1].ask());
}

TEST_F(RackInquiriesTest, WhatIsNoQuestionIsAnsweredAtOnce) {
  Join("mine");
  Inquire("mine", 0);
  ASSERT_THAT(sessions_["mine"]->outcomes(), SizeIs(1));
  EXPECT_TRUE(sessions_["mine"]->outcomes()[0].unknown());
  EXPECT_THAT(asked_, IsEmpty());
}

}  // namespace
}  // namespace tributary::server
