// Codecs by number (segment headers), and their capability rows.
#include <bit>

#include "absl/strings/str_cat.h"
#include "compression/codec.h"
#include "compression/internal/block_format.h"
#include "compression/internal/eden.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/int8.h"
#include "compression/internal/powersgd.h"
#include "compression/internal/runs.h"
#include "compression/internal/sparse.h"
#include "compression/internal/stage.h"
#include "compression/sketch.h"

namespace tributary::compression {
namespace {

using CodecPtr = std::shared_ptr<const Codec>;

bool IsBlock(uint32_t n) { return n >= kInt8MinBlock && n <= kMaxBlock && std::has_single_bit(n); }

CodecPtr SignFromParameter(uint32_t p) {
  if ((p & kVoteFlag) == 0) return IsBlock(p) ? MakeSign(p) : nullptr;
  const uint32_t step = p & ~kVoteFlag;
  return step <= kMaxStepExponent ? MakeSignVote(static_cast<int>(step)) : nullptr;
}

CodecPtr Fp8FromParameter(uint32_t p) {
  return IsBlock(p & 0xFFFF) && p >> 16 <= 1 ? MakeFp8(p & 0xFFFF, p >> 16 == 1) : nullptr;
}

CodecPtr RandKFromParameter(uint32_t p) {
  const uint32_t stride = p & 0xFFFF;
  if (stride < 2 || stride > kTileElements || (p & 0x7FFE0000) != 0) return nullptr;
  return MakeRandK(stride, (p & 0x10000) != 0 ? SparseValues::kFloat16 : SparseValues::kFloat32,
                   (p & 0x80000000) == 0);
}

CodecPtr EdenFromParameter(uint32_t p) {
  const uint32_t block = p & 0xFFFF, bits = p >> 16;
  const bool good = block >= kEdenMinBlock && block <= kEdenMaxBlock &&
                    std::has_single_bit(block) && bits >= 1 && bits <= 4;
  return good ? MakeEden(static_cast<int>(bits), block) : nullptr;
}

CodecPtr HqFromParameter(uint32_t p) {
  const uint32_t bits = p & 0xFF, step = p >> 8;
  if ((bits != 4 && bits != 8) || step > kMaxStepExponent) return nullptr;
  return MakeHq(static_cast<int>(bits), static_cast<int>(step), /*stochastic=*/true);
}

CodecPtr SketchFromParameter(uint32_t p) {
  const SketchForm form{.rows = p & 15, .columns = p >> 4, .recover = 0};
  const bool rows = form.rows == 1 || form.rows == 3 || form.rows == 5;
  const bool good =
      rows && form.columns >= kSketchLeastColumns && form.columns <= kTileElements / form.rows;
  return good ? MakeSketch(form) : nullptr;
}

// Null where the parameter is out of range. Rounding is the sender's business alone.
CodecPtr FromParameter(CodecId id, uint32_t p) {
  switch (id) {
    case CodecId::kFp32:
      return p == 0 ? MakeFp32() : nullptr;
    case CodecId::kFp16:
      return p == 0 ? MakeFp16() : nullptr;
    case CodecId::kBf16:
      return p == 0 ? MakeBf16() : nullptr;
    case CodecId::kInt8:
      return IsBlock(p) ? MakeInt8(p, Int8Rounding::kStochastic) : nullptr;
    case CodecId::kInt4:
      return IsBlock(p) ? MakeInt4(p, true) : nullptr;
    case CodecId::kInt2:
      return IsBlock(p) ? MakeInt2(p, true) : nullptr;
    case CodecId::kSign:
      return SignFromParameter(p);
    case CodecId::kTopK:
      return p <= 3 ? MakeTopK(1, static_cast<SparseValues>(p)) : nullptr;
    case CodecId::kFp8:
      return Fp8FromParameter(p);
    case CodecId::kMxFp8:
      return p <= 1 ? MakeMxFp8(p == 1) : nullptr;
    case CodecId::kMxFp4:
      return p == 0 ? MakeMxFp4() : nullptr;
    case CodecId::kMxInt8:
      return p == 0 ? MakeMxInt8() : nullptr;
    case CodecId::kRandK:
      return RandKFromParameter(p);
    case CodecId::kEden:
      return EdenFromParameter(p);
    case CodecId::kHq:
      return HqFromParameter(p);
    case CodecId::kPowerSgd:
      return p >= 1 && p <= kMaxRank ? MakePowerSgd(p) : nullptr;
    case CodecId::kSketch:
      return SketchFromParameter(p);
    case CodecId::kZeros:
      return p == 0 ? MakeZeros(MakeFp32()) : nullptr;
    case CodecId::kZstd:
    case CodecId::kLz4:
      return p == 0 ? MakeStageDecoder(id) : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Codec>> CodecFromHeader(uint16_t id, uint32_t parameter) {
  if (id < static_cast<uint16_t>(CodecId::kFp32) || id > static_cast<uint16_t>(CodecId::kZeros)) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment codec ", id,
                     " is not a float codec; known are 2 (fp32) to 21 (zeros): the header is "
                     "damaged or of another release"));
  }
  CodecPtr codec = FromParameter(static_cast<CodecId>(id), parameter);
  if (codec != nullptr) return codec;
  return absl::InvalidArgumentError(
      absl::StrCat("segment codec ", id, ": parameter ", parameter,
                   " is out of its range; the header is damaged or of another release"));
}

std::vector<Capabilities> AllCodecs() {
  std::vector<Capabilities> rows = {{.id = CodecId::kRawInt64,
                                     .name = "int64",
                                     .linear = true,
                                     .unbiased = true,
                                     .needs_error_feedback = false,
                                     .deterministic = true,
                                     .minimum_elements = 0}};
  for (const char* spec :
       {"fp32",       "fp16",        "bf16",       "int8",     "int4",        "int2",        "sign",
        "topk(0.01)", "fp8",         "mxfp8",      "mxfp4",    "mxint8",      "randk(0.01)", "eden",
        "hq",         "fp32 | zstd", "fp32 | lz4", "powersgd", "sketch(0.1)", "fp32 | zeros"}) {
    rows.push_back(MakeCodec(spec).value()->capabilities());
  }
  return rows;
}

}  // namespace tributary::compression
