// Three arms, one after the other, each in a process of its own.
#include "bench/async.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/process.h"
#include "base/status.h"

namespace tributary::bench {
namespace {

constexpr double kAccuracy = 0.8;
constexpr uint64_t kBuffer = 10;
constexpr uint64_t kTraining = 20;  // clients at once, in all arms

struct Reached {
  double seconds = 0;  // virtual
  uint64_t versions = 0;
  uint64_t updates = 0;
  uint64_t trainings = 0;
  double accuracy = 0;
};

class Arms {
 public:
  Arms(std::filesystem::path out, uint32_t clients) : out_(std::move(out)), clients_(clients) {}

  absl::Status WriteFiles() const {
    std::error_code error;
    std::filesystem::create_directories(out_, error);
    std::ofstream(out_ / "client.toml")
        << "[client]\nid = \"c\"\nendpoints = [\"127.0.0.1:1\"]\n[data]\ndataset = "
           "\"fashion-mnist\"\nsplit = \"dirichlet\"\nalpha = 0.5\nseed = 1\n[model]\nname = "
           "\"mlp-fashion\"\n";
    // Nothing but the tail: every task takes a second times a Pareto draw, and links cost nothing.
    std::ofstream(out_ / "latencies.toml")
        << "[clients]\ncount = " << clients_
        << "\ntrain_s = 1\ntrain_sigma = 0\nround_sigma = 0\npareto_alpha = 1.5\nlatency_ms = 0\n"
           "up_mbit = 1000000\ndown_mbit = 1000000\nrate_sigma = 0\n[straggler]\ndeadline_s = "
           "10000000\n[racks]\ncount = 1\n";
    return absl::OkStatus();
  }

  absl::StatusOr<Reached> Run(const std::string& arm) const {
    ASSIGN_OR_RETURN(
        Process process,
        Process::Start({SelfDirectory() + "/tributary-client", (out_ / "client.toml").string(),
                        "--simulate", std::to_string(clients_), "--virtual-arm", arm,
                        "--virtual-latencies", (out_ / "latencies.toml").string(),
                        "--virtual-buffer", std::to_string(kBuffer), "--virtual-concurrency",
                        std::to_string(kTraining), "--virtual-until", absl::StrCat(kAccuracy)},
                       {.log_file = (out_ / (arm + ".log")).string(), .pipe_stdout = true}));
    std::string text;
    char buffer[4096];
    ssize_t n = 0;
    while ((n = read(process.stdout_fd(), buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(n));
    }
    RETURN_IF_ERROR(process.Wait(absl::Seconds(30)).status());
    std::ofstream(out_ / (arm + ".jsonl")) << text;
    Reached reached;
    for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const auto json = nlohmann::json::parse(std::string(line), nullptr, false);
      if (json.is_discarded()) continue;
      reached = {.seconds = json.value("seconds", 0.0),
                 .versions = json.value("version", uint64_t{0}),
                 .updates = json.value("updates", uint64_t{0}),
                 .trainings = json.value("trainings", uint64_t{0}),
                 .accuracy = json.value("test_accuracy", 0.0)};
    }
    if (reached.accuracy >= kAccuracy) return reached;
    return absl::AbortedError(absl::StrCat("arm \"", arm, "\" ended at an accuracy of ",
                                           reached.accuracy, "; see ",
                                           (out_ / (arm + ".log")).string()));
  }

 private:
  const std::filesystem::path out_;
  const uint32_t clients_;
};

std::string Text(const Reached& r) {
  return absl::StrFormat("%.1f s (%d versions, %d updates)", r.seconds, r.versions, r.updates);
}

}  // namespace

absl::StatusOr<std::vector<Figure>> AsyncAgainstSync(const std::string& out, uint32_t clients) {
  const Arms arms(std::filesystem::absolute(out) / "async", clients);
  RETURN_IF_ERROR(arms.WriteFiles());
  ASSIGN_OR_RETURN(const Reached async, arms.Run("async"));
  ASSIGN_OR_RETURN(const Reached wait, arms.Run("wait"));
  ASSIGN_OR_RETURN(const Reached adaptive, arms.Run("adaptive"));
  const std::string basis = absl::StrFormat(
      "simulated latency (1 s times Pareto(1.5) a task, links cost nothing), real training: %d "
      "clients, %d at once, Fashion-MNIST, Dirichlet(0.5), to %.0f %% test accuracy; FedBuff K = "
      "%d: %s",
      clients, kTraining, 100 * kAccuracy, kBuffer, Text(async));
  return std::vector<Figure>{
      {.name = "async.speedup",
       .value = wait.seconds / async.seconds,
       .unit = "x",
       .ceiling = std::nullopt,
       .note = absl::StrCat(basis, "; rounds of as many that wait for all: ", Text(wait))},
      {.name = "async.speedup_adaptive",
       .value = adaptive.seconds / async.seconds,
       .unit = "x",
       .ceiling = std::nullopt,
       .note =
           absl::StrCat("simulated latency, as above; rounds by the default adaptive deadline: ",
                        Text(adaptive))},
      {.name = "async.seconds_to_80",
       .value = async.seconds,
       .unit = "s",
       .ceiling = std::nullopt,
       .note = "virtual seconds of the simulated latency, FedBuff"}};
}

}  // namespace tributary::bench
