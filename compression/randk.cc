// Codec randk: one random element out of each `stride`, the places known from a key that all
// clients of a round share, so that nothing but values travels and equal places add up (random
// sparsification: Konecny et al. 2016; Wangni et al., NeurIPS 2018; here one draw a stratum).
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/sparse.h"
#include "compression/internal/sparse_kernels.h"
#include "compression/random.h"

namespace tributary::compression {
namespace {

constexpr size_t kKeyBytes = 8;
constexpr uint32_t kUnscaledFlag = 0x80000000;
constexpr uint32_t kHalfFlag = 0x00010000;
// |bits| of the smallest float beyond 2^112: times a stride it stays finite.
constexpr uint32_t kFirstOverflow = 0x77800001;

// Some strata of one tile, whose places follow from the mask's key: one in each stratum of `stride`
// elements. The last stratum may reach beyond the tile's end, and its place too: then its value
// stands for nothing.
struct Stretch {
  uint64_t at;             // the tile's first element
  const uint32_t* places;  // within the tile
  size_t count;
  size_t within;  // count, or one less
};

class RandKCodec final : public Codec {
 public:
  RandKCodec(uint32_t stride, SparseValues values, bool scaled)
      : stride_(stride),
        half_(values == SparseValues::kFloat16),
        scaled_(scaled),
        values_(half_ ? MakeFp16() : MakeFp32()) {
    capabilities_ = {.id = CodecId::kRandK,
                     .name = "randk",
                     .linear = true,
                     .unbiased = scaled && !half_,  // binary16 rounds to nearest
                     .needs_error_feedback = !scaled,
                     .deterministic = false,
                     .minimum_elements = kSmallTensorElements};
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override {
    return stride_ | (half_ ? kHalfFlag : 0) | (scaled_ ? 0 : kUnscaledFlag);
  }
  uint64_t EncodedBytes(uint64_t n) const override {
    return n == 0 ? 0 : kKeyBytes + width() * Values(n);
  }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override {
    const uint32_t limit = half_ ? 0x477FF000 : kFirstOverflow;
    if (MaxMagnitudeOf(x.data(), x.size()) >= limit) {
      return RefuseElement(capabilities_.name, x, limit);
    }
    out->reserve(out->size() + EncodedBytes(x.size()));
    if (x.empty()) return absl::OkStatus();
    const uint64_t tile = context.first / kTileElements;
    const uint64_t key = TileKey(context.shared_key, context.round, context.tensor, tile);
    StoreLe(key, Grow(out, kKeyBytes));
    float kept[kStrataAtOnce];
    ForEachStretch(key, 0, x.size(), [&](const Stretch& s) {
      for (size_t j = 0; j < s.within; ++j) kept[j] = x[s.at + s.places[j]];
      if (s.within < s.count) kept[s.within] = 0;
      // Checked above: it refuses nothing.
      values_->Encode({kept, s.count}, {}, out).IgnoreError();
    });
    return absl::OkStatus();
  }

  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override {
    // Of kTileElements elements at least one travels.
    if (n / kTileElements > payload.size() || EncodedBytes(n) != payload.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("randk payload: ", payload.size(), " bytes do not hold ", n,
                       " elements; the payload is cut short, too long, or of another codec"));
    }
    ByteCursor cursor(payload, kKeyBytes);
    uint8_t bytes[4] = {};
    for (uint64_t j = 0; n > 0 && j < Values(n); ++j) {
      cursor.Read(bytes, width());
      const uint32_t bits =
          half_ ? LoadLe<uint16_t>(bytes) & 0x7FFF : LoadLe<uint32_t>(bytes) & 0x7FFFFFFF;
      if (bits > (half_ ? 0x7BFFu : 0x7F7FFFFFu)) {
        return absl::DataLossError(
            absl::StrCat("randk payload: value ", j, " is infinite or not a number"));
      }
      const double value = std::abs(static_cast<double>(Load(bytes))) * factor();
      if (!(value <= bound)) {
        return absl::OutOfRangeError(absl::StrCat("randk payload: value ", j, " stands for up to ",
                                                  value, ", beyond the bound ", bound));
      }
    }
    return absl::OkStatus();
  }

  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override {
    FoldArgs args;
    args.scale = std::ldexp(1.0, grid.fraction_bits) * static_cast<double>(factor());  // exact
    args.weight = static_cast<uint64_t>(grid.weight);
    int64_t terms[kStrataAtOnce];
    ForEachStretch(payload, begin, count, [&](const Stretch& s, const uint8_t* values) {
      (half_ ? TermsOfHalves : TermsOfFloats)(values, s.within, args, terms);
      AddApart(s.places, terms, s.within, acc + s.at);
    });
  }

