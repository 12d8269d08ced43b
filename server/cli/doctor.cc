// `tributary doctor`: loads the config, asks, shows.
#include "doctor/doctor.h"

#include <cstdio>
#include <optional>

#include "base/status.h"
#include "server/cli/commands.h"

namespace tributary::cli {

int Doctor(const DoctorOptions& options) {
  std::optional<server::Config> config;
  if (!options.file.empty()) {
    auto loaded = server::LoadConfig(options.file);
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", Text(loaded.status()).c_str());
      return 2;
    }
    config = *std::move(loaded);
  }
  const doctor::Report report = doctor::Examine({.config = config.has_value() ? &*config : nullptr,
                                                 .file = options.file,
                                                 .peer = options.peer},
                                                doctor::RealEnvironment());
  std::fputs((options.json ? report.ToJson() : report.ToText()).c_str(), stdout);
  return report.exit_code();
}

}  // namespace tributary::cli
