// Promises of the straggler policies in the round: fixed counts, targets, carried updates.
#include "round_testing.h"

namespace tributary::aggregation {
namespace {

RoundPlan Counted(uint64_t count) {
  RoundPlan plan = Plan();
  plan.cohort_count = count;
  return plan;
}

// The members by CohortKey, smallest first.
std::vector<std::string> InLine(std::vector<std::string> ids) {
  std::sort(ids.begin(), ids.end(), [](const std::string& a, const std::string& b) {
    return CohortKey(7, 7, a, 1) < CohortKey(7, 7, b, 1);
  });
  return ids;
}

std::vector<RoundMachine::Member> Clients(const std::vector<std::string>& ids) {
  std::vector<RoundMachine::Member> members;
  for (const std::string& id : ids) members.push_back(Client(id));
  return members;
}

const std::vector<std::string> kFive = {"a", "b", "c", "d", "e"};

// ---- A fixed count

TEST_F(Round, AsksTheSmallestKeysWhereACountIsFixedAndEveryAggregator) {
  const auto line = InLine(kFive);
  machine_.emplace(Counted(3));
  auto members = Clients(kFive);
  members.push_back(Rack("r"));
  EXPECT_THAT(Text(machine_->Begin(members, At(0))),
              ElementsAre("task r", "task " + line[0], "task " + line[1], "task " + line[2]));
  Refused("cohort", Offer(line[3]));
}

TEST_F(Round, ReplacesWhoIsGivenUpOrDeclinesByTheNextInLine) {
  const auto line = InLine(kFive);
  Start(Counted(2), Clients(kFive));
  EXPECT_THAT(Left(line[0], 1), IsEmpty());
  EXPECT_THAT(Timer(6), ElementsAre("task " + line[2]));
  EXPECT_THAT(Text(machine_->Reported(line[1], 1, 0, At(7))), ElementsAre("task " + line[3]));
  EXPECT_THAT(machine_->Awaited(), ::testing::UnorderedElementsAre(line[2], line[3]));
  // A refusal is not replaced: who was refused may offer again.
  machine_->Refused(Admit(line[2], 1, {}, 8), "bound", At(8));
  EXPECT_THAT(machine_->Awaited(), ElementsAre(line[3]));
}

TEST_F(Round, FillsItsCountWithJoinersAndKeepsTheOthersInLine) {
  Start(Counted(2), {Client("a")});
  EXPECT_THAT(Joined(Client("b")), ElementsAre("task b"));
  EXPECT_THAT(Joined(Client("c")), IsEmpty());
  EXPECT_THAT(Joined(Client("c", 2)), IsEmpty());
  EXPECT_THAT(Left("c", 2, 1), IsEmpty());  // the older life's end means nothing
  EXPECT_THAT(Left("c", 2, 2), IsEmpty());
  EXPECT_THAT(Left("a", 3), IsEmpty());
  EXPECT_THAT(Timer(8), IsEmpty());  // nobody is in line
  EXPECT_TRUE(machine_->open());
}

TEST_F(Round, ChoosesTheLessPreferredLessOften) {
  int chosen = 0;
  constexpr int kRounds = 4000;
  for (int round = 1; round <= kRounds; ++round) {
    RoundPlan plan = Counted(1);
    plan.round = round;
    RoundMachine machine(plan);
    RoundMachine::Member slow = Client("slow");
    slow.preference = 0.25;
    const auto actions = Text(machine.Begin({slow, Client("fast")}, At(0)));
    chosen += actions == std::vector<std::string>{"task slow"};
  }
  EXPECT_NEAR(chosen / static_cast<double>(kRounds), 0.2, 0.04);  // 1 in 5; six deviations
}

TEST_F(Round, ClosesAsSoonAsTheTargetIsIn) {
  RoundPlan plan = Plan();
  plan.target = 3;
  Start(plan, {Client("a"), Client("b"), Client("c"), Rack("r")});
  Accept("a");
  EXPECT_TRUE(machine_->open());
  EXPECT_THAT(Accept("r", 2, {"x", "y"}), ElementsAre("closed"));
  EXPECT_EQ(machine_->Result().closed_by, ClosedBy::kTarget);
  EXPECT_EQ(machine_->Result().clients, 3u);
}

TEST_F(Round, DoesNotCountRefusalsTowardsTheTarget) {
  RoundPlan plan = Plan();
  plan.target = 1;
  Start(plan, {Client("a"), Client("b"), Client("c")});
  EXPECT_THAT(Text(machine_->Refused(Admit("a"), "bound", At(1))), IsEmpty());
  EXPECT_THAT(Text(machine_->Reported("b", 1, 0, At(1))), IsEmpty());
  EXPECT_THAT(Accept("c"), ElementsAre("closed"));
}

TEST_F(Round, ClosesAtTheSoftDeadlineWhereEnoughAreIn) {
  RoundPlan plan = Plan();
  plan.soft_deadline = absl::Seconds(20);
  plan.enough = 2;
  Start(plan, {Client("a"), Client("b"), Client("c")});
  EXPECT_EQ(machine_->NextTimer(), At(60)) << "nobody is in yet";
  Accept("a");
  EXPECT_EQ(machine_->NextTimer(), At(60));
  Accept("b");
  EXPECT_EQ(machine_->NextTimer(), At(20));
  EXPECT_THAT(Timer(19), IsEmpty());
  EXPECT_EQ(Offer("c", 1, {}, 20).verdict, Verdict::kStale);
  EXPECT_THAT(Timer(20), ElementsAre("closed"));
  EXPECT_EQ(machine_->Result().closed_by, ClosedBy::kDeadline);
}

TEST_F(Round, WaitsPastTheSoftDeadlineForEnoughAndNoLonger) {
  RoundPlan plan = Plan();
  plan.soft_deadline = absl::Seconds(20);
  plan.enough = 2;
  Start(plan, {Client("a"), Client("b"), Client("c")});
  Accept("a");
  EXPECT_THAT(Timer(30), IsEmpty());
  EXPECT_TRUE(machine_->open());
  const uint64_t second = Admit("b", 1, {}, 40);
  machine_->Commit(second);
  EXPECT_THAT(Text(machine_->Folded(second, At(41))), ElementsAre("closed"));
  Start(plan, {Client("a"), Client("b"), Client("c")});
  Accept("a");
  EXPECT_THAT(Timer(60), ElementsAre("closed")) << "the deadline is the deadline";
}

TEST_F(Round, SaysWhyItClosed) {
  const auto why = [this] { return machine_->Result().closed_by; };
  Start(Plan(), {Client("a")});
  EXPECT_EQ(why(), ClosedBy::kNotYet);
  Accept("a");
  EXPECT_EQ(why(), ClosedBy::kAnswers);
  Start(Plan(), {Client("a")});
  Timer(60);
  EXPECT_EQ(why(), ClosedBy::kDeadline);
  Start(Plan(), {Client("a")});
  machine_->CloseNow(At(1));
  EXPECT_EQ(why(), ClosedBy::kTold);
  RoundPlan plan = Plan();
  plan.maximum = 1;
  Start(plan, {Client("a"), Client("b")});
  Accept("a");
  EXPECT_EQ(why(), ClosedBy::kMaximum);
}

TEST_F(Round, TellsHowLongEachTookFromItsTask) {
  Start(Plan(), {Client("a"), Client("b"), Client("z")});
  Joined(Client("late"), 10);
  const uint64_t late = Admit("late", 1, {}, 14);
  machine_->Commit(late);
  machine_->Folded(late, At(15));
  machine_->Folded(Commit("b"), At(20));
  machine_->Refused(Admit("z", 1, {}, 21), "bound", At(21));
  Timer(60);
  const auto times = machine_->Times();
  ASSERT_EQ(times.size(), 4u);
  EXPECT_EQ(times[0].id, "a");
  EXPECT_EQ(times[0].answer, Answer::kAwaited);
  EXPECT_EQ(times[0].took, absl::InfiniteDuration());
  EXPECT_EQ(times[1].took, absl::Seconds(20));
  EXPECT_EQ(times[2].took, absl::Seconds(5));
  EXPECT_EQ(times[3].answer, Answer::kRejected);
}

// ---- Carried updates

class Carry : public Round {
 protected:
  static RoundPlan CarryPlan() {
    RoundPlan plan = Plan();
    plan.late = Late::kCarry;
    plan.max_staleness = 3;
    return plan;
  }
  static RoundMachine::Member Owing(const std::string& id, uint64_t owes) {
    RoundMachine::Member member = Client(id);
    member.owes = owes;
    return member;
  }
  Admission OfferOld(const std::string& id, uint64_t round, int64_t weight) {
    return machine_->Offer(id, 1, round, weight, {}, At(1));
  }
};

TEST_F(Carry, GivesNoTaskToWhoOwesAndDoesNotAwaitIt) {
  machine_.emplace(CarryPlan());
  EXPECT_THAT(Text(machine_->Begin({Client("a"), Owing("late", 6)}, At(0))), ElementsAre("task a"));
  EXPECT_THAT(Accept("a"), ElementsAre("closed"));
  EXPECT_EQ(machine_->Result().asked, 1u);
  EXPECT_EQ(machine_->OwedRound("late"), 6u) << "it may come in the next round";
}

TEST_F(Carry, TakesTheOwedUpdateOnceWithTheWeightOfItsStaleness) {
  Start(CarryPlan(), {Client("a"), Owing("late", 4)});
  const Admission admission = OfferOld("late", 4, 100);
  ASSERT_EQ(admission.verdict, Verdict::kAdmit) << admission.message;
  EXPECT_EQ(admission.staleness, 3u);
  EXPECT_EQ(admission.weight, 50u);  // 100 / sqrt(1 + 3)
  EXPECT_TRUE(machine_->Commit(admission.ticket));
  EXPECT_THAT(Text(machine_->Folded(admission.ticket, At(2))), IsEmpty());
  EXPECT_EQ(OfferOld("late", 4, 100).verdict, Verdict::kDuplicate);
  EXPECT_EQ(machine_->RoundOf("late"), 4u);
  EXPECT_THAT(Accept("a", 10), ElementsAre("closed"));
  const RoundResult result = machine_->Result();
  EXPECT_EQ(result.weight, 60u);
  EXPECT_EQ(result.carried, 1u);
  EXPECT_THAT(result.contributors, ElementsAre("a", "late"));
  EXPECT_EQ(machine_->OwedRound("late"), 0u);
}

TEST_F(Carry, ChecksTheWeightAsItWasSentAndTheRoomAsItCounts) {
  RoundPlan plan = CarryPlan();
  plan.max_weight = 60;
  Start(plan, {Owing("late", 4)});
  Refused("weight", OfferOld("late", 4, 101));  // over max_client_weight, though 50 would count
  EXPECT_EQ(OfferOld("late", 4, 100).verdict, Verdict::kAdmit);
}

TEST_F(Carry, TakesOnlyTheRoundThatIsOwed) {
  Start(CarryPlan(), {Client("a"), Owing("late", 5)});
  EXPECT_EQ(OfferOld("late", 4, 1).verdict, Verdict::kStale);
  EXPECT_EQ(OfferOld("a", 6, 1).verdict, Verdict::kStale);
  Refused("round", Offer("late"));
}

TEST_F(Carry, GivesANewTaskWhereWhatIsOwedIsTooOldOrOfAFormerLife) {
  machine_.emplace(CarryPlan());
  EXPECT_THAT(Text(machine_->Begin({Owing("old", 3), Owing("late", 6)}, At(0))),
              ElementsAre("task old"));
  EXPECT_THAT(Joined(Client("late", 2)), ElementsAre("task late"));
  EXPECT_EQ(machine_->Offer("late", 2, 6, 1, {}, At(1)).verdict, Verdict::kStale);
  EXPECT_EQ(machine_->Offer("late", 2, 7, 1, {}, At(1)).verdict, Verdict::kAdmit);
}

TEST_F(Carry, LetsTheSameLifeComeBackWithWhatItOwes) {
  Start(CarryPlan(), {Client("a"), Owing("late", 6)});
  Left("late", 1);
  Timer(6);
  EXPECT_EQ(machine_->AnswerOf("late"), Answer::kGone);
  EXPECT_THAT(Joined(Owing("late", 6), 7), IsEmpty());
  EXPECT_EQ(machine_->Offer("late", 1, 6, 1, {}, At(8)).verdict, Verdict::kAdmit);
}

TEST_F(Carry, AwaitsThoseWhoOweWhereThereIsNobodyElse) {
  Start(CarryPlan(), {Owing("x", 6), Owing("y", 6)});
  EXPECT_TRUE(machine_->open());
  EXPECT_EQ(machine_->NextTimer(), At(60));
  for (const char* id : {"x", "y"}) {
    const Admission admission = OfferOld(id, 6, 1);
    machine_->Commit(admission.ticket);
    machine_->Folded(admission.ticket, At(2));
  }
  EXPECT_TRUE(machine_->closed());
  EXPECT_EQ(machine_->Result().clients, 2u);
}

TEST_F(Carry, RemembersWhoIsLateButNotWhoAnsweredOrLeft) {
  const auto settled = [](const std::string& id) {
    RoundMachine::Member member = Client(id);
    member.settled = true;
    return member;
  };
  Start(CarryPlan(), {settled("slow"), settled("in"), settled("no"), settled("left"), Rack("rack"),
                      Client("may be counted elsewhere")});
  Accept("in");
  machine_->Reported("no", 1, 0, At(1));
  Left("left", 1);
  Admit("slow");  // under way when the round closes
  Timer(60);
  EXPECT_EQ(machine_->OwedRound("slow"), 7u);
  for (const char* id : {"in", "no", "left", "rack", "nobody", "may be counted elsewhere"}) {
    EXPECT_EQ(machine_->OwedRound(id), 0u) << id;
  }
}

TEST_F(Carry, IsOffUnlessThePlanSaysSo) {
  machine_.emplace(Plan());
  EXPECT_THAT(Text(machine_->Begin({Owing("late", 6)}, At(0))), ElementsAre("task late"));
  EXPECT_EQ(OfferOld("late", 6, 1).verdict, Verdict::kStale);
  Timer(60);
  EXPECT_EQ(machine_->OwedRound("late"), 0u);
}

}  // namespace
}  // namespace tributary::aggregation
