// Two clusters one after the other: one whose clients know one rack each, so that a killed process
// has to come back, and one whose clients know both racks, so that a killed rack is left.
#include "bench/recovery.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/deadline.h"
#include "base/philox.h"
#include "base/process.h"
#include "base/status.h"
#include "bench/json_lines.h"
#include "client/client.h"

namespace tributary::bench {
namespace {

constexpr int kClients = 8;
constexpr int kKillsEach = 10;
constexpr absl::Duration kTraining = absl::Milliseconds(30);
constexpr absl::Duration kDown = absl::Milliseconds(300);  // until the killed process is back
constexpr absl::Duration kLimit = absl::Seconds(30);
using Moment = std::chrono::steady_clock::time_point;
Moment Now() { return std::chrono::steady_clock::now(); }

class SteadyTrainer final : public client::Trainer {
 public:
  absl::StatusOr<client::TrainResult> Train(const client::TrainTask& task,
                                            const std::function<bool()>& cancelled) override {
    const Deadline end = Deadline::After(kTraining);
    // `cancelled` can only be asked; a millisecond is a thirtieth of the training.
    while (!end.Expired() && !cancelled()) absl::SleepFor(absl::Milliseconds(1));
    client::TrainResult result;
    result.weight = 10;
    const auto& layout = *task.layout;
    result.floats.resize(layout.tensors().size());
    result.ints.resize(layout.tensors().size());
    for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
      result.floats[t].assign(layout.TensorElements(t), 0.001f);
    }
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const client::TrainTask&) override {
    return std::vector<v1::Metric>();
  }
};

class Cluster {
 public:
  explicit Cluster(std::filesystem::path out) : out_(std::move(out)) {}
  ~Cluster() {
    for (auto& client : clients_) client->Shutdown();
    processes_.clear();
    for (auto& thread : threads_) thread.join();
  }

  // With `both`, each client lists the other rack after its own.
  absl::Status Start(bool both) {
    std::error_code error;
    std::filesystem::remove_all(out_, error);
    std::filesystem::create_directories(out_, error);
    for (int& port : ports_) {
      ASSIGN_OR_RETURN(port, FreePort());
    }
    Write("global", absl::StrFormat("[run]\nname = \"recovery\"\nrounds = 1000000\nmodel = "
                                    "\"logreg\"\nevaluate_every = 0\n[cohort]\nminimum = %d\n"
                                    "[checkpoint]\nkeep = 2\ndirectory = \"%s\"\n",
                                    kClients, (out_ / "checkpoints").string()));
    for (const char* rack : {"rack-0", "rack-1"}) Write(rack, "");
    for (const char* name : {"global", "rack-0", "rack-1"}) RETURN_IF_ERROR(Serve(name));
    for (int i = 0; i < kClients; ++i) {
      client::ClientOptions options;
      options.id = absl::StrCat("c", i);
      options.endpoints = {Address(1 + i % 2)};
      if (both) options.endpoints.push_back(Address(1 + (i + 1) % 2));
      options.examples = 10;
      ASSIGN_OR_RETURN(auto client, client::Client::Create(options, &trainer_));
      clients_.push_back(std::move(client));
      threads_.emplace_back([c = clients_.back().get()] { c->Run().IgnoreError(); });
    }
    return Await(2).status();
  }

  absl::Status Serve(const std::string& name) {
    const bool root = name == "global";
    ASSIGN_OR_RETURN(
        Process process,
        Process::Start({SelfDirectory() + "/tributary", "serve", (out_ / (name + ".toml")).string(),
                        "--progress", root ? "json" : "none"},
                       {.log_file = (out_ / (name + ".log")).string(), .pipe_stdout = root}));
    processes_[name] = std::make_unique<Process>(std::move(process));
    if (root) rounds_ = JsonLines(processes_[name]->stdout_fd());
    return absl::OkStatus();
  }
  absl::Status Kill(const std::string& name) {
    processes_.at(name)->Signal(SIGKILL);
    return processes_.at(name)->Wait(kLimit).status();
  }

  // Until so many more rounds have been committed with all clients' updates; the time of the last.
  absl::StatusOr<Moment> Await(int rounds) {
    const Deadline limit = Deadline::After(kLimit);
    while (rounds_.Next(Deadline::Now()).ok()) {
    }  // those that are there do not count
    for (int seen = 0; seen < rounds;) {
      const auto round = rounds_.Next(limit);
      if (!round.ok()) {
        return Annotate(
            round.status(),
            absl::StrCat("awaiting a round with all ", kClients, " clients, at most ",
                         absl::FormatDuration(kLimit), "; see the logs in ", out_.string()));
      }
      seen += round->value("accepted", 0) == kClients && round->value("committed", true) ? 1 : 0;
      if (const double s = round->value("seconds", 0.0); s > 0) seconds_.push_back(s);
    }
    return Now();
  }
  // The median time of a round, those that were disturbed among them.
  double RoundMs() {
    std::sort(seconds_.begin(), seconds_.end());
    return seconds_.empty() ? 0 : 1e3 * seconds_[seconds_.size() / 2];
  }

