// Whole runs of real processes over real sockets: what must hold when they are killed and damaged,
// and that the annotated configs run.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "absl/strings/str_replace.h"
#include "base/philox.h"
#include "tests/e2e/recompute.h"
#include "tributary/v1/checkpoint.pb.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

constexpr int kRounds = 8;
constexpr int kClients = 4;

// The hash that a run of kClients clients ends in, undisturbed and flat.
const std::string& UndisturbedHash(const std::string& model = "logreg") {
  static auto* const hashes = new std::map<std::string, std::string>;
  const auto [it, missing] = hashes->try_emplace(model);
  if (missing) {
    Cluster run;
    run.Model(model);
    const int port = run.Port();
    run.Root(port, "", kRounds, kClients);
    for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {port});
    EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
    for (int i = 0; i < kClients; ++i) EXPECT_EQ(run.ExitCode(absl::StrCat("c", i)), 0);
    it->second = run.ModelHash(kRounds);
  }
  return it->second;
}

TEST(EndToEnd, TwoTiersEndInTheSameModelAsFlat) {
  Cluster run;
  const int root = run.Port(), rack0 = run.Port(), rack1 = run.Port();
  run.Root(root, "", kRounds, kClients);
  run.Rack("rack-0", rack0, root);
  run.Rack("rack-1", rack1, root);
  // Uneven: three and one.
  for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {i < 3 ? rack0 : rack1});
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_EQ(run.ExitCode("rack-0"), 0) << run.Log("rack-0");
  EXPECT_EQ(run.ExitCode("rack-1"), 0);
  for (int i = 0; i < kClients; ++i) EXPECT_EQ(run.ExitCode(absl::StrCat("c", i)), 0);
  EXPECT_EQ(run.ModelHash(kRounds), UndisturbedHash());
  for (const auto& round : run.Rounds()) {
    EXPECT_EQ(round["transport"], "tcp");
    EXPECT_EQ(round["bytes"]["from_clients"], 0) << "the root takes partial sums, not updates";
    EXPECT_EQ(round["accepted"], kClients);
  }
}

// What docs/operations.md says of a line, at a root with a client of its own and a rack.
TEST(EndToEnd, RoundsFileHasPhasesBytesCountsTransportAndModelOfEachRound) {
  Cluster run;
  const int root = run.Port(), rack = run.Port();
  run.Root(root, "", kRounds, kClients);
  run.Rack("rack-0", rack, root);
  for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {i < 3 ? rack : root}, 20);
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  const auto rounds = run.Rounds();
  ASSERT_EQ(rounds.size(), static_cast<size_t>(kRounds));
  for (int i = 0; i < kRounds; ++i) {
    const nlohmann::json& round = rounds[i];
    SCOPED_TRACE(round.dump());
    EXPECT_EQ(round.at("round"), i + 1);
    EXPECT_EQ(round.at("committed"), true);
    double phases = 0;
    for (const char* phase :
         {"announce", "download", "train_wait", "upload", "fold", "forward", "apply", "commit"}) {
      EXPECT_GE(round.at("phases").at(phase).get<double>(), 0) << phase;
      phases += round.at("phases").at(phase).get<double>();
    }
    EXPECT_EQ(round.at("phases").size(), 8u);
    EXPECT_GE(phases, 0.02) << "its clients alone take so long";
    // From the first task on: who got it before the last was sent may be back earlier than that.
    EXPECT_GE(round.at("phases").at("announce").get<double>() +
                  round.at("phases").at("train_wait").get<double>(),
              0.02);
    EXPECT_GT(round.at("phases").at("commit").get<double>(), 0);
    EXPECT_GE(round.at("seconds").get<double>(), 0.02);
    EXPECT_EQ(round.at("accepted"), kClients);
    EXPECT_EQ(round.at("late"), 0);
    EXPECT_EQ(round.at("rejected"), nlohmann::json::object());
    EXPECT_EQ(round.at("children"), 2);
    const nlohmann::json& bytes = round.at("bytes");
    EXPECT_GT(bytes.at("from_clients"), 0);
    EXPECT_GT(bytes.at("from_aggregators"), 0);
    EXPECT_EQ(bytes.at("updates_below"), kClients * bytes.at("from_clients").get<uint64_t>());
    EXPECT_GT(bytes.at("model_to_clients"), 0);
    EXPECT_GT(bytes.at("model_to_aggregators"), 0);
    EXPECT_EQ(round.at("transport"), "tcp");
    EXPECT_EQ(round.at("model_sha256").get<std::string>().size(), 64u);
  }
  EXPECT_EQ(rounds.back().at("model_sha256"), run.ModelHash(kRounds));
}

