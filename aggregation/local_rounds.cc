// Differences of two models as sums on the grid.
#include "aggregation/local_rounds.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/move_model.h"
#include "aggregation/internal/text.h"
#include "base/status.h"

namespace tributary::aggregation {
namespace {

template <class Stored>
Stored Load(const uint8_t* from, uint64_t i) {
  Stored value;
  std::memcpy(&value, from + i * sizeof(Stored), sizeof value);
  return value;
}

struct Job {
  const TensorSpec& tensor;
  const uint8_t* base;
  const uint8_t* local;
  std::span<int64_t> sums;
  int64_t factor = 1;  // what the deltas are times
};

absl::Status TooFar(const Job& job, uint64_t i, const std::string& delta,
                    const std::string& bound) {
  return absl::OutOfRangeError(absl::StrCat("the rack's own rounds moved tensor ",
                                            internal::Quoted(job.tensor.name), ", element ", i,
                                            ", by ", delta, ", the grid's bound is ", bound,
                                            ": lower [run] rack_rounds or the learning rate"));
}

template <class Type>
absl::Status Floats(const Job& job, const Grid& grid) {
  using Stored = typename Type::Stored;
  for (uint64_t i = 0; i < job.sums.size(); ++i) {
    const double delta =
        Type::Load(Load<Stored>(job.local, i)) - Type::Load(Load<Stored>(job.base, i));
    if (!(std::abs(delta) <= grid.bound)) {  // nor NaN
      return TooFar(job, i, absl::StrCat(delta), absl::StrCat(grid.bound));
    }
    job.sums[i] =
        job.factor * static_cast<int64_t>(std::nearbyint(std::ldexp(delta, grid.fraction_bits)));
  }
  return absl::OkStatus();
}

template <class Stored>
absl::Status Integers(const Job& job, const Grid& grid) {
  const int64_t bound = grid.IntegerBound();
  for (uint64_t i = 0; i < job.sums.size(); ++i) {
    int64_t delta = 0;
    const bool over =
        __builtin_sub_overflow(static_cast<int64_t>(Load<Stored>(job.local, i)),
                               static_cast<int64_t>(Load<Stored>(job.base, i)), &delta);
    if (over || delta > bound || delta < -bound) {
      return TooFar(job, i, over ? "more than 2^63" : absl::StrCat(delta), absl::StrCat(bound));
    }
    job.sums[i] = job.factor * delta;
  }
  return absl::OkStatus();
}

absl::Status Tensor(const Job& job, const Grid& grid) {
  switch (job.tensor.dtype) {
    case DType::kF32:
      return Floats<internal::Plain<float>>(job, grid);
    case DType::kF64:
      return Floats<internal::Plain<double>>(job, grid);
    case DType::kF16:
      return Floats<internal::F16>(job, grid);
    case DType::kBf16:
      return Floats<internal::Bf16>(job, grid);
    case DType::kI64:
      return Integers<int64_t>(job, grid);
    case DType::kI32:
      return Integers<int32_t>(job, grid);
    case DType::kU8:
    case DType::kBool:
      return Integers<uint8_t>(job, grid);
  }
  return absl::InternalError("a tensor of no known dtype");
}

}  // namespace

absl::Status ReplaceByDifference(std::span<const uint8_t> base, std::span<const uint8_t> local,
                                 uint64_t weight, const Grid& grid, ExactAccumulator* sum) {
  const ModelLayout& layout = sum->layout();
  if (base.size() != layout.model_bytes() || local.size() != layout.model_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("the models have ", base.size(), " and ",
                                                   local.size(), " bytes, the layout says ",
                                                   layout.model_bytes()));
  }
  if (weight == 0 || weight > grid.max_weight) {
    return absl::InvalidArgumentError(absl::StrCat("a rack's sum cannot weigh ", weight,
                                                   ", the grid takes 1 to ", grid.max_weight));
  }
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    const TensorSpec& tensor = layout.tensors()[t];
    if (tensor.policy == Policy::kSkip) continue;
    const uint64_t at = layout.TensorByteOffset(t);
    const Job job{
        .tensor = tensor,
        .base = base.data() + at,
        .local = local.data() + at,
        .sums = sum->MutableSums().subspan(layout.TensorElementOffset(t), layout.TensorElements(t)),
        .factor = tensor.policy == Policy::kMean ? static_cast<int64_t>(weight) : 1};
    RETURN_IF_ERROR(Tensor(job, grid));
  }
  return absl::OkStatus();
}

}  // namespace tributary::aggregation
