// Clients that change their aggregator within the round: claims, fences, second partial sums.
#include "tests/aggregation/round_testing.h"

namespace tributary::aggregation {
namespace {

RoundMachine::Member Rack(const std::string& id, uint64_t clients, uint64_t epoch) {
  return {.id = id, .aggregator = true, .epoch = epoch, .clients = clients};
}

RoundMachine::Member Newcomer(const std::string& id) {
  return {.id = id, .aggregator = false, .epoch = 1, .unclaimed = true};
}

class Claims : public Round {
 protected:
  std::vector<std::string> Claim(const std::string& id, const std::vector<std::string>& clients,
                                 uint64_t done = 0, bool open = false, bool late = false,
                                 uint64_t epoch = 1) {
    return Text(machine_->Claim(
        id, epoch, {.clients = clients, .late = late, .done = done, .open = open}, At(1)));
  }
  Admission Second(const std::string& id, const std::vector<std::string>& clients) {
    return machine_->Offer(id, 1, 7, 1, clients, At(1), 1);
  }
  std::vector<std::string> Fold(const Admission& admission) {
    EXPECT_EQ(admission.verdict, Verdict::kAdmit) << admission.message;
    EXPECT_TRUE(machine_->Commit(admission.ticket));
    return Text(machine_->Folded(admission.ticket, At(1)));
  }
};

// ---- At the parent

TEST_F(Claims, WaitWhileAnotherRackMayStillCountTheClient) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  EXPECT_THAT(Claim("r1", {"c"}), IsEmpty());
  EXPECT_THAT(Accept("r0", 1, {"a"}), ElementsAre("claims r1 granted c taken "));
}

TEST_F(Claims, AreTakenWhereTheClientIsCounted) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  EXPECT_THAT(Claim("r1", {"a", "c"}), IsEmpty());
  EXPECT_THAT(Accept("r0", 1, {"a"}), ElementsAre("claims r1 granted c taken a"));
}

TEST_F(Claims, OfADeadRacksClientsFenceItsLife) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  EXPECT_THAT(Claim("r1", {"c"}), IsEmpty());
  EXPECT_THAT(Left("r0"), ElementsAre("claims r1 granted c taken "));
  EXPECT_EQ(machine_->AnswerOf("r0"), Answer::kAwaited) << "for the rest of its clients";
  EXPECT_THAT(Joined(Rack("r0", 1, 1)), IsEmpty()) << "the fenced life is asked again";
  EXPECT_EQ(machine_->AnswerOf("r0"), Answer::kRejected);
  const Admission refused = Refused("fenced", Offer("r0", 1, {"c"}));
  EXPECT_THAT(refused.message, HasSubstr("\"r0\""));
  // Its next life begins anew.
  EXPECT_THAT(Joined(Rack("r0", 1, 2)), ElementsAre("task r0"));
  EXPECT_EQ(Offer("r0", 1, {"d"}, 1, 2).verdict, Verdict::kAdmit);
}

TEST_F(Claims, OfADeadRacksClientsUndoWhatWasUnderWay) {
  Start(Plan(), {Rack("r0", 2, 1), Rack("r1", 1, 1)});
  const uint64_t ticket = Admit("r0", 2, {"a", "c"});
  EXPECT_THAT(Claim("r1", {"c"}), IsEmpty());
  EXPECT_THAT(Left("r0"), ElementsAre("abort r0", "claims r1 granted c taken "));
  EXPECT_FALSE(machine_->Commit(ticket));
  Accept("r1", 2, {"b", "c"});
  EXPECT_THAT(Claim("r1", {}, 1), IsEmpty()) << "r0's other client may be on its way";
  EXPECT_THAT(Text(machine_->Census("r1", 1, 3, At(1))), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("b", "c"));
  EXPECT_THAT(machine_->Result().rejected, ElementsAre(Pair("fenced", 1)));
}

TEST_F(Claims, OfOneClientByTwoRacksAreGrantedOnce) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1), Rack("r2", 1, 1)});
  Accept("r0", 1, {"a"});
  Accept("r1", 1, {"b"});
  EXPECT_THAT(Claim("r0", {"c"}), IsEmpty());
  EXPECT_THAT(Claim("r1", {"c"}), IsEmpty());
  EXPECT_THAT(Accept("r2", 1, {"d"}), ElementsAre("claims r0 granted c taken "));
  EXPECT_THAT(Fold(Second("r0", {"c"})), ElementsAre("claims r1 granted  taken c"));
}

