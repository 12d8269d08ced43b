// Codec hq: integers of four or eight bits in steps that the whole run shares, so that aggregators
// add integers and never decode (homomorphic quantisation; as THC's uniform form, Li et al., NSDI
// 2024). What lies beyond the outermost level stays behind for error feedback.
#include "compression/internal/block_format.h"
#include "compression/internal/runs.h"

namespace tributary::compression {

std::shared_ptr<const Codec> MakeHq(int bits, int step_exponent, bool stochastic) {
  BlockFormat format;
  format.capabilities = {.id = CodecId::kHq,
                         .name = "hq",
                         .linear = true,
                         .unbiased = false,
                         .needs_error_feedback = true,
                         .deterministic = !stochastic,
                         .minimum_elements = kSmallTensorElements};
  format.parameter = static_cast<uint32_t>(bits) | static_cast<uint32_t>(step_exponent) << 8;
  format.block = kMaxBlock;
  format.bits = bits;
  format.scale_kind = ScaleKind::kShared;
  format.unit_exponent = -step_exponent;
  format.levels = (1 << (bits - 1)) - 1;
  format.largest = static_cast<float>(1 << (bits - 1));
  format.stochastic = stochastic;
  return MakeBlockCodec(std::move(format));
}

}  // namespace tributary::compression
