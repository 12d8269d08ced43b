// The program as its operator meets it: signals, exit codes, what it says of a bad config.
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "absl/strings/str_replace.h"
#include "base/philox.h"
#include "tests/e2e/cluster.h"

namespace tributary {
namespace {

// What a node may take beyond its grace time to end: it hangs up on its sessions and writes what it
// has to, on a machine that has other work too. A sanitizer makes it some three times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr absl::Duration kEnding = absl::Seconds(15);
#else
constexpr absl::Duration kEnding = absl::Seconds(5);
#endif

TEST(EndToEnd, SigtermAtAnyMomentDrainsWithinTheGraceAndExitsWithZero) {
  constexpr int kGrace = 2;
  const std::string grace = absl::StrCat("[limits]\nshutdown_grace_s = ", kGrace, "\n");
  PhiloxStream random(SeededHash(21, "term", "all"));
  for (int attempt = 0; attempt < 5; ++attempt) {
    Cluster run;
    const int root = run.Port(), rack = run.Port();
    run.Root(root, grace, 100000, 2);
    run.Rack("rack-0", rack, root, grace);
    run.Client("c0", {rack}, 5);
    run.Client("c1", {root}, 5);
    ASSERT_TRUE(run.AwaitRounds(1)) << run.Log("global");
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random.NextBelow(150))));
    for (const char* name : {"rack-0", "global", "c0", "c1"}) {
      const absl::Time asked = absl::Now();
      run[name].Signal(SIGTERM);
      EXPECT_EQ(run.ExitCode(name), 0) << name << "\n" << run.Log(name);
      EXPECT_LT(absl::Now() - asked, absl::Seconds(kGrace) + kEnding) << name << "\n"
                                                                      << run.Log(name);
    }
  }
}

