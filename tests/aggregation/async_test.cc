// The buffer's state machine, by hand calculation.
#include "aggregation/async.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace tributary::aggregation {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using AsyncKind = AsyncAction::Kind;
using VerdictKind = AsyncMachine::Verdict::Kind;

constexpr int64_t kExample = 65536;  // a weight of one example on the fractional grid

absl::Duration At(double seconds) { return absl::Seconds(1000 + seconds); }

std::vector<std::string> Text(const std::vector<AsyncAction>& actions) {
  std::vector<std::string> out;
  for (const AsyncAction& a : actions) {
    switch (a.kind) {
      case AsyncKind::kTask:
        out.push_back("task " + a.member);
        break;
      case AsyncKind::kCollect:
        out.push_back("collect " + a.member);
        break;
      case AsyncKind::kAbort:
        out.push_back("abort " + a.member);
        break;
      case AsyncKind::kStarved:
        out.emplace_back("starved");
        break;
      case AsyncKind::kClosed:
        out.emplace_back("closed");
        break;
    }
  }
  return out;
}

class Async : public ::testing::Test {
 protected:
  Async() {
    plan_.buffer = 2;
    plan_.max_staleness = 3;
    plan_.flush_after = absl::Seconds(60);
    plan_.collect_within = absl::Seconds(10);
    plan_.task_limit = absl::Seconds(300);
    plan_.max_weight = 1000 * kExample;
    plan_.max_client_weight = 100 * kExample;
  }
  void Clients(int count) {
    for (int i = 0; i < count; ++i) m_.Joined({.id = absl::StrCat("c", i), .epoch = 1}, At(0));
  }
  std::vector<std::string> Open(uint64_t version, double at = 0) {
    return Text(m_.Open(plan_, version, At(at)));
  }
  uint64_t Admit(const std::string& id, uint64_t base, int64_t weight = kExample, double at = 1) {
    const Admission a = m_.Offer(id, 1, base, weight, At(at));
    EXPECT_EQ(a.verdict, Verdict::kAdmit) << id << ": " << a.message;
    return a.ticket;
  }
  // Offered, whole and folded.
  std::vector<std::string> Send(const std::string& id, uint64_t base, int64_t weight = kExample,
                                double at = 1) {
    const uint64_t ticket = Admit(id, base, weight, at);
    EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kFold) << id;
    return Text(m_.Folded(ticket, At(at)));
  }
  std::vector<std::string> SendSum(const std::string& id, uint64_t version,
                                   const std::vector<Contribution>& parts, double at = 1) {
    uint64_t weight = 0;
    for (const Contribution& c : parts) weight += c.weight;
    const Admission a = m_.OfferSum(id, 1, version, 0, weight, parts, At(at));
    EXPECT_EQ(a.verdict, Verdict::kAdmit) << id << ": " << a.message;
    EXPECT_EQ(m_.Commit(a.ticket).kind, VerdictKind::kFold);
    return Text(m_.Folded(a.ticket, At(at)));
  }
  std::vector<std::string> Timer(double at) { return Text(m_.Timer(At(at))); }

  AsyncPlan plan_;
  AsyncMachine m_;
};

TEST_F(Async, ClosesWhenTheBufferHoldsKUpdatesAndLeavesTheOthersAtTheirTraining) {
  Clients(4);
  EXPECT_THAT(Open(0), ElementsAre("task c0", "task c1", "task c2", "task c3"));
  EXPECT_THAT(Send("c2", 0), IsEmpty());
  EXPECT_THAT(Send("c0", 0), ElementsAre("closed"));
  const AsyncResult result = m_.Result();
  EXPECT_THAT(result.contributions,
              ElementsAre(Contribution{"c0", 0, 0, kExample}, Contribution{"c2", 0, 0, kExample}));
  EXPECT_EQ(result.weight, 2u * kExample);
  EXPECT_EQ(result.closed_by, BufferClosedBy::kFull);
  m_.Settle(true);
  EXPECT_THAT(Open(1, 2), ElementsAre("task c0", "task c2"));  // asked the longest ago first
  EXPECT_EQ(m_.training(), 4u);
}

