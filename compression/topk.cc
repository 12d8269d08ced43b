// Codec topk: the elements of a tensor that are largest in magnitude, the rest zero (Aji &
// Heafield, EMNLP 2017; Stich et al., NeurIPS 2018). With values=ternary it is sparse ternary
// compression (Sattler et al., IEEE TNNLS 2019).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/block_format.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/int8.h"
#include "compression/internal/sparse.h"
#include "compression/internal/sparse_kernels.h"

namespace tributary::compression {
namespace {

// Above this share of the elements their places, a bit an element, take more than the floats that
// are left out would.
constexpr double kDense = 31.0 / 32;

size_t ValueBytes(SparseValues kind, size_t count) {
  switch (kind) {
    case SparseValues::kFloat32:
      return 4 * count;
    case SparseValues::kFloat16:
      return 2 * count;
    case SparseValues::kInt8:
      return count;
    default:
      return (count + 7) / 8;
  }
}

// What a segment keeps: places within tiles, values, and where each tile's part of them ends.
struct Kept {
  std::vector<uint16_t> places;
  std::vector<float> values;
  std::vector<size_t> ends;
};

// Adds what is kept of x, a tile. `first` is x[0]'s index as the plan counts.
void GatherTile(std::span<const float> x, const TensorPlan& plan, uint64_t first, Kept* kept) {
  constexpr size_t kChunk = 2048;
  uint16_t places[kChunk + kKeptRoom];
  float values[kChunk + kKeptRoom];
  for (size_t at = 0, length = 0; at < x.size(); at += length) {
    length = std::min(kChunk, x.size() - at);
    // Before `ties_end` the threshold itself is kept, from there on what is above it.
    const bool ties = first + at < plan.ties_end;
    if (ties) length = std::min<uint64_t>(length, plan.ties_end - first - at);
    const uint32_t limit = ties && plan.threshold > 0 ? plan.threshold - 1 : plan.threshold;
    const size_t count =
        CollectAbove(x.data() + at, length, limit, static_cast<uint32_t>(at), places, values);
    kept->places.insert(kept->places.end(), places, places + count);
    kept->values.insert(kept->values.end(), values, values + count);
  }
}

Kept Gather(std::span<const float> x, const TensorPlan& plan, uint64_t first) {
  Kept kept;
  for (uint64_t at = 0; at < x.size(); at += kTileElements) {
    GatherTile(x.subspan(at, std::min(kTileElements, x.size() - at)), plan, first + at, &kept);
    kept.ends.push_back(kept.values.size());
  }
  return kept;
}

uint64_t TilesOf(uint64_t n) { return (n + kTileElements - 1) / kTileElements; }

// A payload as it lies: read in place where a part is contiguous, else from a copy.
class Reader {
 public:
  explicit Reader(const PiecedBytes& payload) : cursor_(payload) {}
  // The next n bytes; null where fewer are left. Good until the next call.
  const uint8_t* Take(size_t n) {
    read_ += n;
    const ByteSpan here = cursor_.Contiguous();
    if (here.size() >= n) {
      cursor_.Skip(n);
      return here.data();
    }
    copy_.resize(n);
    return cursor_.Read(copy_.data(), n) ? copy_.data() : nullptr;
  }
  void Skip(size_t n) {
    cursor_.Skip(n);
    read_ += n;
  }
  uint64_t read() const { return read_; }  // bytes, the skipped ones too

