// Promises of the round's state machine, one rule a test; round_sim_test.cc has them all at once.
#include "aggregation/round.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tributary::aggregation {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

absl::Duration At(int64_t seconds) { return absl::Seconds(1000 + seconds); }

RoundPlan Plan() {
  return {.round = 7,
          .seed = 7,
          .minimum = 1,
          .deadline = absl::Seconds(60),
          .rejoin_grace = absl::Seconds(5),
          .max_weight = 1000,
          .max_client_weight = 100};
}

RoundMachine::Member Client(const std::string& id, uint64_t epoch = 1) {
  return {.id = id, .aggregator = false, .epoch = epoch};
}
RoundMachine::Member Rack(const std::string& id, uint64_t epoch = 1) {
  return {.id = id, .aggregator = true, .epoch = epoch};
}

// "task a", "abort a", "closed": what a test compares.
std::vector<std::string> Text(const std::vector<Action>& actions) {
  std::vector<std::string> out;
  for (const Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::kTask:
        out.push_back("task " + action.member);
        break;
      case Action::Kind::kAbort:
        out.push_back("abort " + action.member);
        break;
      case Action::Kind::kClosed:
        out.push_back("closed");
        break;
    }
  }
  return out;
}

class Round : public ::testing::Test {
 protected:
  void Start(const RoundPlan& plan, const std::vector<RoundMachine::Member>& members) {
    machine_.emplace(plan);
    machine_->Begin(members, At(0));
  }
  Admission Offer(const std::string& id, int64_t weight = 1,
                  const std::vector<std::string>& clients = {}, int64_t at = 1,
                  uint64_t epoch = 1) {
    return machine_->Offer(id, epoch, 7, weight, clients, At(at));
  }
  // Offers, which must be admitted.
  uint64_t Admit(const std::string& id, int64_t weight = 1,
                 const std::vector<std::string>& clients = {}, int64_t at = 1) {
    const Admission admission = Offer(id, weight, clients, at);
    EXPECT_EQ(admission.verdict, Verdict::kAdmit) << id << ": " << admission.message;
    EXPECT_NE(admission.ticket, 0u);
    return admission.ticket;
  }
  uint64_t Commit(const std::string& id, int64_t weight = 1,
                  const std::vector<std::string>& clients = {}) {
    const uint64_t ticket = Admit(id, weight, clients);
    EXPECT_TRUE(machine_->Commit(ticket)) << id;
    return ticket;
  }
  std::vector<std::string> Accept(const std::string& id, int64_t weight = 1,
                                  const std::vector<std::string>& clients = {}) {
    return Text(machine_->Folded(Commit(id, weight, clients), At(1)));
  }
  // Offers, which must be refused with this reason and be counted so.
  Admission Refused(const std::string& reason, const Admission& admission) {
    EXPECT_EQ(admission.verdict, Verdict::kReject);
    EXPECT_EQ(admission.reason, reason) << admission.message;
    EXPECT_FALSE(admission.message.empty());
    EXPECT_EQ(admission.ticket, 0u);
    return admission;
  }
  std::vector<std::string> Timer(int64_t at) { return Text(machine_->Timer(At(at))); }
  std::vector<std::string> Left(const std::string& id, int64_t at = 1, uint64_t epoch = 1) {
    return Text(machine_->Left(id, epoch, At(at)));
  }
  std::vector<std::string> Joined(const RoundMachine::Member& member, int64_t at = 1) {
    return Text(machine_->Joined(member, At(at)));
  }

  std::optional<RoundMachine> machine_;
};

// ---- Cohort

// Expected: FNV-1a, Philox4x32-10 and the comparison in Python integers and fractions.
TEST(CohortTest, IsTheSeededHashUnderTheFraction) {
  const auto cohort = [](uint64_t seed, uint64_t round, double fraction) {
    std::string bits;
    for (int i = 0; i < 40; ++i) {
      bits += InCohort(seed, round, absl::StrCat("client-", i), fraction) ? '1' : '0';
    }
    return bits;
  };
  EXPECT_EQ(cohort(7, 3, 0.25), "0010001001011010101000000001000010000100");
  EXPECT_EQ(cohort(7, 3, 0.5), "1110001011111011101000001001000111000110");
  EXPECT_EQ(cohort(7, 3, 0.1), "0000001000000000000000000000000000000100");
  EXPECT_EQ(cohort(7, 4, 0.25), "0000001000000010000001001010001110010100");
  EXPECT_EQ(cohort((uint64_t{1} << 63) + 5, 3, 0.5), "0001011111010100100010010001011000011101");
  int in = 0;
  for (int i = 0; i < 10000; ++i) in += InCohort(1, 1, absl::StrCat("c", i), 0.3);
  EXPECT_EQ(in, 3053);
}