// `auto` finds shared memory here; the last rack insists on tcp and is offered that too.
TEST(EndToEnd, EveryTransportEndsInTheSameModel) {
  for (const std::string kind : {"shm", "auto"}) {
    Cluster run;
    run.Transport(kind);
    const int root = run.Port(), rack0 = run.Port(), rack1 = run.Port();
    run.Root(root, "", kRounds, kClients);
    run.Rack("rack-0", rack0, root);
    if (kind == "auto") run.Transport("tcp");
    run.Rack("rack-1", rack1, root);
    for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {i < 3 ? rack0 : rack1});
    EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
    for (int i = 0; i < kClients; ++i) EXPECT_EQ(run.ExitCode(absl::StrCat("c", i)), 0);
    EXPECT_EQ(run.ModelHash(kRounds), UndisturbedHash()) << "over " << kind;
    for (const auto& round : run.Rounds()) {
      EXPECT_EQ(round["transport"], kind == "auto" ? "shm+tcp" : "shm");
    }
  }
}

// kill -9 at a known moment: the process kills itself there, as nothing outside could hit it.
class KilledAfterTest : public testing::TestWithParam<const char*> {};

TEST_P(KilledAfterTest, GlobalResumesAndEndsInTheSameModel) {
  Cluster run;
  const std::string phase = GetParam();
  // Small models travel within the tasks; this one is fetched.
  const std::string model = phase == "download" ? "2nn" : "logreg";
  run.Model(model);
  run.NextServe({"--die-after", phase + ":3"});
  run.RootAndRack("", kRounds, kClients);
  EXPECT_EQ(run.ExitCode("global"), 128 + SIGKILL) << run.Log("global");
  // Models are fetched to be evaluated, when the round is committed.
  const bool committed = phase == "commit" || phase == "publish" || phase == "download";
  fs::remove(run.dir() + "/global.log");  // of the second life alone
  run.Serve("global");
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_THAT(run.Log("global"),
              testing::HasSubstr(absl::StrCat("resumes after round ", committed ? 3 : 2)));
  EXPECT_EQ(run.ExitCode("rack-0"), 0) << run.Log("rack-0");
  for (int i = 0; i < kClients; ++i) EXPECT_EQ(run.ExitCode(absl::StrCat("c", i)), 0);
  EXPECT_EQ(run.ModelHash(kRounds), UndisturbedHash(model)) << run.Log("global");
}

INSTANTIATE_TEST_SUITE_P(EndToEnd, KilledAfterTest,
                         testing::Values("announce", "download", "train_wait", "upload", "fold",
                                         "forward", "close", "apply", "commit", "publish"),
                         [](const auto& info) { return std::string(info.param); });

TEST(EndToEnd, GlobalKilledAtRandomMomentsResumesAndEndsInTheSameModel) {
  PhiloxStream random(SeededHash(20, "kill", "global"));
  Cluster run;
  run.RootAndRack("", kRounds, kClients, 20);
  const int kills = run.KillAtRandom("global", 6, &random);
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_GE(kills, 1);
  EXPECT_EQ(run.ModelHash(kRounds), UndisturbedHash()) << "after " << kills << " kills\n"
                                                       << run.Log("global");
}

