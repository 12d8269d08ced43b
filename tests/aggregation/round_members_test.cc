// Promises of the round: members that join, leave and come back, reports and counters.
#include "round_testing.h"

namespace tributary::aggregation {
namespace {

TEST_F(Round, GivesALateJoinerTheTaskAndAwaitsIt) {
  Start(Plan(), {Client("a")});
  EXPECT_THAT(Joined(Client("b")), ElementsAre("task b"));
  EXPECT_THAT(Accept("a"), IsEmpty());
  EXPECT_THAT(Accept("b"), ElementsAre("closed"));
}

TEST_F(Round, AbortsTheUploadOfAFormerLifeAndGivesTheTaskAgain) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t ticket = Admit("a");
  EXPECT_THAT(Joined(Client("a", 2)), ElementsAre("abort a", "task a"));
  EXPECT_FALSE(machine_->Commit(ticket));
  Refused("session", Offer("a"));
  EXPECT_EQ(Offer("a", 1, {}, 1, 2).verdict, Verdict::kAdmit);
}

TEST_F(Round, LetsAnUploadGoOnWhenTheSameLifeJoinsAgain) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t ticket = Admit("a");
  Left("a");
  EXPECT_THAT(Joined(Client("a")), IsEmpty());
  EXPECT_EQ(machine_->NextTimer(), At(60));  // no grace any more
  EXPECT_TRUE(machine_->Commit(ticket));
}

TEST_F(Round, GivesTheTaskAgainToWhoJoinsAgainWithoutAnAnswer) {
  Start(Plan(), {Client("a"), Client("b")});
  Left("a");
  EXPECT_THAT(Joined(Client("a")), ElementsAre("task a"));
  Left("a", 2);
  Timer(7);
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kGone);
  EXPECT_THAT(Joined(Client("a"), 8), ElementsAre("task a"));
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kAwaited);
}

TEST_F(Round, GivesNoTaskToWhoseUpdateIsIn) {
  Start(Plan(), {Client("a"), Client("b"), Client("c")});
  Accept("a");
  const uint64_t folding = Commit("b");
  EXPECT_THAT(Joined(Client("a", 2)), IsEmpty());
  EXPECT_THAT(Joined(Client("b", 2)), IsEmpty());
  EXPECT_EQ(Offer("a", 1, {}, 1, 2).verdict, Verdict::kDuplicate);
  machine_->Folded(folding, At(1));
  EXPECT_EQ(machine_->AnswerOf("b"), Answer::kAccepted);
}

// One name for two things: what is counted of clients and what of aggregators must not mix.
TEST_F(Round, WhoComesBackInAnotherRoleSitsTheRoundOut) {
  RoundPlan plan = Plan();
  plan.cohort_count = 2;
  plan.cohort_fraction = 0;
  Start(plan, {Client("a"), Client("b"), Rack("x")});
  EXPECT_THAT(Joined(Client("x", 2)), IsEmpty());
  Refused("session", Offer("x", 1, {}, 1, 2));
  EXPECT_THAT(Joined(Client("c")), IsEmpty());  // next in line
  Left("x", 1);
  Left("a", 2);
  EXPECT_THAT(Timer(8), ElementsAre("task c"));
}

TEST_F(Round, ForgetsARefusalOrDeclineOfAFormerLifeOnly) {
  Start(Plan(), {Client("a"), Client("b"), Client("c")});
  machine_->Refused(Admit("a"), "bound", At(1));
  machine_->Reported("b", 1, 0, At(1));
  EXPECT_THAT(Joined(Client("a")), IsEmpty());
  EXPECT_THAT(Joined(Client("b")), IsEmpty());
  EXPECT_THAT(machine_->Awaited(), ElementsAre("c"));
  EXPECT_THAT(Joined(Client("a", 2)), ElementsAre("task a"));
  EXPECT_THAT(Joined(Client("b", 2)), ElementsAre("task b"));
  EXPECT_THAT(machine_->Awaited(), ElementsAre("a", "b", "c"));
}

TEST_F(Round, IgnoresOlderLivesThatJoinLeaveOrReport) {
  Start(Plan(), {Client("a", 5), Client("b")});
  EXPECT_THAT(Joined(Client("a", 4)), IsEmpty());
  EXPECT_THAT(Left("a", 1, 4), IsEmpty());
  EXPECT_EQ(machine_->NextTimer(), At(60));
  EXPECT_THAT(Text(machine_->Reported("a", 4, 0, At(1))), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kAwaited);
  EXPECT_EQ(Offer("a", 1, {}, 1, 5).verdict, Verdict::kAdmit);
}

