// Tables and JSON of figures, and what machine they come from.
#include "bench/figures.h"

#include <grpcpp/grpcpp.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "compression/codec.h"

namespace tributary::bench {
namespace {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

void Print(const std::vector<Figure>& figures) {
  std::printf("%-44s %12s %-10s %12s %7s\n", "figure", "value", "unit", "ceiling", "ratio");
  for (const Figure& f : figures) {
    std::printf("%-44s %12.4g %-10s", f.name.c_str(), f.value, f.unit.c_str());
    if (f.ceiling.has_value()) {
      std::printf(" %12.4g %7.3f", *f.ceiling, f.ratio());
    } else {
      std::printf(" %12s %7s", "-", "-");
    }
    std::printf("%s%s\n", f.note.empty() ? "" : "  ", f.note.c_str());
  }
}

absl::Status WriteJson(const std::string& path, const std::vector<Figure>& figures,
                       const std::vector<std::string>& options) {
  if (path.empty()) return absl::OkStatus();
  nlohmann::ordered_json json;
  utsname system = {};
  uname(&system);
  json["environment"] = {{"revision", TRIBUTARY_REVISION},
                         {"cpu", CpuModel()},
                         {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
                         {"kernel", system.release},
                         {"compiler", __VERSION__},
                         {"grpc", grpc::Version()},
                         {"simd_targets", compression::SupportedTargets()},
                         {"options", options}};
  json["figures"] = nlohmann::ordered_json::array();
  for (const Figure& f : figures) {
    nlohmann::ordered_json row = {{"name", f.name}, {"value", f.value}, {"unit", f.unit}};
    if (f.ceiling.has_value()) {
      row["ceiling"] = *f.ceiling;
      row["ratio"] = f.ratio();
    }
    if (!f.note.empty()) row["note"] = f.note;
    json["figures"].push_back(row);
  }
  std::ofstream file(path);
  file << json.dump(2) << "\n";
  file.flush();
  if (!file) return absl::PermissionDeniedError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace tributary::bench
