// Fuzz target: any bytes as a packed chunk of a partial sum. What ValidateChunk passes must merge,
// and be taken out again exactly.
#include <cstdlib>

#include "aggregation/accumulator.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tributary;  // NOLINT: a fuzz target's own file
  using aggregation::DType;
  using aggregation::Policy;
  static const auto layout = *aggregation::ModelLayout::Create(
      {{"w", {1500}, DType::kF32, Policy::kMean}, {"n", {3}, DType::kI64, Policy::kSum}});
  static auto* sum = aggregation::ExactAccumulator::Create(layout, aggregation::Grid())->release();
  const ByteSpan packed(data, size);
  if (!sum->ValidateChunk(0, packed).ok()) return 0;
  const aggregation::ElementRange all{0, layout->elements()};
  sum->MergeChunk(0, packed, "fuzz", all);
  if (!sum->SubtractChunk(0, packed, all).ok()) std::abort();
  for (const int64_t s : sum->sums()) {
    if (s != 0) std::abort();
  }
  return 0;
}