// w / sqrt(1 + tau) with w = 3 examples: 3 * 65536 = 196608; / sqrt(2) = 139022.8...,
// / sqrt(3) = 113511.7..., / 2 = 98304.
TEST_F(Async, WeighsByTheVersionsMadeSinceItsModelRoundedOnce) {
  Clients(8);
  Open(0);
  const uint64_t expected[] = {196608, 139023, 113512, 98304};
  for (uint64_t version = 0; version < 4; ++version) {
    if (version > 0) Open(version);
    const uint64_t ticket = Admit(absl::StrCat("c", version), 0, 3 * kExample);
    const auto verdict = m_.Commit(ticket);
    EXPECT_EQ(verdict.staleness, version);
    EXPECT_EQ(verdict.weight, expected[version]);
    m_.Folded(ticket, At(1));
    EXPECT_THAT(Text(m_.Close(At(1))), ElementsAre("closed"));
    m_.Settle(true);
  }
}

TEST_F(Async, RefusesWhatIsOlderThanTheBoundAndGivesItsClientTheNewestModel) {
  Clients(3);
  Open(0);
  for (uint64_t version = 0; version < 4; ++version) {
    Send("c0", version);
    m_.Close(At(1));
    m_.Settle(true);
    Open(version + 1);
  }
  const Admission a = m_.Offer("c1", 1, 0, kExample, At(2));
  EXPECT_EQ(a.verdict, Verdict::kStale);
  EXPECT_EQ(a.reason, "staleness");
  EXPECT_THAT(a.message, HasSubstr("4 behind version 4"));
  EXPECT_EQ(m_.NextTimer(), At(2));
  EXPECT_THAT(Timer(2), ElementsAre("task c1"));
  EXPECT_EQ(m_.Result().stale, 1u);
}

TEST_F(Async, RefusesWhatGrewTooOldWhileItWasOnItsWay) {
  plan_.max_staleness = 0;
  Clients(2);
  Open(0);
  const uint64_t slow = Admit("c1", 0);
  Send("c0", 0);
  m_.Close(At(1));
  m_.Settle(true);
  Open(1);
  EXPECT_EQ(m_.Commit(slow).kind, VerdictKind::kStale);
  EXPECT_FALSE(m_.Holds(slow));
}

// The bound is checked when the update is folded, not while it waits.
TEST_F(Async, WhatComesWhileTheBufferIsClosedWaitsForTheNext) {
  Clients(3);
  Open(0);
  Send("c0", 0);
  Send("c1", 0);
  ASSERT_TRUE(m_.closed());
  const uint64_t ticket = Admit("c2", 0, 2 * kExample);
  EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kWait);
  m_.Settle(true);
  Open(1);
  const auto verdict = m_.Commit(ticket);
  EXPECT_EQ(verdict.kind, VerdictKind::kFold);
  EXPECT_EQ(verdict.staleness, 1u);
  EXPECT_EQ(verdict.weight, 92682u);  // 131072 / sqrt(2) = 92681.9...
}

TEST_F(Async, CountsAClientsUpdateOfAVersionOnce) {
  Clients(2);
  Open(0);
  Send("c0", 0);
  EXPECT_EQ(m_.Offer("c0", 1, 0, kExample, At(1)).verdict, Verdict::kDuplicate);
  Send("c1", 0);
  m_.Settle(true);
  Open(1);
  EXPECT_EQ(m_.Offer("c0", 1, 0, kExample, At(2)).verdict, Verdict::kDuplicate)
      << "it is in version 1";
  EXPECT_EQ(m_.Offer("c0", 1, 1, kExample, At(2)).verdict, Verdict::kAdmit);
  AsyncMachine resumed;
  resumed.Restore(m_.Counted());
  resumed.Joined({.id = "c0", .epoch = 1}, At(3));
  resumed.Open(plan_, 1, At(3));
  EXPECT_EQ(resumed.Offer("c0", 1, 0, kExample, At(3)).verdict, Verdict::kDuplicate);
}