TEST(EndToEnd, ADamagedNewestCheckpointIsPassedOverAndTheRunEndsInTheSameModel) {
  Cluster run;
  const int port = run.Port();
  run.Root(port, "", kRounds, kClients);
  for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {port}, 20);
  ASSERT_TRUE(run.AwaitRounds(3)) << run.Log("global");
  run.Kill("global");
  const std::string folder = run.dir() + "/checkpoints/e2e/";
  v1::CheckpointManifest manifest;
  ASSERT_TRUE(manifest.ParseFromString(Read(folder + "MANIFEST")));
  ASSERT_GE(manifest.entries_size(), 2);
  const std::string newest = manifest.entries().rbegin()->directory();
  {
    std::fstream file(folder + newest + "/model.safetensors", std::ios::in | std::ios::out);
    file.seekp(-5, std::ios::end);
    file.put('\x55');
    ASSERT_TRUE(file.good()) << newest;
  }
  run.Serve("global");
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_THAT(run.Log("global"), testing::HasSubstr("is passed over"));
  EXPECT_EQ(run.ModelHash(kRounds), UndisturbedHash());
}

// The rack kills itself in round 3, before it sends its sum: what its clients have in that round
// comes from its second life.
class RackKilledAfterTest : public testing::TestWithParam<const char*> {};

TEST_P(RackKilledAfterTest, RackIsAwaitedAndEachRoundCountsItsClientsOnce) {
  constexpr int kKilled = 3;
  Cluster run;
  const int root = run.Port(), rack = run.Port();
  // No round without one of the rack's two clients; and the one that is back last may miss some.
  run.Root(root, "keep = 1000\n", kRounds, kClients - 1);
  run.NextServe({"--die-after", absl::StrCat(GetParam(), ":", kKilled)});
  run.Rack("rack-0", rack, root);
  for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {i < 2 ? rack : root}, 60);
  ASSERT_EQ(run.ExitCode("rack-0"), 128 + SIGKILL) << run.Log("rack-0");
  ASSERT_LT(run.Rounds().size(), static_cast<size_t>(kKilled)) << "it died before the round's end";
  run.Serve("rack-0");
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_EQ(run.ExitCode("rack-0"), 0) << run.Log("rack-0");
  for (int i = 0; i < kClients; ++i) EXPECT_EQ(run.ExitCode(absl::StrCat("c", i)), 0);
  const auto rounds = run.Rounds();
  ASSERT_EQ(rounds.size(), static_cast<size_t>(kRounds));
  for (int r = 1; r <= kRounds; ++r) {
    SCOPED_TRACE(rounds[r - 1].dump());
    EXPECT_EQ(rounds[r - 1]["round"], r);
    ASSERT_TRUE(rounds[r - 1]["committed"]);
    const v1::CheckpointState state = StateOf(run, r);
    const std::set<std::string> in(state.contributors().begin(), state.contributors().end());
    EXPECT_EQ(in.size(), static_cast<size_t>(state.contributors_size())) << "one is named twice";
    EXPECT_EQ(rounds[r - 1]["accepted"], in.size());
    if (r == kKilled) {
      EXPECT_TRUE(in.contains("c0") || in.contains("c1")) << "the rack was not awaited";
    }
  }
  CheckModels(run);  // each is its base and the updates of the clients that it names, once each
}

INSTANTIATE_TEST_SUITE_P(EndToEnd, RackKilledAfterTest,
                         testing::Values("announce", "train_wait", "upload", "fold"),
                         [](const auto& info) { return std::string(info.param); });

TEST(EndToEnd, EveryClientKilledMidRoundEndsTheRunWithAnError) {
  Cluster run;
  const int port = run.Port();
  run.Root(port, "", 1000, 2);
  std::string config = Read(run.dir() + "/global.toml");
  run.Kill("global");
  run.Write("global",
            absl::StrReplaceAll(config, {{"startup_limit_s = 60", "startup_limit_s = 2"},
                                         {"rejoin_grace_s = 20", "rejoin_grace_s = 0.5"}}));
  run.Serve("global");
  run.Client("c0", {port}, 30);
  run.Client("c1", {port}, 30);
  ASSERT_TRUE(run.AwaitRounds(1)) << run.Log("global");
  run["c0"].Signal(SIGKILL);
  run["c1"].Signal(SIGKILL);
  EXPECT_EQ(run.ExitCode("global"), 1) << run.Log("global");
  EXPECT_THAT(run.Log("global"), testing::HasSubstr("awaits clients"));
}

