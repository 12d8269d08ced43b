// Fuzz target: any bytes as an upload of a small model, its segments' headers among them. What the
// assembler takes must fold, and be taken out again exactly.
#include <cstdlib>
#include <memory>
#include <vector>

#include "aggregation/accumulator.h"
#include "aggregation/update.h"
#include "base/checksum.h"

namespace {

using namespace tributary;  // NOLINT: a fuzz target's own file

const std::shared_ptr<const aggregation::ModelLayout>& Layout() {
  using aggregation::DType;
  using aggregation::Policy;
  static const auto* layout = new std::shared_ptr<const aggregation::ModelLayout>(
      *aggregation::ModelLayout::Create({{"w", {33000}, DType::kF32, Policy::kMean},
                                         {"n", {3}, DType::kI64, Policy::kSum},
                                         {"b", {600}, DType::kF32, Policy::kMean}}));
  return *layout;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const aggregation::Grid grid;
  aggregation::UpdateAssembler assembler(Layout(), grid, "fuzz", 3, size);
  const auto owner = std::make_shared<std::vector<uint8_t>>(data, data + size);
  if (!assembler.Add(PiecedBytes(ByteSpan(*owner)), owner)) return 0;
  const auto update = assembler.Finish(size, Crc32c(*owner));
  if (update == nullptr) return 0;
  static auto* sum = aggregation::ExactAccumulator::Create(Layout(), grid)->release();
  const aggregation::ElementRange all{0, Layout()->elements()};
  const aggregation::EncodedUpdate* one = update.get();
  sum->Fold({&one, 1}, all);
  if (!sum->Subtract(*update, all).ok()) std::abort();
  for (const int64_t s : sum->sums()) {
    if (s != 0) std::abort();
  }
  return 0;
}