// Both racks began the round anew, without anybody: neither waits for the other.
TEST_F(Claims, DoNotWaitForARackThatCountsNobodyWithoutAClaim) {
  Start(Plan(), {Rack("r0", 0, 1), Rack("r1", 0, 1)});
  const auto claim = [&](const std::string& id, const std::string& client) {
    return Text(machine_->Claim(id, 1, {.clients = {client}, .blank = true}, At(1)));
  };
  EXPECT_THAT(claim("r0", "a"), IsEmpty());
  EXPECT_THAT(claim("r1", "b"),
              ElementsAre("claims r0 granted a taken ", "claims r1 granted b taken "));
  EXPECT_THAT(claim("r1", "a"), IsEmpty()) << "it is r0's";
}

TEST_F(Claims, HoldTheRoundUntilTheyAreDoneAndTheSecondSumIsIn) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  Accept("r1", 1, {"b"});
  Claim("r1", {"c"});
  EXPECT_THAT(Accept("r0", 1, {"a"}), ElementsAre("claims r1 granted c taken "));
  EXPECT_TRUE(machine_->open());
  EXPECT_THAT(Claim("r1", {}, 0, true), IsEmpty());
  EXPECT_THAT(Claim("r1", {}, 1, true), ElementsAre("collect r1"));
  EXPECT_TRUE(machine_->open());
  EXPECT_THAT(Fold(Second("r1", {"c"})), ElementsAre("closed"));
  const RoundResult result = machine_->Result();
  EXPECT_THAT(result.contributors, ElementsAre("a", "b", "c"));
  EXPECT_THAT(result.parts, ElementsAre(Pair("r1", 2u)));
  EXPECT_EQ(result.weight, 3u);
  EXPECT_EQ(machine_->PartsOf("r1", kMostParts), 2u);
}

TEST_F(Claims, OfLateClientsDoNotHoldTheRoundButItsLastCallIsHeard) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 2, 1)});
  Accept("r1", 1, {"b"});
  EXPECT_THAT(Claim("r1", {"c"}, 0, true, true), IsEmpty());
  EXPECT_THAT(Accept("r0", 1, {"a"}), ElementsAre("claims r1 granted c taken ", "collect r1"));
  EXPECT_EQ(machine_->NextTimer(), At(2)) << "a second, by default";
  EXPECT_THAT(Timer(2), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("a", "b"));
}

TEST_F(Claims, LastCallIsOverWhereNobodyHasAnything) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 2, 1)});
  Accept("r1", 1, {"b"});
  Claim("r1", {"c"}, 0, true, true);
  Accept("r0", 1, {"a"});
  EXPECT_THAT(Claim("r1", {}, 0, false), ElementsAre("closed"));
}

TEST_F(Claims, DoNotMoveTheDeadline) {
  RoundPlan plan = Plan();
  plan.last_call = absl::Seconds(100);
  Start(plan, {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  Accept("r1", 1, {"b"});
  Claim("r1", {"c"}, 0, true);
  Accept("r0", 1, {"a"});
  EXPECT_THAT(Timer(60), ElementsAre("closed"));
}

TEST_F(Claims, ASecondSumThatNamesACountedClientIsRefusedWhole) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  Accept("r1", 1, {"b"});
  const Admission own = Refused("duplicate_clients", Second("r1", {"b", "c"}));
  EXPECT_THAT(own.message, AllOf(HasSubstr("\"b\""), HasSubstr("\"r1\"")));
  Refused("part", machine_->Offer("r0", 1, 7, 1, {"x"}, At(1), 1));
  Refused("part", machine_->Offer("r1", 1, 7, 1, {"x"}, At(1), 2));
  EXPECT_EQ(machine_->Offer("r1", 1, 7, 1, {"b"}, At(1), 0).verdict, Verdict::kDuplicate);
}

TEST_F(Claims, ADeadRackIsNotAwaitedOnceItsClientsAreWithOthers) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  Left("r0");
  EXPECT_THAT(Text(machine_->Census("r1", 1, 1, At(1))), IsEmpty());
  Accept("r1", 1, {"b"});
  EXPECT_TRUE(machine_->open()) << "its client may come back with it";
  Claim("r1", {"a"}, 0, true);
  EXPECT_THAT(Text(machine_->Census("r1", 1, 2, At(1))), IsEmpty()) << "the claim is not done";
  Claim("r1", {}, 1, true);
  EXPECT_THAT(Fold(Second("r1", {"a"})), ElementsAre("closed"));
}