// Real training by LibTorch in processes of their own: twice flat, once in two tiers (three racks)
// and once in three; and what the other options change.
TEST(EndToEnd, TheDemoOfOneSeedEndsInOneModelWhateverTheTopology) {
  if (!fs::exists(Cluster::Binary("tributary-client"))) {
    GTEST_SKIP() << "tributary-client is not built here (TRIBUTARY_TRAINER is off)";
  }
  Cluster run;
  const auto demo = [&](const std::string& name, const std::vector<std::string>& options) {
    std::vector<std::string> argv = {Cluster::Binary("tributary"),
                                     "demo",
                                     "--model",
                                     "mlp-digits",
                                     "--clients",
                                     "4",
                                     "--rounds",
                                     "3",
                                     "--out",
                                     run.dir() + "/" + name};
    argv.insert(argv.end(), options.begin(), options.end());
    run.Start(name, argv);
    EXPECT_EQ(run.ExitCode(name), 0) << run.Log(name);
    const std::string log = run.Log(name), before = "SHA-256 ";
    const size_t at = log.find(before);
    EXPECT_NE(at, std::string::npos) << log;
    return at == std::string::npos ? "" : log.substr(at + before.size(), 64);
  };
  const std::string flat = demo("flat", {"--topology", "flat"});
  EXPECT_EQ(flat.size(), 64u);
  EXPECT_EQ(demo("again", {"--topology", "flat"}), flat);
  EXPECT_EQ(demo("two", {"--topology", "two-tier", "--racks", "3"}), flat);
  EXPECT_THAT(run.Log("two"), testing::HasSubstr("behind 3 racks"));
  EXPECT_EQ(demo("three", {"--topology", "three-tier"}), flat);
  EXPECT_TRUE(fs::exists(run.dir() + "/three/logs/region-0.log"));
  const std::string other_seed = demo("seed", {"--topology", "flat", "--seed", "2"});
  EXPECT_NE(other_seed, flat);
  const std::string other_split = demo("alpha", {"--topology", "flat", "--alpha", "0.1"});
  EXPECT_NE(other_split, flat);
  EXPECT_NE(other_split, other_seed);
}

// A demo clears its folder away before it starts: one of somebody else's is left alone.
TEST(EndToEnd, ADemoLeavesAFolderThatIsNotADemosAsItIs) {
  Cluster run;
  for (const std::string name : {"checkpoints", "logs", "configs"}) {
    const std::string out = run.dir() + "/" + name + "-of-others";
    fs::create_directories(out + "/" + name);
    std::ofstream(out + "/" + name + "/precious") << "kept";
    run.Start("demo-" + name, {Cluster::Binary("tributary"), "demo", "--out", out});
    EXPECT_EQ(run.ExitCode("demo-" + name), 2) << run.Log("demo-" + name);
    EXPECT_EQ(Read(out + "/" + name + "/precious"), "kept");
    EXPECT_THAT(run.Log("demo-" + name), testing::HasSubstr("--out"));
  }
}

// What README.md promises of `./run demo`: real images, 20 clients behind two racks, ten rounds.
TEST(EndToEnd, TheDemoLearnsEightyPercentWithinThreeMinutesAndSaysWhereItsOutputsAre) {
  if (!fs::exists(Cluster::Binary("tributary-client"))) {
    GTEST_SKIP() << "tributary-client is not built here (TRIBUTARY_TRAINER is off)";
  }
  Cluster run;
  const std::string out = run.dir() + "/out";
  run.Start("demo", {Cluster::Binary("tributary"), "demo", "--out", out});
  const auto code = run["demo"].Wait(absl::Minutes(3));
  ASSERT_TRUE(code.ok()) << "it takes more than three minutes\n" << run.Log("demo");
  EXPECT_EQ(*code, 0);
  const std::string log = run.Log("demo");
  EXPECT_THAT(log, testing::StartsWith("tributary demo: two-tier, 20 clients behind 2 racks, "
                                       "model 2nn, codec int8, Dirichlet(0.5), 10 rounds, seed 1"));
  for (const std::string part : {"round 10/10  accuracy ", "MB saved", "\noutputs\n",
                                 "\nwhat to try next\n", "3.7 times smaller", "SHA-256 "}) {
    EXPECT_THAT(log, testing::HasSubstr(part));
  }
  std::vector<nlohmann::json> rounds;
  std::ifstream file(out + "/checkpoints/demo/rounds.jsonl");
  for (std::string line; std::getline(file, line);) rounds.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rounds.size(), 10u);
  EXPECT_GE(rounds.back().at("evaluation").at("test_accuracy").get<double>(), 0.80) << log;
  EXPECT_EQ(rounds.back().at("accepted"), 20);
  EXPECT_TRUE(fs::exists(out + "/checkpoints/demo/00000010/model.safetensors"));
  EXPECT_TRUE(fs::exists(out + "/logs/client-019.log"));
}

