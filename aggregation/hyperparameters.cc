// Ranges of hyperparameters.
#include "aggregation/hyperparameters.h"

#include <array>
#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace tributary::aggregation {
namespace {

constexpr double kMaxEpochs = 10000;
constexpr double kMaxBatch = 1 << 30;
constexpr double kMaxReal = 1e6;  // of lr, weight_decay and mu: beyond it is a mistake

bool WholeWithin(double value, double low, double high) {
  return value >= low && value <= high && value == std::floor(value);
}
bool NotNegative(double value) { return value >= 0 && value <= kMaxReal; }

struct Rule {
  std::string_view name;
  const char* range;
  bool (*good)(double);  // NaN fails every comparison, and so every rule
};
constexpr std::array<Rule, 11> kRules = {
    {{"batch_size", "a whole number from 0 (all examples) to 2^30",
      [](double v) { return WholeWithin(v, 0, kMaxBatch); }},
     {"feddyn", "0 to 1e6", NotNegative},
     {"fednova", "0 or 1", [](double v) { return v == 0 || v == 1; }},
     {"local_epochs", "a whole number from 1 to 10000",
      [](double v) { return WholeWithin(v, 1, kMaxEpochs); }},
     {"lr", "above 0, at most 1e6", [](double v) { return v > 0 && v <= kMaxReal; }},
     {"momentum", "0 or more, below 1", [](double v) { return v >= 0 && v < 1; }},
     {"mu", "0 to 1e6", NotNegative},
     {"scaffold", "0 or 1", [](double v) { return v == 0 || v == 1; }},
     {"seconds", "above 0, at most 1e9", [](double v) { return v > 0 && v <= 1e9; }},
     {"weight_decay", "0 to 1e6", NotNegative},
     {"work", "above 0, at most 1", [](double v) { return v > 0 && v <= 1; }}}};

}  // namespace

absl::Status CheckHyperparameter(const std::string& name, double value) {
  std::string known;
  for (const Rule& rule : kRules) {
    if (rule.name != name) {
      absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(rule.name));
    } else if (rule.good(value)) {
      return absl::OkStatus();
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("hyperparameter \"", name, "\" is ", value, ", expected ", rule.range));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("hyperparameter \"", name, "\" is not known; known are ", known));
}

}  // namespace tributary::aggregation
