// The optimizers: one step for each element, tiles in any order and on any thread.
#include "aggregation/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aggregation/internal/move_model.h"
#include "aggregation/internal/text.h"
#include "base/status.h"

namespace tributary::aggregation {
namespace {

using internal::MoveFloats;
using internal::TileJob;

// Below so many tiles a thread costs more than it saves (a guess: 64 Ki elements are some 50 us).
constexpr uint64_t kTilesPerThread = 2;

enum class Kind { kFedAvg, kFedAvgM, kFedAdagrad, kFedAdam, kFedYogi, kFedDyn };

struct Named {
  const char* name;
  Kind kind;
};
constexpr Named kKinds[] = {{"fedavg", Kind::kFedAvg},         {"fedavgm", Kind::kFedAvgM},
                            {"fedadagrad", Kind::kFedAdagrad}, {"fedadam", Kind::kFedAdam},
                            {"fedyogi", Kind::kFedYogi},       {"feddyn", Kind::kFedDyn}};

bool HasSecond(Kind kind) {
  return kind == Kind::kFedAdagrad || kind == Kind::kFedAdam || kind == Kind::kFedYogi;
}

// m and v of each element of each averaged float tensor, in order. fp32: their error, 6e-8 of the
// step, is below that of an fp32 model, and they are half as large.
struct Moments {
  std::vector<float> m;
  std::vector<float> v;
};

class Optimizer final : public ServerOptimizer {
 public:
  Optimizer(Kind kind, OptimizerOptions options, std::shared_ptr<const ModelLayout> layout)
      : kind_(kind), options_(std::move(options)), layout_(std::move(layout)) {
    uint64_t averaged = 0;
    for (uint32_t t = 0; t < layout_->tensors().size(); ++t) {
      moment_offsets_.push_back(averaged);
      if (Steps(t)) averaged += layout_->TensorElements(t);
    }
    if (kind_ == Kind::kFedAvg) return;
    committed_.m.assign(averaged, 0);
    if (!HasSecond(kind_)) return;
    committed_.v.assign(averaged, static_cast<float>(options_.tau * options_.tau));
  }

  std::string_view name() const override { return options_.name; }

  absl::Status Apply(const RoundSum& round, std::span<const uint8_t> base,
                     std::span<uint8_t> next) override {
    staged_ = false;
    RETURN_IF_ERROR(Check(round, base.size(), next.size()));
    next_.m.resize(committed_.m.size());
    next_.v.resize(committed_.v.size());
    for (uint32_t t = 0; t < layout_->tensors().size(); ++t) {
      if (layout_->tensors()[t].policy != Policy::kSkip) continue;
      const uint64_t at = layout_->TensorByteOffset(t);
      const uint64_t bytes = layout_->TensorElements(t) * DTypeBytes(layout_->tensors()[t].dtype);
      if (bytes > 0) std::memcpy(next.data() + at, base.data() + at, bytes);
    }
    RETURN_IF_ERROR(MoveTiles(round, base.data(), next.data()));
    staged_ = true;
    return absl::OkStatus();
  }

  void Commit() override {
    if (!staged_) return;
    std::swap(committed_, next_);
    staged_ = false;
  }

  std::map<std::string, std::string> State() const override;
  absl::Status Restore(const std::map<std::string, std::string>& state) override;
  uint64_t state_bytes() const override {
    return sizeof(float) * (committed_.m.size() + committed_.v.size());
  }

 private:
  // Whether the tensor moves by the optimizer's step.
  bool Steps(uint32_t tensor) const {
    const TensorSpec& spec = layout_->tensors()[tensor];
    return spec.policy == Policy::kMean && IsFloat(spec.dtype) && Running(tensor) == 0;
  }
  uint64_t Running(uint32_t tensor) const {
    return tensor < options_.running.size() ? options_.running[tensor] : 0;
  }
  // The weight of all clients, where something goes by it.
  uint64_t Population() const {
    uint64_t least = kind_ == Kind::kFedDyn ? options_.population_weight : 0;
    for (const uint64_t weight : options_.running) {
      if (weight > 0) least = least == 0 ? weight : std::min(least, weight);
    }
    return least;
  }

