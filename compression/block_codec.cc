// The codec that a block format makes: checks, walking the pieces, error messages.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/block_format.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/fold_many.h"
#include "compression/internal/int8.h"
#include "compression/internal/runs.h"

namespace tributary::compression {
namespace {

class BlockCodec final : public Codec {
 public:
  explicit BlockCodec(BlockFormat format) : f_(std::move(format)) {}
  const Capabilities& capabilities() const override { return f_.capabilities; }
  uint32_t parameter() const override { return f_.parameter; }
  uint64_t EncodedBytes(uint64_t n) const override {
    const uint64_t rest = n % f_.block;
    return n / f_.block * f_.BlockBytes(f_.block) + (rest == 0 ? 0 : f_.BlockBytes(rest));
  }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override {
    if (context.first % kTileElements != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          f_.capabilities.name, ": first element ", context.first, " is not a multiple of ",
          kTileElements, "; cut tensors at tile boundaries"));
    }
    if (MaxMagnitudeOf(x.data(), x.size()) >= kInt8FirstOverflow) {
      return RefuseElement(f_.capabilities.name, x, kInt8FirstOverflow);
    }
    const size_t at = out->size();
    out->resize(at + EncodedBytes(x.size()));
    EncodeBlocks(f_, x.data(), x.size(), context, out->data() + at);
    return absl::OkStatus();
  }

  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override {
    // No code is narrower than a bit, so that a claim beyond 8 elements a byte cannot be right, and
    // n is small enough for arithmetic after this.
    if (n / 8 > payload.size() || EncodedBytes(n) != payload.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(f_.capabilities.name, " payload: ", payload.size(), " bytes do not hold ", n,
                       " elements; the payload is cut short, too long, or of another codec"));
    }
    absl::Status status;
    ForEachBlockRun(payload, 0, n,
                    [&](const uint8_t* p, uint64_t blocks, size_t length, uint64_t done) {
                      const size_t width = f_.BlockBytes(length);
                      for (uint64_t b = 0; b < blocks && status.ok(); ++b, p += width) {
                        status = CheckBlock(p, length, done / f_.block + b, bound);
                      }
                      return status.ok();
                    });
    return status;
  }

  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override {
    const FoldArgs args = MakeFoldArgs(grid, [](double) { return 0; });
    ForEachBlockRun(payload, begin, count,
                    [&](const uint8_t* p, uint64_t blocks, size_t length, uint64_t done) {
                      FoldBlocks(f_, p, blocks, length, args, acc + done);
                      return true;
                    });
  }

  void FoldMany(std::span<const FoldPart> parts, uint64_t count, int fraction_bits,
                int64_t* acc) const override {
    FoldManyOfBlocks(f_, parts, count, fraction_bits, acc, [&](const FoldPart& part) {
      Fold(*part.payload, part.begin, count, {fraction_bits, part.weight}, acc);
    });
  }

  void Decode(const PiecedBytes& payload, std::span<float> out) const override {
    ForEachBlockRun(payload, 0, out.size(),
                    [&](const uint8_t* p, uint64_t blocks, size_t length, uint64_t done) {
                      DecodeBlocks(f_, p, blocks, length, out.data() + done);
                      return true;
                    });
  }

 private:
  // Visits whole blocks, then the short one at the end: visit(bytes, blocks, length, elements
  // before).
  template <class Visit>
  void ForEachBlockRun(const PiecedBytes& payload, uint64_t begin, uint64_t count,
                       Visit visit) const {
    const size_t width = f_.BlockBytes(f_.block);
    const uint64_t offset = begin / f_.block * width;
    const uint64_t full = count / f_.block;
    if (!ForEachRun(payload, offset, width, full, [&](const uint8_t* p, uint64_t n, uint64_t done) {
          return visit(p, n, size_t{f_.block}, done * f_.block);
        })) {
      return;
    }
    const size_t rest = count % f_.block;
    if (rest == 0) return;
    ForEachRun(payload, offset + full * width, f_.BlockBytes(rest), 1,
               [&](const uint8_t* p, uint64_t, uint64_t) {
                 return visit(p, uint64_t{1}, rest, full * f_.block);
               });
  }

  absl::Status CheckBlock(const uint8_t* p, size_t length, uint64_t block, double bound) const {
    const auto where = [&](absl::string_view what) {
      return absl::StrCat(f_.capabilities.name, " payload: ", what, " of block ", block);
    };
    if (f_.scale_kind == ScaleKind::kFloat32) {
      const float scale = LoadLe<float>(p);
      if (!std::isfinite(scale)) {
        return absl::DataLossError(absl::StrCat(where("the scale"), " is ", scale, ", not finite"));
      }
      if (std::signbit(scale)) {
        return absl::InvalidArgumentError(
            absl::StrCat(where("the scale"), " is ", scale, ", negative; scales are 0 or more"));
      }
    } else if (f_.scale_kind == ScaleKind::kE8M0 && p[0] == 255) {
      return absl::DataLossError(absl::StrCat(where("the scale"), " is byte 255, not finite"));
    }
    const double largest = static_cast<double>(BlockUnit(f_, p)) * static_cast<double>(f_.largest);
    if (!(largest <= bound)) {
      return absl::OutOfRangeError(absl::StrCat(where("the scale"), " allows elements up to ",
                                                largest, ", beyond the bound ", bound));
    }
    return CheckCodes(p + f_.scale_bytes(), length, block);
  }

  absl::Status CheckCodes(const uint8_t* codes, size_t length, uint64_t block) const {
    if (f_.floats()) {
      uint8_t top = 0;
      for (size_t i = 0; i < length; ++i) {
        top = std::max(top, static_cast<uint8_t>(codes[i] & 0x7F));
      }
      if (top > (f_.code_kind == CodeKind::kE4M3 ? 0x7E : 0x7B)) {
        return absl::DataLossError(absl::StrCat(f_.capabilities.name, " payload: block ", block,
                                                " has a code that is infinite or not a number"));
      }
    }
    const size_t used = length * static_cast<size_t>(f_.bits) % 8;
    if (used != 0 && codes[length * static_cast<size_t>(f_.bits) / 8] >> used != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(f_.capabilities.name, " payload: the bits after the last element of block ",
                       block, " are not 0; the payload is damaged or of another codec"));
    }
    return absl::OkStatus();
  }

  const BlockFormat f_;
};

}  // namespace

std::shared_ptr<const Codec> MakeBlockCodec(BlockFormat format) {
  return std::make_shared<BlockCodec>(std::move(format));
}

float MeanMagnitude(const float* x, size_t n) {
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) sums[j] += static_cast<double>(std::abs(x[i + j]));
  }
  for (size_t j = 0; i < n; ++i, ++j) sums[j] += static_cast<double>(std::abs(x[i]));
  const double sum =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  return n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
}

}  // namespace tributary::compression
