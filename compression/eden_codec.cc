// Codec eden: a key, then blocks of a float32 and the codes of rotated elements; checks and walking
// the pieces.
#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/eden.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/runs.h"
#include "compression/random.h"

namespace tributary::compression {
namespace {

constexpr size_t kKeyBytes = 8;

class EdenCodec final : public Codec {
 public:
  EdenCodec(int bits, uint32_t block) : bits_(bits), block_(block) {
    capabilities_ = {.id = CodecId::kEden,
                     .name = "eden",
                     .linear = false,
                     // Of a uniform rotation it would be; a Hadamard's own bias is small, not zero.
                     .unbiased = false,
                     .needs_error_feedback = false,
                     .deterministic = false,
                     .minimum_elements = kSmallTensorElements};
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override { return block_ | static_cast<uint32_t>(bits_) << 16; }
  uint64_t EncodedBytes(uint64_t n) const override {
    if (n == 0) return 0;
    const uint64_t rest = n % block_;
    return kKeyBytes + n / block_ * EdenBytes(bits_, block_) +
           (rest == 0 ? 0 : EdenBytes(bits_, Filled(rest)));
  }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override {
    if (MaxMagnitudeOf(x.data(), x.size()) >= kEdenFirstOverflow) {
      return RefuseElement(capabilities_.name, x, kEdenFirstOverflow);
    }
    const size_t start = out->size();
    out->resize(start + EncodedBytes(x.size()));
    if (x.empty()) return absl::OkStatus();
    const uint64_t tile = context.first / kTileElements;
    const uint64_t key =
        TileKey(context.key ^ kRotationPurpose, context.round, context.tensor, tile);
    StoreLe(key, out->data() + start);
    uint8_t* p = out->data() + start + kKeyBytes;
    for (uint64_t at = 0; at < x.size(); at += block_) {
      const size_t length = std::min<uint64_t>(block_, x.size() - at);
      const EdenBlock block{bits_, key, at, length == block_ ? block_ : Filled(length)};
      EdenEncode(block, x.data() + at, length, p);
      p += EdenBytes(bits_, block.size);
    }
    return absl::OkStatus();
  }

  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override {
    if (n / 8 > payload.size() || EncodedBytes(n) != payload.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("eden payload: ", payload.size(), " bytes do not hold ", n,
                       " elements; the payload is cut short, too long, or of another codec"));
    }
    absl::Status status;
    std::vector<int32_t> integers(block_);
    ForEachBlock(payload, 0, n, [&](const EdenBlock& block, const uint8_t* p, uint64_t done) {
      status = CheckBlock(block, p, bound, integers.data());
      if (!status.ok()) {
        status = Annotate(status, absl::StrCat("eden payload, block ", done / block_));
      }
      return status.ok();
    });
    return status;
  }

  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override {
    alignas(64) int32_t integers[kEdenMaxBlock];
    const FoldArgs args = MakeFoldArgs(grid, [](double) { return 0; });
    ForEachBlock(
        payload, begin, count, [&](const EdenBlock& block, const uint8_t* p, uint64_t done) {
          EdenIntegers(block, p, integers);
          FoldArgs scaled = args;
          scaled.scale *= static_cast<double>(LoadLe<float>(p));
          const size_t n = std::min<uint64_t>(block.size, count - done);
          if (scaled.scale * static_cast<double>(EdenLargest(integers, n)) > 0x1.fffffep30) {
            scaled.narrow_limit = -1;
          }
          EdenFold(integers, n, scaled, acc + done);
          return true;
        });
  }

  void Decode(const PiecedBytes& payload, std::span<float> out) const override {
    alignas(64) int32_t integers[kEdenMaxBlock];
    ForEachBlock(payload, 0, out.size(),
                 [&](const EdenBlock& block, const uint8_t* p, uint64_t done) {
                   EdenIntegers(block, p, integers);
                   const auto scale = LoadLe<float>(p);
                   const size_t n = std::min<uint64_t>(block.size, out.size() - done);
                   EdenDecode(integers, n, scale, out.data() + done);
                   return true;
                 });
  }

 private:
  static size_t Filled(size_t n) { return std::max<size_t>(kEdenShortest, std::bit_ceil(n)); }

  static absl::Status CheckBlock(const EdenBlock& block, const uint8_t* p, double bound,
                                 int32_t* integers) {
    const auto scale = LoadLe<float>(p);
    const auto where = [scale] { return absl::StrCat("the scale is ", scale); };
    if (!std::isfinite(scale)) return absl::DataLossError(absl::StrCat(where(), ", not finite"));
    if (std::signbit(scale)) {
      return absl::InvalidArgumentError(absl::StrCat(where(), ", negative; scales are 0 or more"));
    }
    // All codes are at most 127; most blocks need no look at them.
    if (static_cast<double>(scale) * 127.0 * static_cast<double>(block.size) <= bound) {
      return absl::OkStatus();
    }
    EdenIntegers(block, p, integers);
    const double largest =
        static_cast<double>(scale) * static_cast<double>(EdenLargest(integers, block.size));
    if (largest <= bound) return absl::OkStatus();
    return absl::OutOfRangeError(
        absl::StrCat(where(), ": an element is ", largest, ", beyond the bound ", bound));
  }

  // visit(block, bytes, elements before) for the blocks of `count` elements from `begin`; the
  // payload says whether the last of them is a whole one.
  template <class Visit>
  void ForEachBlock(const PiecedBytes& payload, uint64_t begin, uint64_t count, Visit visit) const {
    if (count == 0) return;
    uint8_t bytes[4 + kEdenMaxBlock / 2];
    ByteCursor(payload).Read(bytes, kKeyBytes);
    const auto key = LoadLe<uint64_t>(bytes);
    const size_t width = EdenBytes(bits_, block_);
    const uint64_t whole = (payload.size() - kKeyBytes) / width;
    const size_t left = (payload.size() - kKeyBytes) % width;
    ByteCursor cursor(payload, kKeyBytes + begin / block_ * width);
    for (uint64_t done = 0; done < count; done += block_) {
      const bool full = (begin + done) / block_ < whole;
      EdenBlock block{bits_, key, begin + done,
                      full ? block_ : (left - 4) * 8 / static_cast<size_t>(bits_)};
      const size_t here = full ? width : left;
      const ByteSpan contiguous = cursor.Contiguous();
      const uint8_t* p = contiguous.data();
      if (contiguous.size() >= here) {
        cursor.Skip(here);
      } else if (cursor.Read(bytes, here)) {
        p = bytes;
      } else {
        return;
      }
      if (!visit(block, p, done)) return;
    }
  }

  const int bits_;
  const size_t block_;
  Capabilities capabilities_;
};

}  // namespace

std::shared_ptr<const Codec> MakeEden(int bits, uint32_t block) {
  return std::make_shared<EdenCodec>(bits, block);
}

}  // namespace tributary::compression
