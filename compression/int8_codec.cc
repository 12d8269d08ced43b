// Codec int8: blocks of a float32 scale and int8s, rounded at random as in QSGD (Alistarh et al.,
// NeurIPS 2017) or to nearest; checks and walking the pieces.
#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/fold_many.h"
#include "compression/internal/int8.h"
#include "compression/internal/runs.h"

namespace tributary::compression {
namespace {

// Visits whole blocks, then the short one at the end: visit(bytes, blocks, length, elements
// before).
template <class Visit>
bool ForEachBlockRun(const PiecedBytes& payload, uint64_t begin, uint64_t count, size_t block,
                     Visit visit) {
  const size_t width = kInt8ScaleBytes + block;
  const uint64_t offset = begin / block * width;
  const uint64_t full = count / block;
  if (!ForEachRun(payload, offset, width, full, [&](const uint8_t* p, uint64_t n, uint64_t done) {
        return visit(p, n, block, done * block);
      })) {
    return false;
  }
  const size_t rest = count % block;
  if (rest == 0) return true;
  return ForEachRun(
      payload, offset + full * width, kInt8ScaleBytes + rest, 1,
      [&](const uint8_t* p, uint64_t, uint64_t) { return visit(p, 1, rest, full * block); });
}

class Int8Codec final : public Codec {
 public:
  Int8Codec(uint32_t block, Int8Rounding rounding) : block_(block), rounding_(rounding) {
    const bool stochastic = rounding == Int8Rounding::kStochastic;
    capabilities_ = {.id = CodecId::kInt8,
                     .name = "int8",
                     .linear = false,
                     .unbiased = stochastic,
                     .needs_error_feedback = false,
                     .deterministic = !stochastic,
                     .minimum_elements = kSmallTensorElements};
    format_.block = block;
    format_.largest = 128;
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override { return block_; }
  uint64_t EncodedBytes(uint64_t n) const override {
    return n + kInt8ScaleBytes * (n / block_ + (n % block_ != 0));
  }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override {
    if (context.first % kTileElements != 0) {
      return absl::InvalidArgumentError(absl::StrCat("int8: first element ", context.first,
                                                     " is not a multiple of ", kTileElements,
                                                     "; cut tensors at tile boundaries"));
    }
    const size_t at = out->size();
    out->resize(at + EncodedBytes(x.size()));
    if (Int8Scales(x.data(), x.size(), block_, out->data() + at) >= kInt8FirstOverflow) {
      out->resize(at);
      return RefuseElement(capabilities_.name, x, kInt8FirstOverflow);
    }
    Int8Quantize(x.data(), x.size(), block_,
                 rounding_ == Int8Rounding::kStochastic ? &context : nullptr, out->data() + at);
    return absl::OkStatus();
  }

  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override {
    RETURN_IF_ERROR(CheckLength(*this, payload, n));
    const int64_t limit = LargestBitsAtMost(bound / 128, 0x7F7FFFFF, [](uint32_t m) {
      return static_cast<double>(std::bit_cast<float>(m));
    });
    absl::Status status;
    ForEachBlockRun(payload, 0, n, block_,
                    [&](const uint8_t* p, uint64_t blocks, size_t length, uint64_t done) {
                      for (uint64_t b = 0; b < blocks; ++b, p += kInt8ScaleBytes + length) {
                        // As an integer a negative scale is larger than any limit.
                        if (int64_t{LoadLe<uint32_t>(p)} <= limit) continue;
                        status = RefuseScale(LoadLe<float>(p), done / block_ + b, bound);
                        return false;
                      }
                      return true;
                    });
    return status;
  }

  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override {
    const FoldArgs args = MakeFoldArgs(grid, [](double) { return 0; });
    ForEachBlockRun(payload, begin, count, block_,
                    [&](const uint8_t* p, uint64_t blocks, size_t length, uint64_t done) {
                      Int8Fold(p, blocks, length, args, acc + done);
                      return true;
                    });
  }

  void FoldMany(std::span<const FoldPart> parts, uint64_t count, int fraction_bits,
                int64_t* acc) const override {
    FoldManyOfBlocks(format_, parts, count, fraction_bits, acc, [&](const FoldPart& part) {
      Fold(*part.payload, part.begin, count, {fraction_bits, part.weight}, acc);
    });
  }

  void Decode(const PiecedBytes& payload, std::span<float> out) const override {
    ForEachBlockRun(payload, 0, out.size(), block_,
                    [&](const uint8_t* p, uint64_t blocks, size_t length, uint64_t done) {
                      Int8Decode(p, blocks, length, out.data() + done);
                      return true;
                    });
  }

 private:
  static absl::Status RefuseScale(float scale, uint64_t block, double bound) {
    const std::string where =
        absl::StrCat("int8 payload: the scale of block ", block, " is ", scale);
    if (!std::isfinite(scale)) return absl::DataLossError(absl::StrCat(where, ", not finite"));
    if (std::signbit(scale)) {
      return absl::InvalidArgumentError(absl::StrCat(where, ", negative; scales are 0 or more"));
    }
    return absl::OutOfRangeError(
        absl::StrCat(where, ": elements up to ", 128.0 * scale, " are beyond the bound ", bound));
  }

  const uint32_t block_;
  const Int8Rounding rounding_;
  Capabilities capabilities_;
  BlockFormat format_;  // the same bytes as a format of blocks, for FoldMany
};

}  // namespace

std::shared_ptr<const Codec> MakeInt8(uint32_t block, Int8Rounding rounding) {
  return std::make_shared<Int8Codec>(block, rounding);
}

}  // namespace tributary::compression