 private:
  ByteCursor cursor_;
  uint64_t read_ = 0;
  std::vector<uint8_t> copy_;
};

// The beginning of what is folded next of a payload, which is often all of it: too short for the
// CPU's own prefetcher.
void Prefetch(const FoldPart& part) {
  constexpr size_t kMost = 2048;
  const ByteSpan piece =
      ByteCursor(*part.payload, part.cursor == nullptr ? 0 : part.cursor->offset).Contiguous();
  for (size_t at = 0; at < std::min(piece.size(), kMost); at += 64) {
    __builtin_prefetch(piece.data() + at, 0, 2);
  }
}

class TopKCodec final : public Codec {
 public:
  explicit TopKCodec(const TopKOptions& options) : options_(options), values_(options.values) {
    capabilities_ = {.id = CodecId::kTopK,
                     .name = "topk",
                     .linear = false,
                     .unbiased = false,
                     .needs_error_feedback = true,
                     .deterministic = true,
                     // With one threshold for all, small tensors get what is theirs.
                     .minimum_elements = options.whole_model ? 0 : kSmallTensorElements};
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override { return static_cast<uint32_t>(values_); }
  bool fixed_rate() const override { return false; }
  uint64_t MaxSegmentElements() const override { return kMaxSparseTiles * kTileElements; }
  uint64_t EncodedBytes(uint64_t n) const override {
    if (n == 0) return 0;
    const uint64_t tile = std::min(n, kTileElements);
    return ScaleBytes() + TilesOf(n) * (4 + kBitmapBytes + ValueBytes(values_, tile));
  }

  absl::StatusOr<TensorPlan> Plan(std::span<const float> x,
                                  const EncodeContext& context) const override {
    RETURN_IF_ERROR(Check(x));
    const double fraction = FractionAt(context.round);
    return x.empty() ? TensorPlan{} : SelectLargest(x, CountKept(fraction, x.size()));
  }
  double SharedFraction(uint32_t round) const override {
    return options_.whole_model ? FractionAt(round) : 0;
  }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override;
  // All go, as fp32, where nearly all would, as a warm-up may begin: else an update could be larger
  // than any may be.
  absl::StatusOr<SegmentForm> EncodeSegment(std::span<const float> x, const EncodeContext& context,
                                            std::vector<uint8_t>* out) const override {
    if (values_ == SparseValues::kFloat32 && FractionAt(context.round) > kDense) {
      return MakeFp32()->EncodeSegment(x, context, out);
    }
    return Codec::EncodeSegment(x, context, out);
  }
  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override;
  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override {
    SumQueue queue;
    FoldInto({&payload, begin, grid.weight}, count, grid.fraction_bits, acc, &queue);
    queue.Drain();
  }
  // One update's sums are fetched while the one before is added.
  void FoldMany(std::span<const FoldPart> parts, uint64_t count, int fraction_bits,
                int64_t* acc) const override {
    SumQueue queue;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i + 1 < parts.size()) Prefetch(parts[i + 1]);
      FoldInto(parts[i], count, fraction_bits, acc, &queue);
    }
    queue.Drain();
  }
  void Decode(const PiecedBytes& payload, std::span<float> out) const override;

 private:
  // Falls by the same factor each round of the warm-up, from `from` in the first to the fraction in
  // the one after it, as in Deep Gradient Compression (Lin et al., ICLR 2018, section 3.3).
  double FractionAt(uint32_t round) const {
    if (options_.warmup == 0 || round > options_.warmup) return options_.fraction;
    const double left = static_cast<double>(options_.warmup + 1 - std::max(round, 1u)) /
                        static_cast<double>(options_.warmup);
    return options_.fraction * std::pow(options_.from / options_.fraction, left);
  }
  size_t ScaleBytes() const { return values_ >= SparseValues::kInt8 ? 4 : 0; }
  absl::Status Check(std::span<const float> x) const {
    const uint32_t limit =
        values_ == SparseValues::kFloat16 ? 0x477FF000 : kInt8FirstOverflow;  // 65520; 2^127
    if (MaxMagnitudeOf(x.data(), x.size()) < limit) return absl::OkStatus();
    return RefuseElement(capabilities_.name, x, limit);
  }
  float Scale(const std::vector<float>& kept) const;
  void FoldInto(const FoldPart& part, uint64_t count, int fraction_bits, int64_t* acc,
                SumQueue* queue) const;
  void AppendTile(const Kept& kept, size_t tile, uint32_t length, float scale,
                  std::vector<uint8_t>* out) const;
  void AppendValues(std::span<const float> kept, float scale, std::vector<uint8_t>* out) const;
  absl::Status CheckValues(const uint8_t* p, size_t count, float scale, double bound) const;
  float Value(const uint8_t* p, size_t j, float scale) const;
  size_t DataBytes(const TileEntry& entry) const {
    return entry.index_bytes + ValueBytes(values_, entry.count);
  }
  absl::StatusOr<float> CheckScale(const uint8_t* p, double bound) const;
  absl::Status CheckTile(const TileEntry& entry, const uint8_t* p, uint32_t length, float scale,
                         double bound, uint16_t* places) const;

