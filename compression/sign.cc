// Codec sign: one bit an element. With a scale a block, the mean magnitude, it is the compressor of
// EF-signSGD (Karimireddy et al., ICML 2019) and needs error feedback; as a vote (signSGD with
// majority vote, Bernstein et al., ICLR 2019) every element is plus or minus one step that all
// clients share, and sums are counts.
#include "compression/internal/block_format.h"
#include "compression/internal/runs.h"

namespace tributary::compression {
namespace {

BlockFormat SignFormat(bool vote) {
  BlockFormat format;
  format.capabilities = {.id = CodecId::kSign,
                         .name = "sign",
                         .linear = vote,
                         .unbiased = false,
                         .needs_error_feedback = !vote,
                         .deterministic = true,
                         .minimum_elements = kSmallTensorElements};
  format.bits = 1;
  format.code_kind = CodeKind::kSign;
  format.largest = 1;
  return format;
}

}  // namespace

std::shared_ptr<const Codec> MakeSign(uint32_t block) {
  BlockFormat format = SignFormat(/*vote=*/false);
  format.parameter = block;
  format.block = block;
  return MakeBlockCodec(std::move(format));
}

std::shared_ptr<const Codec> MakeSignVote(int step_exponent) {
  BlockFormat format = SignFormat(/*vote=*/true);
  format.parameter = kVoteFlag | static_cast<uint32_t>(step_exponent);
  format.block = kMaxBlock;
  format.scale_kind = ScaleKind::kShared;
  format.unit_exponent = -step_exponent;
  return MakeBlockCodec(std::move(format));
}

}  // namespace tributary::compression
