// Fuzz target: any bytes as a codec's payload. What Validate passes must fold, alone and with
// others, and decode within its elements, and within the bound.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "compression/codec.h"

namespace {

using tributary::ByteSpan;
using tributary::PiecedBytes;
namespace codecs = tributary::compression;

// Above all that golden files have; the sums of three, below, stay under 2^63.
constexpr double kBound = 1 << 16;
constexpr int64_t kGuard = 0x5A5A5A5A5A5A5A5A;

template <class T>
T Load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

void Require(bool good) {
  if (!good) std::abort();
}

// In two pieces, so that a unit may lie across them.
PiecedBytes Cut(ByteSpan bytes, size_t at) {
  PiecedBytes pieced;
  pieced.Append(bytes.first(std::min(at, bytes.size())));
  pieced.Append(bytes.subspan(std::min(at, bytes.size())));
  return pieced;
}

}  // namespace

// u16 codec, u16 cut, u32 parameter, u32 elements, payload.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 12) return 0;
  const auto id = Load<uint16_t>(data);
  const auto codec = codecs::CodecFromHeader(id, Load<uint32_t>(data + 4));
  if (!codec.ok()) return 0;
  const uint64_t n = Load<uint32_t>(data + 8) % (uint64_t{1} << 18);
  const PiecedBytes payload = Cut(ByteSpan(data + 12, size - 12), Load<uint16_t>(data + 2));
  if (!(*codec)->Validate(payload, n, kBound).ok()) return 0;
  std::vector<float> decoded(n);
  (*codec)->Decode(payload, decoded);
  for (const float v : decoded) Require(std::abs(v) <= static_cast<float>(kBound));
  const codecs::GridFold grid{.fraction_bits = 30, .weight = 1};
  std::vector<int64_t> whole(n + 1), tiles(n + 1);
  whole[n] = tiles[n] = kGuard;
  (*codec)->Fold(payload, 0, n, grid, whole.data());
  for (uint64_t at = 0; at < n; at += codecs::kTileElements) {
    (*codec)->Fold(payload, at, std::min(codecs::kTileElements, n - at), grid, tiles.data() + at);
  }
  Require(whole == tiles);
  // Three of it at once, one whole and two in pieces, as one after the other.
  const PiecedBytes other = Cut(ByteSpan(data + 12, size - 12), 0);
  const PiecedBytes* const payloads[] = {&payload, &other, &payload};
  std::vector<int64_t> many(n + 1), one(n + 1);
  many[n] = one[n] = kGuard;
  for (uint64_t at = 0; at < n; at += codecs::kTileElements) {
    const uint64_t count = std::min(codecs::kTileElements, n - at);
    std::vector<codecs::FoldPart> parts;
    for (int64_t u = 0; u < 3; ++u) {
      parts.push_back({payloads[u], at, 1 + 40'000 * u});
      (*codec)->Fold(*payloads[u], at, count, {30, 1 + 40'000 * u}, one.data() + at);
    }
    (*codec)->FoldMany(parts, count, 30, many.data() + at);
  }
  Require(many == one);
  return 0;
}
