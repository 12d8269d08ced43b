// `tributary simulate`: every policy over every transport of a file, in virtual time.
#include <cstdio>
#include <ctime>

#include "base/status.h"
#include "bench/figures.h"
#include "server/cli/commands.h"
#include "simulate/arm.h"
#include "simulate/async_arm.h"
#include "simulate/report.h"

namespace tributary::cli {

int Simulate(const SimulateOptions& options) {
  const auto config = simulate::LoadConfig(options.file);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", Text(config.status()).c_str());
    return 2;
  }
  std::vector<simulate::ArmResult> results;
  const std::clock_t start = std::clock();
  for (const std::string& name : config->policies) {
    for (const simulate::Policy& policy : simulate::KnownPolicies()) {
      if (policy.name != name) continue;
      for (const std::string& transport : config->transports) {
        results.push_back(policy.asynchronous ? simulate::AsyncArm(*config, transport).Run()
                                              : simulate::Arm(*config, policy, transport).Run());
      }
    }
  }
  const double cpu = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::printf("%s\n%s", simulate::Table(results).c_str(), simulate::Assumptions(*config).c_str());
  uint64_t events = 0;
  for (const auto& result : results) events += result.network.events;
  std::printf("simulated %zu runs, %llu events in %.1f s of CPU on one core (measured)\n",
              results.size(), static_cast<unsigned long long>(events), cpu);
  std::vector<bench::Figure> figures;
  for (const simulate::SimFigure& f : simulate::Figures(results)) {
    figures.push_back(
        {.name = f.name, .value = f.value, .unit = f.unit, .ceiling = {}, .note = f.note});
  }
  const absl::Status written = bench::WriteJson(options.json, figures, {"simulate", options.file});
  if (written.ok()) return 0;
  std::fprintf(stderr, "%s\n", Text(written).c_str());
  return 1;
}

}  // namespace tributary::cli