TEST_F(Async, ForgetsWhatIsTooOldToComeAgain) {
  Clients(1);
  for (uint64_t version = 0; version < 9; ++version) {
    Open(version);
    EXPECT_THAT(Send("c0", version), ElementsAre("closed"));  // nobody else is there
    EXPECT_EQ(m_.Result().closed_by, BufferClosedBy::kEveryone);
    m_.Settle(true);
    EXPECT_LE(m_.Counted().size(), plan_.max_staleness + 1);
  }
}

TEST_F(Async, ALostSumMayBeTrainedForOnceMore) {
  Clients(2);
  Open(0);
  Send("c0", 0);
  Send("c1", 0);
  m_.Settle(false);
  EXPECT_THAT(Open(0), ElementsAre("task c0", "task c1"));
  Send("c0", 0);
}

TEST_F(Async, SoManyTrainAtOnceAsOneEndsAnotherIsGivenTheNewestModel) {
  plan_.concurrency = 2;
  plan_.buffer = 3;
  Clients(5);
  EXPECT_THAT(Open(0), ElementsAre("task c0", "task c1"));
  EXPECT_THAT(Send("c1", 0), ElementsAre("task c2"));
  EXPECT_THAT(Text(m_.Left("c0", 1, At(2))), ElementsAre("task c3"));
  EXPECT_THAT(Text(m_.Declined("c3", 1, At(2))), ElementsAre("task c4"));
  EXPECT_EQ(m_.training(), 2u);
}

TEST_F(Async, WhoDeclinesAnOldTaskIsGivenTheNewest) {
  Clients(3);
  Open(0);
  EXPECT_THAT(Text(m_.Declined("c2", 1, At(1))), IsEmpty()) << "it had the newest";
  Send("c0", 0);
  m_.Close(At(1));
  m_.Settle(true);
  Open(1, 2);
  EXPECT_THAT(Text(m_.Declined("c1", 1, At(3))), ElementsAre("task c1"));
}

TEST_F(Async, ATaskWithoutAnAnswerFreesItsPlaceButItsUpdateStillCounts) {
  plan_.concurrency = 1;
  Clients(2);
  EXPECT_THAT(Open(0), ElementsAre("task c0"));
  plan_.flush_after = absl::InfiniteDuration();
  Timer(60);
  Timer(120);
  EXPECT_THAT(Timer(300), ElementsAre("starved", "task c1"));
  EXPECT_THAT(Send("c0", 0, kExample, 301), IsEmpty());
  EXPECT_THAT(Send("c1", 0, kExample, 302), ElementsAre("closed"));
}

TEST_F(Async, FlushesASmallerBufferAndSaysSoWhereItIsEmpty) {
  Clients(2);
  Open(0);
  EXPECT_EQ(m_.NextTimer(), At(60));
  EXPECT_THAT(Timer(60), ElementsAre("starved"));
  EXPECT_EQ(m_.NextTimer(), At(120));
  Send("c0", 0, kExample, 100);
  EXPECT_THAT(Timer(120), ElementsAre("closed"));
  EXPECT_EQ(m_.Result().closed_by, BufferClosedBy::kFlush);
}

TEST_F(Async, ClosesBeforeTheGridsWeightIsPassed) {
  plan_.max_weight = 5 * kExample;
  plan_.buffer = 10;
  Clients(3);
  Open(0);
  Send("c0", 0, 3 * kExample);
  const uint64_t ticket = Admit("c1", 0, 3 * kExample);
  EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kWait);
  EXPECT_EQ(m_.NextTimer(), At(1));
  EXPECT_THAT(Timer(1), ElementsAre("closed"));
  EXPECT_EQ(m_.Result().closed_by, BufferClosedBy::kWeight);
  EXPECT_EQ(m_.Result().weight, 3u * kExample);
}

