// Promises of the round: what it admits, refuses, counts and forgets.
#include "round_testing.h"

#include <limits>

namespace tributary::aggregation {
namespace {

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

}  // namespace
}  // namespace tributary::aggregation
