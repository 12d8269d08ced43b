// Which codec each tensor gets: a run's compression spec, with stages, rules and error feedback.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "compression/codec.h"

namespace tributary::compression {

struct TensorCodec {
  std::shared_ptr<const Codec> codec;
  // What encoding loses is added to the next delta of this client (EF: Seide et al. 2014;
  // Karimireddy et al. 2019).
  bool error_feedback = false;
};

// Immutable, thread-safe. The text is
//
//   chain { ";" pattern "=" chain }
//   chain = codec { "|" stage }          stages: ef, then zstd, zstd(level=N) or lz4
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
  bool error_feedback() const;  // of any tensor

 private:
  struct Rule {
    std::string pattern;
    TensorCodec codec;
  };
  TensorCodec usual_, small_;
  std::vector<Rule> rules_;
  bool small_given_ = false;
};

}  // namespace tributary::compression
