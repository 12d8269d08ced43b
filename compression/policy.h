// Which codec each tensor gets: a run's compression spec, with stages, rules and error feedback.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "compression/codec.h"
#include "compression/planes.h"

namespace tributary::compression {

// What a client keeps of a tensor from one of its updates to the next. With d the delta, C the
// codec and what the server decodes from it:
//   ef    x = d + decay e;               sent C(x);      e = x - C(x)
//         momentum > 0:  u = momentum u + d,  x = u + decay e;  u is 0 where something was sent
//   ef21  x = d - g;                     sent C(x);      g = g + C(x)
// e, u and g start at 0 and move only where the update counted.
struct TensorCodec {
  std::shared_ptr<const Codec> codec;
  // EF: Seide et al. 2014; Karimireddy et al. 2019. Below 1, `decay` forgets what is old: a
  // residual of a client that is seldom drawn is of a model long gone. Momentum correction and its
  // masking: Deep Gradient Compression, Lin et al. 2018.
  bool error_feedback = false;
  float decay = 1;     // [0, 1]
  float momentum = 0;  // [0, 1)
  // EF21: Richtarik, Sokolov, Fatkhullin 2021. Updates are changes of the client's estimate, which
  // the root adds up (aggregation/ef21.h). Not with error_feedback.
  bool estimate = false;
  // Tensors that are made of such planes travel as the coefficients of their DCT (planes.h), and d
  // is that of the delta; the root takes sums back (aggregation/in_planes.h).
  PlaneShape planes{};

  bool keeps_state() const { return error_feedback || estimate; }
};

// Immutable, thread-safe. The text is
//
//   chain { ";" pattern "=" chain }
//   chain = codec { "|" stage }          stages: dct(ROWSxCOLUMNS); ef, ef(decay=D, momentum=M) or
//                                        ef21; then zstd, zstd(level=N) or lz4
//
// e.g. "topk(0.01, values=ternary) | zstd; small = int8; head.* = fp16". A tensor gets the first
// rule whose pattern (with * and ?) is its name; else, where the codec at the front has
// minimum_elements and the tensor has fewer, or one dimension, the rule named "small", which is
// fp32 unless given; else the chain at the front. Codecs that need error feedback have it without
// being told.
class CodecPolicy {
 public:
  // INVALID_ARGUMENT names the spec, what is wrong or why a chain cannot be, and the mend.
  static absl::StatusOr<std::shared_ptr<const CodecPolicy>> Parse(std::string_view spec);
  // One codec for every tensor.
  static std::shared_ptr<const CodecPolicy> Uniform(std::shared_ptr<const Codec> codec);

  const TensorCodec& For(std::string_view name, uint64_t elements, size_t dimensions) const;
  // Of any tensor: that clients keep something (ef or ef21); that it is an estimate (ef21).
  bool error_feedback() const;
  bool estimates() const;
  bool transforms() const;  // dct

 private:
  struct Rule {
    std::string pattern;
    TensorCodec codec;
  };
  template <class Is>
  bool Any(Is is) const;

  TensorCodec usual_, small_;
  std::vector<Rule> rules_;
  bool small_given_ = false;
};

// The spec with "ef" in every chain that loses something, behind the codec (and its dct), before
// zeros, zstd and lz4: "topk(0.01) | zstd; small = fp16" becomes "topk(0.01) | ef | zstd; small =
// fp16 | ef". Rules are chains of their own, and get it too. Chains that have ef, ef(...) or ef21
// stay as they are, and so do those of fp32, which lose nothing. INVALID_ARGUMENT, naming the
// chain, the reason and the mend, where no chain loses anything, where a chain cannot have error
// feedback (randk with scaled values, sketch), and where Parse refuses the spec.
absl::StatusOr<std::string> WithErrorFeedback(std::string_view spec);

// Whether the encoded values of all tensors add up without being decoded (Capabilities::linear).
// INVALID_ARGUMENT, naming the chain, the reason and the linear codecs, where those of some do not:
// its codec's, a stage's that works on bytes, or the fp32 of small tensors that no rule takes; and
// where Parse refuses the spec.
absl::Status CheckLinear(std::string_view spec);

}  // namespace tributary::compression
