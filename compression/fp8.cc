// Codecs of eight-bit and four-bit floats. fp8: the two formats of Micikevicius et al., "FP8
// Formats for Deep Learning" (2022), a float32 scale a block. mxfp8, mxfp4, mxint8: blocks of 32
// with a power-of-two scale, OCP Microscaling Formats (MX) Specification 1.0 (2023).
#include "compression/internal/block_format.h"
#include "compression/internal/mini_float.h"

namespace tributary::compression {
namespace {

BlockFormat FloatFormat(CodecId id, const char* name) {
  BlockFormat format;
  format.capabilities = {.id = id,
                         .name = name,
                         .linear = false,
                         .unbiased = false,
                         .needs_error_feedback = false,
                         .deterministic = true,
                         .minimum_elements = kSmallTensorElements};
  return format;
}

void SetFp8(BlockFormat* format, bool e5m2) {
  format->code_kind = e5m2 ? CodeKind::kE5M2 : CodeKind::kE4M3;
  format->largest = e5m2 ? E5M2::kLargest : E4M3::kLargest;
  format->top_exponent = e5m2 ? 15 : 8;
}

BlockFormat MxFormat(CodecId id, const char* name) {
  BlockFormat format = FloatFormat(id, name);
  format.block = kMxBlock;
  format.scale_kind = ScaleKind::kE8M0;
  return format;
}

}  // namespace

std::shared_ptr<const Codec> MakeFp8(uint32_t block, bool e5m2) {
  BlockFormat format = FloatFormat(CodecId::kFp8, "fp8");
  SetFp8(&format, e5m2);
  format.parameter = block | (e5m2 ? 1u << 16 : 0);
  format.block = block;
  return MakeBlockCodec(std::move(format));
}

std::shared_ptr<const Codec> MakeMxFp8(bool e5m2) {
  BlockFormat format = MxFormat(CodecId::kMxFp8, "mxfp8");
  SetFp8(&format, e5m2);
  format.parameter = e5m2 ? 1 : 0;
  return MakeBlockCodec(std::move(format));
}

std::shared_ptr<const Codec> MakeMxFp4() {
  BlockFormat format = MxFormat(CodecId::kMxFp4, "mxfp4");
  format.bits = 4;
  format.code_kind = CodeKind::kE2M1;
  format.unit_exponent = -1;
  format.largest = 12;
  format.top_exponent = 2;
  return MakeBlockCodec(std::move(format));
}

std::shared_ptr<const Codec> MakeMxInt8() {
  BlockFormat format = MxFormat(CodecId::kMxInt8, "mxint8");
  format.unit_exponent = -6;
  format.levels = 127;
  format.largest = 128;
  format.top_exponent = 0;
  return MakeBlockCodec(std::move(format));
}

}  // namespace tributary::compression