TEST(CohortTest, IsEverybodyFromOneOnAndNobodyAtZeroOrNaN) {
  for (int i = 0; i < 100; ++i) {
    const std::string id = absl::StrCat(i);
    EXPECT_TRUE(InCohort(1, 1, id, 1));
    EXPECT_TRUE(InCohort(1, 1, id, 1.5));
    EXPECT_FALSE(InCohort(1, 1, id, 0));
    EXPECT_FALSE(InCohort(1, 1, id, -1));
    EXPECT_FALSE(InCohort(1, 1, id, std::nan("")));
  }
  EXPECT_FALSE(InCohort(1, 1, "a", std::numeric_limits<double>::denorm_min()));
}

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

// ---- Offers

TEST_F(Round, CallsAnotherRoundsUpdateStaleAndSaysWhichRoundIsOpen) {
  Start(Plan(), {Client("a")});
  for (const uint64_t round : {6u, 8u}) {
    const Admission admission = machine_->Offer("a", 1, round, 1, {}, At(1));
    EXPECT_EQ(admission.verdict, Verdict::kStale);
    EXPECT_EQ(admission.reason, "round");
    EXPECT_THAT(admission.message,
                AllOf(HasSubstr(absl::StrCat("for round ", round)), HasSubstr("round 7 is open")));
  }
  EXPECT_EQ(machine_->Result().late, 2u);
  EXPECT_THAT(machine_->Result().rejected, IsEmpty());
}

TEST_F(Round, CallsAnUpdateAfterTheCloseStaleAndCountsItLate) {
  Start(Plan(), {Client("a"), Client("b")});
  Accept("a");
  Timer(60);
  const Admission admission = Offer("b", 1, {}, 61);
  EXPECT_EQ(admission.verdict, Verdict::kStale);
  EXPECT_EQ(admission.reason, "round");
  EXPECT_EQ(machine_->Result().late, 1u);
}

TEST_F(Round, CallsAnUpdateAfterTheDeadlineStaleThoughNoTimerCameYet) {
  Start(Plan(), {Client("a")});
  EXPECT_EQ(Offer("a", 1, {}, 60).verdict, Verdict::kStale);
  EXPECT_EQ(machine_->NextTimer(), At(60));
  EXPECT_THAT(Timer(60), ElementsAre("closed"));
}

TEST_F(Round, TakesAnUpdateOnceHoweverOftenItIsSent) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t ticket = Commit("a", 5);
  EXPECT_EQ(Offer("a", 5).verdict, Verdict::kDuplicate);  // while it is folded
  machine_->Folded(ticket, At(1));
  EXPECT_EQ(Offer("a", 9).verdict, Verdict::kDuplicate);
  EXPECT_FALSE(machine_->Commit(ticket));
  EXPECT_THAT(Text(machine_->Folded(ticket, At(1))), IsEmpty());
  EXPECT_THAT(Accept("b"), ElementsAre("closed"));
  // Its answer got lost, and it asks again after the close: it is in, and not late.
  EXPECT_EQ(Offer("a", 5).verdict, Verdict::kDuplicate);
  EXPECT_EQ(machine_->Result().weight, 6u);
  EXPECT_EQ(machine_->Result().clients, 2u);
  EXPECT_EQ(machine_->Result().late, 0u);
  EXPECT_THAT(machine_->Result().rejected, IsEmpty());
}

TEST_F(Round, RefusesWhoHasNotJoined) {
  Start(Plan(), {Client("a")});
  EXPECT_THAT(Refused("session", Offer("b")).message, HasSubstr("\"b\" has not joined"));
  EXPECT_THAT(machine_->Result().rejected, ElementsAre(Pair("session", 1u)));
}

