// TorchTrainer and the pool of networks.
#include "client/trainer/trainer.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "aggregation/fednova.h"
#include "base/philox.h"
#include "base/status.h"
#include "client/trainer/hyperparameters.h"
#include "client/trainer/internal/correction.h"
#include "client/trainer/internal/local_sgd.h"
#include "client/trainer/internal/network.h"
#include "client/trainer/internal/weights.h"

namespace tributary::client::trainer {
namespace {

constexpr double kMaxMetric = 4096;  // aggregation/grid.h, MetricToGrid

v1::Metric MakeMetric(const char* name, double value, uint64_t examples) {
  v1::Metric metric;
  metric.set_name(name);
  metric.set_value(std::min(value, kMaxMetric));
  metric.set_weight(examples);
  return metric;
}

// Torch reports by exceptions; they end here.
template <class Function>
auto WithoutExceptions(const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception& error) {
    const std::string what = error.what();
    // What follows the first line is a stack trace.
    return absl::InvalidArgumentError(
        absl::StrCat("torch refuses: ", what.substr(0, what.find('\n'))));
  }
}

}  // namespace

void UseOneTorchThread() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::set_num_threads(1);
    at::set_num_interop_threads(1);
    // Torch does not pass its number on to OpenBLAS. Where it uses another library, there is none.
    using SetThreads = void (*)(int);
    if (void* symbol = dlsym(RTLD_DEFAULT, "openblas_set_num_threads")) {
      reinterpret_cast<SetThreads>(symbol)(1);
    }
  });
}

absl::StatusOr<std::shared_ptr<NetworkPool>> NetworkPool::Create(const std::string& model,
                                                                 int slots) {
  if (slots < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a pool of ", slots, " networks; 1 at least"));
  }
  return WithoutExceptions([&]() -> absl::StatusOr<std::shared_ptr<NetworkPool>> {
    std::shared_ptr<NetworkPool> pool(new NetworkPool);
    pool->model_ = model;
    for (int i = 0; i < slots; ++i) {
      ASSIGN_OR_RETURN(auto network, MakeNetwork(model));
      pool->networks_.push_back(std::move(network));
    }
    ASSIGN_OR_RETURN(pool->layout_, LayoutOf(*pool->networks_.front()));
    const absl::MutexLock lock(&pool->free_mutex_);
    for (auto& network : pool->networks_) pool->free_.push_back(network.get());
    return pool;
  });
}

NetworkPool::~NetworkPool() = default;

absl::Status NetworkPool::CheckInput(const ImageFormat& format) const {
  const uint64_t wanted = networks_.front()->input_pixels();
  if (wanted == 0 || wanted == format.pixels()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model \"", model_, "\" takes images of ", wanted, " pixels, data set \"",
                   format.dataset, "\" has ", format.pixels(),
                   "; use 2nn, cnn or logreg with fashion-mnist, mlp-digits with "
                   "digits"));
}

NetworkPool::Lease NetworkPool::Acquire() {
  const absl::MutexLock lock(&free_mutex_);
  free_mutex_.Await(absl::Condition(this, &NetworkPool::HasFree));
  Network* const network = free_.back();
  free_.pop_back();
  return {this, network};
}

NetworkPool::Lease::~Lease() {
  const absl::MutexLock lock(&pool_->free_mutex_);
  pool_->free_.push_back(network_);
}

TorchTrainer::TorchTrainer(std::shared_ptr<NetworkPool> pool, std::string client_id, Data data)
    : pool_(std::move(pool)), client_id_(std::move(client_id)), data_(std::move(data)) {}

absl::StatusOr<std::unique_ptr<TorchTrainer>> TorchTrainer::Create(
    std::shared_ptr<NetworkPool> pool, std::string client_id, Data data) {
  RETURN_IF_ERROR(pool->CheckInput(data.format));
  if (data.train.size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("client \"", client_id, "\" has no training example"));
  }
  return std::unique_ptr<TorchTrainer>(
      new TorchTrainer(std::move(pool), std::move(client_id), std::move(data)));
}

