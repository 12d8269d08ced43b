// Promises of the round: who gets the task, and when it closes.
#include "round_testing.h"

namespace tributary::aggregation {
namespace {

TEST_F(Round, SendsTheTaskToTheCohortAndToEveryAggregator) {
  RoundPlan plan = Plan();
  plan.round = 3;
  plan.cohort_fraction = 0.25;  // of client-0 to client-5 only client-2, see above
  RoundMachine machine(plan);
  std::vector<RoundMachine::Member> members;
  for (int i = 0; i < 6; ++i) members.push_back(Client(absl::StrCat("client-", i)));
  members.push_back(Rack("client-3r"));
  EXPECT_THAT(Text(machine.Begin(members, At(0))), ElementsAre("task client-2", "task client-3r"));
  EXPECT_THAT(machine.Awaited(), ElementsAre("client-2", "client-3r"));
  EXPECT_EQ(machine.AnswerOf("client-0"), Answer::kGone);
  EXPECT_THAT(Text(machine.Joined(Client("client-7"), At(1))), IsEmpty());
  EXPECT_THAT(Text(machine.Joined(Client("client-6"), At(1))), ElementsAre("task client-6"));
  const Admission admission = machine.Offer("client-0", 1, 3, 1, {}, At(1));
  EXPECT_EQ(admission.verdict, Verdict::kReject);
  EXPECT_EQ(admission.reason, "cohort");
}

// ---- When it closes

TEST_F(Round, ClosesOnceWhenAllHaveAnswered) {
  Start(Plan(), {Client("a"), Client("b")});
  EXPECT_THAT(Accept("a", 3), IsEmpty());
  EXPECT_TRUE(machine_->open());
  EXPECT_THAT(Accept("b", 4), ElementsAre("closed"));
  EXPECT_TRUE(machine_->closed());
  EXPECT_THAT(Timer(60), IsEmpty());
  EXPECT_THAT(Text(machine_->CloseNow(At(61))), IsEmpty());
  EXPECT_THAT(Joined(Client("c"), 62), IsEmpty());
  const RoundResult result = machine_->Result();
  EXPECT_TRUE(result.success);
  EXPECT_EQ(result.why_not, "");
  EXPECT_EQ(result.weight, 7u);
  EXPECT_EQ(result.clients, 2u);
  EXPECT_THAT(result.children, ElementsAre("a", "b"));
  EXPECT_THAT(result.contributors, ElementsAre("a", "b"));
}

TEST_F(Round, ClosesAtTheQuorumRoundedUp) {
  struct Case {
    double quorum;
    int members;
    int answers;  // by hand
  };
  for (const Case& c :
       {Case{1, 3, 3}, Case{0.5, 4, 2}, Case{0.5, 5, 3}, Case{0.8, 5, 4}, Case{0.55, 100, 55},
        Case{0.07, 100, 7}, Case{0.01, 3, 1}, Case{0.99, 3, 3}, Case{1e-9, 3, 1}}) {
    RoundPlan plan = Plan();
    plan.quorum = c.quorum;
    std::vector<RoundMachine::Member> members;
    for (int i = 0; i < c.members; ++i) members.push_back(Client(absl::StrCat(i)));
    Start(plan, members);
    int answers = 0;
    while (machine_->open()) Accept(absl::StrCat(answers++));
    EXPECT_EQ(answers, c.answers) << c.quorum << " of " << c.members;
  }
}

TEST_F(Round, CountsRefusalsAndDeclinesAsAnswers) {
  Start(Plan(), {Client("a"), Client("b"), Client("c")});
  EXPECT_THAT(Text(machine_->Refused(Admit("a"), "non_finite", At(1))), IsEmpty());
  EXPECT_THAT(Text(machine_->Reported("b", 1, 0, At(1))), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kRejected);
  EXPECT_EQ(machine_->AnswerOf("b"), Answer::kDeclined);
  EXPECT_THAT(machine_->Awaited(), ElementsAre("c"));
  EXPECT_THAT(Accept("c"), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().children, ElementsAre("c"));
}

// Two of four make the quorum; two refusals do not. Then one of the two who are left does.
TEST_F(Round, CountsOnlyAcceptedUpdatesTowardsTheQuorum) {
  RoundPlan plan = Plan();
  plan.quorum = 0.5;
  Start(plan, {Client("a"), Client("b"), Client("c"), Client("d")});
  EXPECT_THAT(Text(machine_->Refused(Admit("a"), "non_finite", At(1))), IsEmpty());
  Refused("weight", Offer("b", 0));
  EXPECT_EQ(machine_->NextTimer(), At(60)) << "nothing is in";
  EXPECT_THAT(Timer(2), IsEmpty());
  EXPECT_THAT(Accept("c"), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("c"));
}

TEST_F(Round, IsNotHeldUpByThoseWhoAreRefusedOrHaveNothing) {
  RoundPlan plan = Plan();
  plan.quorum = 0.75;  // of 8: 6; of the 4 who can be in: 3
  std::vector<RoundMachine::Member> members;
  for (int i = 0; i < 8; ++i) members.push_back(Client(absl::StrCat(i)));
  Start(plan, members);
  for (const char* id : {"0", "1"}) machine_->Refused(Admit(id), "bound", At(1));
  for (const char* id : {"2", "3"}) machine_->Reported(id, 1, 0, At(1));
  EXPECT_THAT(Accept("4"), IsEmpty());
  EXPECT_THAT(Accept("5"), IsEmpty());
  EXPECT_THAT(Accept("6"), ElementsAre("closed"));
}

// Who was refused may send again, and is awaited while it does.
TEST_F(Round, TakesWhoSendsAgainAfterARefusalBackIntoTheQuorum) {
  RoundPlan plan = Plan();
  plan.quorum = 0.9;
  Start(plan, {Client("a"), Client("b"), Client("c")});
  machine_->Refused(Admit("a"), "checksum", At(1));
  Accept("b");
  const uint64_t again = Admit("a");
  EXPECT_THAT(Accept("c"), IsEmpty());
  EXPECT_TRUE(machine_->Commit(again));
  EXPECT_THAT(Text(machine_->Folded(again, At(3))), ElementsAre("closed"));
  EXPECT_EQ(machine_->Result().clients, 3u);
}

// It began to send, and its process is killed a moment before the cut-off.
TEST_F(Round, ClosesAtItsDeadlineWhereASlowMemberIsKilledJustBefore) {
  for (const bool cut : {false, true}) {
    RoundPlan plan = Plan();
    plan.soft_deadline = absl::Seconds(40);
    Start(plan, {Client("a"), Client("slow")});
    Accept("a");
    const uint64_t ticket = Admit("slow", 1, {}, 30);
    EXPECT_THAT(Left("slow", 39), IsEmpty());
    if (cut) {
      EXPECT_THAT(Text(machine_->Aborted(ticket, At(39))), IsEmpty());
    }
    EXPECT_EQ(machine_->NextTimer(), At(40)) << "its grace would last until 44";
    const std::vector<std::string> actions = Timer(40);
    EXPECT_EQ(actions.back(), "closed");
    EXPECT_EQ(actions.size(), cut ? 1u : 2u);  // the upload that was left is aborted
    EXPECT_THAT(machine_->Result().contributors, ElementsAre("a"));
  }
}

TEST_F(Round, TheQuorumIsOfThoseWhoStillMayBeIn) {
  struct Case {
    double quorum;
    int members, refused, declined, gone;
    int accepted;  // by hand: quorum * (members - refused - declined - gone), rounded up
  };
  for (const Case& c :
       {Case{0.5, 10, 0, 0, 0, 5}, Case{0.5, 10, 5, 0, 0, 3}, Case{0.5, 10, 0, 5, 0, 3},
        Case{0.5, 10, 0, 0, 5, 3}, Case{0.8, 10, 2, 2, 1, 4}, Case{1, 10, 3, 3, 3, 1},
        Case{0.1, 10, 9, 0, 0, 1}}) {
    RoundPlan plan = Plan();
    plan.quorum = c.quorum;
    std::vector<RoundMachine::Member> members;
    for (int i = 0; i < c.members; ++i) members.push_back(Client(absl::StrCat(i)));
    Start(plan, members);
    int next = 0;
    for (int i = 0; i < c.refused; ++i) Refused("weight", Offer(absl::StrCat(next++), 0));
    for (int i = 0; i < c.declined; ++i) machine_->Reported(absl::StrCat(next++), 1, 0, At(1));
    for (int i = 0; i < c.gone; ++i) LeftForGood(absl::StrCat(next++));
    int accepted = 0;
    while (machine_->open()) {
      ASSERT_LT(next, c.members);
      Accept(absl::StrCat(next++));
      ++accepted;
    }
    EXPECT_EQ(accepted, c.accepted) << c.quorum << " of " << c.members;
  }
}

// Its clients were all refused, or it has none: that is not half of the round.
TEST_F(Round, ARackThatDeclinesDoesNotCloseTheRoundForTheOthers) {
  RoundPlan plan = Plan();
  plan.quorum = 0.5;
  Start(plan, {Rack("r0"), Rack("r1")});
  EXPECT_THAT(Text(machine_->Reported("r0", 1, 0, At(1))), IsEmpty());
  EXPECT_THAT(Accept("r1", 2, {"a", "b"}), ElementsAre("closed"));
}

// ---- The minimum

TEST_F(Round, TheMinimumCountsClientsWhicheverRacksTheyAreBehind) {
  RoundPlan plan = Plan();
  plan.minimum = 4;
  Start(plan, {Rack("r0"), Client("c")});
  EXPECT_THAT(Joined(Rack("came later")), ElementsAre("task came later"));
  Accept("r0", 2, {"a", "b"});
  Accept("c");
  EXPECT_THAT(Accept("came later", 1, {"d"}), ElementsAre("closed"));
  EXPECT_TRUE(machine_->Result().success);
}

TEST_F(Round, TheMinimumIsNotLessWhereARackHasDied) {
  RoundPlan plan = Plan();
  plan.minimum = plan.enough = 4;
  plan.soft_deadline = absl::Seconds(3);
  Start(plan, {Rack("r0"), Rack("r1"), Rack("r2")});
  Accept("r0", 2, {"a", "b"});
  Left("r1", 1);
  EXPECT_THAT(Timer(5), IsEmpty()) << "with two of four it would fail: r2 is waited for";
  EXPECT_THAT(Timer(6), IsEmpty()) << "r1 is given up";
  EXPECT_THAT(Accept("r2", 1, {"c"}), ElementsAre("closed")) << "nobody is left to wait for";
  EXPECT_FALSE(machine_->Result().success);
  EXPECT_THAT(machine_->Result().why_not, AllOf(HasSubstr("3 of the 4"), HasSubstr("1 are gone")));
}

TEST_F(Round, TheClientsOfADeadRackCountTowardsTheMinimumThroughAnother) {
  RoundPlan plan = Plan();
  plan.minimum = plan.enough = 4;
  plan.soft_deadline = absl::Seconds(3);
  Start(plan, {Rack("r0"), Rack("r1")});
  Left("r1", 1);
  EXPECT_THAT(Accept("r0", 4, {"a", "b", "c", "d"}), IsEmpty());
  EXPECT_THAT(Timer(3), ElementsAre("closed")) << "enough are in: r1 is not waited for";
  EXPECT_TRUE(machine_->Result().success);
}

TEST_F(Round, FailsCleanlyWhenAllAreRefused) {
  RoundPlan plan = Plan();
  plan.minimum = 2;
  Start(plan, {Client("a"), Client("b")});
  machine_->Refused(Admit("a"), "bound", At(1));
  EXPECT_THAT(Text(machine_->Refused(Admit("b"), "bound", At(1))), ElementsAre("closed"));
  const RoundResult result = machine_->Result();
  EXPECT_FALSE(result.success);
  EXPECT_THAT(result.why_not, AllOf(HasSubstr("round 7 has 0 of the 2"), HasSubstr("2 offers")));
  EXPECT_EQ(result.weight, 0u);
  EXPECT_THAT(result.contributors, IsEmpty());
  EXPECT_THAT(result.rejected, ElementsAre(Pair("bound", 2u)));
}

TEST_F(Round, IsDueToCloseWhenTheLastAnswerIsARefusedOffer) {
  Start(Plan(), {Client("a"), Client("b")});
  Accept("a");
  EXPECT_EQ(machine_->NextTimer(), At(60));
  Refused("weight", Offer("b", 0, {}, 2));
  EXPECT_EQ(machine_->AnswerOf("b"), Answer::kRejected);
  EXPECT_EQ(machine_->NextTimer(), At(2));
  EXPECT_THAT(Timer(2), ElementsAre("closed"));
}

TEST_F(Round, AbortsUploadsAtTheQuorumAndAwaitsFolds) {
  RoundPlan plan = Plan();
  plan.quorum = 0.25;
  Start(plan, {Client("a"), Client("b"), Client("c"), Client("d")});
  const uint64_t uploading_b = Admit("b");
  const uint64_t folding = Commit("c", 5);
  const uint64_t uploading_d = Admit("d");
  EXPECT_THAT(Accept("a", 2), ElementsAre("abort b", "abort d"));
  EXPECT_FALSE(machine_->open());
  EXPECT_FALSE(machine_->closed());
  EXPECT_EQ(machine_->NextTimer(), std::nullopt);
  EXPECT_FALSE(machine_->Commit(uploading_b));
  EXPECT_THAT(Text(machine_->Aborted(uploading_d, At(2))), IsEmpty());
  EXPECT_THAT(Text(machine_->Folded(folding, At(3))), ElementsAre("closed"));
  const RoundResult result = machine_->Result();
  EXPECT_EQ(result.weight, 7u);
  EXPECT_THAT(result.contributors, ElementsAre("a", "c"));
  EXPECT_EQ(result.late, 2u);  // both were on their way
  EXPECT_EQ(machine_->AnswerOf("b"), Answer::kAwaited);
}

TEST_F(Round, ClosesAtTheDeadlineWithWhatIsIn) {
  RoundPlan plan = Plan();
  plan.minimum = 2;
  Start(plan, {Client("a"), Client("b")});
  Accept("a");
  EXPECT_EQ(machine_->NextTimer(), At(60));
  EXPECT_THAT(Timer(59), IsEmpty());
  EXPECT_THAT(Timer(60), ElementsAre("closed"));
  EXPECT_EQ(machine_->NextTimer(), std::nullopt);
  const RoundResult result = machine_->Result();
  EXPECT_FALSE(result.success);
  EXPECT_THAT(result.why_not, HasSubstr("1 of the 2 clients"));
  EXPECT_EQ(result.weight, 1u);
}

TEST_F(Round, ClosesAtTheDeadlineWithAnyEventThatComesAfterIt) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t folding = Commit("a");
  Admit("b");
  EXPECT_THAT(Text(machine_->Folded(folding, At(70))), ElementsAre("abort b", "closed"));
}

TEST_F(Round, ClosesAtTheMaximumOfAcceptedClients) {
  RoundPlan plan = Plan();
  plan.maximum = 3;
  Start(plan, {Client("a"), Client("b"), Rack("r")});
  EXPECT_THAT(Accept("r", 5, {"x", "y"}), IsEmpty());
  EXPECT_THAT(Accept("a"), ElementsAre("closed"));
  EXPECT_EQ(machine_->Result().clients, 3u);
}

TEST_F(Round, ClosesNowWhenToldAndStillAwaitsFolds) {
  Start(Plan(), {Client("a"), Client("b"), Client("c")});
  const uint64_t folding = Commit("a");
  Admit("b");
  EXPECT_THAT(Text(machine_->CloseNow(At(2))), ElementsAre("abort b"));
  EXPECT_THAT(Text(machine_->CloseNow(At(2))), IsEmpty());
  EXPECT_THAT(Text(machine_->Folded(folding, At(3))), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("a"));
}

TEST_F(Round, ClosesWhenEverybodyIsGoneAndNoGraceRuns) {
  Start(Plan(), {Client("a"), Client("b")});
  EXPECT_THAT(Left("a", 1), IsEmpty());
  EXPECT_THAT(Left("b", 3), IsEmpty());
  EXPECT_EQ(machine_->NextTimer(), At(6));
  EXPECT_THAT(Timer(6), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kGone);
  EXPECT_EQ(machine_->NextTimer(), At(8));
  EXPECT_THAT(Timer(8), ElementsAre("closed"));
  EXPECT_FALSE(machine_->Result().success);
  EXPECT_THAT(machine_->Result().why_not, HasSubstr("2 are gone"));
}

TEST_F(Round, WaitsForJoinersUntilTheDeadlineWhereNobodyIsThere) {
  Start(Plan(), {});
  EXPECT_TRUE(machine_->open());
  EXPECT_EQ(machine_->NextTimer(), At(60));
  EXPECT_THAT(Timer(59), IsEmpty());
  EXPECT_THAT(Joined(Client("a"), 59), ElementsAre("task a"));
  EXPECT_EQ(Offer("a", 1, {}, 59).verdict, Verdict::kAdmit);
  EXPECT_THAT(Timer(60), ElementsAre("abort a", "closed"));
}

TEST_F(Round, IsDueToCloseAtOnceWhereNoMemberIsInTheCohort) {
  RoundPlan plan = Plan();
  plan.cohort_fraction = 0;
  RoundMachine machine(plan);
  EXPECT_THAT(Text(machine.Begin({Client("a")}, At(0))), IsEmpty());
  EXPECT_TRUE(machine.open());
  EXPECT_EQ(machine.NextTimer(), At(0));
  EXPECT_THAT(Text(machine.Timer(At(0))), ElementsAre("closed"));
}

TEST_F(Round, LeavesTheGoneOutOfTheQuorum) {
  RoundPlan plan = Plan();
  plan.quorum = 0.5;  // of 4: 2; of 2: 1
  Start(plan, {Client("a"), Client("b"), Client("c"), Client("d")});
  Accept("a");
  Left("b", 1);
  Left("c", 1);
  EXPECT_TRUE(machine_->open());  // awaited through their grace
  EXPECT_THAT(Timer(6), ElementsAre("closed"));
}

TEST_F(Round, HandlesSeveralPassedTimersAsIfEachHadBeenCalled) {
  RoundPlan plan = Plan();
  plan.quorum = 0.5;
  for (const bool late : {false, true}) {
    Start(plan, {Client("a"), Client("b"), Client("c"), Client("d")});
    Accept("a");
    Left("b", 1);
    Left("c", 2);
    Left("d", 3);
    std::vector<std::string> actions = late ? Timer(100) : Timer(6);
    if (!late) {
      EXPECT_THAT(actions, IsEmpty());
      actions = Timer(7);
    }
    EXPECT_THAT(actions, ElementsAre("closed"));
    EXPECT_EQ(machine_->AnswerOf("b"), Answer::kGone);
    EXPECT_EQ(machine_->AnswerOf("c"), Answer::kGone);
    EXPECT_EQ(machine_->AnswerOf("d"), Answer::kAwaited);  // the round was over before its grace
  }
}

}  // namespace
}  // namespace tributary::aggregation
