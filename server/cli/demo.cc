// `tributary demo`: every tier as a real process on this machine, real training, progress, a
// report.
#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/deadline.h"
#include "base/process.h"
#include "base/status.h"
#include "server/cli/commands.h"
#include "server/config.h"

namespace tributary::cli {
namespace {

constexpr absl::Duration kExitTime = absl::Seconds(10);

// What a demo makes in its folder and clears away when it starts anew; with this file in it, which
// says that they are its own.
constexpr const char* kOwn[] = {"checkpoints", "logs", "configs"};
constexpr char kMark[] = ".tributary-demo";

struct Endpoint {
  std::string name;
  int port = 0;
};

class DemoRun {
 public:
  explicit DemoRun(const DemoOptions& options)
      : o_(options), out_(std::filesystem::absolute(options.out)) {}
  absl::StatusOr<int> Run();

 private:
  absl::Status Prepare();
  absl::Status StartAggregator(const std::string& name, const std::string& config,
                               const std::string& parent, int* port, bool root);
  absl::Status StartTiers();
  absl::Status StartClients();
  absl::StatusOr<int> Follow();
  int AwaitEnds();
  void ShowRound(const std::string& line);
  void Summary(int code) const;
  std::string RootConfig() const;
  std::string CodecText() const;

  const DemoOptions o_;
  const std::filesystem::path out_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::string> names_;
  std::vector<Endpoint> doors_;  // that clients join
  std::optional<nlohmann::json> last_;
  uint64_t bytes_ = 0;
  uint64_t dense_bytes_ = 0;
  Deadline::Clock::time_point start_ = Deadline::Clock::now();
};

std::string DemoRun::RootConfig() const {
  return absl::StrFormat(
      "[run]\nname = \"demo\"\nrounds = %d\nseed = %d\nmodel = \"%s\"\nstartup_limit_s = 120\n\n"
      "[aggregation]\noptimizer = \"fedavg\"\n\n[cohort]\nminimum = %d\n\n"
      "[straggler]\ndeadline = \"fixed\"\ndeadline_s = 120\n\n[compression]\ncodec = \"%s\"\n"
      "error_feedback = %s\n\n"
      "[checkpoint]\ndirectory = \"%s\"\n\n[training]\nlr = 0.05\nmomentum = 0.9\nlocal_epochs = "
      "1\nbatch_size = 32\n",
      o_.rounds, o_.seed, o_.model, o_.clients, o_.codec, o_.error_feedback ? "true" : "false",
      (out_ / "checkpoints").string());
}

std::string DemoRun::CodecText() const {
  return absl::StrCat(o_.codec, o_.error_feedback ? " with error feedback" : "");
}

absl::Status DemoRun::Prepare() {
  std::error_code error;
  const bool own = std::filesystem::exists(out_ / kMark, error);
  for (const char* name : kOwn) {
    if (own || !std::filesystem::exists(out_ / name, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat((out_ / name).string(),
                     " is not of a demo, and a demo would clear it away; "
                     "give another folder with --out, or remove it yourself"));
  }
  // A demo starts afresh: what an earlier one left would make it resume.
  for (const char* old : kOwn) std::filesystem::remove_all(out_ / old, error);
  for (const char* fresh : {"logs", "configs"})
    std::filesystem::create_directories(out_ / fresh, error);
  if (error || !std::ofstream(out_ / kMark).put('\n'))
    return absl::PermissionDeniedError(
        absl::StrCat("cannot write to ", out_.string(), error ? ": " + error.message() : ""));
  if (!std::filesystem::exists(SelfDirectory() + "/tributary-client")) {
    return absl::NotFoundError(
        "tributary-client is not beside tributary; build with TRIBUTARY_TRAINER=ON");
  }
  return absl::OkStatus();
}

absl::Status DemoRun::StartAggregator(const std::string& name, const std::string& config,
                                      const std::string& parent, int* port, bool root) {
  ASSIGN_OR_RETURN(*port, FreePort());
  const std::string file = (out_ / "configs" / (name + ".toml")).string();
  std::ofstream(file) << absl::StrFormat(
      "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:%d\"\n%s\n[transport]\nkind = \"tcp\"\nlisten = "
      "\"127.0.0.1:0\"\n\n[limits]\nfold_workers = 1\n\n%s",
      name, *port, parent.empty() ? "" : absl::StrFormat("parent = \"%s\"\n", parent), config);
  // Before anything is started: what the options cannot mean is said here, not in a log.
  if (root) RETURN_IF_ERROR(server::LoadConfig(file).status());
  ASSIGN_OR_RETURN(
      Process process,
      Process::Start(
          {SelfDirectory() + "/tributary", "serve", file, "--progress", root ? "json" : "none"},
          {.log_file = (out_ / "logs" / (name + ".log")).string(), .pipe_stdout = root}));
  processes_.push_back(std::make_unique<Process>(std::move(process)));
  names_.push_back(name);
  return absl::OkStatus();
}

absl::Status DemoRun::StartTiers() {
  int root_port = 0;
  RETURN_IF_ERROR(StartAggregator("global", RootConfig(), "", &root_port, true));
  std::vector<Endpoint> parents = {{"global", root_port}};
  if (o_.topology == "three-tier") {
    int port = 0;
    RETURN_IF_ERROR(
        StartAggregator("region-0", "", absl::StrCat("127.0.0.1:", root_port), &port, false));
    parents = {{"region-0", port}};
  }
  if (o_.topology == "flat") {
    doors_ = parents;
    return absl::OkStatus();
  }
  for (uint32_t i = 0; i < o_.racks; ++i) {
    Endpoint rack = {.name = absl::StrCat("rack-", i)};
    RETURN_IF_ERROR(StartAggregator(rack.name, "", absl::StrCat("127.0.0.1:", parents[0].port),
                                    &rack.port, false));
    doors_.push_back(rack);
  }
  return absl::OkStatus();
}

absl::Status DemoRun::StartClients() {
  const bool digits = o_.model == "mlp-digits";
  const std::string file = (out_ / "configs" / "client.toml").string();
  std::ofstream(file) << absl::StrFormat(
      "[client]\nid = \"client\"\nendpoints = [\"127.0.0.1:%d\"]\n\n[data]\ndataset = "
      "\"%s\"\nsplit = \"dirichlet\"\n"
      "alpha = %g\nclients = %d\nindex = 0\nseed = %d\n\n[model]\nname = \"%s\"\n",
      doors_[0].port, digits ? "digits" : "fashion-mnist", o_.alpha, o_.clients, o_.seed, o_.model);
  for (uint32_t i = 0; i < o_.clients; ++i) {
    const std::string name = absl::StrFormat("client-%03d", i);
    ASSIGN_OR_RETURN(Process process,
                     Process::Start({SelfDirectory() + "/tributary-client", file, "--id", name,
                                     "--index", std::to_string(i), "--endpoint",
                                     absl::StrCat("127.0.0.1:", doors_[i % doors_.size()].port)},
                                    {.log_file = (out_ / "logs" / (name + ".log")).string()}));
    processes_.push_back(std::make_unique<Process>(std::move(process)));
    names_.push_back(name);
  }
  return absl::OkStatus();
}

void DemoRun::ShowRound(const std::string& line) {
  nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) return;
  const uint64_t clients = json.value("accepted", 0);
  if (!json.value("committed", false)) {
    std::printf("round %2d/%d  failed: %s\n", json.value("round", 0), o_.rounds,
                json.value("why_not", "").c_str());
    return;
  }
  const uint64_t bytes = json["bytes"].value("updates_below", uint64_t{0});
  const uint64_t dense = json.value("model_bytes", uint64_t{0}) * clients;
  bytes_ += bytes;
  dense_bytes_ += dense;
  const auto& phases = json["phases"];
  const auto evaluation = json.value("evaluation", nlohmann::json::object());
  std::printf(
      "round %2d/%d  accuracy %5.2f %%  loss %.4f  %5.2f s: train %.2f  upload %.2f  fold %.3f  "
      "forward %.3f  apply "
      "%.3f  commit %.3f  | %d clients, %.2f MB up, %.2f MB saved\n",
      json.value("round", 0), o_.rounds, 100 * evaluation.value("test_accuracy", 0.0),
      evaluation.value("test_loss", 0.0), json.value("seconds", 0.0),
      phases.value("train_wait", 0.0), phases.value("upload", 0.0), phases.value("fold", 0.0),
      phases.value("forward", 0.0), phases.value("apply", 0.0), phases.value("commit", 0.0),
      static_cast<int>(clients), static_cast<double>(bytes) / 1e6,
      (static_cast<double>(dense) - static_cast<double>(bytes)) / 1e6);
  std::fflush(stdout);
  last_ = std::move(json);
}

// Shows rounds as the global aggregator tells them, until it ends or the user asks for the end.
absl::StatusOr<int> DemoRun::Follow() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  const int asked = signalfd(-1, &signals, SFD_CLOEXEC);
  Process& root = *processes_[0];
  std::string buffer;
  bool interrupted = false;
  while (true) {
    pollfd fds[2] = {{.fd = root.stdout_fd(), .events = POLLIN, .revents = 0},
                     {.fd = asked, .events = POLLIN, .revents = 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
    if (fds[1].revents != 0) {
      interrupted = true;
      break;
    }
    if (fds[0].revents == 0) continue;
    char bytes[4096];
    const ssize_t n = read(root.stdout_fd(), bytes, sizeof(bytes));
    if (n <= 0) break;  // the root has ended
    buffer.append(bytes, static_cast<size_t>(n));
    for (size_t end = buffer.find('\n'); end != std::string::npos; end = buffer.find('\n')) {
      ShowRound(buffer.substr(0, end));
      buffer.erase(0, end + 1);
    }
  }
  close(asked);
  if (interrupted) {
    std::printf("\ninterrupted: ending %d processes\n", static_cast<int>(processes_.size()));
    for (auto& process : processes_) process->Signal(SIGTERM);
    for (auto& process : processes_) {
      if (!process->Wait(kExitTime).ok()) process->Signal(SIGKILL);
    }
    return 130;
  }
  return AwaitEnds();
}

// The root has ended, and with it the run: the others end by themselves, or where it failed by a
// signal, all within one limit.
int DemoRun::AwaitEnds() {
  int code = 0;
  Deadline limit = Deadline::After(kExitTime);
  for (size_t i = 0; i < processes_.size(); ++i) {
    const auto exit = processes_[i]->Wait(limit.Left());
    if (exit.ok() && *exit == 0) continue;
    code = 1;
    if (i == 0) {
      for (size_t other = 1; other < processes_.size(); ++other) processes_[other]->Signal(SIGTERM);
      limit = Deadline::After(kExitTime);
    }
    std::printf("%s %s; its log: %s\n", names_[i].c_str(),
                exit.ok() ? absl::StrCat("ended with exit code ", *exit).c_str()
                          : "does not end and is killed",
                (out_ / "logs" / (names_[i] + ".log")).c_str());
  }
  return code;
}

void DemoRun::Summary(int code) const {
  if (!last_.has_value()) {
    std::printf("no round was committed; the logs are in %s\n", (out_ / "logs").c_str());
    return;
  }
  const auto evaluation = last_->value("evaluation", nlohmann::json::object());
  std::printf("\n%s after %d rounds in %.1f s\n", code == 0 ? "done" : "ended",
              last_->value("round", 0),
              std::chrono::duration<double>(Deadline::Clock::now() - start_).count());
  std::printf("  test accuracy   %.2f %% (loss %.4f) on the clients' test images, summed exactly\n",
              100 * evaluation.value("test_accuracy", 0.0), evaluation.value("test_loss", 0.0));
  std::printf(
      "  updates         %.2f MB on the wire instead of %.2f MB (%.1f times smaller, codec %s)\n",
      static_cast<double>(bytes_) / 1e6, static_cast<double>(dense_bytes_) / 1e6,
      bytes_ > 0 ? static_cast<double>(dense_bytes_) / static_cast<double>(bytes_) : 0.0,
      CodecText().c_str());
  std::printf("  between tiers   %s\n", last_->value("transport", "none").c_str());
  std::printf("  model           SHA-256 %s\n", last_->value("model_sha256", "").c_str());
  std::printf(
      "\noutputs\n  %s  the model of each of the last rounds (safetensors)\n"
      "  %s  each round's phases, bytes and counts\n  %s  one log a process\n",
      (out_ / "checkpoints" / "demo").c_str(),
      (out_ / "checkpoints" / "demo" / "rounds.jsonl").c_str(), (out_ / "logs").c_str());
  std::printf(
      "\nwhat to try next\n"
      "  ./run demo --topology flat            the same model hash without racks\n"
      "  ./run demo --codec fp32               what compression saves\n"
      "  ./run demo --alpha 0.1                less equal clients\n"
      "  ./run demo --model cnn --rounds 3     a larger model\n"
      "  configs/ and docs/operations.md       the same on several machines\n");
}

absl::StatusOr<int> DemoRun::Run() {
  // Before any child: signals are read from a descriptor.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  RETURN_IF_ERROR(Prepare());
  std::printf(
      "tributary demo: %s, %d clients%s, model %s, codec %s, Dirichlet(%g), %d rounds, seed %d\n",
      o_.topology.c_str(), o_.clients,
      o_.topology == "flat" ? "" : absl::StrCat(" behind ", o_.racks, " racks").c_str(),
      o_.model.c_str(), CodecText().c_str(), o_.alpha, o_.rounds, static_cast<int>(o_.seed));
  RETURN_IF_ERROR(StartTiers());
  RETURN_IF_ERROR(StartClients());
  std::printf("started %d processes; waiting for the clients to load their data\n",
              static_cast<int>(processes_.size()));
  std::fflush(stdout);
  ASSIGN_OR_RETURN(const int code, Follow());
  if (code != 130) Summary(code);
  return code;
}

}  // namespace

int Demo(const DemoOptions& options) {
  const auto code = DemoRun(options).Run();
  if (code.ok()) return *code;
  std::fprintf(stderr, "%s\n", std::string(code.status().message()).c_str());
  return absl::IsInvalidArgument(code.status()) ? 2 : 1;
}

}  // namespace tributary::cli