TEST_F(Async, RefusesWithoutASessionOfTheFutureAndOfBadWeight) {
  Clients(3);
  Open(2);
  EXPECT_EQ(m_.Offer("c0", 9, 2, kExample, At(1)).reason, "session");
  EXPECT_EQ(m_.Offer("stranger", 1, 2, kExample, At(1)).reason, "session");
  EXPECT_EQ(m_.Offer("c0", 1, 3, kExample, At(1)).reason, "round");
  EXPECT_EQ(m_.Offer("c1", 1, 2, 0, At(1)).reason, "weight");
  EXPECT_EQ(m_.Offer("c2", 1, 2, 101 * kExample, At(1)).reason, "weight");
  EXPECT_THAT(m_.Result().rejected,
              ElementsAre(std::pair<const std::string, uint64_t>("round", 1),
                          std::pair<const std::string, uint64_t>("session", 2),
                          std::pair<const std::string, uint64_t>("weight", 2)));
  EXPECT_THAT(Timer(1), IsEmpty()) << "trained from the newest in vain: not asked again";
}

TEST_F(Async, AFoldUnderWayIsWaitedFor) {
  Clients(3);
  Open(0);
  const uint64_t first = Admit("c0", 0);
  m_.Commit(first);
  Send("c1", 0);  // counts as two from here
  EXPECT_FALSE(m_.closed());
  EXPECT_THAT(Text(m_.Folded(first, At(2))), ElementsAre("closed"));
}

// ---- Racks

// ---- What became of an update

TEST_F(Async, KnowsTheFateOfAnUpdate) {
  Clients(3);
  Open(0);
  EXPECT_EQ(m_.FateOf("c2", 0), Fate::kUndecided) << "it may come yet";
  EXPECT_EQ(m_.FateOf("c2", 5), Fate::kNotCounted) << "no such model";
  const uint64_t ticket = Admit("c0", 0);
  EXPECT_EQ(m_.FateOf("c0", 0), Fate::kUndecided) << "on its way";
  m_.Commit(ticket);
  m_.Folded(ticket, At(1));
  EXPECT_EQ(m_.FateOf("c0", 0), Fate::kUndecided) << "in the buffer";
  Send("c1", 0);
  m_.Settle(true);
  EXPECT_EQ(m_.FateOf("c0", 0), Fate::kCounted);
  EXPECT_EQ(m_.FateOf("c2", 0), Fate::kNotCounted);
  Open(1);
  Send("c0", 1);
  Send("c1", 1);
  m_.Settle(false);
  EXPECT_EQ(m_.FateOf("c0", 1), Fate::kUndecided) << "the same version is tried again";
  Open(1);
  Send("c0", 1);
  Send("c1", 1);
  m_.Settle(false, true);
  EXPECT_EQ(m_.FateOf("c0", 1), Fate::kNotCounted) << "the parent went on without this sum";
  Open(9);
  EXPECT_EQ(m_.FateOf("c0", 0), Fate::kUnknown) << "older than what is remembered";
}

TEST_F(Async, WhatARackMayHaveIsUndecidedUntilItsSumIsIn) {
  Clients(2);
  m_.Joined({.id = "r0", .aggregator = true, .epoch = 1}, At(0));
  Open(0);
  Send("c0", 0);
  m_.Buffered("r0", 1, 0, 1, At(1));
  SendSum("r0", 0, {{"x", 0, 0, 5}});
  m_.Settle(true);
  Open(1);
  EXPECT_EQ(m_.FateOf("y", 0), Fate::kNotCounted) << "the rack has nothing";
  m_.Buffered("r0", 1, 1, 1, At(2));
  EXPECT_EQ(m_.FateOf("y", 0), Fate::kUndecided) << "the rack has something";
  EXPECT_EQ(m_.FateOf("x", 0), Fate::kCounted);
  SendSum("r0", 1, {{"z", 0, 1, 5}});
  EXPECT_EQ(m_.FateOf("y", 0), Fate::kNotCounted);
  m_.Left("r0", 1, At(3));
  EXPECT_EQ(m_.FateOf("z", 0), Fate::kUndecided) << "in the buffer";
}