TEST_F(Round, RefusesAnotherSessionThanTheCurrent) {
  Start(Plan(), {Client("a", 5)});
  Refused("session", Offer("a", 1, {}, 1, 4));
  Refused("session", Offer("a", 1, {}, 1, 6));
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kAwaited);
  EXPECT_EQ(Offer("a", 1, {}, 1, 5).verdict, Verdict::kAdmit);
}

TEST_F(Round, RefusesWeightsThatAreNotPositiveOrPassTheClientsCap) {
  Start(Plan(), {Client("a"), Client("b"), Rack("r")});
  for (const int64_t weight :
       {int64_t{0}, int64_t{-1}, int64_t{101}, std::numeric_limits<int64_t>::min(),
        std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(Refused("weight", Offer("a", weight)).message, HasSubstr(absl::StrCat(weight)));
  }
  Refused("weight", Offer("r", 0, {"x"}));
  Admit("r", 101, {"x", "y"});  // the cap is of one client
  Admit("a", 100);
  EXPECT_EQ(machine_->Result().rejected.at("weight"), 6u);
}

TEST_F(Round, NeverAdmitsMoreWeightThanTheGridWasProvedFor) {
  RoundPlan plan = Plan();
  plan.max_weight = 100;
  Start(plan, {Client("a"), Client("b"), Client("c"), Client("d")});
  Accept("a", 60);
  const uint64_t ticket = Admit("b", 40);
  EXPECT_THAT(Refused("full", Offer("c", 1)).message, HasSubstr("room for a weight of 0 of 100"));
  machine_->Aborted(ticket, At(1));  // what it held is free again
  Refused("full", Offer("c", 41));
  EXPECT_THAT(Accept("c", 40), IsEmpty());
  Refused("full", Offer("d", 1));
  EXPECT_EQ(machine_->weight(), 100u);
}

TEST_F(Round, NeverAdmitsAWeightThatWouldOverflow) {
  RoundPlan plan = Plan();
  plan.max_weight = std::numeric_limits<uint64_t>::max();
  plan.max_client_weight = plan.max_weight;
  Start(plan, {Client("a"), Client("b"), Client("c")});
  constexpr int64_t kHalf = std::numeric_limits<int64_t>::max();
  Admit("a", kHalf);
  Admit("b", kHalf);
  Refused("full", Offer("c", 2));
  Admit("c", 1);
}

TEST_F(Round, NeverAdmitsMoreClientsThanTheMaximum) {
  RoundPlan plan = Plan();
  plan.maximum = 2;
  Start(plan, {Client("a"), Client("b"), Rack("r"), Client("d")});
  const uint64_t ticket = Admit("a");
  Refused("full", Offer("r", 5, {"x", "y"}));
  Admit("b");
  Refused("full", Offer("d"));
  machine_->Refused(ticket, "bound", At(1));
  Admit("d");
}

TEST_F(Round, RefusesAPartialSumWithAClientThatIsCountedElsewhere) {
  Start(Plan(), {Rack("r0"), Rack("r1"), Client("c")});
  const uint64_t ticket = Admit("r0", 5, {"x", "y"});
  EXPECT_THAT(Refused("duplicate_clients", Offer("r1", 5, {"z", "y"})).message,
              AllOf(HasSubstr("\"y\""), HasSubstr("\"r0\"")));
  machine_->Aborted(ticket, At(1));
  Admit("r1", 5, {"z", "y"});
  Refused("duplicate_clients", Offer("r0", 5, {"x", "y"}));
  Admit("r0", 5, {"x"});
}

TEST_F(Round, RefusesAClientThatIsCountedUnderAnAggregatorAndTheReverse) {
  Start(Plan(), {Rack("r0"), Rack("r1"), Client("x"), Client("y")});
  Accept("r0", 5, {"x"});
  EXPECT_THAT(Refused("duplicate_clients", Offer("x")).message, HasSubstr("\"r0\""));
  Accept("y");
  Refused("duplicate_clients", Offer("r1", 5, {"z", "y"}));
}

TEST_F(Round, RefusesAPartialSumThatNamesAClientTwiceOrNone) {
  Start(Plan(), {Rack("r"), Client("c")});
  Refused("duplicate_clients", Offer("r", 5, {"x", "y", "x"}));
  Refused("malformed", Offer("r", 5, {}));
  Admit("r", 5, {"x", "y"});
}

TEST_F(Round, LetsANewerAttemptReplaceTheOneInFlight) {
  RoundPlan plan = Plan();
  plan.max_weight = 100;
  plan.maximum = 2;
  Start(plan, {Rack("r"), Client("b")});
  const uint64_t older = Admit("r", 100, {"x", "y"});
  // Weight, clients and maximum that the older held do not stand in the newer's way.
  const Admission newer = Offer("r", 99, {"y", "z"});
  ASSERT_EQ(newer.verdict, Verdict::kAdmit);
  EXPECT_EQ(newer.replaces, older);
  EXPECT_NE(newer.ticket, older);
  EXPECT_FALSE(machine_->Commit(older));
  EXPECT_THAT(Text(machine_->Aborted(older, At(1))), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("r"), Answer::kUploading);
  EXPECT_TRUE(machine_->Commit(newer.ticket));
  machine_->Folded(newer.ticket, At(1));
  EXPECT_TRUE(machine_->closed());  // the maximum is reached
  EXPECT_EQ(machine_->Result().weight, 99u);
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("y", "z"));
}

