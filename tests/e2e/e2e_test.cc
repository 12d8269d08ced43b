// Whole runs of real processes over real sockets: what must hold when they are killed, stopped and
// misconfigured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "base/process.h"
#include "base/status.h"
#include "models/safetensors.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;
constexpr absl::Duration kPatience = absl::Seconds(120);

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// One run in a folder of its own: aggregators by config text, clients by id.
class Cluster {
 public:
  Cluster() {
    std::string pattern = (fs::temp_directory_path() / "tributary-e2e-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~Cluster() {
    processes_.clear();
    std::error_code ignored;
    if (!testing::Test::HasFailure()) fs::remove_all(dir_, ignored);
  }

  int Port() {
    const auto port = FreePort();
    EXPECT_TRUE(port.ok());
    return port.ok() ? *port : 0;
  }
  void Root(int port, const std::string& more, int rounds, int minimum) {
    Write("global",
          absl::StrFormat(
              "[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n[transport]\nlisten = "
              "\"127.0.0.1:0\"\n"
              "[run]\nname = \"e2e\"\nrounds = %d\nmodel = \"logreg\"\nstartup_limit_s = 60\n"
              "[cohort]\nminimum = %d\n[straggler]\ndeadline = \"fixed\"\ndeadline_s = "
              "60\nrejoin_grace_s = "
              "20\n[checkpoint]\n"
              "directory = \"%s\"\n%s",
              port, rounds, minimum, dir_ + "/checkpoints", more));
    Serve("global");
  }
  void Rack(const std::string& name, int port, int parent) {
    Write(name, absl::StrFormat(
                    "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:%d\"\nparent = \"127.0.0.1:%d\"\n"
                    "[transport]\nlisten = \"127.0.0.1:0\"\n",
                    name, port, parent));
    Serve(name);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name + ".toml") << text;
  }
  void Serve(const std::string& name) {
    Start(name, {Binary("tributary"), "serve", dir_ + "/" + name + ".toml"});
  }
  void Client(const std::string& id, const std::vector<int>& ports, int think_ms = 0) {
    std::vector<std::string> argv = {Binary("e2e_client"), id, std::to_string(think_ms)};
    for (const int port : ports) argv.push_back(absl::StrCat("127.0.0.1:", port));
    Start(id, argv);
  }
  void Start(const std::string& name, const std::vector<std::string>& argv) {
    auto process = Process::Start(argv, {.log_file = dir_ + "/" + name + ".log"});
    ASSERT_TRUE(process.ok()) << process.status();
    processes_[name] = std::make_unique<Process>(*std::move(process));
  }
  static std::string Binary(const std::string& name) { return SelfDirectory() + "/" + name; }

