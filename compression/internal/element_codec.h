// What fp32, fp16 and bf16 share: one fixed-width number an element, back to back, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compression/codec.h"
#include "compression/internal/fold_many.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

// A number format and its kernels. Magnitude bits are an element's bits without the sign: as
// integers they are ordered as the values are.
struct ElementFormat {
  Capabilities capabilities;
  size_t width;                         // bytes an element
  uint32_t largest_finite;              // magnitude bits
  uint32_t first_overflow;              // magnitude bits of the smallest fp32 that does not fit
  double (*value)(uint32_t magnitude);  // of finite magnitude bits
  uint32_t (*bits)(const uint8_t* element);  // magnitude bits
  // Kernels, over n elements. MaxMagnitude is of the encoded elements.
  uint32_t (*max_magnitude)(const uint8_t* p, size_t n);
  void (*fold)(const uint8_t* p, size_t n, const FoldArgs& args, int64_t* acc);
  // Of `count` updates' runs at once, whose weights are in the runs; args has the grid's own part.
  void (*fold_many)(const ManyRun* runs, size_t count, size_t n, const FoldArgs& args,
                    int64_t* acc);
  void (*decode)(const uint8_t* p, size_t n, float* out);
  // Appends the encoding of x, all of whose elements fit.
  void (*append)(std::span<const float> x, std::vector<uint8_t>* out);
};

class ElementCodec final : public Codec {
 public:
  explicit ElementCodec(ElementFormat format) : format_(std::move(format)) {}
  const Capabilities& capabilities() const override { return format_.capabilities; }
  uint32_t parameter() const override { return 0; }
  uint64_t EncodedBytes(uint64_t n) const override { return n * format_.width; }
  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override;
  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override;
  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override;
  void FoldMany(std::span<const FoldPart> parts, uint64_t count, int fraction_bits,
                int64_t* acc) const override;
  void Decode(const PiecedBytes& payload, std::span<float> out) const override;

 private:
  FoldArgs Args(const GridFold& grid) const;

  ElementFormat format_;
};

// What the 16-bit formats have alike; the rest is the format's own to fill in.
ElementFormat HalfElements(CodecId id, const std::string& name);
// Makes `out` longer; where the new bytes begin.
inline uint8_t* Grow(std::vector<uint8_t>* out, size_t bytes) {
  const size_t at = out->size();
  out->resize(at + bytes);
  return out->data() + at;
}

// One a codec file.
std::shared_ptr<const Codec> MakeFp32();
std::shared_ptr<const Codec> MakeFp16();
std::shared_ptr<const Codec> MakeBf16();

// The largest |bits| of n floats, as an integer (fp32.cc's kernel): beyond 0x7F7FFFFF, one is not
// finite.
uint32_t MaxMagnitudeOf(const float* x, size_t n);

// INVALID_ARGUMENT that names the first x whose magnitude bits reach `limit`, for Encode.
absl::Status RefuseElement(const std::string& codec, std::span<const float> x, uint32_t limit);

// INVALID_ARGUMENT unless the payload has just the bytes that n elements take; `n` may be hostile.
absl::Status CheckLength(const Codec& codec, const PiecedBytes& payload, uint64_t n);

// GridFold as kernel arguments. `fits(limit)` is the largest |bits| whose value is <= limit, or -1.
template <class Fits>
FoldArgs MakeFoldArgs(const GridFold& grid, Fits fits) {
  FoldArgs args;
  args.scale = std::ldexp(1.0, grid.fraction_bits);
  args.weight = static_cast<uint64_t>(grid.weight);
  if (grid.weight > 0 && grid.weight <= INT32_MAX) {
    // The largest 24-bit number below 2^31, in units of 2^-f: q stays below 2^31.
    args.narrow_limit = static_cast<int32_t>(fits(std::ldexp(0x1.fffffep30, -grid.fraction_bits)));
  }
  return args;
}

}  // namespace tributary::compression