TEST_F(Round, LetsTheOlderAttemptGoOnWhenTheNewerIsRefused) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t ticket = Admit("a", 5);
  Refused("weight", Offer("a", 0));
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kUploading);
  EXPECT_TRUE(machine_->Commit(ticket));
}

TEST_F(Round, LetsARefusedClientTryAgainAndAwaitsItOnlyOnceAdmitted) {
  Start(Plan(), {Client("a"), Client("b")});
  machine_->Refused(Admit("a"), "checksum", At(1));
  EXPECT_THAT(machine_->Awaited(), ElementsAre("b"));
  Refused("weight", Offer("a", 0));
  EXPECT_THAT(machine_->Awaited(), ElementsAre("b"));
  const uint64_t ticket = Admit("a");
  EXPECT_THAT(machine_->Awaited(), ElementsAre("a", "b"));
  EXPECT_THAT(Accept("b"), IsEmpty());
  EXPECT_TRUE(machine_->Commit(ticket));
  EXPECT_THAT(Text(machine_->Folded(ticket, At(2))), ElementsAre("closed"));
}

TEST_F(Round, AwaitsAMemberAgainWhoseUploadBrokeOff) {
  Start(Plan(), {Client("a"), Client("b")});
  Accept("b");
  EXPECT_THAT(Text(machine_->Aborted(Admit("a", 7), At(1))), IsEmpty());
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kAwaited);
  EXPECT_TRUE(machine_->open());
  EXPECT_THAT(Accept("a", 3), ElementsAre("closed"));
  EXPECT_EQ(machine_->Result().weight, 4u);
}

TEST_F(Round, IgnoresAbortAndRefusalOfWhatIsCommitted) {
  Start(Plan(), {Client("a"), Client("b")});
  const uint64_t ticket = Commit("a", 5);
  EXPECT_THAT(Text(machine_->Aborted(ticket, At(1))), IsEmpty());
  EXPECT_THAT(Text(machine_->Refused(ticket, "bound", At(1))), IsEmpty());
  machine_->Folded(ticket, At(1));
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kAccepted);
  EXPECT_EQ(machine_->weight(), 5u);
}

TEST_F(Round, IgnoresTicketsThatNeverWere) {
  Start(Plan(), {Client("a")});
  EXPECT_FALSE(machine_->Commit(0));
  EXPECT_FALSE(machine_->Commit(12345));
  EXPECT_THAT(Text(machine_->Folded(12345, At(1))), IsEmpty());
  EXPECT_THAT(Text(machine_->Folded(Admit("a"), At(1))), IsEmpty());  // not committed
  EXPECT_EQ(machine_->AnswerOf("a"), Answer::kUploading);
}

TEST_F(Round, GivesTicketsThatAnotherRoundDoesNotGive) {
  RoundPlan plan = Plan();
  Start(plan, {Client("a")});
  const uint64_t ticket = Admit("a");
  plan.round = 8;
  RoundMachine next(plan);
  next.Begin({Client("a")}, At(0));
  EXPECT_NE(next.Offer("a", 1, 8, 1, {}, At(1)).ticket, ticket);
}

// ---- Joining, leaving, epochs

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