TEST_F(Claims, ARackThatBeganAnewWithoutClientsIsNotAwaitedEither) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  Left("r0");
  EXPECT_THAT(Joined(Rack("r0", 0, 2)), ElementsAre("task r0"));
  Accept("r1", 2, {"b", "a"});
  EXPECT_TRUE(machine_->open());
  EXPECT_THAT(Text(machine_->Census("r1", 1, 2, At(1))), ElementsAre("closed"));
}

// All clients are elsewhere since before the round: it has nothing to wait for.
TEST_F(Claims, ARackThatNeverHadAClientIsNotAwaited) {
  Start(Plan(), {Rack("r0", 0, 1), Rack("r1", 2, 1)});
  EXPECT_THAT(Accept("r1", 2, {"b", "a"}), ElementsAre("closed"));
}

// Its clients have left it, but their updates may be in its sum.
TEST_F(Claims, ARackThatHasLostItsClientsIsAwaited) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  machine_->Census("r0", 1, 0, At(1));
  machine_->Census("r1", 1, 2, At(1));
  EXPECT_THAT(Accept("r1", 1, {"b"}), IsEmpty());
  EXPECT_THAT(Accept("r0", 1, {"a"}), ElementsAre("closed"));
}

// ---- At a region, whose own sum is at its parent's already

class ClosedRegion : public Claims {
 protected:
  // r0 and r1 have sent their sums, the region is closed; "late" is a rack that was not in time.
  void StartClosed(bool reopens) {
    RoundPlan plan = Plan();
    plan.reopens = reopens;
    Start(plan, {Rack("r0", 1, 1), Rack("r1", 1, 1), Rack("late", 1, 1)});
    Accept("r0", 1, {"a"});
    Accept("r1", 1, {"b"});
    EXPECT_THAT(Text(machine_->CloseNow(At(1))), ElementsAre("closed"));
  }
};

TEST_F(ClosedRegion, ClaimsAreHeardAndCountInItsSecondSum) {
  StartClosed(true);
  EXPECT_THAT(Claim("r1", {"a", "c"}), ElementsAre("claims r1 granted c taken a"));
  ASSERT_TRUE(machine_->Reopen(At(1)));
  EXPECT_EQ(machine_->ClaimsOutstanding(), 1u);
  EXPECT_THAT(Claim("r1", {}, 1, true), IsEmpty());
  EXPECT_EQ(machine_->ClaimsOutstanding(), 0u);
  EXPECT_THAT(Text(machine_->Call(At(1))), ElementsAre("collect r1"));
  EXPECT_THAT(Fold(Second("r1", {"c"})), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("c"));
  EXPECT_EQ(machine_->PartsOf("r1", 1), 1u);
  EXPECT_EQ(machine_->PartsOf("r1", 2), 2u);
}

TEST_F(ClosedRegion, OfOneClientByTwoRacksAreGrantedOnce) {
  StartClosed(true);
  EXPECT_THAT(Claim("r0", {"c"}), ElementsAre("claims r0 granted c taken "));
  EXPECT_THAT(Claim("r1", {"c"}), IsEmpty());
  ASSERT_TRUE(machine_->Reopen(At(1)));
  EXPECT_THAT(Fold(Second("r0", {"c"})), ElementsAre("claims r1 granted  taken c"));
}

TEST_F(ClosedRegion, TheSumOfWhoWasNotInTimeDoesNotCountAnyMore) {
  StartClosed(true);
  EXPECT_THAT(Claim("r1", {"d"}), ElementsAre("claims r1 granted d taken "));
  EXPECT_EQ(Offer("late", 1, {"d"}).verdict, Verdict::kStale);
  ASSERT_TRUE(machine_->Reopen(At(1)));
  EXPECT_EQ(Offer("late", 1, {"d"}).verdict, Verdict::kStale);
  EXPECT_EQ(Second("r1", {"d"}).verdict, Verdict::kAdmit);
}

// The root does not open again.
TEST_F(ClosedRegion, ARootThatHasClosedHearsOfNone) {
  StartClosed(false);
  EXPECT_THAT(Claim("r1", {"c"}), IsEmpty());
}

TEST_F(ClosedRegion, AfterTheDeadlineNoneAreHeard) {
  StartClosed(true);
  Timer(61);
  EXPECT_THAT(Text(machine_->Claim("r1", 1, {.clients = {"c"}}, At(61))), IsEmpty());
}