  Process& operator[](const std::string& name) { return *processes_.at(name); }
  int ExitCode(const std::string& name) {
    const auto code = processes_.at(name)->Wait(kPatience);
    EXPECT_TRUE(code.ok()) << name << " does not end; its log:\n" << Log(name);
    return code.ok() ? *code : -1;
  }
  std::string Log(const std::string& name) const { return Read(dir_ + "/" + name + ".log"); }
  std::string RoundsFile() const { return dir_ + "/checkpoints/e2e/rounds.jsonl"; }
  std::vector<nlohmann::json> Rounds() const {
    std::vector<nlohmann::json> out;
    std::ifstream file(RoundsFile());
    std::string line;
    while (std::getline(file, line)) out.push_back(nlohmann::json::parse(line, nullptr, false));
    return out;
  }
  // Looks again every few milliseconds: there is no event to wait for in another process's file.
  bool AwaitRounds(size_t n) const {
    const absl::Time limit = absl::Now() + kPatience;
    while (Rounds().size() < n) {
      if (absl::Now() > limit) return false;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return true;
  }
  bool AwaitLog(const std::string& name, const std::string& text) const {
    const absl::Time limit = absl::Now() + kPatience;
    while (Log(name).find(text) == std::string::npos) {
      if (absl::Now() > limit) return false;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return true;
  }
  std::string ModelHash(int round) const {
    auto model = models::ReadSafetensors(
        absl::StrFormat("%s/checkpoints/e2e/%08d/model.safetensors", dir_, round));
    EXPECT_TRUE(model.ok()) << model.status() << "\n" << Log("global");
    return model.ok() ? absl::BytesToHexString(Sha256Of(model->bytes)) : "";
  }
  const std::string& dir() const { return dir_; }

 private:
  std::string dir_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

constexpr int kRounds = 8;
constexpr int kClients = 4;

// The hash that a run of kClients clients ends in, undisturbed and flat.
const std::string& UndisturbedHash() {
  static const std::string hash = [] {
    Cluster run;
    const int port = run.Port();
    run.Root(port, "", kRounds, kClients);
    for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {port});
    EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
    for (int i = 0; i < kClients; ++i) EXPECT_EQ(run.ExitCode(absl::StrCat("c", i)), 0);
    return run.ModelHash(kRounds);
  }();
  return hash;
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

TEST(EndToEnd, GlobalKilledAtRandomMomentsResumesAndEndsInTheSameModel) {
  PhiloxStream random(SeededHash(20, "kill", "global"));
  Cluster run;
  const int root = run.Port(), rack = run.Port();
  run.Root(root, "", kRounds, kClients);
  run.Rack("rack-0", rack, root);
  for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {i < 2 ? rack : root}, 20);
  int kills = 0;
  for (; kills < 6 && run["global"].Running(); ++kills) {
    // Some way into whatever phase it is in then.
    absl::SleepFor(absl::Milliseconds(150 + static_cast<int64_t>(random.NextBelow(250))));
    run["global"].Signal(SIGKILL);
    ASSERT_TRUE(run["global"].Wait(kPatience).ok());
    run.Serve("global");
  }
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_GE(kills, 1);
  EXPECT_EQ(run.ModelHash(kRounds), UndisturbedHash()) << "after " << kills << " kills\n"
                                                       << run.Log("global");
}

TEST(EndToEnd, RackKilledMidRoundIsAwaitedAndTheRoundCountsItsClientsOnce) {
  Cluster run;
  const int root = run.Port(), rack = run.Port();
  run.Root(root, "", kRounds, kClients);
  run.Rack("rack-0", rack, root);
  for (int i = 0; i < kClients; ++i) run.Client(absl::StrCat("c", i), {i < 2 ? rack : root}, 60);
  ASSERT_TRUE(run.AwaitRounds(2)) << run.Log("global");
  run["rack-0"].Signal(SIGKILL);
  ASSERT_TRUE(run["rack-0"].Wait(kPatience).ok());
  run.Serve("rack-0");
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  const auto rounds = run.Rounds();
  ASSERT_FALSE(rounds.empty());
  for (const auto& round : rounds) EXPECT_LE(round["accepted"], kClients);
  EXPECT_EQ(rounds.back()["round"], kRounds);
  EXPECT_TRUE(rounds.back()["committed"]);
}

TEST(EndToEnd, EveryClientKilledMidRoundEndsTheRunWithAnError) {
  Cluster run;
  const int port = run.Port();
  run.Root(port, "", 1000, 2);
  std::string config = Read(run.dir() + "/global.toml");
  run["global"].Signal(SIGKILL);
  ASSERT_TRUE(run["global"].Wait(kPatience).ok());
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

TEST(EndToEnd, SigtermAtAnyMomentDrainsAndExitsWithZero) {
  PhiloxStream random(SeededHash(21, "term", "all"));
  for (int attempt = 0; attempt < 5; ++attempt) {
    Cluster run;
    const int root = run.Port(), rack = run.Port();
    run.Root(root, "[limits]\nshutdown_grace_s = 5\n", 100000, 2);
    run.Rack("rack-0", rack, root);
    run.Client("c0", {rack}, 5);
    run.Client("c1", {root}, 5);
    // From the first moment at which each is up: its signals are its own from then on.
    ASSERT_TRUE(run.AwaitRounds(1)) << run.Log("global");
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random.NextBelow(150))));
    for (const char* name : {"rack-0", "global", "c0", "c1"}) {
      run[name].Signal(SIGTERM);
      EXPECT_EQ(run.ExitCode(name), 0) << name << "\n" << run.Log(name);
    }
  }
}