// From the first moment at which the program's own code runs, which is before its libraries are
// initialised. What comes before (fork, exec, the dynamic linker) cannot be covered from within: a
// signal then ends the process as it ends any, with 143.
TEST(EndToEnd, SigtermFromTheVeryStartExitsWithZero) {
  PhiloxStream random(SeededHash(22, "term", "start"));
  for (int attempt = 0; attempt < 40; ++attempt) {
    Cluster run;
    const int root = run.Port(), rack = run.Port();
    run.Root(root, "", 10, 2);
    run.Rack("rack-0", rack, root);
    for (const char* name : {"global", "rack-0"}) {
      ASSERT_TRUE(run.AwaitHeldSignal(name, SIGTERM)) << run.Log(name);
      // Every other one at once; a start takes some 30 ms.
      absl::SleepFor(absl::Microseconds(
          attempt % 2 == 0 ? 0 : static_cast<int64_t>(random.NextBelow(40'000))));
      run[name].Signal(SIGTERM);
    }
    for (const char* name : {"global", "rack-0"}) {
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

TEST(EndToEnd, ASignalThatMeansNothingToItLeavesItReadyForTheNext) {
  for (const int end : {SIGTERM, SIGHUP}) {
    Cluster run;
    run.Root(run.Port(), "", 10, 2);
    ASSERT_TRUE(run.AwaitLog("global", "listens on")) << run.Log("global");
    run["global"].Signal(SIGUSR1);
    run["global"].Signal(end);
    EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  }
}

TEST(EndToEnd, BadConfigsExitWithTwoAndSayWhereAndHow) {
  struct Row {
    const char* text;
    const char* says;
    const char* mend = "";
  };
  const Row rows[] = {
      {"[node]\nname = \"x\"\nparent = \"127.0.0.1:1\"\n[limit]\n",
       "bad.toml:4:2: unknown section [limit]; did you mean \"limits\"?"},
      {"[node]\nnam = \"x\"\nname = \"x\"\nparent = \"127.0.0.1:1\"\n",
       "bad.toml:2:1: unknown key \"nam\" in [node]; did you mean \"name\"?"},
      {"[node]\nname = 7\nparent = \"127.0.0.1:1\"\n",
       "bad.toml:2:8: [node] name must be a string, not the integer 7"},
      {"[node]\nname = \"x\"\nparent = \"127.0.0.1:1\"\n[run]\nname = \"r\"\n",
       "bad.toml:4:1: [run] describes the run",
       "bad.toml:3:10): move it to the root's file, or drop [node] parent"},
      {"[node]\nname = \"x\"\nlisten = \"127.0.0.1:0\"\n[run]\nname = \"r\"\nrounds = 1\n"
       "model = \"no/such.safetensors\"\n",
       "bad.toml:7:9: [run] model: no file no/such.safetensors; correct the path, or write one of"},
      {"[node\n", "bad.toml:1:"},
  };
  for (const Row& row : rows) {
    Cluster run;
    run.Write("bad", row.text);
    run.Serve("bad");
    EXPECT_EQ(run.ExitCode("bad"), 2);
    EXPECT_THAT(run.Log("bad"), testing::HasSubstr(row.says));
    EXPECT_THAT(run.Log("bad"), testing::HasSubstr(row.mend));
  }
  Cluster run;
  run.Start("missing", {Cluster::Binary("tributary"), "serve", "/no/such/file.toml"});
  EXPECT_EQ(run.ExitCode("missing"), 2);
  EXPECT_THAT(run.Log("missing"), testing::HasSubstr("/no/such/file.toml"));
}

TEST(EndToEnd, CheckNamesMistakesOfAllFilesWithoutStarting) {
  Cluster run;
  const std::string configs = absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs/");
  run.Start("good",
            {Cluster::Binary("tributary"), "check", configs + "global.toml", configs + "rack.toml",
             configs + "flat.toml", configs + "async.toml", configs + "three-tier/region.toml"});
  EXPECT_EQ(run.ExitCode("good"), 0) << run.Log("good");
  EXPECT_THAT(run.Log("good"), testing::HasSubstr("rack.toml: ok (rack \"rack-0\")"));
  run.Write("bad", "[node]\nname = \"x\"\nparent = \"127.0.0.1:0\"\n");
  run.Start("mixed", {Cluster::Binary("tributary"), "check", run.dir() + "/bad.toml",
                      configs + "rack.toml", configs + "client.toml"});
  EXPECT_EQ(run.ExitCode("mixed"), 2);
  EXPECT_THAT(run.Log("mixed"), testing::AllOf(testing::HasSubstr("bad.toml:3:10: [node] parent"),
                                               testing::HasSubstr("rack.toml: ok"),
                                               testing::HasSubstr("this is a client's config")));
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
  EXPECT_THAT(run.Log("second"), testing::HasSubstr("second.toml:3:10: "));
  EXPECT_THAT(run.Log("second"), testing::HasSubstr("port is in use"));
  EXPECT_THAT(run.Log("second"), testing::HasSubstr("change [node] listen"));
}

// An aggregator that may lock so much memory.
struct Limited {
  std::string kind;
  bool rack = false;
  std::string more = {};
};
void StartWithMemlock(Cluster* run, const std::string& name, uint64_t kib, const Limited& node) {
  const std::string bytes = absl::StrCat(kib << 10);
  std::vector<std::string> argv = {"/usr/bin/prlimit",
                                   absl::StrCat("--memlock=", bytes, ":", bytes)};
  // Root may lock what it likes.
  if (geteuid() == 0) {
    argv.insert(argv.begin(),
                {"/usr/bin/setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock"});
  }
  run->Write(name, absl::StrFormat(
                       "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:%d\"\n%s"
                       "[transport]\nkind = \"%s\"\nlisten = \"127.0.0.1:0\"\n%s",
                       name, run->Port(),
                       node.rack ? absl::StrFormat("parent = \"127.0.0.1:%d\"\n", run->Port())
                                 : absl::StrFormat(
                                       "[run]\nname = \"r\"\nmodel = "
                                       "\"synthetic:1000\"\n[checkpoint]\ndirectory = \"%s/c\"\n",
                                       run->dir()),
                       node.kind, node.more));
  argv.insert(argv.end(), {Cluster::Binary("tributary"), "serve",
                           absl::StrCat(run->dir(), "/", name, ".toml")});
  run->Start(name, argv);
}

TEST(EndToEnd, RoceWithLittleMemoryToLockIsRefusedAtTheStartAndTcpSaysNothingOfRdma) {
  Cluster run;
  constexpr uint64_t kSmall = 64;
  StartWithMemlock(&run, "tcp", kSmall, {.kind = "tcp", .rack = true});
  ASSERT_TRUE(run.AwaitLog("tcp", "listens on")) << run.Log("tcp");
  run["tcp"].Signal(SIGTERM);
  EXPECT_EQ(run.ExitCode("tcp"), 0) << run.Log("tcp");
  for (const char* word : {"RDMA", "RoCE", "memlock", "ibverbs", "infiniband"}) {
    EXPECT_THAT(run.Log("tcp"), testing::Not(testing::HasSubstr(word)));
  }
  StartWithMemlock(&run, "roce", kSmall, {.kind = "roce", .rack = true});
  EXPECT_EQ(run.ExitCode("roce"), 2) << run.Log("roce");
  if (run.Log("roce").find("libibverbs") != std::string::npos) {
    GTEST_SKIP() << "no RDMA libraries on this machine: " << run.Log("roce");
  }
  // The number, and a line for shells, units and containers.
  EXPECT_THAT(
      run.Log("roce"),
      testing::AllOf(testing::HasSubstr("roce.toml:7:"),  // [transport] listen
                     testing::HasSubstr("has to lock 292.4 MiB (306577408 bytes)"),
                     testing::HasSubstr("may lock 64 KiB"), testing::HasSubstr("ulimit -l 299392"),
                     testing::HasSubstr("LimitMEMLOCK=infinity"),
                     testing::HasSubstr("--ulimit memlock=-1:-1")));
}

// What is enough for the children's links alone is too little for a rack, which has a parent, too:
// it must not start and then be without a link. Small arenas: the limit can only be lowered here.
TEST(EndToEnd, TheMemoryToLockThatIsAskedForIsEnoughAndARacksIsMoreThanARoots) {
  // KiB: the arena, which at a rack has as much again for its parent here, and the queues.
  constexpr uint64_t kRoots = 1024 + 4096, kRacks = 1024 + kRoots;
  struct Row {
    const char* name;
    bool rack;
    uint64_t kib;
    uint64_t told;  // 0: it is enough
  };
  const std::vector<Row> rows = {{"root-less", false, kRoots - 4, kRoots},
                                 {"root", false, kRoots, 0},
                                 {"rack-as-root", true, kRoots, kRacks},
                                 {"rack-less", true, kRacks - 4, kRacks},
                                 {"rack", true, kRacks, 0}};
  rlimit most{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &most), 0);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    if (row.kib << 10 > most.rlim_max) continue;
    Cluster run;
    // No such device: whoever has enough is refused for that, also on machines that have others.
    StartWithMemlock(&run, row.name, row.kib,
                     {.kind = "roce",
                      .rack = row.rack,
                      .more = "[transport.roce]\narena_bytes = \"1MiB\"\ndevice = \"none0\"\n"});
    EXPECT_EQ(run.ExitCode(row.name), 2) << run.Log(row.name);
    if (run.Log(row.name).find("libibverbs") != std::string::npos) {
      GTEST_SKIP() << "no RDMA libraries on this machine: " << run.Log(row.name);
    }
    if (row.told > 0) {
      EXPECT_THAT(run.Log(row.name), testing::HasSubstr(absl::StrCat("ulimit -l ", row.told, " ")));
    } else {
      EXPECT_THAT(run.Log(row.name), testing::Not(testing::HasSubstr("ulimit -l")));
      EXPECT_THAT(run.Log(row.name), testing::HasSubstr("there is no RDMA device"));
    }
  }
}

TEST(EndToEnd, AggregatorDoesNotLinkLibTorch) {
  Cluster run;
  run.Start("ldd", {"/usr/bin/ldd", Cluster::Binary("tributary")});
  EXPECT_EQ(run.ExitCode("ldd"), 0);
  EXPECT_THAT(run.Log("ldd"), testing::HasSubstr("libgrpc++"));
  EXPECT_THAT(run.Log("ldd"), testing::Not(testing::HasSubstr("torch")));
}

// The same binary starts where none of these is: they are loaded when RoCE or a GPU is asked for.
TEST(EndToEnd, AggregatorDoesNotLinkLibrariesOfRdmaOrGpus) {
  Cluster run;
  run.Start("ldd", {"/usr/bin/ldd", Cluster::Binary("tributary")});
  EXPECT_EQ(run.ExitCode("ldd"), 0);
  for (const char* library : {"ibverbs", "rdmacm", "libcuda", "libnv", "not found"}) {
    EXPECT_THAT(run.Log("ldd"), testing::Not(testing::HasSubstr(library)));
  }
}

// How many processes were started with this text in their arguments and still run.
int ProcessesNaming(const std::string& text) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string arguments =
        Read(entry.path() / "cmdline");  // empty: a zombie, or none at all
    count += arguments.find(text) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(EndToEnd, ADemoThatCannotBeExitsWithTwoAndSaysWhyBeforeItStartsAnything) {
  if (!std::filesystem::exists(Cluster::Binary("tributary-client"))) {
    GTEST_SKIP() << "tributary-client is not built here (TRIBUTARY_TRAINER is off)";
  }
  struct Row {
    const char* option;
    const char* says;
  };
  for (const Row& row : {Row{"--codec", "[compression] codec"}, Row{"--model", "[run] model"}}) {
    Cluster run;
    const std::string out = run.dir() + "/out";
    run.Start("demo", {Cluster::Binary("tributary"), "demo", row.option, "nonsense", "--out", out});
    EXPECT_EQ(run.ExitCode("demo"), 2) << run.Log("demo");
    EXPECT_THAT(run.Log("demo"),
                testing::AllOf(testing::HasSubstr("global.toml:"), testing::HasSubstr(row.says),
                               testing::HasSubstr("nonsense")));
    EXPECT_TRUE(std::filesystem::is_empty(out + "/logs"));
  }
}

TEST(EndToEnd, ADemosErrorFeedbackIsTheConfigsKey) {
  if (!std::filesystem::exists(Cluster::Binary("tributary-client"))) {
    GTEST_SKIP() << "tributary-client is not built here (TRIBUTARY_TRAINER is off)";
  }
  Cluster run;
  const std::string out = run.dir() + "/out";
  run.Start("demo", {Cluster::Binary("tributary"), "demo", "--codec", "fp32", "--error-feedback",
                     "--out", out});
  EXPECT_EQ(run.ExitCode("demo"), 2) << run.Log("demo");
  EXPECT_THAT(run.Log("demo"), testing::HasSubstr("[compression] error_feedback: codec \"fp32\""));
  run.Start("learns", {Cluster::Binary("tributary"), "demo", "--model", "mlp-digits", "--clients",
                       "2", "--rounds", "2", "--topology", "flat", "--codec", "int4 | zstd",
                       "--error-feedback", "--out", out});
  EXPECT_EQ(run.ExitCode("learns"), 0) << run.Log("learns");
  EXPECT_THAT(run.Log("learns"), testing::HasSubstr("codec int4 | zstd with error feedback, "));
  EXPECT_THAT(Read(out + "/checkpoints/demo/rounds.jsonl"),
              testing::HasSubstr("\"codec\":\"int4 | ef | zstd\""));
}

TEST(EndToEnd, CtrlCEndsEverythingThatTheDemoStarted) {
  if (!std::filesystem::exists(Cluster::Binary("tributary-client"))) {
    GTEST_SKIP() << "tributary-client is not built here (TRIBUTARY_TRAINER is off)";
  }
  Cluster run;
  const std::string out = run.dir() + "/out";
  run.Start("demo", {Cluster::Binary("tributary"), "demo", "--model", "mlp-digits", "--clients",
                     "4", "--rounds", "100000", "--out", out});
  ASSERT_TRUE(run.AwaitLog("demo", "round  ")) << run.Log("demo");
  EXPECT_EQ(ProcessesNaming(out), 8) << "the demo, global, two racks, four clients";
  run["demo"].Signal(SIGINT);
  EXPECT_EQ(run.ExitCode("demo"), 128 + SIGINT) << run.Log("demo");
  EXPECT_EQ(ProcessesNaming(out), 0);
}

}  // namespace
}  // namespace tributary