TEST_F(Async, ARunThatGoesBackForgetsWhatItsLostModelsCounted) {
  Clients(2);
  Open(5);
  Send("c0", 5);
  Send("c1", 5);
  m_.Settle(true);
  Open(5);  // resumed from the checkpoint before
  EXPECT_EQ(m_.Offer("c0", 1, 5, kExample, At(1)).verdict, Verdict::kAdmit);
  Open(50);
  EXPECT_EQ(m_.counted_from(), 47u);
  Open(2);  // from a much older one
  EXPECT_EQ(m_.counted_from(), 0u);
  EXPECT_EQ(m_.FateOf("c0", 1), Fate::kNotCounted);
  EXPECT_EQ(m_.Offer("c1", 1, 1, kExample, At(1)).verdict, Verdict::kAdmit);
}

TEST_F(Async, OnlyWhatCouldCountIsVoided) {
  Clients(1);
  plan_.max_staleness = 2;
  Open(5);
  m_.Void("c0", 2);  // too old
  m_.Void("c0", 5);  // its buffer is open
  m_.Void("c0", uint64_t{1} << 40);
  EXPECT_THAT(m_.Voided(), IsEmpty());
  m_.Void("c0", 3);
  EXPECT_THAT(m_.Voided(), ElementsAre(Contribution{.id = "c0", .base = 3}));
}

TEST_F(Async, WhatItsClientWasToldDoesNotCountIsRefused) {
  Clients(3);
  Open(0);
  m_.Settle(false, true);
  Open(1);
  const uint64_t ticket = Admit("c1", 0);
  m_.Void("c0", 0);
  m_.Void("c1", 0);
  EXPECT_EQ(m_.FateOf("c0", 0), Fate::kNotCounted);
  const Admission again = m_.Offer("c0", 1, 0, kExample, At(1));
  EXPECT_EQ(again.verdict, Verdict::kStale);
  EXPECT_THAT(again.message, HasSubstr("told does not count"));
  EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kStale) << "was under way";
  m_.Joined({.id = "r0", .aggregator = true, .epoch = 1}, At(1));
  const Admission sum = m_.OfferSum("r0", 1, 1, 0, 5, {{"c0", 0, 1, 5}}, At(2));
  EXPECT_EQ(sum.verdict, Verdict::kReject);
  EXPECT_EQ(sum.reason, "staleness");
  // What counts already stays counted.
  Send("c2", 0, kExample, 3);
  m_.Close(At(3));
  m_.Declined("r0", 1, At(3));
  m_.Settle(true);
  m_.Void("c2", 0);
  EXPECT_EQ(m_.FateOf("c2", 0), Fate::kCounted);
  // And a later life knows both.
  AsyncMachine later;
  later.Restore(m_.Counted(), 2, m_.counted_from(), m_.Voided());
  EXPECT_EQ(later.FateOf("c2", 0), Fate::kCounted);
  later.Joined({.id = "c0", .epoch = 2}, At(4));
  later.Open(plan_, 2, At(4));
  EXPECT_EQ(later.Offer("c0", 2, 0, kExample, At(5)).verdict, Verdict::kStale);
}

// max_staleness was 3, and the checkpoint has what counted of updates from version 7 on. With 20
// now, an update from version 5 looks young enough, and may count already.
TEST_F(Async, NothingOlderThanWhatTheCheckpointKnowsCounts) {
  m_.Restore({{.id = "c0", .base = 8}}, 10, 7);
  plan_.max_staleness = 20;
  Clients(1);
  Open(10);
  const Admission old = m_.Offer("c0", 1, 5, kExample, At(1));
  EXPECT_EQ(old.verdict, Verdict::kStale);
  EXPECT_THAT(old.message, HasSubstr("older than version 7"));
  EXPECT_EQ(m_.Offer("c0", 1, 8, kExample, At(1)).verdict, Verdict::kDuplicate);
  EXPECT_EQ(m_.Offer("c0", 1, 7, kExample, At(1)).verdict, Verdict::kAdmit);
  m_.Joined({.id = "r0", .aggregator = true, .epoch = 1}, At(1));
  EXPECT_EQ(m_.OfferSum("r0", 1, 10, 0, 5, {{"x", 6, 4, 5}}, At(2)).reason, "staleness");
  EXPECT_EQ(m_.counted_from(), 7u);
  EXPECT_EQ(m_.FateOf("x", 6), Fate::kUnknown);
}

