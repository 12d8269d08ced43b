// Many SDK clients in one process that upload a prepared update: `tributary bench senders`.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "aggregation/update.h"
#include "base/philox.h"
#include "base/status.h"
#include "bench/commands.h"
#include "client/client.h"
#include "models/builtin.h"
#include "simulate/clients.h"
#include "simulate/config.h"

namespace tributary::bench {
namespace {

using Segments = std::vector<std::vector<uint8_t>>;

// Small random deltas, of the size that training gives.
class SyntheticDeltas final : public aggregation::DeltaSource {
 public:
  explicit SyntheticDeltas(const aggregation::ModelLayout& layout) : layout_(layout) {}
  absl::StatusOr<std::span<const float>> Floats(uint32_t tensor) override {
    // Each tensor's own: codecs that choose among all tensors hold on to them.
    std::vector<float>& floats = floats_[tensor];
    floats.resize(layout_.TensorElements(tensor));
    PhiloxStream random(7, tensor);
    for (float& x : floats) x = static_cast<float>((random.NextDouble() - 0.5) * 0.02);
    return std::span<const float>(floats);
  }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t tensor) override {
    ints_.assign(layout_.TensorElements(tensor), 1);
    return std::span<const int64_t>(ints_);
  }

 private:
  const aggregation::ModelLayout& layout_;
  std::map<uint32_t, std::vector<float>> floats_;
  std::vector<int64_t> ints_;
};

absl::StatusOr<std::shared_ptr<const Segments>> Encode(const std::string& model,
                                                       const std::string& codec_spec) {
  ASSIGN_OR_RETURN(auto layout, models::BuiltinLayout(model));
  ASSIGN_OR_RETURN(auto codec, compression::CodecPolicy::Parse(codec_spec));
  SyntheticDeltas deltas(*layout);
  auto segments = std::make_shared<Segments>();
  RETURN_IF_ERROR(aggregation::EncodeUpdate(*layout, *codec, {1, 1}, 1, deltas,
                                            [&](std::vector<uint8_t> segment) {
                                              segments->push_back(std::move(segment));
                                              return absl::OkStatus();
                                            }));
  return std::shared_ptr<const Segments>(std::move(segments));
}

class PreparedTrainer final : public client::Trainer {
 public:
  explicit PreparedTrainer(std::shared_ptr<const Segments> segments)
      : segments_(std::move(segments)) {}
  absl::StatusOr<client::TrainResult> Train(const client::TrainTask&,
                                            const std::function<bool()>&) override {
    client::TrainResult result;
    result.weight = 100;
    result.encoded = segments_;
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const client::TrainTask&) override {
    return std::vector<v1::Metric>();
  }

 private:
  std::shared_ptr<const Segments> segments_;
};

// Takes the time that the simulation's client would take, and no more CPU than that needs.
class ModelledTrainer final : public client::Trainer {
 public:
  ModelledTrainer(const simulate::ClientPopulation* population, uint32_t index,
                  client::Trainer* sender)
      : population_(*population), index_(index), sender_(*sender) {}
  absl::StatusOr<client::TrainResult> Train(const client::TrainTask& task,
                                            const std::function<bool()>& cancelled) override {
    const double seconds = population_.download_s(index_) +
                           population_.Draw(index_, task.spec.round()).train_s +
                           population_.latency_s() + population_.upload_s(index_);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      if (cancelled()) return absl::CancelledError("the round is over");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return sender_.Train(task, cancelled);
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const client::TrainTask& task) override {
    return sender_.Evaluate(task);
  }

 private:
  const simulate::ClientPopulation& population_;
  const uint32_t index_;
  client::Trainer& sender_;
};

}  // namespace

int Senders(const SendersOptions& options) {
  std::optional<simulate::ClientPopulation> population;
  if (!options.modelled.empty()) {
    const auto config = simulate::LoadConfig(options.modelled);
    if (!config.ok()) {
      std::fprintf(stderr, "%s\n", Text(config.status()).c_str());
      return 1;
    }
    population.emplace(config->clients, config->seed, simulate::UpdateBytes(*config),
                       simulate::ModelBytes(*config));
  }
  const auto segments = Encode(options.model, options.codec);
  if (!segments.ok()) {
    std::fprintf(stderr, "%s\n", Text(segments.status()).c_str());
    return 1;
  }
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  PreparedTrainer trainer(*segments);
  std::vector<std::unique_ptr<ModelledTrainer>> modelled;
  std::vector<std::unique_ptr<client::Client>> clients;
  for (uint32_t i = 0; i < options.count; ++i) {
    client::ClientOptions client_options;
    client_options.id = absl::StrFormat("sender-%05d", options.first + i);
    client_options.endpoints = {options.endpoints[(options.first + i) % options.endpoints.size()]};
    client_options.examples = 100;
    client_options.wants_model = false;
    client_options.offer_updates = !options.no_offers;
    client::Trainer* own = &trainer;
    if (population.has_value()) {
      const uint32_t index = options.first + i;
      client_options.id = population->traits(index).id;
      client_options.endpoints = {
          options.endpoints[index * options.endpoints.size() / population->size()]};
      modelled.push_back(std::make_unique<ModelledTrainer>(&*population, index, &trainer));
      own = modelled.back().get();
    }
    auto client = client::Client::Create(client_options, own);
    if (!client.ok()) {
      std::fprintf(stderr, "%s\n", Text(client.status()).c_str());
      return 1;
    }
    clients.push_back(*std::move(client));
  }
  std::vector<absl::Status> ends(clients.size());
  std::vector<std::thread> threads;
  const auto start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < clients.size(); ++i) {
    if (options.joins_per_s > 0) {
      std::this_thread::sleep_until(start +
                                    std::chrono::microseconds(i * 1'000'000 / options.joins_per_s));
    }
    threads.emplace_back([&, i] { ends[i] = clients[i]->Run(); });
  }
  for (std::thread& thread : threads) thread.join();
  int code = 0;
  for (const absl::Status& end : ends) {
    if (end.ok()) continue;
    std::fprintf(stderr, "%s\n", Text(end).c_str());
    code = 1;
  }
  return code;
}

}  // namespace tributary::bench