// ---- What a faulty rack makes up

std::vector<std::string> MadeUp(uint64_t count, const std::string& prefix = "x") {
  std::vector<std::string> ids;
  for (uint64_t i = 0; i < count; ++i) ids.push_back(absl::StrCat(prefix, i));
  return ids;
}

class BoundedClaims : public Claims {
 protected:
  // How many of them are refused, granted and taken in the answers to this claimer.
  struct Counts {
    size_t refused = 0, granted = 0, taken = 0;
    bool operator==(const Counts&) const = default;
  };
  static Counts Answers(const std::vector<Action>& actions, const std::string& claimer) {
    Counts counts;
    for (const Action& action : actions) {
      if (action.kind != Action::Kind::kClaims || action.member != claimer) continue;
      counts.refused += action.refused.size();
      counts.granted += action.granted.size();
      counts.taken += action.taken.size();
    }
    return counts;
  }
  Counts Claim(const std::string& id, const std::vector<std::string>& clients, uint64_t epoch = 1) {
    return Answers(machine_->Claim(id, epoch, {.clients = clients}, At(1)), id);
  }
};

TEST_F(BoundedClaims, ThatWaitAreRefusedBeyondTheBoundAndTheirsAlone) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1), Rack("r2", 1, 1)});
  EXPECT_EQ(Claim("r1", MadeUp(kFewClaims + 2)), Counts{.refused = 2});
  EXPECT_EQ(Claim("r1", MadeUp(kFewClaims)), Counts{}) << "again is the same as once";
  EXPECT_EQ(Claim("r2", {"c"}), Counts{}) << "another's claims are not in their way";
  Accept("r0", 1, {"a"});
  const uint64_t ticket = Commit("r2", 1, {"b"});
  const std::vector<Action> actions = machine_->Folded(ticket, At(1));
  EXPECT_EQ(Answers(actions, "r1"), Counts{.granted = kFewClaims});
}

TEST_F(BoundedClaims, ThatAreGrantedCountToo) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  Accept("r0", 1, {"a"});
  EXPECT_EQ(Claim("r1", MadeUp(kFewClaims)), Counts{.granted = kFewClaims});
  EXPECT_EQ(Claim("r1", {"one more"}), Counts{.refused = 1});
  EXPECT_EQ(Claim("r1", {"x0", "a"}), (Counts{.granted = 1, .taken = 1})) << "they are decided";
  machine_->Ungrant("x1", At(1));
  EXPECT_EQ(Claim("r1", {"one more"}), Counts{.granted = 1});
}

TEST_F(BoundedClaims, GrowWithTheClientsThatThereAre) {
  Start(Plan(), {Rack("r0", kFewClaims, 1), Rack("r1", 1, 1)});
  EXPECT_EQ(Claim("r1", MadeUp(2 * kFewClaims)), Counts{}) << "all of a dead neighbour's, and more";
}

TEST_F(BoundedClaims, OfRacksThatLieAboutTheirClientsAreBoundedAsWell) {
  Start(Plan(),
        {Rack("r0", 1, 1), Rack("r1", UINT64_MAX, 1), Rack("r2", UINT64_MAX, 1), Rack("r3", 1, 1)});
  EXPECT_EQ(Claim("r1", MadeUp(kMostClaims + 1)), Counts{.refused = 1});
  EXPECT_EQ(Claim("r2", MadeUp(kMostClaims + 1)), Counts{.refused = 1});
  static_assert(2 * kMostClaims == kMostClaimsOfAll);
  EXPECT_EQ(Claim("r3", {"c"}), Counts{.refused = 1}) << "there is no room for anybody's";
  Left("r1");
  EXPECT_EQ(Claim("r3", {"c"}), Counts{});
}

TEST_F(BoundedClaims, AreNotOfIdsThatNobodyCanHave) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  Accept("r0", 1, {"a"});
  EXPECT_EQ(Claim("r1", {std::string(kMostIdBytes + 1, 'x'), "", std::string(kMostIdBytes, 'x')}),
            (Counts{.refused = 2, .granted = 1}));
}

