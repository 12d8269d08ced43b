// Two arms by real processes, one after the other, and two by simulation.
#include "bench/stragglers.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/philox.h"
#include "base/process.h"
#include "base/status.h"
#include "bench/at_the_doors.h"
#include "bench/json_lines.h"
#include "simulate/arm.h"
#include "simulate/config.h"
#include "simulate/report.h"

namespace tributary::bench {
namespace {

constexpr uint32_t kClients = 100;
constexpr uint32_t kProcesses = 20;  // of five clients each: one that dies is 5 %
constexpr uint32_t kRacks = 2;
constexpr uint32_t kRounds = 6;
constexpr double kTrainSeconds = 2;
constexpr uint32_t kSlowEvery = 10;  // every tenth client is
constexpr uint32_t kSlowFactor = 10;
constexpr absl::Duration kLoading = absl::Minutes(2);  // processes that share two cores

struct Policy {
  const char* name;
  const char* straggler;  // sections of the root's file
};
const Policy kDefault = {"default", ""};
const Policy kWait = {"wait", "[straggler]\ndeadline = \"fixed\"\ndeadline_s = 600\n"};

struct Measured {
  std::vector<double> seconds;  // of each round
  double accuracy = 0;          // of the last model, on all clients' test examples
  uint64_t accepted = 0;        // over all rounds
};

class RealArm {
 public:
  RealArm(const Policy& policy, const std::filesystem::path& out)
      : policy_(policy), out_(out / policy.name), random_(1) {}

  absl::StatusOr<Measured> Run() {
    std::error_code ignored;
    std::filesystem::remove_all(out_, ignored);
    std::filesystem::create_directories(out_, ignored);
    WriteClientFile();
    ASSIGN_OR_RETURN(root_port_, FreePort());
    // Racks keep those who join waiting until they know the run: so all begin together.
    for (uint32_t i = 0; i < kRacks; ++i) {
      ASSIGN_OR_RETURN(const int port, FreePort());
      rack_ports_.push_back(port);
      RETURN_IF_ERROR(StartNode(absl::StrCat("rack-", i), port, ""));
    }
    for (uint32_t i = 0; i < kProcesses; ++i) RETURN_IF_ERROR(StartClients(i));
    RETURN_IF_ERROR(AwaitClients());
    RETURN_IF_ERROR(StartNode("global", root_port_, RootSections()));
    return Follow();
  }

 private:
  void WriteClientFile() const {
    std::ofstream(out_ / "client.toml")
        << "[client]\nid = \"c\"\nendpoints = [\"127.0.0.1:1\"]\n[data]\ndataset = "
           "\"fashion-mnist\"\nsplit = \"dirichlet\"\nalpha = 0.5\nseed = 1\n[model]\nname = "
           "\"mlp-fashion\"\n";
  }

  std::string RootSections() const {
    return absl::StrFormat(
        "[run]\nname = \"bench\"\nrounds = %d\nmodel = \"mlp-fashion\"\nevaluate_every = %d\n"
        "[checkpoint]\ndirectory = \"%s\"\n[cohort]\nminimum = 20\n[training]\nlr = 0.1\n"
        "local_epochs = 2\n%s",
        kRounds, kRounds, (out_ / "checkpoints").string(), policy_.straggler);
  }

  absl::Status StartNode(const std::string& name, int port, const std::string& root_sections) {
    const bool root = !root_sections.empty();
    const std::string file = (out_ / (name + ".toml")).string();
    std::ofstream(file) << absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:%d\"\n%s\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n%s",
        name, port, root ? "" : absl::StrFormat("parent = \"127.0.0.1:%d\"\n", root_port_),
        root ? root_sections : "[log]\nlevel = \"debug\"\n");
    ASSIGN_OR_RETURN(
        Process process,
        Process::Start(
            {SelfDirectory() + "/tributary", "serve", file, "--progress", root ? "json" : "none"},
            {.log_file = (out_ / (name + ".log")).string(), .pipe_stdout = root}));
    nodes_.push_back(std::move(process));
    return absl::OkStatus();
  }

  std::string LogOf(uint32_t process) const {
    return (out_ / absl::StrCat("clients-", process, ".log")).string();
  }

  absl::Status StartClients(uint32_t i) {
    const uint32_t count = kClients / kProcesses;
    ASSIGN_OR_RETURN(
        Process process,
        Process::Start(
            {SelfDirectory() + "/tributary-client", (out_ / "client.toml").string(), "--simulate",
             std::to_string(kClients), "--part-first", std::to_string(i * count), "--part-count",
             std::to_string(count), "--endpoint",
             absl::StrCat("127.0.0.1:", rack_ports_[i * kRacks / kProcesses]), "--paced-seconds",
             absl::StrCat(kTrainSeconds), "--paced-slow-every", std::to_string(kSlowEvery),
             "--paced-slow-factor", std::to_string(kSlowFactor)},
            {.log_file = LogOf(i)}));
    if (i < clients_.size()) {
      clients_[i] = std::move(process);
    } else {
      clients_.push_back(std::move(process));
    }
    return absl::OkStatus();
  }

  // Until all have loaded their data and stand at their racks' doors, which the racks say in their
  // logs. Another process's file gives no sign when it grows: it is looked at again, at once where
  // a process of clients has ended before its time.
  absl::Status AwaitClients() {
    const Deadline end = Deadline::After(kLoading);
    for (uint32_t i = 0; AtTheDoors() < kClients; i = (i + 1) % kProcesses) {
      const auto code = clients_[i].Wait(absl::Milliseconds(50));
      if (code.ok()) {
        return absl::AbortedError(absl::StrCat("clients ended with ", *code, "; see ", LogOf(i)));
      }
      if (end.Expired()) {
        return absl::DeadlineExceededError(
            absl::StrCat("only ", AtTheDoors(), " of ", kClients, " clients came within ",
                         absl::FormatDuration(kLoading), "; see ", out_.string()));
      }
    }
    return absl::OkStatus();
  }
  size_t AtTheDoors() const { return bench::AtTheDoors(out_, kRacks); }

