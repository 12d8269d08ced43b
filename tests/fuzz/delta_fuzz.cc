// Fuzz target: any bytes as the step from a small model. What is taken is taken alike again; what
// is refused leaves nothing but a model that is to be dropped.
#include <cstdlib>
#include <memory>
#include <vector>

#include "aggregation/model_delta.h"

namespace {

using namespace tributary;  // NOLINT: a fuzz target's own file

const aggregation::ModelLayout& Layout() {
  using aggregation::DType;
  using aggregation::Policy;
  static const auto* layout = new std::shared_ptr<const aggregation::ModelLayout>(
      *aggregation::ModelLayout::Create({{"w", {33000}, DType::kF32, Policy::kMean},
                                         {"n", {3}, DType::kI64, Policy::kSum},
                                         {"b", {600}, DType::kF32, Policy::kMean},
                                         {"h", {600}, DType::kBf16, Policy::kMean},
                                         {"s", {5}, DType::kF32, Policy::kSkip}}));
  return **layout;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<uint8_t> base(Layout().model_bytes(), 0);
  std::vector<uint8_t> one = base, two = base;
  const bool taken = aggregation::ApplyModelDelta(Layout(), {data, size}, one).ok();
  if (!taken) return 0;
  if (!aggregation::ApplyModelDelta(Layout(), {data, size}, two).ok() || one != two) std::abort();
  return 0;
}
