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
  return read;
}

}  // namespace tributary::client::trainer