  // A process of clients dies within the time that a usual client trains, and comes back.
  absl::Status KillOne() {
    const auto which = static_cast<uint32_t>(random_.NextDouble() * kProcesses);
    absl::SleepFor(absl::Seconds(kTrainSeconds * random_.NextDouble()));
    clients_[which].Signal(SIGKILL);
    RETURN_IF_ERROR(clients_[which].Wait(absl::Seconds(10)).status());
    return StartClients(which);
  }

  absl::StatusOr<Measured> Follow() {
    Measured measured;
    JsonLines rounds(nodes_.back().stdout_fd());
    for (auto round = rounds.Next(); round.ok(); round = rounds.Next()) {
      if (!round->value("committed", false)) {
        return absl::AbortedError(absl::StrCat(
            "arm \"", policy_.name, "\": a round failed: ", round->value("why_not", "")));
      }
      measured.seconds.push_back((*round)["seconds"].get<double>());
      measured.accepted += (*round)["accepted"].get<uint64_t>();
      if (round->contains("evaluation")) {
        measured.accuracy = (*round)["evaluation"].value("test_accuracy", 0.0);
      }
      if (measured.seconds.size() < kRounds) RETURN_IF_ERROR(KillOne());
    }
    if (measured.seconds.size() == kRounds && measured.accuracy > 0) return measured;
    return absl::AbortedError(absl::StrCat("arm \"", policy_.name, "\" committed ",
                                           measured.seconds.size(), " of ", kRounds,
                                           " rounds; see ", (out_ / "global.log").string()));
  }

  const Policy& policy_;
  const std::filesystem::path out_;
  PhiloxStream random_;
  int root_port_ = 0;
  std::vector<int> rack_ports_;
  std::vector<Process> nodes_;  // the root last
  std::vector<Process> clients_;
};

// The same shape, 100 rounds of it.
absl::StatusOr<std::vector<double>> Simulated(const std::string& policy_name) {
  const std::string text = absl::StrFormat(
      "[simulate]\nrounds = 100\nparameters = 76330\nupdate_bytes_per_parameter = 4\n[clients]\n"
      "count = %d\ntrain_s = %g\ntrain_sigma = 0.1\nslow_share = %g\nslow_factor = %d\ndropout = "
      "0.05\n[racks]\ncount = %d\n",
      kClients, kTrainSeconds, 1.0 / kSlowEvery, kSlowFactor, kRacks);
  ASSIGN_OR_RETURN(const simulate::Config config, simulate::ParseConfig(text, "stragglers"));
  for (const simulate::Policy& policy : simulate::KnownPolicies()) {
    if (policy.name == policy_name) return simulate::Arm(config, policy, "tcp").Run().round_s;
  }
  return absl::InternalError(absl::StrCat("no policy \"", policy_name, "\" is simulated"));
}

std::string Text(const std::vector<double>& seconds) {
  std::string out;
  for (const double s : seconds) absl::StrAppendFormat(&out, "%s%.1f", out.empty() ? "" : ", ", s);
  return out;
}

}  // namespace

absl::StatusOr<std::vector<Figure>> StragglersAgainstWaiting(const std::string& out) {
  const auto folder = std::filesystem::absolute(out) / "stragglers";
  ASSIGN_OR_RETURN(const Measured by_default, RealArm(kDefault, folder).Run());
  ASSIGN_OR_RETURN(const Measured wait, RealArm(kWait, folder).Run());
  ASSIGN_OR_RETURN(const std::vector<double> simulated, Simulated("adaptive"));
  ASSIGN_OR_RETURN(const std::vector<double> simulated_wait, Simulated("wait"));
  const auto p99 = [](const std::vector<double>& s) { return simulate::QuantileOf(s, 0.99); };
  const auto figure = [](const std::string& name, double value, const std::string& unit,
                         const std::string& note) {
    return Figure{
        .name = name, .value = value, .unit = unit, .ceiling = std::nullopt, .note = note};
  };
  return std::vector<Figure>{
      figure("stragglers.p99_cut", 1 - p99(by_default.seconds) / p99(wait.seconds), "",
             absl::StrFormat("real processes and training, slowness by a delay; p99 of so few "
                             "rounds is their longest; default: %s s; waiting for all: %s s",
                             Text(by_default.seconds), Text(wait.seconds))),
      figure("stragglers.accuracy_delta", 100 * (by_default.accuracy - wait.accuracy), "points",
             absl::StrFormat("%.2f %% against %.2f %% after %d rounds (Fashion-MNIST, "
                             "Dirichlet(0.5)); updates in: %d of %d, %d",
                             100 * by_default.accuracy, 100 * wait.accuracy, kRounds,
                             by_default.accepted, kRounds * kClients, wait.accepted)),
      figure(
          "stragglers.simulated.p99_cut", 1 - p99(simulated) / p99(simulated_wait), "",
          absl::StrFormat("simulated, 100 rounds: p99 %.1f s against %.1f s, medians %.1f s "
                          "and %.1f s",
                          p99(simulated), p99(simulated_wait), simulate::QuantileOf(simulated, 0.5),
                          simulate::QuantileOf(simulated_wait, 0.5)))};
}

}  // namespace tributary::bench
