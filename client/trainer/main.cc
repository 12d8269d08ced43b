// `tributary-client`: one federated client, or many in one process.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>

#include "base/status.h"
#include "client/trainer/config.h"
#include "client/trainer/internal/fleet.h"
#include "client/trainer/internal/log_setup.h"

namespace tributary::client::trainer {
namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

int Run(const std::string& file, const ConfigOverrides& overrides) {
  const auto config = LoadClientConfig(file, overrides);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", Text(config.status()).c_str());
    return kBadUsage;
  }
  SetUpLog(config->log_level, config->log_format);
  std::signal(SIGPIPE, SIG_IGN);
  const auto fleet = Fleet::Create(*config, overrides.simulate.has_value());
  if (!fleet.ok()) {
    std::fprintf(stderr, "%s: %s\n", file.c_str(), Text(fleet.status()).c_str());
    return kBadUsage;
  }
  return (*fleet)->Run().ok() ? kDone : kFailed;
}

}  // namespace
}  // namespace tributary::client::trainer

int main(int argc, char** argv) {
  tributary::client::trainer::ConfigOverrides overrides;
  std::string file;
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return tributary::client::trainer::kBadUsage;
  }
  return tributary::client::trainer::Run(file, overrides);
}