// What its former life waited for was of clients that may have gone elsewhere since.
TEST_F(BoundedClaims, OfAFormerLifeAreForgottenWithWhatWaits) {
  Start(Plan(), {Rack("r0", 1, 1), Rack("r1", 1, 1)});
  EXPECT_EQ(Claim("r1", MadeUp(kFewClaims)), Counts{});
  Joined(Rack("r1", 1, 2));
  EXPECT_EQ(Claim("r1", {"c"}, 2), Counts{});
  EXPECT_THAT(Accept("r0", 1, {"a"}), ElementsAre("claims r1 granted c taken "));
  Joined(Rack("r1", 1, 3));
  EXPECT_EQ(Claim("r1", MadeUp(kFewClaims, "y"), 3), Counts{.granted = kFewClaims});
}

// ---- At the rack

TEST_F(Claims, ARoundWhoseClientsAreAllCountedElsewhereCloses) {
  Start(Plan(), {});
  Joined(Newcomer("c"));
  EXPECT_THAT(Text(machine_->Elsewhere("c", At(1))), ElementsAre("closed"));
}

TEST_F(Claims, ANewcomerHasATaskAndIsNotAwaitedUntilItIsClaimed) {
  Start(Plan(), {Client("a")});
  EXPECT_THAT(Joined(Newcomer("c")), ElementsAre("task c"));
  Refused("unclaimed", Offer("c"));
  EXPECT_FALSE(machine_->Blank());
  EXPECT_THAT(Accept("a"), ElementsAre("closed"));
}

TEST_F(Claims, AClaimedNewcomerIsAwaitedAndCounted) {
  Start(Plan(), {Client("a")});
  Joined(Newcomer("c"));
  EXPECT_THAT(Text(machine_->Claimed("c", false, At(1))), IsEmpty());
  EXPECT_EQ(machine_->ClaimsOutstanding(), 1u);
  EXPECT_THAT(Accept("a"), IsEmpty());
  EXPECT_THAT(Accept("c"), ElementsAre("closed"));
  EXPECT_EQ(machine_->ClaimsOutstanding(), 0u);
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("a", "c"));
}

TEST_F(Claims, ARoundThatBeganWithNobodyIsThatOfItsClaimedNewcomers) {
  Start(Plan(), {});
  EXPECT_TRUE(machine_->Blank());
  Joined(Newcomer("c"));
  EXPECT_TRUE(machine_->Blank());
  machine_->Claimed("c", false, At(1));
  EXPECT_THAT(Accept("c"), ElementsAre("closed"));
}

TEST_F(Claims, WhoIsCountedElsewhereIsADuplicate) {
  Start(Plan(), {Client("a")});
  Joined(Newcomer("c"));
  EXPECT_THAT(Text(machine_->Elsewhere("c", At(1))), IsEmpty());
  EXPECT_EQ(Offer("c").verdict, Verdict::kDuplicate);
  EXPECT_TRUE(machine_->CountedElsewhere("c"));
  EXPECT_THAT(Accept("a"), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("a"));
}

TEST_F(Claims, TheSecondSumHasWhoCameAfterTheFirstAndIsOpenUntilItIsCalledFor) {
  Start(Plan(), {Client("a"), Client("late")});
  const uint64_t cut = Admit("late");
  Accept("a", 2);
  EXPECT_THAT(Text(machine_->CloseNow(At(1))), ElementsAre("abort late", "closed"));
  EXPECT_FALSE(machine_->Commit(cut));
  ASSERT_TRUE(machine_->Reopen(At(1)));
  EXPECT_EQ(Offer("late").verdict, Verdict::kStale) << "late = drop";
  EXPECT_EQ(Offer("a").verdict, Verdict::kDuplicate);
  Joined(Newcomer("c"));
  machine_->Claimed("c", false, At(1));
  EXPECT_THAT(Accept("c", 3), IsEmpty());
  EXPECT_THAT(Text(machine_->Call(At(1))), ElementsAre("closed"));
  const RoundResult second = machine_->Result();
  EXPECT_THAT(second.contributors, ElementsAre("c"));
  EXPECT_EQ(second.weight, 3u);
  EXPECT_EQ(second.clients, 1u);
  EXPECT_EQ(machine_->PartsOf("a", 1), 1u);
  EXPECT_EQ(machine_->PartsOf("c", 1), 0u) << "the parent has the first sum only";
  EXPECT_EQ(machine_->PartsOf("c", 2), 1u);
  EXPECT_FALSE(machine_->Reopen(At(1))) << "two sums a round are the most";
}

RoundPlan PlanOfFiveSeconds() {
  RoundPlan plan = Plan();
  plan.soft_deadline = absl::Seconds(5);
  plan.last_call = absl::Seconds(2);
  return plan;
}