// The annotated configs, as they are but for the number of rounds, each started for real. They use
// fixed ports.
class ConfigsTest : public testing::Test {
 protected:
  // Copies configs/<name> into the run and starts it there.
  void Serve(const std::string& name) {
    const std::string text =
        absl::StrReplaceAll(Read(absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs/", name)),
                            {{"directory = \"checkpoints\"",
                              absl::StrCat("directory = \"", run_.dir(), "/checkpoints\"")}});
    ASSERT_FALSE(text.empty()) << name;
    const std::string file = absl::StrReplaceAll(name, {{"/", "-"}, {".toml", ""}});
    run_.Write(file, text);
    run_.Serve(file);
  }
  Cluster run_;
};

TEST_F(ConfigsTest, FlatRunsToItsEnd) {
  Serve("flat.toml");
  run_.Client("a", {7070});
  run_.Client("b", {7070});
  EXPECT_EQ(run_.ExitCode("flat"), 0) << run_.Log("flat");
}

TEST_F(ConfigsTest, AsyncRunsToItsEnd) {
  Serve("async.toml");
  run_.Client("a", {7070}, 5);
  run_.Client("b", {7070}, 20);
  run_.Client("c", {7070}, 60);
  EXPECT_EQ(run_.ExitCode("async"), 0) << run_.Log("async");
}

TEST_F(ConfigsTest, GlobalAndRackRunToTheirEnd) {
  Serve("global.toml");
  Serve("rack.toml");
  run_.Client("a", {7080});
  run_.Client("b", {7080});
  EXPECT_EQ(run_.ExitCode("global"), 0) << run_.Log("global");
  EXPECT_EQ(run_.ExitCode("rack"), 0) << run_.Log("rack");
}

TEST_F(ConfigsTest, ThreeTiersRunToTheirEnd) {
  Serve("three-tier/global.toml");
  Serve("three-tier/region.toml");
  Serve("three-tier/rack.toml");
  run_.Client("a", {7080});
  run_.Client("b", {7080});
  EXPECT_EQ(run_.ExitCode("three-tier-global"), 0) << run_.Log("three-tier-global");
  EXPECT_EQ(run_.ExitCode("three-tier-region"), 0) << run_.Log("three-tier-region");
  EXPECT_EQ(run_.ExitCode("three-tier-rack"), 0) << run_.Log("three-tier-rack");
}

TEST_F(ConfigsTest, ClientTrainsForReal) {
  if (!fs::exists(Cluster::Binary("tributary-client"))) {
    GTEST_SKIP() << "tributary-client is not built here (TRIBUTARY_TRAINER is off)";
  }
  Serve("flat.toml");
  const std::string file = absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs/client.toml");
  for (const std::string index : {"0", "1"}) {
    run_.Start("client-" + index, {Cluster::Binary("tributary-client"), file, "--index", index,
                                   "--id", "client-" + index});
  }
  EXPECT_EQ(run_.ExitCode("flat"), 0) << run_.Log("flat");
  EXPECT_EQ(run_.ExitCode("client-0"), 0) << run_.Log("client-0");
  EXPECT_EQ(run_.ExitCode("client-1"), 0) << run_.Log("client-1");
}

}  // namespace
}  // namespace tributary
