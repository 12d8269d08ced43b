// Training on LibTorch behind the SDK's Trainer: a base model's bytes in, deltas out.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/client.h"
#include "client/trainer/dataset.h"

namespace tributary::client::trainer {

class Network;  // a torch module

// One thread for each torch operation, in the whole process: clients run beside each other
// instead, and two torch threads are slower than one for such batches. Also of an OpenBLAS that
// torch calls, which has threads of its own. Call it before any other use of torch; again is
// harmless.
void UseOneTorchThread();

// Networks of one model, lent to one training at a time: as many trainings run at once, and as much
// memory is held, as there are slots, however many clients there are. Thread-safe.
class NetworkPool {
 public:
  // `model`: as models::BuiltinNames() (but for benches' "synthetic:N"), or the path of a
  // TorchScript file. slots >= 1. NOT_FOUND, INVALID_ARGUMENT.
  static absl::StatusOr<std::shared_ptr<NetworkPool>> Create(const std::string& model, int slots);
  ~NetworkPool();

  // Names, shapes and dtypes in the order of Python's state_dict(); default policies.
  const std::shared_ptr<const aggregation::ModelLayout>& layout() const { return layout_; }
  // OK where the model takes such images; INVALID_ARGUMENT names both and what fits.
  absl::Status CheckInput(const ImageFormat& format) const;

  class Lease {
   public:
    Lease(NetworkPool* pool, Network* network) : pool_(pool), network_(network) {}
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Network& network() const { return *network_; }

   private:
    NetworkPool* const pool_;
    Network* const network_;
  };
  // Waits for a free slot. Whoever holds one gives it back when its training ends or is cancelled.
  Lease Acquire();

 private:
  NetworkPool() = default;
  bool HasFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(free_mutex_) { return !free_.empty(); }

  std::string model_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  std::vector<std::unique_ptr<Network>> networks_;
  absl::Mutex free_mutex_;
  std::vector<Network*> free_ ABSL_GUARDED_BY(free_mutex_);
};

// One client's data and how it learns: SGD on the cross entropy, by the round's hyperparameters
// (hyperparameters.h); FedAvg's client (McMahan et al., 2017), FedProx's with mu > 0 (Li et al.,
// 2020), SCAFFOLD's and FedDyn's, whose memory the SDK keeps. Momentum starts at zero each round.
//
// The order of the examples is drawn anew each epoch, by Philox from the run's seed, the client's
// id and the round; with batch_size 0 (all examples in one step) they stay in their order. So the
// same task gives the same bits, on one kind of CPU and one build of torch. Networks that draw
// random numbers themselves (dropout) are seeded alike, but torch's generator is one a process:
// with several slots their numbers depend on the timing.
class TorchTrainer final : public Trainer {
 public:
  struct Data {
    ImageFormat format;
    Examples train;  // not empty
    Examples test;   // may be empty: then Evaluate has nothing to say
  };
  // INVALID_ARGUMENT: the data do not fit the model, or there is no training example.
  static absl::StatusOr<std::unique_ptr<TorchTrainer>> Create(std::shared_ptr<NetworkPool> pool,
                                                              std::string client_id, Data data);

  // weight: the number of training examples. Metrics: "loss", the mean over the last epoch of the
  // examples' losses while training (at most 4096, the wire's limit), weighted by the examples.
  // Floats' deltas are trained - base, rounded to float; integers' the difference; SKIP tensors are
  // loaded but not sent. FAILED_PRECONDITION: the task's layout is not the model's (names, shapes,
  // dtypes; any order); CANCELLED; INVALID_ARGUMENT: hyperparameters, or torch refuses (says what);
  // OUT_OF_RANGE: training diverged to a loss that is not finite. With the hyperparameter "seconds"
  // it ends so long after the task came, after one step at least; what it has is the result.
  absl::StatusOr<TrainResult> Train(const TrainTask& task,
                                    const std::function<bool()>& cancelled) override;
  // "test_loss" and "test_accuracy" (0..1) on the client's own test examples, weighted by them.
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask& task) override;

  uint64_t examples() const { return data_.train.size(); }

 private:
  TorchTrainer(std::shared_ptr<NetworkPool> pool, std::string client_id, Data data);
  absl::StatusOr<TrainResult> TrainOn(Network& network, const TrainTask& task,
                                      const std::function<bool()>& cancelled) const;
  absl::StatusOr<std::vector<v1::Metric>> EvaluateOn(Network& network, const TrainTask& task) const;

  const std::shared_ptr<NetworkPool> pool_;
  const std::string client_id_;
  const Data data_;
};

}  // namespace tributary::client::trainer