  absl::Status Check(const RoundSum& round, size_t base_bytes, size_t next_bytes) const {
    if (round.weight == 0) {
      return absl::InvalidArgumentError(
          "the round's weight is 0: there is no mean; keep the model as it is");
    }
    if (const uint64_t all = Population(); all > 0 && round.weight > all) {
      return absl::InvalidArgumentError(
          absl::StrCat("the round weighs ", round.weight, ", all clients together ", all,
                       " by [training] population_weight: give the weight of all clients"));
    }
    if (round.sum.layout().hash() != layout_->hash()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the sum's layout is not the optimizer's: ",
                       round.sum.layout().DescribeDifference(*layout_)));
    }
    if (base_bytes != layout_->model_bytes() || next_bytes != layout_->model_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat("the models have ", base_bytes, " and ",
                                                     next_bytes, " bytes, the layout says ",
                                                     layout_->model_bytes()));
    }
    return absl::OkStatus();
  }

  // Tiles are taken from a counter; of several errors that of the lowest tile is told, so that it
  // does not depend on the threads either.
  absl::Status MoveTiles(const RoundSum& round, const uint8_t* base, uint8_t* next) {
    const std::vector<Tile>& tiles = layout_->tiles();
    std::atomic<size_t> taken{0};
    std::mutex mu;
    size_t failed_tile = tiles.size();  // guarded by mu
    absl::Status failure;               // guarded by mu
    const auto work = [&] {
      for (size_t t = taken++; t < tiles.size(); t = taken++) {
        const absl::Status status = MoveTile(round, tiles[t], base, next);
        if (status.ok()) continue;
        std::lock_guard lock(mu);
        if (t < failed_tile) failure = status;
        failed_tile = std::min(failed_tile, t);
      }
    };
    const uint64_t useful = std::max<uint64_t>(1, tiles.size() / kTilesPerThread);
    std::vector<std::thread> helpers(
        std::min<uint64_t>(static_cast<uint64_t>(options_.threads), useful) - 1);
    for (std::thread& helper : helpers) helper = std::thread(work);
    work();
    for (std::thread& helper : helpers) helper.join();
    return failure;
  }

  absl::Status MoveTile(const RoundSum& round, const Tile& tile, const uint8_t* base,
                        uint8_t* next) {
    const TensorSpec& tensor = layout_->tensors()[tile.tensor];
    const uint64_t at =
        layout_->TensorByteOffset(tile.tensor) + tile.first * DTypeBytes(tensor.dtype);
    const std::span<const int64_t> sums = round.sums.empty() ? round.sum.sums() : round.sums;
    const uint64_t own = round.tensor_weights.empty() ? 0 : round.tensor_weights[tile.tensor];
    const TileJob job{.tensor = &tensor,
                      .first = tile.first,
                      .count = tile.count,
                      .sums = sums.data() + tile.offset,
                      .weight = own == 0 ? round.weight : own,
                      .base = base + at,
                      .next = next + at};
    if (!IsFloat(tensor.dtype)) return internal::MoveIntegers(job);
    const double unit = std::ldexp(1, -round.grid.fraction_bits);
    if (const uint64_t all = Running(tile.tensor); all > 0) {
      const auto weight = static_cast<double>(all);
      MoveFloats(job,
                 [=](uint64_t, int64_t sum) { return static_cast<double>(sum) / weight * unit; });
    } else if (Steps(tile.tensor)) {
      Step(job, unit, round.scale, RateAt(options_.schedule, round.round),
           moment_offsets_[tile.tensor] + tile.first);
    } else {
      internal::MoveFloatsByPolicy(job, unit);
    }
    return absl::OkStatus();
  }

  // `at`: where the tile's moments lie.
  void Step(const TileJob& job, double unit, double scale, double rate, uint64_t at) {
    // Scaling by a power of two is exact, and so is times 1: this is GridMean(S, W, f).
    const auto weight = static_cast<double>(job.weight);
    const auto mean = [=](int64_t sum) { return static_cast<double>(sum) / weight * unit * scale; };
    const float* m = committed_.m.data() + at;
    float* next_m = next_.m.data() + at;
    if (kind_ == Kind::kFedAvg) {
      MoveFloats(job, [=](uint64_t, int64_t sum) { return rate * mean(sum); });
    } else if (kind_ == Kind::kFedAvgM) {
      MoveFloats(job, [=, momentum = options_.momentum](uint64_t i, int64_t sum) {
        const double moved = momentum * static_cast<double>(m[i]) + mean(sum);
        next_m[i] = static_cast<float>(moved);
        return rate * moved;
      });
    } else if (kind_ == Kind::kFedDyn) {
      const auto all = static_cast<double>(options_.population_weight);
      MoveFloats(job, [=](uint64_t i, int64_t sum) {
        const double drift = static_cast<double>(m[i]) + static_cast<double>(sum) / all * unit;
        next_m[i] = static_cast<float>(drift);
        return mean(sum) + drift;
      });
    } else if (kind_ == Kind::kFedAdagrad) {
      Adapt(job, mean, rate, at, [](double v, double square) { return v + square; });
    } else if (kind_ == Kind::kFedAdam) {
      Adapt(job, mean, rate, at, [beta2 = options_.beta2](double v, double square) {
        return beta2 * v + (1 - beta2) * square;
      });
    } else {
      Adapt(job, mean, rate, at, [beta2 = options_.beta2](double v, double square) {
        const double sign = v > square ? 1 : v < square ? -1 : 0;
        return v - (1 - beta2) * square * sign;
      });
    }
  }

  template <class Mean, class Second>
  void Adapt(const TileJob& job, Mean mean, double rate, uint64_t at, Second second) {
    const float* m = committed_.m.data() + at;
    const float* v = committed_.v.data() + at;
    float* next_m = next_.m.data() + at;
    float* next_v = next_.v.data() + at;
    const double beta1 = options_.beta1;
    const double tau = options_.tau;
    MoveFloats(job, [=](uint64_t i, int64_t sum) {
      const double d = mean(sum);
      const double first = beta1 * static_cast<double>(m[i]) + (1 - beta1) * d;
      const double spread = second(static_cast<double>(v[i]), d * d);
      next_m[i] = static_cast<float>(first);
      next_v[i] = static_cast<float>(spread);
      return rate * first / (std::sqrt(spread) + tau);
    });
  }

  const Kind kind_;
  const OptimizerOptions options_;
  const std::shared_ptr<const ModelLayout> layout_;
  std::vector<uint64_t> moment_offsets_;  // by tensor
  Moments committed_;
  Moments next_;
  bool staged_ = false;  // next_ goes with the last Apply
};

