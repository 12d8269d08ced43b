// Reading hyperparameters.
#include "client/trainer/hyperparameters.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::client::trainer {
namespace {

constexpr double kMaxEpochs = 10000;
constexpr double kMaxBatch = 1 << 30;
constexpr double kMaxReal = 1e6;  // of lr, weight_decay and mu: beyond it is a mistake

struct Rule {
  const char* range;
  bool (*good)(double);
  void (*set)(Hyperparameters*, double);
};

bool WholeWithin(double value, double low, double high) {
  return value >= low && value <= high && value == std::floor(value);
}

bool NotNegative(double value) { return value >= 0 && value <= kMaxReal; }

// NaN fails every comparison, and so every rule.
const std::map<std::string, Rule>& Rules() {
  static const auto* const rules = new std::map<std::string, Rule>{
      {"lr",
       {"above 0, at most 1e6", [](double v) { return v > 0 && v <= kMaxReal; },
        [](Hyperparameters* h, double v) { h->lr = v; }}},
      {"momentum",
       {"0 or more, below 1", [](double v) { return v >= 0 && v < 1; },
        [](Hyperparameters* h, double v) { h->momentum = v; }}},
      {"weight_decay",
       {"0 to 1e6", NotNegative, [](Hyperparameters* h, double v) { h->weight_decay = v; }}},
      {"local_epochs",
       {"a whole number from 1 to 10000", [](double v) { return WholeWithin(v, 1, kMaxEpochs); },
        [](Hyperparameters* h, double v) { h->local_epochs = static_cast<uint32_t>(v); }}},
      {"batch_size",
       {"a whole number from 0 (all examples) to 2^30",
        [](double v) { return WholeWithin(v, 0, kMaxBatch); },
        [](Hyperparameters* h, double v) { h->batch_size = static_cast<uint32_t>(v); }}},
      {"mu", {"0 to 1e6", NotNegative, [](Hyperparameters* h, double v) { h->mu = v; }}}};
  return *rules;
}

}  // namespace

absl::StatusOr<Hyperparameters> ReadHyperparameters(const v1::RoundSpec& spec) {
  Hyperparameters read;
  for (const auto& [name, value] : spec.hyperparameters()) {
    const auto rule = Rules().find(name);
    if (rule == Rules().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("hyperparameter \"", name, "\" is not known to this client; it knows ",
                       "batch_size, local_epochs, lr, momentum, mu, weight_decay; correct the "
                       "run's [training]"));
    }
    if (!rule->second.good(value)) {
      return absl::InvalidArgumentError(absl::StrCat("hyperparameter \"", name, "\" is ", value,
                                                     ", expected ", rule->second.range,
                                                     "; correct the run's [training]"));
    }
    rule->second.set(&read, value);
  }
  return read;
}

}  // namespace tributary::client::trainer
