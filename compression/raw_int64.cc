// Raw int64: the deltas of non-float tensors, 8 bytes an element, little-endian.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "compression/codec.h"
#include "compression/internal/runs.h"
#include "compression/internal/scalar.h"

namespace tributary::compression {

void EncodeRawInt64(std::span<const int64_t> x, std::vector<uint8_t>* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(x.data());
  out->insert(out->end(), bytes, bytes + x.size_bytes());
}

absl::Status ValidateRawInt64(const PiecedBytes& payload, uint64_t n, int64_t bound) {
  if (n != payload.size() / 8 || payload.size() % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("int64 payload: ", payload.size(), " bytes do not hold ", n,
                     " elements of 8; the payload is cut short, too long, or of another codec"));
  }
  absl::Status status;
  ForEachRun(payload, 0, 8, n, [&](const uint8_t* p, uint64_t units, uint64_t done) {
    for (uint64_t i = 0; i < units; ++i) {
      const auto x = LoadLe<int64_t>(p + 8 * i);
      if (x >= -bound && x <= bound) continue;
      status = absl::OutOfRangeError(absl::StrCat("int64 payload: element ", done + i, " of ", n,
                                                  " is ", x, ", beyond the bound ", bound,
                                                  "; such a sum could overflow"));
      return false;
    }
    return true;
  });
  return status;
}

void FoldRawInt64(const PiecedBytes& payload, uint64_t begin, uint64_t count, int64_t weight,
                  int64_t* acc) {
  ForEachRun(payload, 8 * begin, 8, count, [&](const uint8_t* p, uint64_t units, uint64_t done) {
    for (uint64_t i = 0; i < units; ++i) {
      acc[done + i] =
          static_cast<int64_t>(static_cast<uint64_t>(acc[done + i]) +
                               static_cast<uint64_t>(weight) * LoadLe<uint64_t>(p + 8 * i));
    }
    return true;
  });
}

}  // namespace tributary::compression