  const TopKOptions options_;
  const SparseValues values_;
  Capabilities capabilities_;
};

float TopKCodec::Scale(const std::vector<float>& kept) const {
  if (values_ == SparseValues::kTernary) {
    const float mean = MeanMagnitude(kept.data(), kept.size());
    if (options_.gain == 1) return mean;
    // Finite: kept values are below 2^127, and a gain is 4 at most. What it would pass is cut off.
    return static_cast<float>(std::min(options_.gain * static_cast<double>(mean), 0x1p127));
  }
  return ScaleFor(std::bit_cast<float>(MaxMagnitudeOf(kept.data(), kept.size())), 127.0f);
}

// The j-th of a tile's values, rounded to binary32.
float TopKCodec::Value(const uint8_t* p, size_t j, float scale) const {
  switch (values_) {
    case SparseValues::kFloat32:
      return LoadLe<float>(p + 4 * j);
    case SparseValues::kFloat16:
      return HalfToFloat(LoadLe<uint16_t>(p + 2 * j));
    case SparseValues::kInt8:
      return static_cast<float>(static_cast<int8_t>(p[j])) * scale;
    default:
      return (p[j / 8] >> j % 8 & 1) != 0 ? -scale : scale;
  }
}

void TopKCodec::AppendValues(std::span<const float> kept, float scale,
                             std::vector<uint8_t>* out) const {
  if (values_ == SparseValues::kFloat16) {
    // Checked already: it refuses nothing.
    MakeFp16()->Encode(kept, {}, out).IgnoreError();
    return;
  }
  uint8_t* const p = Grow(out, ValueBytes(values_, kept.size()));
  if (kept.empty()) return;
  switch (values_) {
    case SparseValues::kInt8:
      return QuantizeKept(kept.data(), kept.size(), scale, p);
    case SparseValues::kTernary:
      return PackSigns(kept.data(), kept.size(), p);
    default:
      std::memcpy(p, kept.data(), sizeof(float) * kept.size());
  }
}

absl::Status TopKCodec::Encode(std::span<const float> x, const EncodeContext& context,
                               std::vector<uint8_t>* out) const {
  TensorPlan plan;
  uint64_t first = context.first;
  if (context.plan != nullptr) {
    RETURN_IF_ERROR(Check(x));
    plan = *context.plan;
  } else {
    ASSIGN_OR_RETURN(plan, Plan(x, context));
    first = 0;
  }
  if (x.size() > MaxSegmentElements()) {
    return absl::InvalidArgumentError(absl::StrCat("topk: ", x.size(), " elements; a segment has ",
                                                   MaxSegmentElements(), " at most"));
  }
  if (x.empty()) return absl::OkStatus();
  const Kept kept = Gather(x, plan, first);
  const float scale = Scale(kept.values);
  if (ScaleBytes() > 0) {
    out->resize(out->size() + sizeof scale);
    StoreLe(scale, out->data() + out->size() - sizeof scale);
  }
  for (size_t tile = 0; tile < kept.ends.size(); ++tile) {
    const uint64_t at = tile * kTileElements;
    const uint64_t length = std::min<uint64_t>(kTileElements, x.size() - at);
    AppendTile(kept, tile, static_cast<uint32_t>(length), scale, out);
  }
  return absl::OkStatus();
}

// One tile's entry, places and values.
void TopKCodec::AppendTile(const Kept& kept, size_t tile, uint32_t length, float scale,
                           std::vector<uint8_t>* out) const {
  const size_t from = tile == 0 ? 0 : kept.ends[tile - 1];
  const size_t count = kept.ends[tile] - from;
  const auto places = std::span(kept.places).subspan(from, count);
  const auto values = std::span(kept.values).subspan(from, count);
  const size_t entry_at = out->size();
  out->resize(entry_at + 4);
  const TileEntry entry = AppendIndices(places, length, out);
  StoreLe(entry.Word(), out->data() + entry_at);
  AppendValues(values, scale, out);
}

absl::Status TopKCodec::CheckValues(const uint8_t* p, size_t count, float scale,
                                    double bound) const {
  if (values_ >= SparseValues::kInt8) {
    if (values_ == SparseValues::kTernary && count % 8 != 0 && p[count / 8] >> count % 8 != 0) {
      return absl::InvalidArgumentError("bits are set after the last sign; the payload is damaged");
    }
    return absl::OkStatus();  // the scale was checked
  }
  for (size_t j = 0; j < count; ++j) {
    const bool half = values_ == SparseValues::kFloat16;
    const uint32_t bits =
        half ? LoadLe<uint16_t>(p + 2 * j) & 0x7FFF : LoadLe<uint32_t>(p + 4 * j) & 0x7FFFFFFF;
    if (bits > (half ? 0x7BFFu : 0x7F7FFFFFu)) {
      return absl::DataLossError(absl::StrCat("value ", j, " is infinite or not a number"));
    }
    const float value = Value(p, j, scale);
    if (!(std::abs(static_cast<double>(value)) <= bound)) {
      return absl::OutOfRangeError(
          absl::StrCat("value ", j, " is ", value, ", beyond the bound ", bound));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<float> TopKCodec::CheckScale(const uint8_t* p, double bound) const {
  const auto scale = LoadLe<float>(p);
  const std::string where = absl::StrCat("topk payload: the scale is ", scale);
  if (!std::isfinite(scale)) return absl::DataLossError(absl::StrCat(where, ", not finite"));
  if (std::signbit(scale)) {
    return absl::InvalidArgumentError(absl::StrCat(where, ", negative; scales are 0 or more"));
  }
  const double largest = static_cast<double>(scale) * (values_ == SparseValues::kInt8 ? 128 : 1);
  if (largest <= bound) return scale;
  return absl::OutOfRangeError(
      absl::StrCat(where, ": elements up to ", largest, " are beyond the bound ", bound));
}

absl::Status TopKCodec::CheckTile(const TileEntry& entry, const uint8_t* p, uint32_t length,
                                  float scale, double bound, uint16_t* places) const {
  RETURN_IF_ERROR(CheckIndices(entry, p, length, places));
  return CheckValues(p + entry.index_bytes, entry.count, scale, bound);
}

absl::Status TopKCodec::Validate(const PiecedBytes& payload, uint64_t n, double bound) const {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "topk payload: ", payload.size(), " bytes do not hold ", n, " elements: ", what,
        "; the payload is cut short, too long, or of another codec"));
  };
  if (n > MaxSegmentElements()) return wrong("more than a segment may have");
  if (n == 0) return payload.size() == 0 ? absl::OkStatus() : wrong("none take no byte");
  Reader reader(payload);
  uint64_t used = ScaleBytes();
  float scale = 0;
  if (ScaleBytes() > 0) {
    const uint8_t* p = reader.Take(4);
    if (p == nullptr) return wrong("the scale is missing");
    ASSIGN_OR_RETURN(scale, CheckScale(p, bound));
  }
  std::vector<uint16_t> places(kPlacesRoom);
  for (uint64_t tile = 0; tile < TilesOf(n); ++tile) {
    const uint8_t* word = reader.Take(4);
    if (word == nullptr) return wrong(absl::StrCat("tile ", tile, " is missing"));
    const TileEntry entry = TileEntry::FromWord(LoadLe<uint32_t>(word));
    used += 4 + DataBytes(entry);
    if (entry.count == 0) continue;
    const auto length =
        static_cast<uint32_t>(std::min<uint64_t>(kTileElements, n - tile * kTileElements));
    if (entry.count > length || entry.index_bytes > (length + 7) / 8) {
      return wrong(absl::StrCat("tile ", tile, " claims ", entry.count, " values in ",
                                entry.index_bytes, " bytes of places"));
    }
    const uint8_t* p = reader.Take(DataBytes(entry));
    if (p == nullptr) return wrong(absl::StrCat("tile ", tile, " is cut"));
    RETURN_IF_ERROR(Annotate(CheckTile(entry, p, length, scale, bound, places.data()),
                             absl::StrCat("topk payload, tile ", tile)));
  }
  return used == payload.size() ? absl::OkStatus() : wrong("bytes are left over");
}

void TopKCodec::FoldInto(const FoldPart& part, uint64_t count, int fraction_bits, int64_t* acc,
                         SumQueue* queue) const {
  Reader reader(*part.payload);
  const float scale = ScaleBytes() > 0 && count > 0 ? LoadLe<float>(reader.Take(4)) : 0;
  FoldArgs args;
  args.scale = std::ldexp(1.0, fraction_bits);
  args.weight = static_cast<uint64_t>(part.weight);
  const uint64_t first = part.begin / kTileElements;
  uint64_t tile = 0;
  if (const FoldCursor* const at = part.cursor;
      at != nullptr && at->offset > reader.read() && at->begin <= part.begin) {
    tile = at->begin / kTileElements;
    reader.Skip(at->offset - reader.read());
  }
  for (; tile < TilesOf(part.begin + count); ++tile) {
    const TileEntry entry = TileEntry::FromWord(LoadLe<uint32_t>(reader.Take(4)));
    if (tile < first || entry.count == 0) {
      reader.Skip(DataBytes(entry));
      continue;
    }
    const uint8_t* p = reader.Take(DataBytes(entry));
    const uint64_t done = (tile - first) * kTileElements;
    FoldSparseTile(values_, entry, p, std::min(kTileElements, count - done), scale, args,
                   acc + done, queue);
  }
  if (part.cursor != nullptr) *part.cursor = {tile * kTileElements, reader.read()};
}

void TopKCodec::Decode(const PiecedBytes& payload, std::span<float> out) const {
  std::fill(out.begin(), out.end(), 0.0f);
  if (out.empty()) return;
  Reader reader(payload);
  const float scale = ScaleBytes() > 0 ? LoadLe<float>(reader.Take(4)) : 0;
  uint16_t places[kPlacesRoom];
  for (uint64_t tile = 0; tile < TilesOf(out.size()); ++tile) {
    const TileEntry entry = TileEntry::FromWord(LoadLe<uint32_t>(reader.Take(4)));
    if (entry.count == 0) continue;
    const uint8_t* p = reader.Take(DataBytes(entry));
    ReadIndices(entry, p, places);
    for (size_t j = 0; j < entry.count; ++j) {
      out[tile * kTileElements + places[j]] = Value(p + entry.index_bytes, j, scale);
    }
  }
}

}  // namespace

std::shared_ptr<const Codec> MakeTopK(const TopKOptions& options) {
  return std::make_shared<TopKCodec>(options);
}

}  // namespace tributary::compression
