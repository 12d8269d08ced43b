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
  // It is sent for all that: too late, and nobody else's is lost with it.
  EXPECT_EQ(c.Upload(EncodeTest(3), kExample).status(), v1::UploadResponse::STALE);
  b.AwaitTask();
  b.Upload(EncodeTest(4), kExample);
  c.AwaitTask();
  EXPECT_EQ(c.Upload(EncodeTest(5), kExample).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(root.Round(1).collected.result.contributors, (std::vector<std::string>{"b", "c"}));
}

// ---- A rack's collector

class RackInquiriesTest : public CollectorFixture {
 protected:
  RackInquiriesTest() {
    claim_ = [](const v1::Claims&) {};
    inquire_ = [this](const v1::Inquiry& inquiry) {
      ++messages_;
      for (const v1::UpdateName& name : inquiry.updates()) asked_.push_back(name);
    };
    Start(LimitsConfig());
  }
  void Inquire(const std::string& id, uint64_t round) {
    v1::SessionRequest request;
    request.mutable_inquiry()->set_round(round);
    collector_->OnMessage(sessions_[id], request);
    OnLoop([] {});
    OnLoop([] {});  // questions go together, at the end of the turn
  }
  void Verdict(const std::string& id, uint64_t round, bool counted) {
    v1::Verdicts verdicts;
    v1::Verdict* const verdict = verdicts.add_verdicts();
    verdict->set_client(id);
    verdict->set_round(round);
    verdict->set_counted(counted);
    OnLoop([&] { collector_->ParentKnows(verdicts); });
  }
  std::vector<v1::UpdateName> asked_;
  int messages_ = 0;
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
  EXPECT_EQ(asked_[0].client(), "other");
  EXPECT_EQ(asked_[0].round(), 1u);
  EXPECT_THAT(sessions_["other"]->outcomes(), IsEmpty());
  OnLoop([this] { collector_->AskAgain(true); });  // the parent was restarted
  OnLoop([] {});
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

// Those of a rack that has died may all come at once: a session's queue has 64 messages.
TEST_F(RackInquiriesTest, ManyQuestionsGoTogether) {
  constexpr uint64_t kMany = 5000;
  v1::SessionRequest request;
  request.mutable_inquiry()->set_round(1);
  for (uint64_t i = 0; i < kMany; ++i) {
    const std::string id = absl::StrCat("c", i);
    sessions_[id] = std::make_shared<HeldSession>(id, v1::CLIENT, kEpoch);
    collector_->OnJoin(sessions_[id]);
  }
  OnLoop([] {});
  OnLoop([&] {  // all of it before the turn ends
    for (uint64_t i = 0; i < kMany; ++i) {
      collector_->OnMessage(sessions_[absl::StrCat("c", i)], request);
    }
  });
  OnLoop([] {});
  OnLoop([] {});
  EXPECT_EQ(asked_.size(), kMany);
  EXPECT_EQ(messages_, 2) << "4,096 in each";
}

// Who asks for another update of the same client has settled the first.
TEST_F(RackInquiriesTest, OfAClientThereIsOneQuestion) {
  Join("mine");
  for (uint64_t round = 1; round <= 100; ++round) Inquire("mine", round);
  Verdict("mine", 99, true);
  EXPECT_THAT(sessions_["mine"]->outcomes(), IsEmpty());
  Verdict("mine", 100, true);
  EXPECT_THAT(sessions_["mine"]->outcomes(), SizeIs(1));
}

// A second sum is refused: those in it are not in the model, whoever asks.
TEST_F(RackInquiriesTest, WhoIsInASumThatDoesNotCountIsNotTakenForCounted) {
  Join("mine");
  BeginRound(1, "supplement");
  Join("moved");
  const Segments segments = EncodeTest(1);
  const auto upload = Upload("mine", segments);
  Complete(upload, segments);
  CloseRound();
  v1::ClaimsAnswer granted;
  granted.set_round(1);
  granted.add_granted("moved");
  OnLoop([&] { collector_->ClaimsAnswered(granted); });
  const auto second = Upload("moved", segments);
  Complete(second, segments);
  OnLoop([this] {
    collector_->CloseNow();
    ASSERT_EQ(collector_->part(), 1u);
    collector_->Finish({.committed = true, .included = true, .parts = 1});
  });
  EXPECT_TRUE(sessions_["mine"]->outcomes().back().included());
  EXPECT_FALSE(sessions_["moved"]->outcomes().back().included());
  Inquire("mine", 1);
  EXPECT_THAT(asked_, IsEmpty());
  Inquire("moved", 1);
  EXPECT_THAT(asked_, SizeIs(1));
}

// Carried into the running round, it may be in its sum.
TEST_F(RackInquiriesTest, OfWhatIsCarriedOverTheAnswerWaitsForTheRoundThatItIsIn) {
  Join("slow");
  Join("fast");
  const Segments segments = EncodeTest(1);
  for (const uint64_t round : {1, 2}) {
    BeginRound(round, "carry");
    for (const std::string id : {"slow", "fast"}) {
      if (round == 2 && id == "slow") continue;  // late; it was in a round before, so it may be
      Complete(Upload(id, segments), segments);
    }
    CloseRound();
    FinishRound();
  }
  const size_t told = sessions_["slow"]->outcomes().size();
  BeginRound(3, "carry");
  Complete(Upload("slow", segments, 2), segments);
  Inquire("slow", 2);
  EXPECT_THAT(asked_, IsEmpty());
  EXPECT_THAT(sessions_["slow"]->outcomes(), SizeIs(told));
  CloseRound();
  FinishRound();
  const auto outcomes = sessions_["slow"]->outcomes();
  ASSERT_THAT(outcomes, SizeIs(told + 2)) << "the outcome, and the answer";
  for (size_t i = told; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].round(), 2u);
    EXPECT_TRUE(outcomes[i].included());
  }
}

TEST_F(RackInquiriesTest, AParentThatAnswersNoInquiriesIsNotAsked) {
  Join("mine");
  OnLoop([this] { collector_->AskAgain(false); });
  Inquire("mine", 1);
  EXPECT_THAT(asked_, IsEmpty());
  ASSERT_THAT(sessions_["mine"]->outcomes(), SizeIs(1));
  EXPECT_TRUE(sessions_["mine"]->outcomes()[0].unknown());
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
