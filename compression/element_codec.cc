// The codec that an element format makes: checks, walking the pieces, error messages.
#include "compression/internal/element_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/runs.h"

namespace tributary::compression {

absl::Status RefuseElement(const std::string& codec, std::span<const float> x, uint32_t limit) {
  for (size_t i = 0; i < x.size(); ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFF;
    if (magnitude < limit) continue;
    if (magnitude >= 0x7F800000) {
      return absl::InvalidArgumentError(absl::StrCat(codec, ": element ", i, " of ", x.size(),
                                                     " is ", x[i],
                                                     "; only finite numbers can be encoded"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(codec, ": element ", i, " of ", x.size(), " is ", x[i],
                     ", too large for this format; clip the update or choose codec fp32"));
  }
  return absl::OkStatus();
}

absl::Status CheckLength(const Codec& codec, const PiecedBytes& payload, uint64_t n) {
  // Every element takes a byte or more, so a claim beyond the payload is refused before n is
  // multiplied by anything.
  if (n <= payload.size() && codec.EncodedBytes(n) == payload.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      codec.capabilities().name, " payload: ", payload.size(), " bytes do not hold ", n,
      " elements", n <= payload.size() ? absl::StrCat(", which take ", codec.EncodedBytes(n)) : "",
      "; the payload is cut short, too long, or of another codec"));
}

ElementFormat HalfElements(CodecId id, const std::string& name) {
  ElementFormat format = {};
  format.capabilities = {.id = id,
                         .name = name,
                         .linear = false,
                         .unbiased = false,
                         .needs_error_feedback = false,
                         .deterministic = true,
                         .minimum_elements = kSmallTensorElements};
  format.width = 2;
  format.bits = [](const uint8_t* p) { return uint32_t{LoadLe<uint16_t>(p)} & 0x7FFF; };
  return format;
}

absl::Status ElementCodec::Encode(std::span<const float> x, const EncodeContext&,
                                  std::vector<uint8_t>* out) const {
  if (MaxMagnitudeOf(x.data(), x.size()) >= format_.first_overflow) {
    return RefuseElement(format_.capabilities.name, x, format_.first_overflow);
  }
  format_.append(x, out);
  return absl::OkStatus();
}

absl::Status ElementCodec::Validate(const PiecedBytes& payload, uint64_t n, double bound) const {
  RETURN_IF_ERROR(CheckLength(*this, payload, n));
  const int64_t limit = LargestBitsAtMost(bound, format_.largest_finite, format_.value);
  absl::Status status;
  ForEachRun(payload, 0, format_.width, n, [&](const uint8_t* p, uint64_t units, uint64_t done) {
    if (static_cast<int64_t>(format_.max_magnitude(p, units)) <= limit) return true;
    uint64_t i = 0;
    while (static_cast<int64_t>(format_.bits(p + i * format_.width)) <= limit) ++i;
    float value;
    format_.decode(p + i * format_.width, 1, &value);
    const bool finite = format_.bits(p + i * format_.width) <= format_.largest_finite;
    const std::string where =
        absl::StrCat(format_.capabilities.name, " payload: element ", done + i, " of ", n);
    status = finite ? absl::OutOfRangeError(
                          absl::StrCat(where, " is ", value, ", beyond the bound ", bound))
                    : absl::DataLossError(absl::StrCat(where, " is infinite or not a number"));
    return false;
  });
  return status;
}

FoldArgs ElementCodec::Args(const GridFold& grid) const {
  return MakeFoldArgs(grid, [&](double limit) {
    return LargestBitsAtMost(limit, format_.largest_finite, format_.value);
  });
}

void ElementCodec::Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count,
                        const GridFold& grid, int64_t* acc) const {
  const FoldArgs args = Args(grid);
  ForEachRun(payload, begin * format_.width, format_.width, count,
             [&](const uint8_t* p, uint64_t units, uint64_t done) {
               format_.fold(p, units, args, acc + done);
               return true;
             });
}

void ElementCodec::FoldMany(std::span<const FoldPart> parts, uint64_t count, int fraction_bits,
                            int64_t* acc) const {
  const FoldArgs args = Args({fraction_bits, 1});
  ByWeight(
      parts,
      [&](std::span<const FoldPart> group) {
        ForEachCommonRun(
            group, [&](const FoldPart& part) { return part.begin * format_.width; }, format_.width,
            count,
            [&](std::span<const ManyRun> runs, uint64_t n, uint64_t done) {
              format_.fold_many(runs.data(), runs.size(), n, args, acc + done);
            });
      },
      [&](const FoldPart& part) {
        Fold(*part.payload, part.begin, count, {fraction_bits, part.weight}, acc);
      });
}

void ElementCodec::Decode(const PiecedBytes& payload, std::span<float> out) const {
  ForEachRun(payload, 0, format_.width, out.size(),
             [&](const uint8_t* p, uint64_t units, uint64_t done) {
               format_.decode(p, units, out.data() + done);
               return true;
             });
}

}  // namespace tributary::compression