 private:
  std::string Address(int i) const { return absl::StrCat("127.0.0.1:", ports_[i]); }

  void Write(const std::string& name, const std::string& more) const {
    const int i = name == "global" ? 0 : name == "rack-0" ? 1 : 2;
    std::ofstream file(out_ / (name + ".toml"));
    file << "[node]\nname = \"" << name << "\"\nlisten = \"" << Address(i) << "\"\n";
    if (i > 0) file << "parent = \"" << Address(0) << "\"\n";
    file << "[transport]\nkind = \"tcp\"\nlisten = \"127.0.0.1:0\"\n" << more;
  }

  const std::filesystem::path out_;
  int ports_[3] = {};
  SteadyTrainer trainer_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<client::Client>> clients_;
  std::vector<std::thread> threads_;
  std::vector<double> seconds_;
  JsonLines rounds_{-1};  // of the global that runs now
};

// Milliseconds from when it is back, or, where it stays away, from the kill.
absl::StatusOr<double> KillOnce(Cluster* cluster, const std::string& victim, bool comes_back,
                                PhiloxStream* random) {
  RETURN_IF_ERROR(cluster->Await(2).status());
  // Some way into whatever the cluster does then.
  absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random->NextBelow(60))));
  Moment from = Now();
  RETURN_IF_ERROR(cluster->Kill(victim));
  if (comes_back) {
    absl::SleepFor(kDown);
    from = Now();
    RETURN_IF_ERROR(cluster->Serve(victim));
  }
  ASSIGN_OR_RETURN(const Moment resumed, cluster->Await(1));
  if (!comes_back) RETURN_IF_ERROR(cluster->Serve(victim));
  return std::chrono::duration<double, std::milli>(resumed - from).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

absl::StatusOr<std::vector<Figure>> Recovery(const std::string& out) {
  const std::filesystem::path folder = std::filesystem::absolute(out) / "recovery";
  PhiloxStream random(SeededHash(1, "recovery", "kills"));
  std::vector<double> global, rack, failover;
  double round_ms = 0;
  {
    Cluster cluster(folder / "back");
    RETURN_IF_ERROR(cluster.Start(false));
    for (int i = 0; i < kKillsEach; ++i) {
      ASSIGN_OR_RETURN(global.emplace_back(), KillOnce(&cluster, "global", true, &random));
      ASSIGN_OR_RETURN(rack.emplace_back(),
                       KillOnce(&cluster, absl::StrCat("rack-", i % 2), true, &random));
    }
    round_ms = cluster.RoundMs();
  }
  {
    Cluster cluster(folder / "failover");
    RETURN_IF_ERROR(cluster.Start(true));
    // The rack that all clients have gone to is the next to be killed: the other is back by then.
    for (int i = 0; i < kKillsEach; ++i) {
      ASSIGN_OR_RETURN(failover.emplace_back(),
                       KillOnce(&cluster, absl::StrCat("rack-", i % 2), false, &random));
    }
  }
  std::vector<double> all = global;
  all.insert(all.end(), rack.begin(), rack.end());
  all.insert(all.end(), failover.begin(), failover.end());
  const std::string basis = absl::StrFormat(
      "%d kills with -9 within a round, real processes, %d clients of %d ms training; until a "
      "round "
      "with all of them is committed (a round takes %.0f ms)",
      3 * kKillsEach, kClients, absl::ToInt64Milliseconds(kTraining), round_ms);
  const auto figure = [](const std::string& name, double value, const std::string& note) {
    return Figure{
        .name = name, .value = value, .unit = "ms", .ceiling = std::nullopt, .note = note};
  };
  const auto largest = [](const std::vector<double>& v) {
    return *std::max_element(v.begin(), v.end());
  };
  return std::vector<Figure>{
      figure("recovery.p50_ms", Median(all), basis),
      figure("recovery.max_ms", largest(all), "the longest of them"),
      figure("recovery.global_p50_ms", Median(global),
             "global killed, from when it is started again"),
      figure("recovery.global_max_ms", largest(global), "likewise"),
      figure("recovery.rack_p50_ms", Median(rack),
             "a rack killed that is its clients' only one, from when it is started again"),
      figure("recovery.rack_max_ms", largest(rack), "likewise"),
      figure("recovery.failover_p50_ms", Median(failover),
             "a rack killed for good, its clients list another; from the kill"),
      figure("recovery.failover_max_ms", largest(failover), "likewise")};
}

}  // namespace tributary::bench
