// Fuzz target: any bytes as a packed chunk of a partial sum. What ValidateChunk passes must merge,
// and be taken out again exactly; where there are tensors that cannot be undone, what is merged
// packs again, and that merges to the same.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "aggregation/accumulator.h"

namespace {

using namespace tributary;  // NOLINT: a fuzz target's own file
using aggregation::DType;
using aggregation::ExactAccumulator;
using aggregation::ModelLayout;
using aggregation::Policy;

void Require(bool good) {
  if (!good) std::abort();
}

ExactAccumulator* Sums(std::vector<aggregation::TensorSpec> tensors) {
  return ExactAccumulator::Create(*ModelLayout::Create(std::move(tensors)), aggregation::Grid())
      ->release();
}

void MergeAndSubtract(ByteSpan packed) {
  static auto* sum =
      Sums({{"w", {1500}, DType::kF32, Policy::kMean}, {"n", {3}, DType::kI64, Policy::kSum}});
  if (!sum->ValidateChunk(0, packed).ok()) return;
  const aggregation::ElementRange all{0, sum->layout().elements()};
  sum->MergeChunk(0, packed, "fuzz", all);
  Require(sum->SubtractChunk(0, packed, all).ok());
  Require(std::ranges::all_of(sum->sums(), [](int64_t s) { return s == 0; }));
}

// As many elements, so that the same bytes are valid in both.
std::vector<aggregation::TensorSpec> MaxAndFirst() {
  return {{"w", {700}, DType::kF32, Policy::kMean},
          {"most", {400}, DType::kI64, Policy::kMax},
          {"one", {203}, DType::kF32, Policy::kFirst},
          {"n", {200}, DType::kI64, Policy::kSum}};
}

void MergeAndPack(ByteSpan packed) {
  static auto *once = Sums(MaxAndFirst()), *again = Sums(MaxAndFirst());
  if (!once->ValidateChunk(0, packed).ok()) return;
  const aggregation::ElementRange all{0, once->layout().elements()};
  once->MergeChunk(0, packed, "b", all);
  const std::vector<int64_t> merged(once->sums().begin(), once->sums().end());
  // Of a larger id nothing is first, and nothing is above itself.
  once->MergeChunk(0, packed, "c", all);
  for (size_t i = 700; i < 1303; ++i) Require(once->sums()[i] == merged[i]);
  Require(!once->SubtractChunk(0, packed, all).ok());
  once->Reset();
  once->MergeChunk(0, packed, "b", all);

  static auto* room = new std::vector<uint8_t>(aggregation::kMaxPackedChunkBytes);
  const size_t bytes = once->PackChunk(0, room->data());
  Require(bytes <= packed.size());  // widths are the least
  const ByteSpan repacked(room->data(), bytes);
  Require(again->ValidateChunk(0, repacked).ok());
  again->MergeChunk(0, repacked, "b", all);
  Require(std::ranges::equal(again->sums(), merged));
  once->Reset();
  again->Reset();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MergeAndSubtract(ByteSpan(data, size));
  MergeAndPack(ByteSpan(data, size));
  return 0;
}
