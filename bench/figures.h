// Figures of a benchmark: printed as a table, written as JSON (docs/benchmarks.md lists their
// names).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tributary::bench {

struct Figure {
  std::string name;  // dotted, stable
  double value = 0;
  std::string unit;
  std::optional<double> ceiling;  // measured in the same run, in the same unit
  std::string note;  // what limits it, or what it rests on; "" where there is nothing to say
  double ratio() const { return ceiling.has_value() && *ceiling != 0 ? value / *ceiling : 0; }
};

void Print(const std::vector<Figure>& figures);

// One object: "environment" (revision, CPU, versions, options) and "figures". "" writes nothing.
absl::Status WriteJson(const std::string& path, const std::vector<Figure>& figures,
                       const std::vector<std::string>& options);

}  // namespace tributary::bench
