// A round that finds its own deadline, knowing nothing of earlier ones. By hand calculation.
#include "round_testing.h"

namespace tributary::aggregation {
namespace {

class Within : public Round {
 protected:
  // Twenty members, of whom the 16th makes 0.8.
  void StartTwenty(absl::Duration floor = absl::Seconds(5)) {
    RoundPlan plan = Plan();
    plan.within = {.quantile = 0.8, .margin = 2, .floor = floor};
    std::vector<RoundMachine::Member> members;
    for (int i = 0; i < 20; ++i) members.push_back(Client(absl::StrCat(i)));
    Start(plan, members);
  }
  std::vector<std::string> AcceptAt(int i, int64_t at) {
    const uint64_t ticket = Admit(absl::StrCat(i), 1, {}, at);
    EXPECT_TRUE(machine_->Commit(ticket));
    return Text(machine_->Folded(ticket, At(at)));
  }
};

TEST_F(Within, ItIsTheMarginTimesTheQuantileOfThisRound) {
  StartTwenty();
  for (int i = 0; i < 15; ++i) AcceptAt(i, 3);
  EXPECT_EQ(machine_->NextTimer(), At(60));
  AcceptAt(15, 8);
  EXPECT_EQ(machine_->NextTimer(), At(16));
  AcceptAt(16, 12);  // what comes later does not move it
  EXPECT_EQ(machine_->NextTimer(), At(16));
  EXPECT_THAT(Timer(15), IsEmpty());
  EXPECT_THAT(Timer(16), ElementsAre("closed"));
  EXPECT_EQ(machine_->Result().closed_by, ClosedBy::kDeadline);
  EXPECT_EQ(machine_->Result().clients, 17u);
}

TEST_F(Within, ItIsTheFloorAtLeast) {
  StartTwenty();
  for (int i = 0; i < 16; ++i) AcceptAt(i, 1);
  EXPECT_EQ(machine_->NextTimer(), At(5));
}

TEST_F(Within, TheGivenUpAreLeftOut) {
  StartTwenty();
  for (int i = 10; i < 20; ++i) Left(absl::StrCat(i), 1);  // gone at 6
  for (int i = 0; i < 9; ++i) AcceptAt(i, 2);
  EXPECT_EQ(machine_->NextTimer(), At(6));
  EXPECT_THAT(Timer(6), IsEmpty());
  // Ten are there, nine are in: with the tenth, of ten at least, all have answered.
  EXPECT_THAT(AcceptAt(9, 7), ElementsAre("closed"));
}

TEST_F(Within, FewMembersTellNothing) {
  RoundPlan plan = Plan();
  plan.within = {.quantile = 0.8, .margin = 2, .floor = absl::Seconds(5)};
  std::vector<RoundMachine::Member> members;
  for (int i = 0; i < 10; ++i) members.push_back(Client(absl::StrCat(i)));
  Start(plan, members);
  for (int i = 0; i < 9; ++i) AcceptAt(i, 2);
  EXPECT_EQ(machine_->NextTimer(), At(60));
}

TEST_F(Within, AKnownSoftDeadlineThatIsEarlierStands) {
  RoundPlan plan = Plan();
  plan.soft_deadline = absl::Seconds(7);
  plan.within = {.quantile = 0.8, .margin = 2, .floor = absl::Seconds(5)};
  std::vector<RoundMachine::Member> members;
  for (int i = 0; i < 20; ++i) members.push_back(Client(absl::StrCat(i)));
  Start(plan, members);
  for (int i = 0; i < 16; ++i) AcceptAt(i, 6);
  EXPECT_EQ(machine_->NextTimer(), At(7));
}

TEST_F(Within, ARoundThatWouldFailIsWaitedForAllTheSame) {
  RoundPlan plan = Plan();
  plan.enough = 18;
  plan.within = {.quantile = 0.8, .margin = 2, .floor = absl::Seconds(5)};
  std::vector<RoundMachine::Member> members;
  for (int i = 0; i < 20; ++i) members.push_back(Client(absl::StrCat(i)));
  Start(plan, members);
  for (int i = 0; i < 17; ++i) AcceptAt(i, 3);
  EXPECT_EQ(machine_->NextTimer(), At(60));
  AcceptAt(17, 4);
  EXPECT_EQ(machine_->NextTimer(), At(6));
}

TEST(WithinRoundTest, ADeadlineThatKnowsEarlierRoundsLeavesItAlone) {
  AdaptiveDeadline deadline({.adaptive = true, .ceiling = absl::InfiniteDuration()});
  EXPECT_EQ(deadline.Within().quantile, 0.8);
  EXPECT_EQ(deadline.Within().margin, 2);
  EXPECT_EQ(deadline.Within().floor, absl::Seconds(5));
  const std::vector<absl::Duration> times(5, absl::Seconds(3));
  deadline.Observe(times);
  EXPECT_EQ(deadline.Within().quantile, 0);
  EXPECT_EQ(AdaptiveDeadline({.adaptive = false}).Within().quantile, 0);
}

}  // namespace
}  // namespace tributary::aggregation
