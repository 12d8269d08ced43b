// Three configurations, each simulated and run.
#include "bench/simulated.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/deadline.h"
#include "base/process.h"
#include "base/status.h"
#include "bench/at_the_doors.h"
#include "bench/json_lines.h"
#include "models/builtin.h"
#include "simulate/arm.h"
#include "simulate/config.h"

namespace tributary::bench {
namespace {

constexpr uint32_t kClients = 20;
constexpr uint32_t kRacks = 2;
constexpr uint32_t kRounds = 10;
constexpr char kModel[] = "logreg";

// Of 20 clients and seed 6 two are slow, one behind each rack: the adaptive deadline has work to
// do.
struct Case {
  const char* name;
  const char* policy;     // of the simulation
  int seed;               // of the simulation and of the run
  const char* clients;    // [clients], beyond what all share
  const char* straggler;  // [straggler], of the simulation and of the root alike
  const char* fixed;      // [straggler], of the root alone
  const char* cohort;     // [cohort], of both
  const char* counted;  // [cohort], of the root alone: the simulation's policy says that it counts
};

const Case kCases[] = {
    {"wait", "wait", 1, "train_sigma = 0.3", "deadline_s = 60", "deadline = \"fixed\"",
     "minimum = 20", ""},
    {"adaptive", "adaptive", 6, "train_sigma = 0.3\nslow_share = 0.1\nslow_factor = 8",
     "deadline_s = 60\ndeadline_floor_s = 0.5", "", "minimum = 12", ""},
    {"counted", "counted", 1, "train_sigma = 0.6\nround_sigma = 0.3",
     "deadline_s = 60\ndeadline_floor_s = 0.5", "", "minimum = 8", "count = 10"}};

std::string Self() { return SelfDirectory() + "/tributary"; }

// Its network and machines cost nothing: what real ones cost here is what the simulation lacks.
std::string SimulationText(const Case& c) {
  return absl::StrFormat(
      "[simulate]\nseed = %d\nrounds = %d\nparameters = 7850\nupdate_bytes_per_parameter = 4\n"
      "[clients]\ncount = %d\ntrain_s = 0.8\nlatency_ms = 0\nup_mbit = 100000\n"
      "down_mbit = 100000\n%s\n[racks]\ncount = %d\n[straggler]\n%s\n[cohort]\ncount = 10\n%s\n",
      c.seed, kRounds, kClients, c.clients, kRacks, c.straggler, c.cohort);
}

class RealRun {
 public:
  RealRun(const Case& c, std::filesystem::path out) : case_(c), out_(std::move(out)) {}

  // Seconds of each round.
  absl::StatusOr<std::vector<double>> Run(const std::string& simulation) {
    std::error_code ignored;
    std::filesystem::remove_all(out_, ignored);
    std::filesystem::create_directories(out_, ignored);
    // Racks keep those who join waiting until they know the run: so all begin together.
    ASSIGN_OR_RETURN(const int root, FreePort());
    std::vector<std::string> senders = {
        Self(),    "bench", "senders",    "--count", std::to_string(kClients), "--model", kModel,
        "--codec", "fp32",  "--modelled", simulation};
    for (uint32_t i = 0; i < kRacks; ++i) {
      ASSIGN_OR_RETURN(const int port, FreePort());
      RETURN_IF_ERROR(StartNode(absl::StrCat("rack-", i), port,
                                absl::StrFormat("parent = \"127.0.0.1:%d\"\n", root),
                                "[log]\nlevel = \"debug\"\n"));
      senders.insert(senders.end(), {"--endpoint", absl::StrCat("127.0.0.1:", port)});
    }
    ASSIGN_OR_RETURN(Process process,
                     Process::Start(senders, {.log_file = (out_ / "senders.log").string()}));
    processes_.push_back(std::move(process));
    RETURN_IF_ERROR(AwaitClients());
    RETURN_IF_ERROR(StartNode("global", root, "", RootSections()));
    return Follow();
  }

