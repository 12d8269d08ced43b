// The compressed way down in real processes: killed and started again, the run ends in the same two
// models.
#include <gmock/gmock.h>

#include <csignal>

#include "base/philox.h"
#include "tests/e2e/cluster.h"

namespace tributary {
namespace {

constexpr int kRounds = 8;
constexpr int kClients = 4;
// Of the matrix of 784 x 10 a twentieth as signs, the bias in eight bits: each step loses
// something.
constexpr char kSparse[] =
    "[compression]\ndownlink = \"topk(0.05, values=ternary); small = int8\"\n";

struct Hashes {
  std::string model;
  std::string published;
  bool operator==(const Hashes&) const = default;
};

// By round; where one was committed twice (before and after a kill), both must say the same.
std::map<int, Hashes> HashesOf(const Cluster& run) {
  std::map<int, Hashes> out;
  for (const auto& round : run.Rounds()) {
    if (!round["committed"].get<bool>()) continue;
    const Hashes hashes{round["model_sha256"], round["published_sha256"]};
    const auto [at, fresh] = out.emplace(round["round"].get<int>(), hashes);
    EXPECT_TRUE(fresh || at->second == hashes) << "round " << at->first;
  }
  return out;
}

const std::map<int, Hashes>& Undisturbed() {
  static const auto* hashes = [] {
    Cluster run;
    const int port = run.Port();
    run.Root(port, kSparse, kRounds, kClients);
    for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {port});
    EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
    for (int i = 0; i < kClients; ++i) EXPECT_EQ(run.ExitCode(absl::StrCat("c", i)), 0);
    return new std::map<int, Hashes>(HashesOf(run));
  }();
  return *hashes;
}

TEST(DownlinkEndToEnd, TwoTiersPublishTheSameModelsAsFlat) {
  ASSERT_EQ(Undisturbed().size(), static_cast<size_t>(kRounds));
  EXPECT_NE(Undisturbed().at(kRounds).model, Undisturbed().at(kRounds).published);
  Cluster run;
  const int root = run.Port(), rack = run.Port();
  run.Root(root, kSparse, kRounds, kClients);
  run.Rack("rack-0", rack, root);
  for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {rack});
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_EQ(run.ExitCode("rack-0"), 0) << run.Log("rack-0");
  EXPECT_TRUE(HashesOf(run) == Undisturbed());
  uint64_t sent = 0, saved = 0;
  for (const auto& round : run.Rounds()) {
    sent += round["bytes"]["model_to_aggregators"].get<uint64_t>();
    saved += round["bytes"]["saved_to_aggregators"].get<uint64_t>();
  }
  // 31,400 bytes whole once; then some 300 a version.
  EXPECT_LT(sent, 31'400u + kRounds * 1000u);
  EXPECT_GT(saved, (kRounds - 1) * 30'000u);
}

TEST(DownlinkEndToEnd, KilledAtRandomMomentsItEndsInTheSameTwoModels) {
  PhiloxStream random(SeededHash(30, "kill", "downlink"));
  Cluster run;
  run.RootAndRack(kSparse, kRounds, kClients, 20);
  const int kills = run.KillAtRandom("global", 5, &random);
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_GE(kills, 1);
  EXPECT_EQ(run.ModelHash(kRounds), Undisturbed().at(kRounds).model);
  for (const auto& [round, hashes] : HashesOf(run)) {
    EXPECT_TRUE(hashes == Undisturbed().at(round)) << "round " << round << "\n"
                                                   << run.Log("global");
  }
}

// kill -9 right where a model is made, stored and given out.
class DownlinkKilledAfter : public testing::TestWithParam<const char*> {};

TEST_P(DownlinkKilledAfter, GoesOnFromTheSameTwoModels) {
  Cluster run;
  run.NextServe({"--die-after", absl::StrCat(GetParam(), ":3")});
  run.RootAndRack(kSparse, kRounds, kClients);
  EXPECT_EQ(run.ExitCode("global"), 128 + SIGKILL) << run.Log("global");
  run.Serve("global");
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  const std::map<int, Hashes> hashes = HashesOf(run);
  EXPECT_TRUE(hashes.at(kRounds) == Undisturbed().at(kRounds)) << run.Log("global");
  for (const auto& [round, both] : hashes) {
    EXPECT_TRUE(both == Undisturbed().at(round)) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, DownlinkKilledAfter, testing::Values("apply", "commit", "publish"),
                         [](const auto& info) { return std::string(info.param); });

// Which of its clients are back in time for the round is chance, so the models are too, and that
// round may fail; but every client has checked each model it trained from, and declines with a
// wrong one.
TEST(DownlinkEndToEnd, ARackThatIsKilledIsGivenTheWholeModelAndTheRunGoesOn) {
  Cluster run;
  run.RootAndRack(kSparse, kRounds, kClients, 60);
  ASSERT_TRUE(run.AwaitRounds(2)) << run.Log("global");
  run.Kill("rack-0");
  run.Serve("rack-0");
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_EQ(run.ExitCode("rack-0"), 0) << run.Log("rack-0");
  uint64_t sent = 0;
  int failed = 0;
  for (const auto& round : run.Rounds()) {
    failed += round["committed"] ? 0 : 1;
    sent += round["bytes"]["model_to_aggregators"].get<uint64_t>();
  }
  EXPECT_LE(failed, 1) << run.Log("global");
  EXPECT_GE(sent, 2 * 31'400u) << "whole to each of its two lives";
  EXPECT_LT(sent, 2 * 31'400u + kRounds * 1000u);
}

}  // namespace
}  // namespace tributary
