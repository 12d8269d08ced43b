// What the aggregation tests share: a layout with every kind of tensor, recorded updates, digests.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregation/accumulator.h"
#include "aggregation/fold_pool.h"
#include "aggregation/grid.h"
#include "aggregation/layout.h"
#include "aggregation/update.h"
#include "base/philox.h"
#include "compression/segment.h"

namespace tributary::aggregation::testing {

using LayoutPtr = std::shared_ptr<const ModelLayout>;
using UpdatePtr = std::shared_ptr<const EncodedUpdate>;

// Fails the test where the layout is refused.
LayoutPtr MakeLayout(std::vector<TensorSpec> tensors);

// Every policy, float and integer tensors, odd sizes, an empty one, scalars, several tiles and
// chunks.
LayoutPtr MixedLayout();
// The same without MAX and FIRST tensors: what can be subtracted from.
LayoutPtr AdditiveLayout();

// Deltas given as they are, by tensor.
class GivenDeltas : public DeltaSource {
 public:
  explicit GivenDeltas(const ModelLayout& layout)
      : floats(layout.tensors().size()), ints(layout.tensors().size()) {}
  absl::StatusOr<std::span<const float>> Floats(uint32_t tensor) override { return floats[tensor]; }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t tensor) override { return ints[tensor]; }

  std::vector<std::vector<float>> floats;
  std::vector<std::vector<int64_t>> ints;
};
// Floats within (-0.1, 0.1), integers within [-1000, 1000], by the seed.
GivenDeltas RandomDeltas(const ModelLayout& layout, uint64_t seed);

// An update as it would travel.
struct Recorded {
  std::string id;
  int64_t weight = 1;
  std::vector<std::vector<uint8_t>> segments;

  std::vector<uint8_t> Bytes() const;
  uint64_t size() const;
  uint32_t crc() const;
};
// Encodes; with several codecs, tensor t gets codec t modulo their number.
Recorded Record(const ModelLayout& layout, const std::vector<std::string>& codecs, std::string id,
                int64_t weight, DeltaSource& deltas);

// Through an UpdateAssembler, a segment an Add; fails the test where it is refused. With a slice
// seed each segment comes in pieces cut at random.
UpdatePtr Assemble(const LayoutPtr& layout, const Grid& grid, const Recorded& recorded,
                   uint64_t slice_seed = 0);

std::unique_ptr<ExactAccumulator> MakeAccumulator(const LayoutPtr& layout, const Grid& grid);
// Folds them all, in one thread.
void FoldAll(ExactAccumulator* sum, const std::vector<UpdatePtr>& updates);
// All chunks, validated against `sum`'s own layout and grid.
std::shared_ptr<PackedPartial> PackAll(const ExactAccumulator& sum, std::string first_id);
ElementRange Everything(const ExactAccumulator& sum);

std::string Hex(ByteSpan bytes);
std::string DigestOf(const ExactAccumulator& sum);  // hex SHA-256 of the sums
std::vector<uint8_t> ReadBytes(const std::string& path);
void WriteBytes(const std::string& path, ByteSpan bytes);
std::string GoldenPath(const std::string& name);

// Fisher-Yates, from the stream: the same on every library.
template <class T>
void Shuffle(std::vector<T>* items, PhiloxStream* random) {
  for (size_t i = items->size(); i > 1; --i)
    std::swap((*items)[i - 1], (*items)[random->NextBelow(i)]);
}

}  // namespace tributary::aggregation::testing
