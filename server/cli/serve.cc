// `tributary serve`, `check` and `codecs`.
#include <spdlog/spdlog.h>

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/log_setup.h"
#include "base/status.h"
#include "compression/codec.h"
#include "server/cli/commands.h"
#include "server/node.h"

namespace tributary::cli {
namespace {

int Fail(int code, const absl::Status& status) {
  std::fprintf(stderr, "%s\n", Text(status).c_str());
  return code;
}

// SIGUSR1 is ours, to wake who waits for them. A terminal that is closed says SIGHUP; under nohup
// it is ignored, and stays so.
sigset_t EndSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&set, number);
  struct sigaction hangup = {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  return set;
}

// What updates in flight took goes to the next ones, not to the kernel and back: page faults were a
// tenth of an aggregator's work. glibc's own thresholds (128 KiB, moving) fit none of this:
// messages are up to 1 MiB and come by thousands a second. 32 MiB is the largest it takes for the
// second; the model and the sums, mapped one by one, still go back at once. One arena: what was
// received by one thread and is free cannot be had by another from its own, so that together they
// keep more than the budget (90 MB more, of 512). What many threads ask for at once is small, and
// cached by each.
void KeepMemoryOfUpdates(uint64_t inflight_bytes) {
  mallopt(M_TRIM_THRESHOLD, static_cast<int>(std::min<uint64_t>(inflight_bytes, INT_MAX)));
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_ARENA_MAX, 1);
}

}  // namespace

int Serve(const ServeOptions& options) {
  // Blocked in all threads (those of main() since before its start), waited for by one: a signal at
  // any moment drains.
  const sigset_t signals = EndSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  auto config = server::LoadConfig(options.file);
  if (!config.ok()) return Fail(2, config.status());
  const server::LogConfig& log = config->log;
  const absl::Status log_status =
      SetUpLog({.name = "tributary", .level = log.level, .format = log.format, .file = log.file});
  if (!log_status.ok()) return Fail(2, Annotate(log_status, config->where["log.file"]));
  KeepMemoryOfUpdates(config->limits.inflight_bytes);

  server::Node::Options node_options;
  node_options.config = *std::move(config);
  if (options.progress != "none") {
    node_options.on_round = [json = options.progress == "json"](const server::RoundReport& report) {
      std::printf("%s\n", (json ? ToJson(report) : ToText(report)).c_str());
      std::fflush(stdout);
    };
  }
  if (!options.die_after.empty()) {
    node_options.on_phase = [moment = options.die_after](uint64_t round, const char* phase) {
      if (absl::StrCat(phase, ":", round) == moment) kill(getpid(), SIGKILL);
    };
  }
  auto node = server::Node::Create(std::move(node_options));
  if (!node.ok()) return Fail(2, node.status());
  std::atomic<bool> over = false;
  std::thread watcher([&] {
    int number = 0;
    while (sigwait(&signals, &number) == 0 && !over) {
      // Anybody may send SIGUSR1: it must not be the last signal that is heard.
      if (number != SIGUSR1) (*node)->Shutdown();
    }
  });
  const absl::Status status = (*node)->Run();
  over = true;
  pthread_kill(watcher.native_handle(), SIGUSR1);
  watcher.join();
  if (!status.ok()) {
    spdlog::error("ended: {}", Text(status));
    return 1;
  }
  spdlog::info("ended");
  return 0;
}

int Check(const std::vector<std::string>& files) {
  int code = 0;
  for (const std::string& file : files) {
    auto config = server::LoadConfig(file);
    if (config.ok()) {
      std::printf("%s: ok (%s \"%s\")\n", file.c_str(), config->is_root() ? "root" : "rack",
                  config->node.name.c_str());
    } else {
      code = Fail(2, config.status());
    }
  }
  return code;
}

int ListCodecs() {
  std::printf("%-7s %3s %-7s %-9s %-15s %-14s %-8s %s\n", "codec", "id", "linear", "unbiased",
              "error feedback", "deterministic", "from", "written as");
  for (const compression::Capabilities& row : compression::AllCodecs()) {
    const auto yes = [](bool b) { return b ? "yes" : "no"; };
    std::printf("%-7s %3d %-7s %-9s %-15s %-14s %-8llu %s\n", row.name.c_str(),
                static_cast<int>(row.id), yes(row.linear), yes(row.unbiased),
                row.needs_error_feedback ? "needed" : "not needed", yes(row.deterministic),
                static_cast<unsigned long long>(row.minimum_elements),
                compression::CodecSyntax(row.name).c_str());
  }
  std::printf(
      "\nlinear: encoded forms of one round add up. from: tensors of one dimension or with fewer "
      "elements stay\nfp32 unless a rule says otherwise. A run's codec: \"CODEC | ef | zstd; small "
      "= CODEC; NAME* = CODEC\";\n[compression] error_feedback = true writes the ef.\n");
  return 0;
}

}  // namespace tributary::cli
