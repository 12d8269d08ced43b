// Reading hyperparameters.
#include "client/trainer/hyperparameters.h"

#include "aggregation/hyperparameters.h"
#include "base/status.h"

namespace tributary::client::trainer {
namespace {

// A checked value, in its place.
void Set(const std::string& name, double value, Hyperparameters* out) {
  if (name == "lr") out->lr = value;
  if (name == "momentum") out->momentum = value;
  if (name == "weight_decay") out->weight_decay = value;
  if (name == "local_epochs") out->local_epochs = static_cast<uint32_t>(value);
  if (name == "batch_size") out->batch_size = static_cast<uint32_t>(value);
  if (name == "mu") out->mu = value;
  if (name == "work") out->work = value;
  if (name == "seconds") out->seconds = value;
  if (name == "scaffold") out->scaffold = value == 1;
  if (name == "feddyn") out->feddyn = value;
  if (name == "fednova") out->fednova = value == 1;
}

}  // namespace

absl::StatusOr<Hyperparameters> ReadHyperparameters(const v1::RoundSpec& spec) {
  Hyperparameters read;
  for (const auto& [name, value] : spec.hyperparameters()) {
    if (const auto status = aggregation::CheckHyperparameter(name, value); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(status.message(), "; correct the run's [training]"));
    }
    Set(name, value, &read);
  }
  const int algorithms =
      int{read.fednova} + int{read.mu > 0} + int{read.scaffold} + int{read.feddyn > 0};
  if (algorithms > 1) {
    return absl::InvalidArgumentError(
        "more than one of fednova, mu, scaffold and feddyn above 0 is not known here; set the "
        "others to 0 in the run's [training]");
  }
  return read;
}

}  // namespace tributary::client::trainer