// ---- The state in a checkpoint

std::string Packed(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Which optimizer a state says that it is of.
std::string OwnerOf(const std::map<std::string, std::string>& state) {
  const auto it = state.find("optimizer");
  if (it != state.end()) return it->second;
  return state.empty() ? "fedavg" : state.begin()->first;
}

absl::StatusOr<std::vector<float>> Unpacked(const std::map<std::string, std::string>& state,
                                            const std::string& name, size_t count, bool negative) {
  const auto it = state.find(name);
  const std::string bytes = it == state.end() ? "" : it->second;
  if (bytes.size() != count * sizeof(float)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint's optimizer state \"", name, "\" has ", bytes.size(),
        " bytes, the model's ", count, " averaged elements need ", count * sizeof(float),
        "; it was written for another model, give the run another name"));
  }
  std::vector<float> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  for (const float value : values) {
    if (std::isfinite(value) && (negative || value >= 0)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's optimizer state \"", name,
                                                   "\" holds ", value,
                                                   "; remove that checkpoint's directory"));
  }
  return values;
}

std::map<std::string, std::string> Optimizer::State() const {
  if (kind_ == Kind::kFedAvg) return {};
  const Moments& moments = staged_ ? next_ : committed_;
  std::map<std::string, std::string> state = {{"optimizer", options_.name},
                                              {"m", Packed(moments.m)}};
  if (HasSecond(kind_)) state["v"] = Packed(moments.v);
  return state;
}

absl::Status Optimizer::Restore(const std::map<std::string, std::string>& state) {
  if (state.contains("ef21")) {
    return absl::InvalidArgumentError(
        "the checkpoint has the clients' estimates of ef21, and the config's codec is without; "
        "give [compression] codec its ef21 back, or the run another name");
  }
  if (const std::string owner = OwnerOf(state); owner != options_.name) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint was written under the server optimizer ", internal::Quoted(owner),
        ", the config says \"", options_.name,
        "\"; name that one in [aggregation] optimizer (feddyn: set [training] feddyn), "
        "or give the run another name"));
  }
  if (kind_ == Kind::kFedAvg) return absl::OkStatus();
  Moments restored;
  ASSIGN_OR_RETURN(restored.m, Unpacked(state, "m", committed_.m.size(), true));
  if (HasSecond(kind_)) {
    ASSIGN_OR_RETURN(restored.v, Unpacked(state, "v", committed_.v.size(), false));
  }
  committed_ = std::move(restored);
  staged_ = false;
  return absl::OkStatus();
}

absl::Status CheckShare(const char* what, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a server ", what, " of ", value, " cannot be; from 0 to below 1"));
}

}  // namespace

std::vector<std::string> ServerOptimizerNames() {
  std::vector<std::string> names;
  for (const Named& named : kKinds) {
    if (named.kind != Kind::kFedDyn) names.push_back(named.name);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<ServerOptimizer>> MakeServerOptimizer(
    const OptimizerOptions& options, std::shared_ptr<const ModelLayout> layout) {
  RETURN_IF_ERROR(CheckSchedule(options.schedule));
  RETURN_IF_ERROR(CheckShare("momentum", options.momentum));
  RETURN_IF_ERROR(CheckShare("beta1", options.beta1));
  RETURN_IF_ERROR(CheckShare("beta2", options.beta2));
  if (!std::isfinite(options.tau) || options.tau <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a server tau of ", options.tau, " cannot be; it must be positive"));
  }
  if (options.threads < 1 || options.threads > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.threads, " optimizer threads cannot be; 1 to 256"));
  }
  for (uint32_t t = 0; t < options.running.size(); ++t) {
    if (options.running[t] == 0) continue;
    const bool fits = t < layout->tensors().size() &&
                      layout->tensors()[t].policy == Policy::kMean &&
                      IsFloat(layout->tensors()[t].dtype);
    if (fits) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", t,
                     " is kept as a mean over all clients, and is no float that is "
                     "averaged"));
  }
  if (options.name == "feddyn" && options.population_weight == 0) {
    return absl::InvalidArgumentError(
        "feddyn goes by the weight of all clients: [training] population_weight must be above 0");
  }
  for (const Named& named : kKinds) {
    if (options.name == named.name) {
      return std::make_unique<Optimizer>(named.kind, options, std::move(layout));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no server optimizer is called ", internal::Quoted(options.name),
                   "; known: ", absl::StrJoin(ServerOptimizerNames(), ", ")));
}

}  // namespace tributary::aggregation