// A slow one that joined while the round was running must not make it as long as the deadline.
TEST_F(Claims, AClaimedNewcomerOfTheSecondSumIsAwaitedUntilTheSoftDeadline) {
  Start(PlanOfFiveSeconds(), {Client("a")});
  Joined(Newcomer("c"));
  EXPECT_THAT(Accept("a"), ElementsAre("closed"));
  ASSERT_TRUE(machine_->Reopen(At(1)));
  machine_->Claimed("c", false, At(1));
  EXPECT_EQ(machine_->NextTimer(), At(5));
  EXPECT_THAT(Timer(4), IsEmpty());
  EXPECT_EQ(machine_->ClaimsOutstanding(), 1u);
  EXPECT_THAT(Timer(5), IsEmpty()) << "the second sum is open until it is called for";
  EXPECT_EQ(machine_->ClaimsOutstanding(), 0u);
  const auto offer = machine_->Offer("c", 1, 7, 3, {}, At(6));
  ASSERT_EQ(offer.verdict, Verdict::kAdmit) << "it may still come in time";
  EXPECT_TRUE(machine_->Commit(offer.ticket));
  machine_->Folded(offer.ticket, At(6));
  EXPECT_THAT(Text(machine_->Call(At(6))), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("c"));
}

// Its aggregator has died, and its update is there: it only has to send it again.
TEST_F(Claims, AClaimGrantedAtTheSoftDeadlineHasTheTimeToSend) {
  Start(PlanOfFiveSeconds(), {Client("a"), Client("slow")});
  Accept("a");
  Joined(Newcomer("c"));
  machine_->Claimed("c", false, At(4));
  EXPECT_EQ(machine_->NextTimer(), At(6));
  EXPECT_THAT(Timer(5), IsEmpty());
  const auto offer = machine_->Offer("c", 1, 7, 1, {}, At(5));
  ASSERT_EQ(offer.verdict, Verdict::kAdmit) << offer.message;
  EXPECT_TRUE(machine_->Commit(offer.ticket));
  EXPECT_THAT(Text(machine_->Folded(offer.ticket, At(5))), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("a", "c"));
}

TEST_F(Claims, ClaimsOneAfterAnotherMoveTheSoftDeadlineOnce) {
  Start(PlanOfFiveSeconds(), {Client("a"), Client("slow")});
  Accept("a");
  for (const int at : {4, 5, 6}) {
    const std::string id = absl::StrCat("c", at);
    Joined(Newcomer(id));
    machine_->Claimed(id, false, At(at));
  }
  EXPECT_EQ(machine_->NextTimer(), At(7)) << "and by no more than that";
  EXPECT_THAT(Timer(7), ElementsAre("closed"));
}

TEST_F(Claims, AClaimedNewcomerThatSendsIsAwaitedUntilItIsIn) {
  Start(PlanOfFiveSeconds(), {Client("a")});
  Joined(Newcomer("c"));
  Accept("a");
  ASSERT_TRUE(machine_->Reopen(At(1)));
  machine_->Claimed("c", false, At(1));
  const auto offer = machine_->Offer("c", 1, 7, 1, {}, At(4));
  ASSERT_EQ(offer.verdict, Verdict::kAdmit) << offer.message;
  Timer(5);
  EXPECT_EQ(machine_->ClaimsOutstanding(), 1u);
  machine_->Aborted(offer.ticket, At(6));
  Timer(8);
  EXPECT_EQ(machine_->ClaimsOutstanding(), 0u) << "it broke off";
}

TEST_F(Claims, ALateUpdateIsInTheSecondSumWhereThePolicySaysSo) {
  RoundPlan plan = Plan();
  plan.late = Late::kSupplement;
  Start(plan, {Client("a"), Client("late")});
  Accept("a");
  machine_->CloseNow(At(1));
  ASSERT_TRUE(machine_->Reopen(At(1)));
  Refused("unclaimed", Offer("late"));
  machine_->Claimed("late", true, At(1));
  EXPECT_EQ(machine_->ClaimsOutstanding(), 0u) << "late ones are not awaited";
  const uint64_t ticket = Commit("late");
  EXPECT_THAT(Text(machine_->Call(At(1))), IsEmpty()) << "what is in flight is waited for";
  EXPECT_THAT(Text(machine_->Folded(ticket, At(1))), ElementsAre("closed"));
  EXPECT_THAT(machine_->Result().contributors, ElementsAre("late"));
}

}  // namespace
}  // namespace tributary::aggregation
