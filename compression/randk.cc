// Codec randk: one random element out of each `stride`, the places known from a key that all
// clients of a round share, so that nothing but values travels and equal places add up (random
// sparsification: Konecny et al. 2016; Wangni et al., NeurIPS 2018; here one draw a stratum).
#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/sparse.h"
#include "compression/random.h"

namespace tributary::compression {
namespace {

constexpr size_t kKeyBytes = 8;
constexpr uint32_t kUnscaledFlag = 0x80000000;
constexpr uint32_t kHalfFlag = 0x00010000;
// |bits| of the smallest float beyond 2^112: times a stride it stays finite.
constexpr uint32_t kFirstOverflow = 0x77800001;

// The places of one tile: one in each stratum of `stride` elements. The last stratum may reach
// beyond the tile's end, and its place too: then its value stands for nothing.
class Strata {
 public:
  Strata(uint64_t key, uint64_t tile, uint32_t stride)
      : key_(key), tile_(static_cast<uint32_t>(tile)), stride_(stride) {}
  // Of stratum j; j rises by one from call to call.
  uint64_t Place(uint64_t j) {
    if (j % 4 == 0) words_ = Philox4x32(key_, {static_cast<uint32_t>(j / 4), tile_, 0, 0});
    return j * stride_ + (words_[j % 4] * stride_ >> 32);
  }

 private:
  const uint64_t key_;
  const uint32_t tile_;
  const uint64_t stride_;
  PhiloxBlock words_{};
};

class RandKCodec final : public Codec {
 public:
  RandKCodec(uint32_t stride, SparseValues values, bool scaled)
      : stride_(stride), half_(values == SparseValues::kFloat16), scaled_(scaled) {
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
                      std::vector<uint8_t>* out, std::span<float> residual) const override {
    const uint32_t limit = half_ ? 0x477FF000 : kFirstOverflow;
    if (MaxMagnitudeOf(x.data(), x.size()) >= limit) {
      return RefuseElement(capabilities_.name, x, limit);
    }
    const size_t start = out->size();
    out->resize(start + EncodedBytes(x.size()));
    if (x.empty()) return absl::OkStatus();
    const uint64_t tile = context.first / kTileElements;
    const uint64_t key = TileKey(context.shared_key, context.round, context.tensor, tile);
    StoreLe(key, out->data() + start);
    uint8_t* p = out->data() + start + kKeyBytes;
    const bool in_place = residual.data() == x.data();
    if (!residual.empty() && !in_place) std::copy(x.begin(), x.end(), residual.begin());
    ForEachPlace(key, 0, x.size(), [&](uint64_t i, bool within) {
      const float v = within ? x[i] : 0.0f;
      if (half_) {
        StoreLe(FloatToHalf(v), p);
      } else {
        StoreLe(v, p);
      }
      if (!residual.empty() && within) residual[i] = v - factor() * Load(p);
      p += width();
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
    args.scale = std::ldexp(1.0, grid.fraction_bits);
    args.weight = static_cast<uint64_t>(grid.weight);
    Walk(payload, begin, count, [&](uint64_t i, double value) { FoldOne(value, args, acc + i); });
  }

  void Decode(const PiecedBytes& payload, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    Walk(payload, 0, out.size(),
         [&](uint64_t i, double value) { out[i] = static_cast<float>(value); });
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

  // visit(place, whether it is within) for each stratum of n elements that begin with tile `tile`.
  template <class Visit>
  void ForEachPlace(uint64_t key, uint64_t tile, uint64_t n, Visit visit) const {
    for (uint64_t done = 0; done < n; done += kTileElements, ++tile) {
      const uint64_t length = std::min(kTileElements, n - done);
      Strata strata(key, tile, stride_);
      for (uint64_t j = 0; j * stride_ < length; ++j) {
        const uint64_t place = strata.Place(j);
        visit(done + place, place < length);
      }
    }
  }

  // visit(place from `begin` on, value) of `count` elements.
  template <class Visit>
  void Walk(const PiecedBytes& payload, uint64_t begin, uint64_t count, Visit visit) const {
    if (count == 0) return;
    uint8_t bytes[kKeyBytes] = {};
    ByteCursor(payload).Read(bytes, kKeyBytes);
    const auto key = LoadLe<uint64_t>(bytes);
    const uint64_t tile = begin / kTileElements;
    ByteCursor cursor(payload, kKeyBytes + tile * TileValues() * width());
    ForEachPlace(key, tile, count, [&](uint64_t i, bool within) {
      cursor.Read(bytes, width());
      if (within) visit(i, static_cast<double>(Load(bytes)) * static_cast<double>(factor()));
    });
  }

  const uint32_t stride_;
  const bool half_;
  const bool scaled_;
  Capabilities capabilities_;
};

}  // namespace

std::shared_ptr<const Codec> MakeRandK(uint32_t stride, SparseValues values, bool scaled) {
  return std::make_shared<RandKCodec>(stride, values, scaled);
}

}  // namespace tributary::compression