TEST_F(Async, WhoJoinsAgainGetsNoTaskWhileItsLastUpdateWaitsForTheNextBuffer) {
  Clients(3);
  Open(0);
  Send("c0", 0);
  Send("c1", 0);
  const uint64_t ticket = Admit("c2", 0, kExample, 2);  // the buffer has closed
  EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kWait);
  EXPECT_THAT(Text(m_.Joined({.id = "c2", .epoch = 1}, At(3))), IsEmpty());
  m_.Settle(true);
  EXPECT_THAT(Open(1, 4), ElementsAre("task c0", "task c1"));
  EXPECT_EQ(m_.FateOf("c2", 0), Fate::kUndecided);
  EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kFold);
  m_.Folded(ticket, At(5));
  EXPECT_THAT(Send("c0", 1), ElementsAre("closed"));
  m_.Settle(true);
  EXPECT_EQ(m_.FateOf("c2", 0), Fate::kCounted);
  EXPECT_THAT(Open(2, 6), ElementsAre("task c2", "task c0"));
}

TEST_F(Async, WhoJoinsAgainWhileItsUpdateIsTooOldByThenIsFree) {
  plan_.max_staleness = 0;
  Clients(3);
  Open(0);
  Send("c0", 0);
  Send("c1", 0);
  const uint64_t ticket = Admit("c2", 0, kExample, 2);
  EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kWait);
  m_.Joined({.id = "c2", .epoch = 1}, At(3));
  m_.Settle(true);
  Open(1, 4);
  EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kStale);
  EXPECT_THAT(Timer(5), ElementsAre("task c2"));
}

TEST_F(Async, WhatIsOnItsWayEndsWithTheSessionThatItBeganIn) {
  Clients(2);
  Open(0);
  const uint64_t ticket = Admit("c0", 0);
  EXPECT_THAT(Text(m_.Joined({.id = "c0", .epoch = 1}, At(2))), ElementsAre("abort c0", "task c0"));
  EXPECT_EQ(m_.Commit(ticket).kind, VerdictKind::kStale) << "whole, too late";
  EXPECT_THAT(Send("c0", 0, kExample, 3), IsEmpty());
}

class AsyncTiers : public Async {
 protected:
  AsyncTiers() {
    m_.Joined({.id = "r0", .aggregator = true, .epoch = 1}, At(0));
    m_.Joined({.id = "r1", .aggregator = true, .epoch = 1}, At(0));
    plan_.buffer = 5;
  }
  std::vector<std::string> Has(const std::string& rack, uint64_t clients, uint64_t version = 0) {
    return Text(m_.Buffered(rack, 1, version, clients, At(1)));
  }
};

TEST_F(AsyncTiers, CountsKOverTheRacksAndCollectsThemAll) {
  EXPECT_THAT(Open(0), ElementsAre("task r0", "task r1"));
  EXPECT_THAT(Has("r0", 3), IsEmpty());
  EXPECT_THAT(Has("r1", 1), IsEmpty());
  EXPECT_THAT(Has("r1", 2), ElementsAre("collect r0", "collect r1"));
  EXPECT_THAT(SendSum("r0", 0, {{"a", 0, 0, 5}, {"b", 0, 0, 6}, {"d", 0, 0, 7}}), IsEmpty());
  EXPECT_THAT(m_.Collecting(), ElementsAre("r1"));
  EXPECT_THAT(SendSum("r1", 0, {{"e", 0, 0, 1}, {"f", 0, 0, 2}}), ElementsAre("closed"));
  const AsyncResult result = m_.Result();
  EXPECT_EQ(result.weight, 21u);
  EXPECT_EQ(result.contributions.size(), 5u);
  EXPECT_THAT(result.children, ElementsAre("r0", "r1"));
}