absl::StatusOr<TrainResult> TorchTrainer::Train(const TrainTask& task,
                                                const std::function<bool()>& cancelled) {
  const NetworkPool::Lease lease = pool_->Acquire();
  if (cancelled()) return absl::CancelledError("the round was over before training began");
  return WithoutExceptions([&] { return TrainOn(lease.network(), task, cancelled); });
}

absl::StatusOr<TrainResult> TorchTrainer::TrainOn(Network& network, const TrainTask& task,
                                                  const std::function<bool()>& cancelled) const {
  ASSIGN_OR_RETURN(const Hyperparameters how, ReadHyperparameters(task.spec));
  ASSIGN_OR_RETURN(const uint32_t tensors, ModelTensors(task, how));
  ASSIGN_OR_RETURN(const std::vector<size_t> match, MatchTensors(network, *task.layout, tensors));
  RETURN_IF_ERROR(LoadBase(task, match, &network));
  ASSIGN_OR_RETURN(const auto corrections, GradientCorrections(task, match, network, how));
  const uint64_t seed = task.spec.seed();
  torch::manual_seed(
      PhiloxStream(SeededHash(seed, "torch", client_id_), task.spec.round()).Next64());
  const PhiloxStream order(SeededHash(seed, "shuffle", client_id_), task.spec.round());
  const auto until = task.received + std::chrono::duration<double>(how.seconds);
  const auto out_of_time = [&] {
    return how.seconds > 0 && std::chrono::steady_clock::now() >= until;
  };
  ASSIGN_OR_RETURN(const Trained trained, TrainLocally(&network, data_.train, data_.format, how,
                                                       order, cancelled, out_of_time, corrections));
  TrainResult result;
  result.weight = static_cast<double>(data_.train.size());
  TakeDeltas(task, match, network, &result);
  result.metrics.push_back(MakeMetric("loss", trained.loss, data_.train.size()));
  const double steps = aggregation::NormalisedSteps(trained.steps, how.momentum);
  FinishCorrections(task, match, network, how, steps, &result);
  if (how.fednova) {
    RETURN_IF_ERROR(CheckFedNova(task, match, network, result));
    for (std::vector<float>& tensor : result.floats) {
      for (float& delta : tensor) delta = static_cast<float>(static_cast<double>(delta) / steps);
    }
    result.metrics.push_back(
        MakeMetric(aggregation::kStepsMetric, steps / aggregation::kStepsUnit, data_.train.size()));
  }
  return result;
}

absl::StatusOr<std::vector<v1::Metric>> TorchTrainer::Evaluate(const TrainTask& task) {
  if (data_.test.size() == 0) return std::vector<v1::Metric>();
  const NetworkPool::Lease lease = pool_->Acquire();
  return WithoutExceptions([&] { return EvaluateOn(lease.network(), task); });
}

absl::StatusOr<std::vector<v1::Metric>> TorchTrainer::EvaluateOn(Network& network,
                                                                 const TrainTask& task) const {
  ASSIGN_OR_RETURN(const Hyperparameters how, ReadHyperparameters(task.spec));
  ASSIGN_OR_RETURN(const uint32_t tensors, ModelTensors(task, how));
  ASSIGN_OR_RETURN(const std::vector<size_t> match, MatchTensors(network, *task.layout, tensors));
  RETURN_IF_ERROR(LoadBase(task, match, &network));
  const TestScore score = Test(&network, data_.test, data_.format);
  if (!std::isfinite(score.loss)) {
    return absl::OutOfRangeError(
        absl::StrCat("the base model's loss on the test data is ", score.loss));
  }
  return std::vector<v1::Metric>{MakeMetric("test_loss", score.loss, data_.test.size()),
                                 MakeMetric("test_accuracy", score.accuracy, data_.test.size())};
}

}  // namespace tributary::client::trainer
