// FedAvg: the mean, added to the model, one pass over the elements for each dtype.
#include "aggregation/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/narrow_float.h"
#include "aggregation/internal/text.h"
#include "base/status.h"

namespace tributary::aggregation {
namespace {

// Each stored type: its bytes, and what it is in arithmetic. Memory is read with memcpy: a model's
// tensors lie back to back, so an element may lie at any address.
template <class T>
struct Plain {
  using Stored = T;
  static T Load(T stored) { return stored; }
};
struct F32 : Plain<float> {
  static float Store(double value) { return static_cast<float>(value); }
};
struct F64 : Plain<double> {
  static double Store(double value) { return value; }
};
struct F16 {
  using Stored = uint16_t;
  static double Load(uint16_t stored) { return internal::FromF16(stored); }
  static uint16_t Store(double value) { return internal::ToF16(value); }
};
struct Bf16 {
  using Stored = uint16_t;
  static double Load(uint16_t stored) { return internal::FromBf16(stored); }
  static uint16_t Store(double value) { return internal::ToBf16(value); }
};

// What is done to one tensor.
struct Job {
  const TensorSpec* tensor;
  const int64_t* sums;
  uint64_t count;
  uint64_t weight;
  const uint8_t* base;
  uint8_t* next;
};

// next = base + delta(S), in double, rounded once to the dtype.
template <class Type, class Delta>
void AddFloats(const Job& job, Delta delta) {
  using Stored = typename Type::Stored;
  for (uint64_t i = 0; i < job.count; ++i) {
    Stored stored;
    std::memcpy(&stored, job.base + i * sizeof(Stored), sizeof(Stored));
    stored = Type::Store(static_cast<double>(Type::Load(stored)) + delta(job.sums[i]));
    std::memcpy(job.next + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

template <class Delta>
void AddFloatsByType(const Job& job, Delta delta) {
  switch (job.tensor->dtype) {
    case DType::kF32:
      return AddFloats<F32>(job, delta);
    case DType::kF64:
      return AddFloats<F64>(job, delta);
    case DType::kF16:
      return AddFloats<F16>(job, delta);
    default:
      return AddFloats<Bf16>(job, delta);
  }
}

void ApplyFloats(const Job& job, const Grid& grid, double learning_rate) {
  const double unit = std::ldexp(1, -grid.fraction_bits);
  const auto weight = static_cast<double>(job.weight);
  switch (job.tensor->policy) {
    case Policy::kMean:
      // Scaling by a power of two is exact, so this is lr * GridMean(S, W, f).
      return AddFloatsByType(job, [=](int64_t sum) {
        return learning_rate * (static_cast<double>(sum) / weight * unit);
      });
    case Policy::kMax:
      return AddFloatsByType(
          job, [=](int64_t sum) { return sum == kNothing ? 0 : static_cast<double>(sum) * unit; });
    default:
      return AddFloatsByType(job, [=](int64_t sum) { return static_cast<double>(sum) * unit; });
  }
}

// sum / weight to the nearest integer, ties to even. In integers: double would lose bits past 2^53.
int64_t DivideHalfEven(int64_t sum, uint64_t weight) {
  const auto magnitude = sum < 0 ? 0 - static_cast<uint64_t>(sum) : static_cast<uint64_t>(sum);
  uint64_t quotient = magnitude / weight;
  const uint64_t rest = magnitude % weight;
  const uint64_t to_next = weight - rest;  // rest < weight
  if (rest > to_next || (rest == to_next && quotient % 2 == 1)) ++quotient;
  return static_cast<int64_t>(sum < 0 ? 0 - quotient : quotient);
}

int64_t IntegerDelta(const Job& job, int64_t sum) {
  switch (job.tensor->policy) {
    case Policy::kMean:
      return DivideHalfEven(sum, job.weight);
    case Policy::kMax:
      return sum == kNothing ? 0 : sum;
    default:
      return sum;
  }
}

template <class Stored>
absl::Status AddIntegers(const Job& job) {
  for (uint64_t i = 0; i < job.count; ++i) {
    Stored stored;
    std::memcpy(&stored, job.base + i * sizeof(Stored), sizeof(Stored));
    const int64_t delta = IntegerDelta(job, job.sums[i]);
    Stored result;
    if (__builtin_add_overflow(stored, delta, &result)) {
      return absl::OutOfRangeError(
          absl::StrCat("tensor ", internal::Quoted(job.tensor->name), ", element ", i, ": ",
                       static_cast<int64_t>(stored), " moved by ", delta, " leaves the range of ",
                       internal::Text(DTypeName(job.tensor->dtype)),
                       "; give the tensor policy first, max or skip, or a wider dtype"));
    }
    std::memcpy(job.next + i * sizeof(Stored), &result, sizeof(Stored));
  }
  return absl::OkStatus();
}

void AddBools(const Job& job) {
  for (uint64_t i = 0; i < job.count; ++i) {
    const __int128 moved = static_cast<__int128>(job.base[i]) + IntegerDelta(job, job.sums[i]);
    job.next[i] = moved != 0 ? 1 : 0;
  }
}

absl::Status ApplyTensor(const Job& job, const Grid& grid, double learning_rate) {
  switch (job.tensor->dtype) {
    case DType::kI64:
      return AddIntegers<int64_t>(job);
    case DType::kI32:
      return AddIntegers<int32_t>(job);
    case DType::kU8:
      return AddIntegers<uint8_t>(job);
    case DType::kBool:
      AddBools(job);
      return absl::OkStatus();
    default:
      ApplyFloats(job, grid, learning_rate);
      return absl::OkStatus();
  }
}

class FedAvg final : public ServerOptimizer {
 public:
  explicit FedAvg(double learning_rate) : learning_rate_(learning_rate) {}

  std::string_view name() const override { return "fedavg"; }

  absl::Status Apply(const ExactAccumulator& sum, const Grid& grid, uint64_t weight,
                     std::span<const uint8_t> base, std::span<uint8_t> next) override {
    const ModelLayout& layout = sum.layout();
    if (weight == 0) {
      return absl::InvalidArgumentError(
          "the round's weight is 0: there is no mean; keep the model as it is");
    }
    if (base.size() != layout.model_bytes() || next.size() != layout.model_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat("the models have ", base.size(), " and ",
                                                     next.size(), " bytes, the layout says ",
                                                     layout.model_bytes()));
    }
    for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
      const TensorSpec& tensor = layout.tensors()[t];
      const uint64_t at = layout.TensorByteOffset(t);
      const uint64_t count = layout.TensorElements(t);
      if (count == 0) continue;
      if (tensor.policy == Policy::kSkip) {
        std::memcpy(next.data() + at, base.data() + at, count * DTypeBytes(tensor.dtype));
        continue;
      }
      const Job job{&tensor,
                    sum.sums().data() + layout.TensorElementOffset(t),
                    count,
                    weight,
                    base.data() + at,
                    next.data() + at};
      RETURN_IF_ERROR(ApplyTensor(job, grid, learning_rate_));
    }
    return absl::OkStatus();
  }

  std::map<std::string, std::string> State() const override { return {}; }
  absl::Status Restore(const std::map<std::string, std::string>& state) override {
    if (state.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "fedavg keeps no state, but the checkpoint has ", internal::Quoted(state.begin()->first),
        "; it was written under another server optimizer, name that one in [aggregation]"));
  }

 private:
  const double learning_rate_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServerOptimizer>> MakeServerOptimizer(std::string_view name,
                                                                     double learning_rate) {
  if (!std::isfinite(learning_rate) || learning_rate <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("a server learning rate of ", learning_rate,
                                                   " cannot be; 1 is plain averaging"));
  }
  if (name == "fedavg") return std::make_unique<FedAvg>(learning_rate);
  return absl::InvalidArgumentError(
      absl::StrCat("no server optimizer is called ", internal::Quoted(name), "; known: fedavg"));
}

}  // namespace tributary::aggregation
