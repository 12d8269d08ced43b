// Promises of the simulation: its model by hand where it is simple enough, the same run for the
// same seed, policies that do what they are for, and its size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "simulate/arm.h"
#include "simulate/async_arm.h"
#include "simulate/clients.h"
#include "simulate/config.h"
#include "simulate/report.h"
#include "tests/base/annotated.h"

namespace tributary::simulate {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Policy Named(const std::string& name) {
  for (const Policy& policy : KnownPolicies()) {
    if (policy.name == name) return policy;
  }
  ADD_FAILURE() << name;
  return {};
}

// Everybody is alike, and nothing but training and what a test sets takes time.
Config Plain() {
  Config c;
  c.rounds = 5;
  c.parameters = 1000;
  c.update_bytes_per_parameter = 4;
  c.partial_bytes_per_parameter = 5;
  c.count = 20;
  c.clients.count = 40;
  c.clients.train_sigma = c.clients.round_sigma = c.clients.rate_sigma = 0;
  c.clients.up_bytes_per_s = c.clients.down_bytes_per_s = 1e12;
  c.clients.latency_s = 0;
  c.racks.count = 4;
  c.racks.ingress_bytes_per_s = c.racks.uplink_bytes_per_s = c.racks.fold_bytes_per_s = 1e12;
  c.racks.latency_s = 0;
  c.root.down_bytes_per_s = c.root.apply_bytes_per_s = c.root.commit_bytes_per_s = 1e12;
  return c;
}

ArmResult RunOf(const Config& config, const std::string& policy,
                const std::string& transport = "roce") {
  return Arm(config, Named(policy), transport).Run();
}

MATCHER_P2(Near, value, tolerance, "") { return std::abs(arg - value) <= tolerance; }

TEST(SimulateModel, ARoundTakesTrainingAndWhatElseIsSlowByHand) {
  const auto rounds = [](const Config& config) { return RunOf(config, "wait").round_s; };
  Config c = Plain();
  EXPECT_THAT(rounds(c), SizeIs(5));
  EXPECT_THAT(rounds(c), Each(Near(10, 1e-3)));
  c.clients.latency_s = 0.5;  // the task's way down, and the update's way up
  EXPECT_THAT(rounds(c), Each(Near(11, 1e-3)));
  c = Plain();
  c.clients.up_bytes_per_s = 2000;  // 4,000 bytes
  EXPECT_THAT(rounds(c), Each(Near(12, 1e-3)));
  c = Plain();
  c.clients.down_bytes_per_s = 1000;  // 4,000 bytes of model
  EXPECT_THAT(rounds(c), Each(Near(14, 1e-3)));
  c = Plain();
  // 10 clients a rack: each finishes its training 0.04 s after the one before it, as the model went
  // down through the same door; its update then finds the door free.
  c.racks.ingress_bytes_per_s = 1e5;
  EXPECT_THAT(rounds(c), Each(Near(10 + 10 * 0.04 + 0.04, 1e-3)));
  c = Plain();
  c.racks.fold_bytes_per_s = 1e4;  // 10 updates at once, 0.4 s each, one after another
  EXPECT_THAT(rounds(c), Each(Near(14, 1e-3)));
  c = Plain();
  // Models of 4,000 bytes leave the root one after another, so sums of 5,000 bytes start at 10.4,
  // 10.8, 11.2 and 11.6 s; each takes 0.5 s of the root's port, the last from 11.9 s on.
  c.root.down_bytes_per_s = 1e4;
  EXPECT_THAT(rounds(c), Each(Near(12.4, 1e-3)));
  c = Plain();
  c.root.apply_bytes_per_s = 4000;
  c.root.commit_bytes_per_s = 2000;
  EXPECT_THAT(rounds(c), Each(Near(13, 1e-3)));
}

TEST(SimulateModel, DrawsAreOfTheDistributionsThatTheyAreSaidToBe) {
  ClientModel model;
  model.count = 20000;
  model.train_s = 10;
  model.train_sigma = 0.5;
  model.round_sigma = 0;
  model.slow_share = 0.1;
  model.slow_factor = 10;
  model.dropout = 0.05;
  const ClientPopulation population(model, 7, 1000, 1000);
  int slow = 0, dead = 0, below_median = 0;
  for (uint32_t c = 0; c < model.count; ++c) {
    const ClientRound draw = population.Draw(c, 1);
    slow += draw.train_s > 45;  // half way between on the log scale, 3 sigma from 10
    dead += draw.dies;
    below_median += draw.train_s < 10;
  }
  // Six standard deviations of each.
  EXPECT_NEAR(slow / 20000.0, 0.1, 0.0135);
  EXPECT_NEAR(dead / 20000.0, 0.05, 0.0093);
  EXPECT_NEAR(below_median / 20000.0, 0.45, 0.0212);
  double mean = 0;
  for (uint32_t i = 0; i < 20000; ++i) {
    const double x = ParetoFrom(i * 214748 + 107374, 3);
    EXPECT_GE(x, 1);
    mean += x / 20000;
  }
  EXPECT_NEAR(mean, 1.5, 0.02);  // alpha / (alpha - 1)
}

TEST(SimulateModel, AvailabilityFollowsTheDay) {
  ClientModel model;
  model.count = 20000;
  model.diurnal_amplitude = 0.8;
  const ClientPopulation population(model, 7, 1000, 1000);
  int here = 0;
  for (uint32_t c = 0; c < model.count; ++c) here += population.Available(c, 1, absl::Hours(5));
  EXPECT_NEAR(here / 20000.0, 1 - 0.8 / 2, 0.021);  // over all hours
}

// 10 % ten times slower and 5 % dying in each round.
Config Stragglers() {
  Config c;
  c.rounds = 60;
  c.parameters = 20000;
  c.clients.count = 400;
  c.clients.slow_share = 0.1;
  c.clients.dropout = 0.05;
  c.racks.count = 4;
  c.count = 200;
  return c;
}

TEST(SimulatePolicies, TheDefaultCutsTheSlowestRoundsByMoreThanSeventyPercent) {
  const ArmResult wait = RunOf(Stragglers(), "wait");
  const ArmResult adaptive = RunOf(Stragglers(), "adaptive");
  ASSERT_EQ(wait.round_s.size(), 60u);
  ASSERT_EQ(adaptive.round_s.size(), 60u);
  // The first rounds know nothing yet and wait for all.
  const std::vector<double> learnt(adaptive.round_s.begin() + 3, adaptive.round_s.end());
  EXPECT_LT(QuantileOf(learnt, 0.99), 0.3 * QuantileOf(wait.round_s, 0.99));
  // 85 % are neither slow nor dead.
  EXPECT_GT(static_cast<double>(adaptive.accepted), 0.8 * static_cast<double>(adaptive.asked));
  EXPECT_GT(adaptive.degraded, 0u);
}

TEST(SimulatePolicies, CarriedUpdatesCountInsteadOfBeingDropped) {
  const ArmResult drop = RunOf(Stragglers(), "adaptive");
  const ArmResult carry = RunOf(Stragglers(), "carry");
  EXPECT_EQ(drop.carried, 0u);
  EXPECT_GT(carry.carried, 100u);
  EXPECT_LT(carry.dropped, drop.dropped / 2);
}

TEST(SimulatePolicies, ACountIsReachedAndNotPassedByMuch) {
  const ArmResult counted = RunOf(Stragglers(), "counted");
  EXPECT_EQ(counted.failed, 0u);
  const double per_round = static_cast<double>(counted.accepted) / 60;
  EXPECT_GE(per_round, 195);  // 200 wanted; a rack may run short of its share
  EXPECT_LE(per_round, 204);  // several folds may end at one instant
}

TEST(SimulatePolicies, IncastHurtsTcpAndNotCredit) {
  Config c = Plain();
  c.clients.count = 64;
  c.racks.count = 64;
  c.parameters = 400'000;  // 2 MB of partial sum from each of 64 racks at one instant
  c.racks.uplink_bytes_per_s = c.root.down_bytes_per_s = 1.25e9;
  c.root.switch_buffer_bytes = 1 << 19;
  const ArmResult tcp = RunOf(c, "wait", "tcp");
  const ArmResult roce = RunOf(c, "wait", "roce");
  EXPECT_GT(tcp.network.overflowed, 0u);
  EXPECT_EQ(roce.network.overflowed, 0u);
  // 128 MB up and 102 MB down at 1.25 GB/s: 0.19 s beside 10 s of training, if nothing is wasted.
  EXPECT_NEAR(QuantileOf(roce.round_s, 0.5), 10.19, 0.05);
  EXPECT_GT(QuantileOf(tcp.round_s, 0.5), QuantileOf(roce.round_s, 0.5));
}

TEST(Simulate, TheSameSeedGivesTheSameRunAndAnotherAnother) {
  const ArmResult a = RunOf(Stragglers(), "carry", "tcp");
  const ArmResult b = RunOf(Stragglers(), "carry", "tcp");
  EXPECT_EQ(a.trace, b.trace);
  EXPECT_EQ(a.round_s, b.round_s);
  Config other = Stragglers();
  other.seed = 2;
  EXPECT_NE(RunOf(other, "carry", "tcp").trace, a.trace);
}

TEST(SimulateReport, PutsItsAssumptionsBesideEachFigure) {
  const std::vector<ArmResult> results = {RunOf(Plain(), "wait", "tcp"), RunOf(Plain(), "wait")};
  const std::string table = Table(results);
  EXPECT_THAT(table, HasSubstr("simulated; tcp as windows"));
  EXPECT_THAT(table, HasSubstr("simulated; roce as receiver credit"));
  for (const SimFigure& figure : Figures(results)) EXPECT_THAT(figure.note, HasSubstr("simulated"));
  EXPECT_EQ(Figures(results)[0].name, "simulate.wait.tcp.p50_s");
  EXPECT_THAT(Assumptions(Plain()), HasSubstr("nothing of it measured"));
}

TEST(SimulateConfig, ReadsTheExampleAndNamesWhatIsWrong) {
  const auto example = LoadConfig(TRIBUTARY_SOURCE_DIR "/configs/simulate.toml");
  ASSERT_TRUE(example.ok()) << example.status();
  EXPECT_EQ(example->clients.count, 1000u);
  EXPECT_DOUBLE_EQ(example->clients.up_bytes_per_s, 1.25e6);
  EXPECT_EQ(example->count, 500u);
  const auto error = [](const std::string& text) {
    return std::string(ParseConfig(text, "s.toml").status().message());
  };
  EXPECT_THAT(error("[simulate]\npolicies = [\"fast\"]"), HasSubstr("\"fast\" is not one of wait"));
  EXPECT_THAT(error("[clients]\ncount = 5\n[racks]\ncount = 6"), HasSubstr("would have nobody"));
  EXPECT_THAT(error("[clients]\npareto_alpha = 0.5"), HasSubstr("above 1"));
  EXPECT_THAT(error("[clients]\ntrane_s = 5"), HasSubstr("did you mean \"train_s\""));
}

TEST(SimulateConfig, EveryKeyIsAnnotatedInConfigs) {
  ExpectAnnotated(ConfigKeys(), {"simulate.toml"});
}

// Forty alike clients, a buffer of forty: each version takes a training, as a round would.
TEST(SimulateAsync, ABufferOfEverybodyTakesATraining) {
  Config c = Plain();
  c.buffer = 40;
  const ArmResult r = AsyncArm(c, "roce").Run();
  EXPECT_THAT(r.round_s, SizeIs(5));
  EXPECT_THAT(r.round_s, Each(Near(10, 1e-3)));
  EXPECT_EQ(r.accepted, 200u);
  EXPECT_EQ(r.staleness, 0);
  EXPECT_EQ(r.failed, 0u);
}

// One of four is ten times slower: three quarters of the clients give their updates every 10 s, the
// others every 100 s. Rounds that wait for all have 40 updates in 100 s.
TEST(SimulateAsync, TheFastAreNotHeldUpByTheSlow) {
  Config c = Plain();
  c.rounds = 60;
  c.clients.slow_share = 0.25;
  c.clients.slow_factor = 10;
  c.buffer = 10;
  const ArmResult async = AsyncArm(c, "roce").Run();
  EXPECT_THAT(async.round_s, SizeIs(60));
  EXPECT_GT(async.staleness, 0);
  c.rounds = 6;
  const ArmResult wait = RunOf(c, "wait");
  const double rate = static_cast<double>(wait.accepted) / wait.virtual_s;
  EXPECT_NEAR(rate, 0.4, 0.01);
  EXPECT_GT(static_cast<double>(async.accepted) / async.virtual_s, 5 * rate);
}

TEST(SimulateAsync, ConcurrencyBoundsWhoTrains) {
  Config c = Plain();
  c.rounds = 20;
  c.buffer = 4;
  c.concurrency = 8;  // two a rack, 10 s each: 0.8 updates a second
  const ArmResult r = AsyncArm(c, "roce").Run();
  EXPECT_NEAR(static_cast<double>(r.accepted) / r.virtual_s, 0.8, 0.1);
}

TEST(SimulateAsync, TheSameSeedRunsTheSameUnderDeathsAndTails) {
  Config c = Plain();
  c.rounds = 30;
  c.clients.dropout = 0.1;
  c.clients.pareto_alpha = 1.5;
  c.clients.round_sigma = 0.3;
  c.buffer = 8;
  const ArmResult first = AsyncArm(c, "tcp").Run();
  EXPECT_EQ(first.trace, AsyncArm(c, "tcp").Run().trace);
  EXPECT_THAT(first.round_s, SizeIs(30));
  c.seed = 2;
  EXPECT_NE(first.trace, AsyncArm(c, "tcp").Run().trace);
}

}  // namespace
}  // namespace tributary::simulate