TEST_F(AsyncTiers, ARackWithNothingDeclinesAndOneThatIsSilentIsNotAskedAgain) {
  Open(0);
  EXPECT_THAT(Has("r0", 5), ElementsAre("collect r0", "collect r1"));
  EXPECT_THAT(SendSum("r0", 0, {{"a", 0, 0, 5}}), IsEmpty());
  EXPECT_EQ(m_.NextTimer(), At(11));
  EXPECT_THAT(Timer(11), ElementsAre("closed"));
  m_.Settle(true);
  Open(1, 12);
  EXPECT_THAT(Has("r0", 5, 1), ElementsAre("collect r0")) << "r1 has not been heard of";
  EXPECT_THAT(SendSum("r0", 1, {{"a", 1, 0, 5}}), ElementsAre("closed"));
  m_.Settle(true);
  Open(2, 13);
  Has("r1", 1, 2);
  EXPECT_THAT(Has("r0", 4, 2), ElementsAre("collect r0", "collect r1"));
  EXPECT_THAT(Text(m_.Declined("r1", 1, At(14))), IsEmpty());
  EXPECT_THAT(SendSum("r0", 2, {{"a", 2, 0, 5}}), ElementsAre("closed"));
}

TEST_F(AsyncTiers, ASumOnItsWayIsWaitedForBeyondTheTimeToAnswer) {
  Open(0);
  Has("r0", 5);
  m_.Declined("r1", 1, At(1));
  const Admission a = m_.OfferSum("r0", 1, 0, 0, 5, {{"a", 0, 0, 5}}, At(2));
  EXPECT_THAT(Timer(30), IsEmpty());
  EXPECT_EQ(m_.Commit(a.ticket).kind, VerdictKind::kFold);
  EXPECT_THAT(Text(m_.Folded(a.ticket, At(31))), ElementsAre("closed"));
}

TEST_F(AsyncTiers, RefusesSumsThatCannotBe) {
  Open(4);
  const auto reason = [&](const std::vector<Contribution>& parts, uint64_t weight) {
    AsyncMachine m;
    m.Joined({.id = "r0", .aggregator = true, .epoch = 1}, At(0));
    m.Restore({{.id = "a", .base = 3}});
    m.Open(plan_, 4, At(0));
    const Admission a = m.OfferSum("r0", 1, 4, 0, weight, parts, At(1));
    EXPECT_EQ(a.verdict, Verdict::kReject);
    return a.reason;
  };
  EXPECT_EQ(reason({}, 0), "malformed");
  EXPECT_EQ(reason({{"b", 4, 0, 5}, {"a", 4, 0, 5}}, 10), "malformed");
  EXPECT_EQ(reason({{"b", 4, 0, 5}, {"b", 4, 0, 5}}, 10), "malformed");
  EXPECT_EQ(reason({{"b", 5, 0, 5}}, 5), "malformed");
  EXPECT_EQ(reason({{"b", 3, 0, 5}}, 5), "malformed");
  EXPECT_EQ(reason({{"b", 4, 0, 0}}, 0), "malformed");
  EXPECT_EQ(reason({{"b", 4, 0, 5}}, 6), "malformed");
  EXPECT_EQ(reason({{"b", 0, 4, 5}}, 5), "staleness");
  EXPECT_EQ(reason({{"a", 3, 1, 5}}, 5), "duplicate_clients");
  EXPECT_EQ(reason({{"b", 4, 0, 1001 * kExample}}, 1001 * kExample), "full");
  EXPECT_EQ(m_.OfferSum("r0", 1, 3, 0, 5, {{"b", 3, 0, 5}}, At(1)).verdict, Verdict::kStale);
}

