// What the codec tests share: inputs, an independent decoder, cutting payloads, looping over
// targets.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compression/codec.h"

namespace tributary::compression {

struct CodecCase {
  std::string spec;
  uint64_t block;  // 1 for the plain formats
  bool stochastic = false;
  // The payload of a tensor is the payloads of its parts back to back.
  bool cuts = true;
  std::string name() const { return spec.substr(0, spec.find_first_of("( ")); }
  bool has(const std::string& text) const { return spec.find(text) != std::string::npos; }
};
// Every codec, with its parameters; but for sketches, whose sums are of cells and not of elements.
const std::vector<CodecCase>& AllCases();
const std::vector<CodecCase>& SketchCases();
// Both.
std::vector<CodecCase> AllDecodedCases();
// The sizes at which something could go wrong.
std::vector<uint64_t> Sizes(const CodecCase& c, bool large);

// Names of input patterns; every element of each is within 4096 and finite.
const std::vector<std::string>& Patterns();
// Made once and kept.
const std::vector<float>& MakeInput(const std::string& pattern, uint64_t n);
std::vector<float> RandomFloats(uint64_t seed, uint64_t n, double deviation = 0.01);

// Where docs/wire-format.md adds element i of a tile to a sketch of `columns` columns.
struct SketchPlace {
  uint64_t cell;
  double sign;
};
SketchPlace SketchPlaceOf(uint64_t tile_key, uint64_t i, uint32_t row, uint64_t columns);

// The exact values of a payload (of a sketch: its estimates), by arithmetic of the test's own on
// the wire format's text.
std::vector<double> ReferenceValues(const CodecCase& c, std::span<const uint8_t> payload,
                                    uint64_t n);
// A bound that holds for every encoding of the patterns. A rotation can gather a block's energy, a
// cell its elements'.
inline double BoundOf(const CodecCase& c) {
  if (c.name() == "eden" || c.name() == "sketch") return 1 << 20;
  return c.name() == "powersgd" ? 1 << 23 : 8192;
}
// weight * rne(value * 2^f) by std::nearbyint and 128-bit integers; fails the test on overflow.
int64_t ReferenceTerm(double value, const GridFold& grid);
std::vector<int64_t> ReferenceTerms(std::span<const double> values, const GridFold& grid);
// How far a decoded value may be from x; `block_max` is the largest |x| of x's block.
using ErrorBound = std::function<double(double x, double block_max)>;
ErrorBound AllowedError(const CodecCase& c);
// Of each element's block.
std::vector<double> BlockMaxima(std::span<const float> x, uint64_t block);
// `decoded` is `values` as floats, and those are as near to x as `allowed` says.
void ExpectDecoded(std::span<const float> x, std::span<const double> maxima,
                   std::span<const float> decoded, std::span<const double> values,
                   const ErrorBound& allowed);

std::shared_ptr<const Codec> Make(const std::string& spec);
std::vector<uint8_t> Encode(const Codec& codec, std::span<const float> x,
                            const EncodeContext& context = {.key = 42, .round = 3, .tensor = 5});

// Elements [first, first + count) of a tensor, as a payload of their own.
struct Part {
  uint64_t first;
  uint64_t count;
  std::vector<uint8_t> payload;
};
// x as a sender cuts it: one part, or as many as the codec's longest segments make of it.
std::vector<Part> EncodeParts(const Codec& codec, std::span<const float> x);

// The bytes cut at random places into pieces that each lie alone, at any alignment.
class CutBytes {
 public:
  CutBytes(std::span<const uint8_t> bytes, uint64_t seed, size_t longest_piece);
  const PiecedBytes& bytes() const { return pieced_; }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> memory_;
  PiecedBytes pieced_;
};

// Runs `body` under each target that this CPU has, and says which of the build's it has not.
void ForEachTarget(const std::function<void(const std::string& target)>& body);

}  // namespace tributary::compression