TEST_F(Round, CountsWhatIsCommittedThoughItsSessionIsLost) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t ticket = Commit("a", 5);
  Left("a");
  EXPECT_EQ(machine_->NextTimer(), At(60));  // nothing more is awaited of it
  machine_->Folded(ticket, At(20));
  Left("b", 20);
  EXPECT_THAT(Timer(25), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("a"));
  EXPECT_EQ(machine_->Result().weight, 5u);
}

TEST_F(Round, LetsAnUploadOutliveItsSessionAndGivesUpWhenItBreaksOff) {
  Start(Plan(), {Client("a"), Client("b"), Client("c")});
  const uint64_t kept = Admit("a", 5);
  const uint64_t broken = Admit("b", 5);
  Left("a", 1);
  Left("b", 1);
  EXPECT_THAT(Timer(6), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kUploading);
  EXPECT_EQ(machine_->NextTimer(), At(60));
  EXPECT_TRUE(machine_->Commit(kept));
  machine_->Folded(kept, At(10));
  EXPECT_THAT(Text(machine_->Aborted(broken, At(10))), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("b"), Answer::kGone);
  EXPECT_EQ(machine_->weight(), 5u);
  EXPECT_THAT(machine_->Awaited(), ElementsAre("c"));
}

TEST_F(Round, GivesTheRestOfTheGraceToWhoseUploadBreaksOffAfterItsSession) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t ticket = Admit("a");
  Left("a", 1);
  machine_->Aborted(ticket, At(2));
  EXPECT_EQ(machine_->NextTimer(), At(6));
  EXPECT_THAT(Timer(6), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kGone);
}

TEST_F(Round, TakesAnOfferThatCrossedTheEndOfItsSessionWithinTheGraceOnly) {
  Start(Plan(), {Client("a"), Client("b"), Client("c")});
  Left("a", 1);
  Left("b", 1);
  EXPECT_EQ(Offer("a", 1, {}, 5).verdict, Verdict::kAdmit);
  Refused("session", Offer("b", 1, {}, 6));  // over, though no timer came yet
  Timer(6);
  Refused("session", Offer("b", 1, {}, 7));
}

TEST_F(Round, GivesUpAtOnceWhereThereIsNoGrace) {
  RoundPlan plan = Plan();
  plan.rejoin_grace = absl::ZeroDuration();
  Start(plan, {Client("a"), Client("b")});
  EXPECT_THAT(Left("a"), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kGone);
  EXPECT_THAT(Left("b"), ElementsAre("closed"));
}

TEST_F(Round, WaitsUntilTheDeadlineWhereTheGraceIsEndless) {
  RoundPlan plan = Plan();
  plan.rejoin_grace = absl::InfiniteDuration();
  Start(plan, {Client("a")});
  Left("a");
  EXPECT_EQ(machine_->NextTimer(), At(60));
  EXPECT_THAT(Timer(59), IsEmpty());
  EXPECT_THAT(Timer(60), ElementsAre("closed"));
}

// ---- Who says that it leaves

TEST_F(Round, DoesNotAwaitWhoSaysThatItLeaves) {
  Start(Plan(), {Client("a"), Client("b")});
  EXPECT_THAT(Accept("a"), IsEmpty());
  EXPECT_THAT(LeftForGood("b"), ElementsAre("closed"));
  EXPECT_EQ(machine_->AnswerOf("b"), Answer::kGone);
  EXPECT_EQ(machine_->Result().gone, 1u);
}

TEST_F(Round, AwaitsTheUploadOfWhoLeftUntilItBreaksOff) {
  Start(Plan(), {Client("a"), Client("b"), Client("c")});
  const uint64_t kept = Admit("a", 5);
  const uint64_t broken = Admit("b");
  LeftForGood("a");
  LeftForGood("b");
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kUploading);
  EXPECT_EQ(machine_->NextTimer(), At(60)) << "no timer is due for ever";
  machine_->Aborted(broken, At(2));
  EXPECT_EQ(machine_->AnswerOf("b"), Answer::kGone);
  Refused("session", Offer("b", 1, {}, 2));
  EXPECT_TRUE(machine_->Commit(kept));
  machine_->Folded(kept, At(2));
  EXPECT_EQ(machine_->weight(), 5u);
  EXPECT_THAT(machine_->Awaited(), ElementsAre("c"));
}