  void Decode(const PiecedBytes& payload, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    ForEachStretch(payload, 0, out.size(), [&](const Stretch& s, const uint8_t* values) {
      for (size_t j = 0; j < s.within; ++j) {
        out[s.at + s.places[j]] = Load(values + j * width()) * factor();
      }
    });
  }

 private:
  size_t width() const { return half_ ? 2 : 4; }
  float Load(const uint8_t* p) const {
    return half_ ? HalfToFloat(LoadLe<uint16_t>(p)) : LoadLe<float>(p);
  }
  float factor() const { return scaled_ ? static_cast<float>(stride_) : 1.0f; }
  uint64_t TileValues() const { return (kTileElements + stride_ - 1) / stride_; }
  uint64_t Values(uint64_t n) const {
    return n / kTileElements * TileValues() + (n % kTileElements + stride_ - 1) / stride_;
  }

  // visit(stretch) of n elements that begin with tile `tile`.
  template <class Visit>
  void ForEachStretch(uint64_t key, uint64_t tile, uint64_t n, Visit visit) const {
    uint32_t places[kStrataAtOnce];
    for (uint64_t at = 0; at < n; at += kTileElements, ++tile) {
      const uint64_t length = std::min(kTileElements, n - at);
      const size_t strata = (length + stride_ - 1) / stride_;
      for (size_t from = 0; from < strata; from += kStrataAtOnce) {
        const size_t count = std::min(kStrataAtOnce, strata - from);
        StrataPlaces(key, static_cast<uint32_t>(tile), stride_, from, count, places);
        visit(Stretch{at, places, count, count - (places[count - 1] < length ? 0 : 1)});
      }
    }
  }

  // visit(stretch, its values' bytes) of `count` elements from `begin` on, whose places count from
  // `begin`.
  template <class Visit>
  void ForEachStretch(const PiecedBytes& payload, uint64_t begin, uint64_t count,
                      Visit visit) const {
    if (count == 0) return;
    uint8_t bytes[sizeof(float) * kStrataAtOnce] = {};
    ByteCursor(payload).Read(bytes, kKeyBytes);
    const auto key = LoadLe<uint64_t>(bytes);
    const uint64_t tile = begin / kTileElements;
    ByteCursor cursor(payload, kKeyBytes + tile * TileValues() * width());
    ForEachStretch(key, tile, count, [&](const Stretch& s) {
      cursor.Read(bytes, s.count * width());
      visit(s, bytes);
    });
  }

  // acc[places[j]] += terms[j]; sums lie far apart and are fetched before their turn.
  static void AddApart(const uint32_t* places, const int64_t* terms, size_t n, int64_t* acc) {
    constexpr size_t kAhead = 64;
    for (size_t j = 0; j < std::min(n, kAhead); ++j) __builtin_prefetch(acc + places[j], 1, 2);
    for (size_t j = 0; j < n; ++j) {
      if (j + kAhead < n) __builtin_prefetch(acc + places[j + kAhead], 1, 2);
      int64_t& sum = acc[places[j]];
      sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(terms[j]));
    }
  }

  const uint32_t stride_;
  const bool half_;
  const bool scaled_;
  const std::shared_ptr<const Codec> values_;  // how they are written
  Capabilities capabilities_;
};

}  // namespace

std::shared_ptr<const Codec> MakeRandK(uint32_t stride, SparseValues values, bool scaled) {
  return std::make_shared<RandKCodec>(stride, values, scaled);
}

}  // namespace tributary::compression
