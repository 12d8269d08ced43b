// `tributary-client`: one federated client, or many in one process.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>

#include "base/early_signals.h"
#include "base/log_setup.h"
#include "base/status.h"
#include "client/trainer/config.h"
#include "client/trainer/internal/fleet.h"
#include "client/trainer/internal/judge.h"
#include "client/trainer/internal/probe.h"
#include "client/trainer/internal/virtual_run.h"

// Until the fleet catches them: loading LibTorch takes a while, and it starts threads.
TRIBUTARY_HOLD_END_SIGNALS_FROM_THE_START;

namespace tributary::client::trainer {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

int Refuse(const absl::Status& why) {
  std::fprintf(stderr, "%s\n", Text(why).c_str());
  return kBadUsage;
}

int Check(const std::string& file, const ConfigOverrides& overrides) {
  const auto config = LoadClientConfig(file, overrides);
  if (!config.ok()) return Refuse(config.status());
  std::printf("%s: ok (client \"%s\")\n", file.c_str(), config->id.c_str());
  return kDone;
}

int Run(const std::string& file, const ConfigOverrides& overrides, FleetOptions options,
        bool probe) {
  const auto config = LoadClientConfig(file, overrides);
  if (!config.ok()) return Refuse(config.status());
  const absl::Status log = SetUpLog(
      {.name = "tributary-client", .level = config->log_level, .format = config->log_format});
  if (!log.ok()) return Refuse(log);
  std::signal(SIGPIPE, SIG_IGN);
  if (probe) {
    UseOneTorchThread();
    const absl::Status probed = ProbeCodecs(*config);
    if (!probed.ok()) std::fprintf(stderr, "%s: %s\n", file.c_str(), Text(probed).c_str());
    return probed.ok() ? kDone : kFailed;
  }
  options.simulate = overrides.simulate.has_value();
  const auto fleet = Fleet::Create(*config, options);
  if (!fleet.ok()) return Refuse(Annotate(fleet.status(), file));
  return (*fleet)->Run().ok() ? kDone : kFailed;
}

int Evaluate(const std::string& file, const ConfigOverrides& overrides) {
  const auto config = LoadClientConfig(file, overrides);
  if (!config.ok()) return Refuse(config.status());
  const absl::Status done = JudgeModels(*config, std::cin, std::cout);
  if (!done.ok()) std::fprintf(stderr, "%s: %s\n", file.c_str(), Text(done).c_str());
  return done.ok() ? kDone : kFailed;
}

int RunVirtual(const std::string& file, const ConfigOverrides& overrides,
               const VirtualRunOptions& options) {
  const auto config = LoadClientConfig(file, overrides);
  if (!config.ok()) return Refuse(config.status());
  const absl::Status ran = RunInVirtualTime(*config, options);
  if (!ran.ok()) std::fprintf(stderr, "%s: %s\n", file.c_str(), Text(ran).c_str());
  return ran.ok() ? kDone : kFailed;
}

}  // namespace
}  // namespace tributary::client::trainer

namespace {

int Main(int argc, char** argv) {
  tributary::client::trainer::ConfigOverrides overrides;
  std::string file;
  bool check = false;
  CLI::App app("Tributary's client: trains on its own images, sends model updates");
  app.add_option("file", file, "its config (TOML)")->required();
  auto* simulate =
      app.add_option("--simulate", overrides.simulate,
                     "run this many clients in this process, one for each part of the data")
          ->check(CLI::Range(1, 1000000));
  app.add_option("--threads", overrides.threads,
                 "with --simulate: how many train at once (default: one a core)")
      ->check(CLI::Range(1, 1024))
      ->needs(simulate);
  app.add_option("--id", overrides.id, "instead of [client] id");
  app.add_option("--endpoint", overrides.endpoints,
                 "instead of [client] endpoints; may be repeated");
  app.add_option("--index", overrides.index, "instead of [data] index")->excludes(simulate);
  app.add_option("--seed", overrides.seed, "instead of [data] seed");
  app.add_flag("--check", check, "only check the config, without starting");
  bool probe = false;
  app.add_flag("--probe-codecs", probe,
               "train one update, encode it with every codec, print sizes and errors, and end")
      ->excludes(simulate);
  app.add_flag(
         "--evaluate", overrides.evaluate,
         "evaluate the models whose paths come on standard input, a line of JSON for each: for "
         "the root's [evaluation] command")
      ->excludes(simulate);
  // Internal: what `tributary bench round --scenario async` starts.
  tributary::client::trainer::VirtualRunOptions run;
  run.arm.clear();
  app.add_option("--virtual-arm", run.arm)
      ->check(CLI::IsMember({"wait", "adaptive", "async"}))
      ->needs(simulate)
      ->group("");
  app.add_option("--virtual-latencies", run.latencies)->group("");
  app.add_option("--virtual-buffer", run.buffer)->check(CLI::PositiveNumber)->group("");
  app.add_option("--virtual-concurrency", run.concurrency)->group("");
  app.add_option("--virtual-until", run.until)->group("");
  app.add_option("--virtual-versions", run.most_versions)->group("");
  app.add_option("--virtual-lr", run.lr)->group("");
  // Internal: what `tributary bench round --scenario stragglers` starts.
  tributary::client::trainer::FleetOptions fleet;
  app.add_option("--part-first", fleet.part_first)->needs(simulate)->group("");
  app.add_option("--part-count", fleet.part_count)->needs(simulate)->group("");
  app.add_option("--paced-seconds", fleet.pace.seconds)->group("");
  app.add_option("--paced-slow-every", fleet.pace.slow_every)->group("");
  app.add_option("--paced-slow-factor", fleet.pace.slow_factor)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return tributary::client::trainer::kBadUsage;
  }
  using namespace tributary::client::trainer;
  if (!run.arm.empty() && !check) {
    tributary::ReleaseEndSignals();
    return RunVirtual(file, overrides, run);
  }
  if (overrides.evaluate && !check) {
    tributary::ReleaseEndSignals();
    return Evaluate(file, overrides);
  }
  return check ? Check(file, overrides) : Run(file, overrides, fleet, probe);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {  // of the command line's library, or no memory
    std::fprintf(stderr, "tributary-client: %s\n", error.what());
    return 1;
  }
}