 private:
  std::string RootSections() const {
    return absl::StrFormat(
        "[run]\nname = \"bench\"\nseed = %d\nrounds = %d\nmodel = \"%s\"\nevaluate_every = 0\n"
        "[checkpoint]\ndirectory = \"%s\"\n[cohort]\n%s\n%s\n[straggler]\n%s\n%s\n",
        case_.seed, kRounds, kModel, (out_ / "checkpoints").string(), case_.cohort, case_.counted,
        case_.straggler, case_.fixed);
  }

  // Another process's file gives no sign when it grows: it is looked at again, at once where the
  // senders have ended before their time.
  absl::Status AwaitClients() {
    const Deadline end = Deadline::After(absl::Minutes(1));
    while (AtTheDoors(out_, kRacks) < kClients) {
      const auto code = processes_.back().Wait(absl::Milliseconds(50));
      if (code.ok() || end.Expired()) {
        return absl::AbortedError(absl::StrCat("only ", AtTheDoors(out_, kRacks), " of ", kClients,
                                               " clients came; see ", out_.string()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status StartNode(const std::string& name, int port, const std::string& parent,
                         const std::string& more) {
    const bool root = parent.empty();
    const std::string file = (out_ / (name + ".toml")).string();
    std::ofstream(file) << absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:%d\"\n%s\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n%s",
        name, port, parent, more);
    ASSIGN_OR_RETURN(
        Process process,
        Process::Start({Self(), "serve", file, "--progress", root ? "json" : "none"},
                       {.log_file = (out_ / (name + ".log")).string(), .pipe_stdout = root}));
    processes_.push_back(std::move(process));
    return absl::OkStatus();
  }

  // The end of the root's progress is the end of the run.
  absl::StatusOr<std::vector<double>> Follow() {
    std::vector<double> seconds;
    for (const nlohmann::json& round : JsonLines(processes_.back().stdout_fd()).Rest()) {
      if (round.value("committed", false)) seconds.push_back(round["seconds"].get<double>());
    }
    for (Process& process : processes_) RETURN_IF_ERROR(process.Wait(absl::Seconds(60)).status());
    if (seconds.size() == kRounds) return seconds;
    return absl::AbortedError(absl::StrCat("the run committed ", seconds.size(), " of ", kRounds,
                                           " rounds; see ", (out_ / "global.log").string()));
  }

  const Case& case_;
  const std::filesystem::path out_;
  std::vector<Process> processes_;  // the root last
};

// Of the rounds after the first, in which connections and models are made.
double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin() + 1, values.end(), 0.0) /
         static_cast<double>(values.size() - 1);
}

}  // namespace

absl::StatusOr<std::vector<Figure>> SimulatedAgainstReal(const std::string& out) {
  std::vector<Figure> figures;
  double largest = 0;
  for (const Case& c : kCases) {
    const std::filesystem::path folder = std::filesystem::absolute(out) / "simulated" / c.name;
    const std::string file = folder.string() + ".toml";
    std::filesystem::create_directories(folder);
    std::ofstream(file) << SimulationText(c);
    ASSIGN_OR_RETURN(const simulate::Config config, simulate::LoadConfig(file));
    simulate::ArmResult simulated;
    for (const simulate::Policy& policy : simulate::KnownPolicies()) {
      if (policy.name == c.policy) simulated = simulate::Arm(config, policy, "tcp").Run();
    }
    if (simulated.round_s.size() < 2)
      return absl::InternalError("the simulation committed no round");
    ASSIGN_OR_RETURN(const std::vector<double> measured, RealRun(c, folder).Run(file));
    const double wanted = Mean(measured);
    const double told = Mean(simulated.round_s);
    const double error = std::abs(told - wanted) / wanted;
    largest = std::max(largest, error);
    figures.push_back(
        {.name = absl::StrCat("simulate.error.", c.name),
         .value = error,
         .unit = "",
         .ceiling = std::nullopt,
         .note = absl::StrFormat(
             "mean of %d rounds, the first left out: %.3f s simulated, %.3f s measured "
             "(real processes, training as a wait)",
             kRounds, told, wanted)});
  }
  figures.push_back({.name = "simulate.error",
                     .value = largest,
                     .unit = "",
                     .ceiling = std::nullopt,
                     .note = "the largest of those"});
  return figures;
}

}  // namespace tributary::bench