TEST_F(Round, AsksAgainWhoLeftAndIsBackAfterAll) {
  Start(Plan(), {Client("a"), Client("b")});
  LeftForGood("b");
  EXPECT_THAT(Joined(Client("b", 2)), ElementsAre("task b"));
  EXPECT_THAT(machine_->Awaited(), ElementsAre("a", "b"));
}

TEST_F(Round, ReplacesWhoLeavesAtOnceWhereACountIsFixed) {
  RoundPlan plan = Plan();
  plan.cohort_fraction = 0;
  plan.cohort_count = 1;
  Start(plan, {Client("a"), Client("b")});
  ASSERT_EQ(machine_->Awaited().size(), 1u);
  const std::string asked = machine_->Awaited()[0];
  EXPECT_THAT(LeftForGood(asked), ElementsAre(asked == "a" ? "task b" : "task a"));
}

// ---- Reports and counters

TEST_F(Round, CountsTheClientsBehindEvaluationReports) {
  RoundPlan plan = Plan();
  plan.minimum = 4;
  Start(plan, {Client("a"), Rack("r"), Client("b")});
  machine_->Reported("a", 1, 1, At(1));
  machine_->Reported("a", 1, 1, At(1));  // once
  machine_->Reported("r", 1, 3, At(1));
  EXPECT_THAT(Text(machine_->Reported("b", 1, 0, At(1))), ElementsAre("closed"));
  const RoundResult result = machine_->Result();
  EXPECT_TRUE(result.success);
  EXPECT_EQ(result.clients, 4u);
  EXPECT_EQ(result.weight, 0u);
  EXPECT_THAT(result.children, ElementsAre("a", "r"));
}

// The fourth of five (0.8) reports after three seconds: the fifth is waited for until the sixth.
TEST_F(Round, LearnsFromEvaluationReportsHowLongAnEvaluationMayTake) {
  RoundPlan plan = Plan();
  plan.within = {.quantile = 0.8, .margin = 2, .floor = absl::Seconds(1), .least = 2};
  Start(plan, {Client("a"), Client("b"), Client("c"), Client("d"), Client("slow")});
  for (const char* id : {"a", "b", "c"}) machine_->Reported(id, 1, 1, At(1));
  EXPECT_EQ(machine_->NextTimer(), At(60));
  machine_->Reported("d", 1, 1, At(3));
  EXPECT_EQ(machine_->NextTimer(), At(6));
  EXPECT_THAT(Timer(6), ElementsAre("closed"));
  const std::vector<MemberTime> times = machine_->Times();
  ASSERT_EQ(times.size(), 5u);
  EXPECT_EQ(times[0].took, absl::Seconds(1));
  EXPECT_EQ(times[3].took, absl::Seconds(3));
  EXPECT_EQ(times[4].answer, Answer::kAwaited);
}

TEST_F(Round, DropsTheUploadOfWhoDeclines) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t ticket = Admit("a");
  EXPECT_THAT(Text(machine_->Reported("a", 1, 0, At(1))), ElementsAre("abort a"));
  EXPECT_FALSE(machine_->Commit(ticket));
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kDeclined);
}

TEST_F(Round, AddsWhatChildrenRefusedToItsOwnCounts) {
  Start(Plan(), {Client("a"), Rack("r")});
  Refused("weight", Offer("a", 0));
  machine_->CountBelow({{"weight", 2}, {"bound", 3}}, 4);
  machine_->CountBelow({{"bound", std::numeric_limits<uint64_t>::max()}}, 1);  // does not wrap
  const RoundResult result = machine_->Result();
  EXPECT_THAT(result.rejected,
              ElementsAre(Pair("bound", std::numeric_limits<uint64_t>::max()), Pair("weight", 3u)));
  EXPECT_EQ(result.late, 5u);
}