TEST(EndToEnd, SigtermWhileNobodyHasJoinedExitsWithZero) {
  Cluster run;
  const int root = run.Port();
  run.Root(root, "", 10, 2);
  ASSERT_TRUE(run.AwaitLog("global", "listens on")) << run.Log("global");
  run.Rack("rack-0", run.Port(), root);
  ASSERT_TRUE(run.AwaitLog("rack-0", "listens on")) << run.Log("rack-0");
  for (const char* name : {"global", "rack-0"}) {
    run[name].Signal(SIGTERM);
    EXPECT_EQ(run.ExitCode(name), 0) << run.Log(name);
  }
}

TEST(EndToEnd, BadConfigsExitWithTwoAndSayWhereAndHow) {
  struct Row {
    const char* text;
    const char* says;
  };
  const Row rows[] = {
      {"[node]\nname = \"x\"\nparent = \"127.0.0.1:1\"\n[limit]\n",
       "bad.toml:4:2: unknown section [limit]; did you mean \"limits\"?"},
      {"[node]\nnam = \"x\"\nname = \"x\"\nparent = \"127.0.0.1:1\"\n",
       "bad.toml:2:1: unknown key \"nam\" in [node]; did you mean \"name\"?"},
      {"[node]\nname = 7\nparent = \"127.0.0.1:1\"\n",
       "bad.toml:2:8: [node] name must be a string, not the integer 7"},
      {"[node]\nname = \"x\"\nparent = \"127.0.0.1:1\"\n[run]\nname = \"r\"\n",
       "bad.toml:4:1: [run] describes the run"},
      {"[node\n", "bad.toml:1:"},
  };
  for (const Row& row : rows) {
    Cluster run;
    run.Write("bad", row.text);
    run.Serve("bad");
    EXPECT_EQ(run.ExitCode("bad"), 2);
    EXPECT_THAT(run.Log("bad"), testing::HasSubstr(row.says));
  }
  Cluster run;
  run.Start("missing", {Cluster::Binary("tributary"), "serve", "/no/such/file.toml"});
  EXPECT_EQ(run.ExitCode("missing"), 2);
  EXPECT_THAT(run.Log("missing"), testing::HasSubstr("/no/such/file.toml"));
}

TEST(EndToEnd, PortInUseExitsWithTwoAndNamesTheLine) {
  Cluster run;
  const int port = run.Port();
  run.Root(port, "", 1, 1);
  const std::string config =
      absl::StrReplaceAll(Read(run.dir() + "/global.toml"), {{"\"e2e\"", "\"other\""}});
  run.Client("c0", {port}, 5000);
  // The client's session shows that the port is taken.
  ASSERT_TRUE(run.AwaitLog("global", "listens on")) << run.Log("global");
  run.Write("second", config);
  run.Serve("second");
  EXPECT_EQ(run.ExitCode("second"), 2);
  EXPECT_THAT(run.Log("second"), testing::HasSubstr("second.toml:3:"));
  EXPECT_THAT(run.Log("second"), testing::HasSubstr("port is in use"));
}

TEST(EndToEnd, AggregatorDoesNotLinkLibTorch) {
  Cluster run;
  run.Start("ldd", {"/usr/bin/ldd", Cluster::Binary("tributary")});
  EXPECT_EQ(run.ExitCode("ldd"), 0);
  EXPECT_THAT(run.Log("ldd"), testing::HasSubstr("libgrpc++"));
  EXPECT_THAT(run.Log("ldd"), testing::Not(testing::HasSubstr("torch")));
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
