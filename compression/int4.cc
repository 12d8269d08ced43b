// Codecs int4 and int2: blocks of a float32 scale and four- or two-bit integers, rounded at random
// as in QSGD (Alistarh et al., NeurIPS 2017) or to nearest. int2's three levels are TernGrad's (Wen
// et al., NeurIPS 2017), a scale a block.
#include "compression/internal/block_format.h"

namespace tributary::compression {
namespace {

std::shared_ptr<const Codec> MakeIntegers(CodecId id, const char* name, int bits, uint32_t block,
                                          bool stochastic) {
  BlockFormat format;
  format.capabilities = {.id = id,
                         .name = name,
                         .linear = false,
                         .unbiased = stochastic,
                         .needs_error_feedback = false,
                         .deterministic = !stochastic,
                         .minimum_elements = kSmallTensorElements};
  format.parameter = block;
  format.block = block;
  format.bits = bits;
  format.levels = (1 << (bits - 1)) - 1;
  format.largest = static_cast<float>(1 << (bits - 1));
  format.stochastic = stochastic;
  return MakeBlockCodec(std::move(format));
}

}  // namespace

std::shared_ptr<const Codec> MakeInt4(uint32_t block, bool stochastic) {
  return MakeIntegers(CodecId::kInt4, "int4", 4, block, stochastic);
}
std::shared_ptr<const Codec> MakeInt2(uint32_t block, bool stochastic) {
  return MakeIntegers(CodecId::kInt2, "int2", 2, block, stochastic);
}

}  // namespace tributary::compression