TEST_F(Round, CountsAReasonThatIsNoWordAsOther) {
  Start(Plan(), {Rack("r")});
  machine_->CountBelow({{std::string(100'000, 'x'), 3}, {std::string(64, 'y'), 2}}, 0);
  EXPECT_THAT(machine_->Result().rejected,
              ElementsAre(Pair("other", 3u), Pair(std::string(64, 'y'), 2u)));
}

TEST_F(Round, KeepsTheReasonsThatChildrenInventBounded) {
  Start(Plan(), {Rack("r")});
  for (int i = 0; i < 1000; ++i) machine_->CountBelow({{absl::StrCat("reason-", i), 1}}, 0);
  EXPECT_EQ(machine_->Result().rejected.size(), 65u);  // 64 and "other"
  EXPECT_EQ(machine_->Result().rejected.at("other"), 936u);
}

TEST_F(Round, IsQuietBeforeItBegins) {
  RoundMachine machine(Plan());
  EXPECT_THAT(machine.Joined(Client("a"), At(0)), IsEmpty());
  EXPECT_THAT(machine.Timer(At(0)), IsEmpty());
  EXPECT_EQ(machine.NextTimer(), std::nullopt);
  EXPECT_EQ(machine.Offer("a", 1, 7, 1, {}, At(0)).verdict, Verdict::kStale);
  EXPECT_FALSE(machine.open());
  EXPECT_FALSE(machine.closed());
}

// ---- Ids that come and go

TEST_F(Round, RemembersSoManyWhoCameAndWentAndTakesNobodyNewBeyond) {
  Start(Plan(), {Client("a")});
  for (uint64_t i = 0; i < kMostAway; ++i) {
    EXPECT_FALSE(machine_->Crowded());
    Joined(Client(absl::StrCat("x", i)));
    Left(absl::StrCat("x", i));
  }
  EXPECT_TRUE(machine_->Crowded());
  EXPECT_THAT(Joined(Client("new")), IsEmpty());
  EXPECT_FALSE(machine_->Knows("new"));
  EXPECT_THAT(Refused("full", Offer("new")).message,
              AllOf(HasSubstr("\"new\""), HasSubstr("65536")));
  EXPECT_THAT(Joined(Client("x7", 2)), ElementsAre("task x7")) << "it is known";
  EXPECT_FALSE(machine_->Crowded()) << "there is one less";
  EXPECT_THAT(Joined(Client("new")), ElementsAre("task new"));
  EXPECT_THAT(Accept("a"), IsEmpty()) << "the others are awaited through their grace, as ever";
}

// Each of them has sent an update, and there is a bound on their weights.
TEST_F(Round, WhoHasLeftAnUpdateIsNotOfThoseWhoCameAndWent) {
  RoundPlan plan = Plan();
  plan.max_weight = kMostAway + 10;
  Start(plan, {Client("a")});
  for (uint64_t i = 0; i <= kMostAway; ++i) {
    const std::string id = absl::StrCat("x", i);
    Joined(Client(id));
    if (i % 2 == 0) {
      Accept(id);
      Left(id);
    } else {
      const uint64_t ticket = Commit(id);
      Left(id);
      machine_->Folded(ticket, At(1));
    }
  }
  EXPECT_FALSE(machine_->Crowded());
  EXPECT_THAT(Joined(Client("new")), ElementsAre("task new"));
}

TEST_F(Round, WhoIsNotInTheCohortIsForgottenWhenItLeaves) {
  RoundPlan plan = Plan();
  plan.cohort_fraction = 0;
  plan.cohort_count = 1;
  Start(plan, {Client("a")});
  for (uint64_t i = 0; i <= kMostAway; ++i) {
    const std::string id = absl::StrCat("x", i);
    Joined(Client(id));
    Left(id);
    ASSERT_FALSE(machine_->Knows(id));
  }
  EXPECT_FALSE(machine_->Crowded());
}

TEST_F(Round, TakesAHundredThousandMembersWithoutWalkingThemPerEvent) {
  // With a walk per event this is 10^10 steps, and the test's time limit would end it.
  RoundPlan plan = Plan();
  plan.max_weight = uint64_t{1} << 40;
  std::vector<RoundMachine::Member> members;
  for (int i = 0; i < 100000; ++i) members.push_back(Client(absl::StrCat("client-", i)));
  Start(plan, members);
  for (int i = 0; i < 100000; ++i) {
    const std::string& id = members[i].id;
    if (i % 3 == 0) Left(id, 0);
    if (i % 3 == 1) machine_->Refused(Admit(id), "bound", At(1));
    if (i % 3 == 2) Accept(id, 2);
    ASSERT_TRUE(machine_->NextTimer().has_value()) << i;
  }
  EXPECT_THAT(Timer(10), ElementsAre("closed"));
  EXPECT_EQ(machine_->Result().clients, 33333u);
  EXPECT_EQ(machine_->Result().weight, 66666u);
}

}  // namespace
}  // namespace tributary::aggregation
