// What the aggregation tests share.
#include "testing.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "base/checksum.h"

namespace tributary::aggregation::testing {
namespace {

std::vector<TensorSpec> AdditiveTensors() {
  return {
      {"conv.weight", {70001}, DType::kF32, Policy::kMean},
      {"bn.counter", {}, DType::kI64, Policy::kMean},
      {"bn.mean", {513}, DType::kF16, Policy::kMean},
      {"empty", {0, 4}, DType::kF32, Policy::kMean},
      {"temperature", {}, DType::kF32, Policy::kMean},
      {"total", {5, 205}, DType::kF32, Policy::kSum},
      {"histogram", {777}, DType::kI32, Policy::kSum},
      {"frozen", {1000}, DType::kF32, Policy::kSkip},
      {"big", {3, 32771}, DType::kF64, Policy::kMean},
      {"votes", {600}, DType::kU8, Policy::kMean},
  };
}

}  // namespace

LayoutPtr MakeLayout(std::vector<TensorSpec> tensors) {
  auto layout = ModelLayout::Create(std::move(tensors));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *layout : nullptr;
}

LayoutPtr AdditiveLayout() { return MakeLayout(AdditiveTensors()); }

LayoutPtr MixedLayout() {
  std::vector<TensorSpec> tensors = AdditiveTensors();
  // In the middle, so that tensors of every kind share blocks and lie across chunks.
  const std::vector<TensorSpec> more = {
      {"peak", {40000}, DType::kF32, Policy::kMax},
      {"steps", {3}, DType::kI64, Policy::kMax},
      {"reference", {40001}, DType::kBf16, Policy::kFirst},
      {"labels", {10, 10}, DType::kU8, Policy::kFirst},
      {"mask", {33}, DType::kBool, Policy::kMax},
  };
  tensors.insert(tensors.begin() + 6, more.begin(), more.end());
  return MakeLayout(std::move(tensors));
}

GivenDeltas RandomDeltas(const ModelLayout& layout, uint64_t seed) {
  GivenDeltas deltas(layout);
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    if (layout.tensors()[t].policy == Policy::kSkip) continue;
    PhiloxStream random(seed, t);
    const uint64_t n = layout.TensorElements(t);
    if (IsFloat(layout.tensors()[t].dtype)) {
      deltas.floats[t].resize(n);
      for (float& x : deltas.floats[t]) x = static_cast<float>(random.NextDouble() * 0.2 - 0.1);
    } else {
      deltas.ints[t].resize(n);
      for (int64_t& x : deltas.ints[t]) x = static_cast<int64_t>(random.NextBelow(2001)) - 1000;
    }
  }
  return deltas;
}

std::vector<uint8_t> Recorded::Bytes() const {
  std::vector<uint8_t> bytes;
  for (const auto& segment : segments) bytes.insert(bytes.end(), segment.begin(), segment.end());
  return bytes;
}

uint64_t Recorded::size() const {
  uint64_t size = 0;
  for (const auto& segment : segments) size += segment.size();
  return size;
}

uint32_t Recorded::crc() const {
  uint32_t crc = 0;
  for (const auto& segment : segments) crc = ExtendCrc32c(crc, segment);
  return crc;
}

Recorded Record(const ModelLayout& layout, const std::vector<std::string>& codecs, std::string id,
                int64_t weight, DeltaSource& deltas) {
  Recorded recorded{std::move(id), weight, {}};
  // Each codec encodes the whole update; of each, the segments of its tensors are kept, in order.
  std::vector<std::vector<std::vector<uint8_t>>> by_tensor(layout.tensors().size());
  for (size_t c = 0; c < codecs.size(); ++c) {
    const auto codec = compression::MakeCodec(codecs[c]);
    EXPECT_TRUE(codec.ok()) << codec.status();
    if (!codec.ok()) return recorded;
    const absl::Status status = EncodeUpdate(layout, **codec, SeededHash(1, "codec", recorded.id),
                                             7, deltas, [&](std::vector<uint8_t> segment) {
                                               uint32_t tensor;
                                               std::memcpy(&tensor, segment.data(), sizeof(tensor));
                                               if (tensor % codecs.size() == c)
                                                 by_tensor[tensor].push_back(std::move(segment));
                                               return absl::OkStatus();
                                             });
    EXPECT_TRUE(status.ok()) << status;
  }
  for (auto& segments : by_tensor) {
    for (auto& segment : segments) recorded.segments.push_back(std::move(segment));
  }
  return recorded;
}

UpdatePtr Assemble(const LayoutPtr& layout, const Grid& grid, const Recorded& recorded,
                   uint64_t slice_seed) {
  UpdateAssembler assembler(layout, grid, recorded.id, recorded.weight, recorded.size());
  PhiloxStream random(slice_seed);
  for (const auto& segment : recorded.segments) {
    const auto owned = std::make_shared<const std::vector<uint8_t>>(segment);
    PiecedBytes pieces;
    for (ByteSpan rest = *owned; !rest.empty();) {
      const size_t take =
          slice_seed == 0 ? rest.size() : std::min<size_t>(rest.size(), 1 + random.NextBelow(9000));
      pieces.Append(rest.first(take));
      rest = rest.subspan(take);
    }
    if (!assembler.Add(pieces, owned)) break;
  }
  UpdatePtr update = assembler.Finish(recorded.size(), recorded.crc());
  EXPECT_NE(update, nullptr) << assembler.refusal().reason << ": " << assembler.refusal().message;
  return update;
}

std::unique_ptr<ExactAccumulator> MakeAccumulator(const LayoutPtr& layout, const Grid& grid) {
  auto sum = ExactAccumulator::Create(layout, grid);
  EXPECT_TRUE(sum.ok()) << sum.status();
  return sum.ok() ? *std::move(sum) : nullptr;
}

ElementRange Everything(const ExactAccumulator& sum) { return {0, sum.layout().elements()}; }

void FoldAll(ExactAccumulator* sum, const std::vector<UpdatePtr>& updates) {
  std::vector<const EncodedUpdate*> pointers;
  for (const UpdatePtr& update : updates) pointers.push_back(update.get());
  sum->Fold(pointers, Everything(*sum));
}

std::shared_ptr<PackedPartial> PackAll(const ExactAccumulator& sum, std::string first_id) {
  auto partial = std::make_shared<PackedPartial>();
  partial->first_id = std::move(first_id);
  for (uint64_t chunk = 0; chunk < sum.chunk_count(); ++chunk) {
    std::vector<uint8_t> packed(kMaxPackedChunkBytes);
    packed.resize(sum.PackChunk(chunk, packed.data()));
    const absl::Status status = sum.ValidateChunk(chunk, packed);
    EXPECT_TRUE(status.ok()) << status;
    partial->chunks.push_back(std::move(packed));
  }
  return partial;
}

std::string Hex(ByteSpan bytes) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string DigestOf(const ExactAccumulator& sum) {
  const auto sums = sum.sums();
  const std::string digest =
      Sha256Of({reinterpret_cast<const uint8_t*>(sums.data()), sums.size_bytes()});
  return absl::BytesToHexString(digest);
}

std::vector<uint8_t> ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << "cannot read " << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteBytes(const std::string& path, ByteSpan bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file.good()) << "cannot write " << path;
}

std::string GoldenPath(const std::string& name) {
  return std::string(TRIBUTARY_SOURCE_DIR) + "/tests/golden/aggregation/" + name;
}

}  // namespace tributary::aggregation::testing