TEST_F(AsyncTiers, AClientThatIsInTwoSumsCountsInOne) {
  Open(0);
  const Admission first = m_.OfferSum("r0", 1, 0, 0, 5, {{"a", 0, 0, 5}}, At(1));
  const Admission second = m_.OfferSum("r1", 1, 0, 0, 6, {{"a", 0, 0, 6}}, At(1));
  EXPECT_EQ(m_.Commit(second.ticket).kind, VerdictKind::kFold);
  EXPECT_EQ(m_.Commit(first.ticket).kind, VerdictKind::kStale);
  EXPECT_EQ(m_.Result().weight, 6u);
}

// Found by the simulation: the root's disk was full, its rack had told its clients so and collected
// anew, and the sum of before came late.
TEST_F(AsyncTiers, ASumOfAnEarlierAttemptAtTheVersionIsOfNoUse) {
  Open(0);
  Has("r0", 5);
  m_.Declined("r0", 1, At(1));
  m_.Declined("r1", 1, At(1));
  ASSERT_TRUE(m_.closed());
  EXPECT_THAT(m_.Result().contributions, IsEmpty());
  m_.Settle(false);
  plan_.attempt = 1;
  Open(0, 2);
  EXPECT_EQ(m_.OfferSum("r0", 1, 0, 0, 5, {{"a", 0, 0, 5}}, At(3)).verdict, Verdict::kStale);
  EXPECT_EQ(m_.OfferSum("r0", 1, 0, 1, 5, {{"a", 0, 0, 5}}, At(3)).verdict, Verdict::kAdmit);
}

// Found by the simulation: the only rack's sum repeated an update, and nothing came any more.
TEST_F(AsyncTiers, WhereEveryRacksSumIsRefusedTheBufferIsOpenedAgain) {
  AsyncMachine m;
  m.Joined({.id = "r0", .aggregator = true, .epoch = 1}, At(0));
  m.Restore({{.id = "a", .base = 3}}, 4);
  m.Open(plan_, 4, At(0));
  EXPECT_EQ(m.OfferSum("r0", 1, 4, 0, 5, {{"a", 3, 1, 5}}, At(1)).reason, "duplicate_clients");
  EXPECT_THAT(Text(m.Declined("r0", 1, At(1))), ElementsAre("closed"));
  m.Settle(false);
  plan_.attempt = 1;
  EXPECT_THAT(Text(m.Open(plan_, 4, At(2))), ElementsAre("task r0"));
}

TEST_F(AsyncTiers, ARackThatSaysWhatItHasTakesPartWhateverItSaidBefore) {
  Open(0);
  m_.Declined("r0", 1, At(1));  // of an earlier buffer on this version
  EXPECT_THAT(Has("r0", 5), ElementsAre("collect r0", "collect r1"));
}

TEST_F(AsyncTiers, ANewLifeOfARackDoesNotCountTwiceInAVersion) {
  Open(0);
  SendSum("r0", 0, {{"a", 0, 0, 5}});
  EXPECT_THAT(Text(m_.Joined({.id = "r0", .aggregator = true, .epoch = 2}, At(2))), IsEmpty());
  EXPECT_EQ(m_.OfferSum("r0", 2, 0, 0, 5, {{"b", 0, 0, 5}}, At(3)).verdict, Verdict::kDuplicate);
}

TEST_F(AsyncTiers, ARackClosesWhenItsParentAsks) {
  AsyncMachine rack;
  plan_.buffer = 0;
  plan_.flush_after = absl::InfiniteDuration();
  rack.Joined({.id = "c0", .epoch = 1}, At(0));
  rack.Open(plan_, 0, At(0));
  const Admission a = rack.Offer("c0", 1, 0, kExample, At(1));
  rack.Commit(a.ticket);
  EXPECT_THAT(Text(rack.Folded(a.ticket, At(1))), IsEmpty());
  EXPECT_EQ(rack.buffered(), 1u);
  EXPECT_THAT(Text(rack.Close(At(2))), ElementsAre("closed"));
  EXPECT_EQ(rack.Result().closed_by, BufferClosedBy::kTold);
}

}  // namespace
}  // namespace tributary::aggregation
