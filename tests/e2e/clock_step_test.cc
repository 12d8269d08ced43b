// The system's clock is set ten minutes forward and back under a running root, rack and clients
// (clock_step.cc): rounds close at their deadlines, and nobody is taken for dead.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/e2e/cluster.h"

namespace tributary {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRounds = 4;
constexpr double kDeadline = 3;

class ClockStep : public ::testing::Test {
 protected:
  ClockStep() : file_(run_.dir() + "/step") {
    std::ofstream(file_) << std::string(sizeof(int64_t), '\0');
    const int fd = open(file_.c_str(), O_RDWR | O_CLOEXEC);
    void* at = mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    EXPECT_NE(at, MAP_FAILED);
    step_ = static_cast<std::atomic<int64_t>*>(at);
  }
  ~ClockStep() override { munmap(step_, sizeof(int64_t)); }

  void Start(const std::string& name, std::vector<std::string> argv) {
    argv.insert(argv.begin(), {"/usr/bin/env", "CLOCK_STEP_FILE=" + file_,
                               "LD_PRELOAD=" + Cluster::Binary("libclock_step.so")});
    run_.Start(name, argv);
  }
  void Serve(const std::string& name) {
    Start(name, {Cluster::Binary("tributary"), "serve", run_.dir() + "/" + name + ".toml"});
  }
  void Client(const std::string& id, int port, int think_ms) {
    Start(id, {Cluster::Binary("e2e_client"), id, absl::StrCat(think_ms),
               absl::StrCat("127.0.0.1:", port)});
  }
  void SetTheClock(absl::Duration to) { step_->store(absl::ToInt64Seconds(to)); }

  Cluster run_;
  const std::string file_;
  std::atomic<int64_t>* step_ = nullptr;
};

// One client answers at once, the other never does: each round is as long as its deadline. Sessions
// are given up after two seconds of silence.
TEST_F(ClockStep, RoundsCloseAtTheirDeadlinesAndSessionsLive) {
  const int root = run_.Port(), rack = run_.Port();
  const std::string limits =
      "[limits]\nsession_timeout_s = 2\n[transport]\nlisten = \"127.0.0.1:0\"\n";
  run_.Write("global",
             absl::StrFormat(
                 "[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n%s[run]\nname = \"e2e\"\n"
                 "rounds = %d\nmodel = \"logreg\"\n[cohort]\nminimum = 1\n[straggler]\n"
                 "deadline = \"fixed\"\ndeadline_s = %g\n[checkpoint]\ndirectory = \"%s\"\n",
                 root, limits, kRounds, kDeadline, run_.dir() + "/checkpoints"));
  run_.Write("rack-0", absl::StrFormat("[node]\nname = \"rack-0\"\nlisten = \"127.0.0.1:%d\"\n"
                                       "parent = \"127.0.0.1:%d\"\n%s",
                                       rack, root, limits));
  Serve("global");
  Serve("rack-0");
  ASSERT_TRUE(run_.AwaitLog("rack-0", "joined run")) << run_.Log("rack-0");
  Client("slow", root,
         100'000'000);  // the first: the fast one alone would end round 1 by answering
  Client("fast", rack, 10);
  size_t rounds = 0;
  for (const absl::Duration to : {absl::Minutes(10), absl::ZeroDuration(), -absl::Minutes(10)}) {
    ASSERT_TRUE(run_.AwaitRounds(++rounds)) << run_.Log("global");
    SetTheClock(to);
  }
  ASSERT_EQ(run_.ExitCode("global"), 0) << run_.Log("global");
  const auto reports = run_.Rounds();
  ASSERT_EQ(reports.size(), static_cast<size_t>(kRounds));
  for (const auto& report : reports) {
    EXPECT_EQ(report["committed"], true) << report;
    EXPECT_EQ(report["accepted"], 1) << report;
    EXPECT_EQ(report["wait"]["closed_by"], "deadline") << report;
    EXPECT_GE(report["collect_seconds"], kDeadline - 0.1) << report;
    EXPECT_LT(report["collect_seconds"], kDeadline + 2) << report;  // a slow machine adds something
  }
  for (const char* name : {"global", "rack-0"}) {
    EXPECT_THAT(run_.Log(name), Not(HasSubstr("no sign of life"))) << name;
  }
  // The clock was really set, as the log's lines show: the last is nine minutes before the first.
  const std::string log = run_.Log("global");
  absl::Time first, last;
  std::string error;
  const std::string end = log.substr(log.rfind('\n', log.size() - 2) + 1);
  ASSERT_TRUE(absl::ParseTime("%Y-%m-%d %H:%M:%E3S", log.substr(0, 23), &first, &error)) << log;
  ASSERT_TRUE(absl::ParseTime("%Y-%m-%d %H:%M:%E3S", end.substr(0, 23), &last, &error)) << log;
  EXPECT_LT(last, first - absl::Minutes(9)) << log;
}

}  // namespace
}  // namespace tributary
