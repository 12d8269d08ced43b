// Places of non-zeros in a tile: Golomb-Rice coded gaps (Golomb 1966; Rice 1979), unary parts and
// remainders apart so that decoding has no serial bit reader, StreamVByte (Lemire, Kurz, Rupp 2018)
// where gaps are of very different sizes, or a bitmap; and the selection of the k largest.
#include <streamvbyte.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "compression/internal/sparse.h"
#include "compression/internal/sparse_places.h"

namespace tributary::compression {
namespace {

// Bytes of gaps in Golomb-Rice code: for each a unary quotient and `rice` bits.
size_t RiceBytes(std::span<const uint16_t> places, uint32_t rice) {
  size_t quotients = 0;
  int32_t before = -1;
  for (const uint16_t place : places) {
    quotients += static_cast<uint32_t>(place - before - 1) >> rice;
    before = place;
  }
  return (quotients + places.size() + 7) / 8 + RemainderBytes(places.size(), rice);
}

void AppendRice(std::span<const uint16_t> places, const TileEntry& entry,
                std::vector<uint8_t>* out) {
  const size_t at = out->size();
  out->resize(at + entry.index_bytes);
  uint8_t* unary = out->data() + at;
  uint8_t* rest = unary + (entry.index_bytes - RemainderBytes(places.size(), entry.tag));
  size_t unary_bit = 0, rest_bit = 0;
  int32_t before = -1;
  for (const uint16_t place : places) {
    const auto gap = static_cast<uint32_t>(place - before - 1);
    before = place;
    unary_bit += gap >> entry.tag;
    unary[unary_bit / 8] |= static_cast<uint8_t>(1 << unary_bit % 8);
    ++unary_bit;
    for (uint32_t b = 0; b < entry.tag; ++b, ++rest_bit) {
      rest[rest_bit / 8] |= static_cast<uint8_t>((gap >> b & 1) << rest_bit % 8);
    }
  }
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, "; the payload is damaged or of another codec"));
}

uint64_t CountBits(const uint8_t* p, size_t n) {
  uint64_t bits = 0;
  for (size_t at = 0; at < n; at += 8) {
    bits += static_cast<uint64_t>(std::popcount(LoadUpTo8(p + at, n - at)));
  }
  return bits;
}

absl::Status CheckRice(const TileEntry& entry, const uint8_t* p, uint32_t length) {
  const size_t rest_bytes = RemainderBytes(entry.count, entry.tag);
  if (entry.index_bytes <= rest_bytes) return Malformed("the places' bytes are too few");
  const size_t unary_bytes = entry.index_bytes - rest_bytes;
  if (p[unary_bytes - 1] == 0 || CountBits(p, unary_bytes) != entry.count) {
    return Malformed("the places do not match their number");
  }
  const size_t used = entry.count * entry.tag % 8;
  if (used != 0 && p[entry.index_bytes - 1] >> used != 0) {
    return Malformed("bits are set after the last place");
  }
  bool within = true;
  ForEachRicePlace(entry, p, [&](uint32_t place) { return within = place < length; });
  return within ? absl::OkStatus() : Malformed("a place is beyond the tile");
}

size_t StreamVByteBytes(std::span<const uint16_t> places) {
  size_t bytes = ControlBytes(places.size());
  int32_t before = -1;
  for (const uint16_t place : places) {
    const int32_t gap = place - before - 1;
    bytes += gap == 0 ? 0 : gap < 256 ? 1 : 2;
    before = place;
  }
  return bytes;
}

void AppendStreamVByte(std::span<const uint16_t> places, std::vector<uint8_t>* out) {
  std::vector<uint32_t> gaps;
  int32_t before = -1;
  for (const uint16_t place : places) {
    gaps.push_back(static_cast<uint32_t>(place - before - 1));
    before = place;
  }
  std::vector<uint8_t> bytes(ControlBytes(gaps.size()) + 4 * gaps.size() + kRoom);
  bytes.resize(
      streamvbyte_encode_0124(gaps.data(), static_cast<uint32_t>(gaps.size()), bytes.data()));
  out->insert(out->end(), bytes.begin(), bytes.end());
}

absl::Status CheckStreamVByte(const TileEntry& entry, const uint8_t* p, uint32_t length) {
  size_t bytes = ControlBytes(entry.count);
  if (bytes > entry.index_bytes) return Malformed("the places' bytes are too few");
  for (uint32_t j = 0; j < entry.count; ++j) {
    constexpr size_t kLengths[] = {0, 1, 2, 4};
    bytes += kLengths[p[j / 4] >> j % 4 * 2 & 3];
  }
  if (bytes != entry.index_bytes) return Malformed("the places do not match their number");
  if (entry.count % 4 != 0 && p[entry.count / 4] >> entry.count % 4 * 2 != 0) {
    return Malformed("bits are set after the last place");
  }
  uint32_t gaps[kTileElements];
  ReadGaps(entry, p, gaps);
  uint64_t next = 0;
  for (uint32_t j = 0; j < entry.count; ++j) {
    if (next + gaps[j] >= length) return Malformed("a place is beyond the tile");
    next += uint64_t{gaps[j]} + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckBitmap(const TileEntry& entry, const uint8_t* p, uint32_t length) {
  if (entry.index_bytes != (length + 7) / 8) return Malformed("the bitmap has another length");
  if (CountBits(p, entry.index_bytes) != entry.count) {
    return Malformed("the bitmap does not match the number of places");
  }
  if (length % 8 != 0 && p[entry.index_bytes - 1] >> length % 8 != 0) {
    return Malformed("a place is beyond the tile");
  }
  return absl::OkStatus();
}

}  // namespace

TileEntry AppendIndices(std::span<const uint16_t> places, uint32_t length,
                        std::vector<uint8_t>* out) {
  if (places.empty()) return {};
  TileEntry entry{static_cast<uint32_t>(places.size()), (length + 7) / 8, kBitmapTag};
  for (uint32_t rice = 0; rice < kBitmapTag; ++rice) {
    const size_t bytes = RiceBytes(places, rice);
    if (bytes < entry.index_bytes) {
      entry.index_bytes = static_cast<uint32_t>(bytes);
      entry.tag = rice;
    }
  }
  if (const size_t bytes = StreamVByteBytes(places); bytes < entry.index_bytes) {
    entry.index_bytes = static_cast<uint32_t>(bytes);
    entry.tag = kStreamVByteTag;
    AppendStreamVByte(places, out);
    return entry;
  }
  if (entry.tag != kBitmapTag) {
    AppendRice(places, entry, out);
    return entry;
  }
  const size_t at = out->size();
  out->resize(at + entry.index_bytes);
  for (const uint16_t place : places) {
    (*out)[at + place / 8] |= static_cast<uint8_t>(1 << place % 8);
  }
  return entry;
}

absl::Status CheckIndices(const TileEntry& entry, const uint8_t* p, uint32_t length,
                          uint16_t* out) {
  absl::Status status = entry.tag == kBitmapTag        ? CheckBitmap(entry, p, length)
                        : entry.tag == kStreamVByteTag ? CheckStreamVByte(entry, p, length)
                                                       : CheckRice(entry, p, length);
  if (status.ok()) ReadIndices(entry, p, out);
  return status;
}

void ReadIndices(const TileEntry& entry, const uint8_t* p, uint16_t* out) {
  ForEachPlace(entry, p, [&](uint32_t place) { *out++ = static_cast<uint16_t>(place); });
}

namespace {

// The k-th largest |bits|, and how many of exactly that are among the k.
struct Threshold {
  uint32_t bits = 0;
  uint64_t ties = 0;
};

// By counting, eleven bits at a time (31 in all).
Threshold FindThreshold(std::span<const std::span<const float>> parts, uint64_t k) {
  constexpr int kShifts[] = {20, 10, 0};
  constexpr int kWidths[] = {11, 10, 10};
  Threshold found{0, k};
  for (int pass = 0; pass < 3; ++pass) {
    std::array<uint64_t, 2048> counts{};
    const int above = kShifts[pass] + kWidths[pass];
    for (const std::span<const float> x : parts) {
      for (const float v : x) {
        const uint32_t bits = std::bit_cast<uint32_t>(v) & 0x7FFFFFFF;
        if (pass == 0 || bits >> above == found.bits) {
          ++counts[bits >> kShifts[pass] & ((1u << kWidths[pass]) - 1)];
        }
      }
    }
    uint32_t digit = (1u << kWidths[pass]) - 1;
    while (digit > 0 && counts[digit] < found.ties) found.ties -= counts[digit--];
    found.bits = found.bits << kWidths[pass] | digit;
  }
  return found;
}

// `ties` is lowered by the ties that x has among its own.
TensorPlan PlanBy(const Threshold& threshold, std::span<const float> x, uint64_t* ties) {
  TensorPlan plan;
  plan.threshold = threshold.bits;
  if (threshold.bits == 0) return plan;  // fewer than k are not zero: all those, no tie
  for (uint64_t i = 0; i < x.size() && *ties > 0; ++i) {
    if ((std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFF) != threshold.bits) continue;
    --*ties;
    plan.ties_end = i + 1;
  }
  return plan;
}

}  // namespace

TensorPlan SelectLargest(std::span<const float> x, uint64_t k) {
  Threshold threshold = FindThreshold({&x, 1}, k);
  return PlanBy(threshold, x, &threshold.ties);
}

uint64_t CountKept(double fraction, uint64_t elements) {
  const double wished = std::round(fraction * static_cast<double>(elements));
  return static_cast<uint64_t>(
      std::clamp(wished, 1.0, static_cast<double>(std::max<uint64_t>(elements, 1))));
}

std::vector<TensorPlan> PlanTogether(std::span<const std::span<const float>> tensors,
                                     double fraction) {
  uint64_t elements = 0;
  for (const std::span<const float> x : tensors) elements += x.size();
  std::vector<TensorPlan> plans(tensors.size());
  if (elements == 0) return plans;
  Threshold threshold = FindThreshold(tensors, CountKept(fraction, elements));
  for (size_t i = 0; i < tensors.size(); ++i) {
    plans[i] = PlanBy(threshold, tensors[i], &threshold.ties);
  }
  return plans;
}

}  // namespace tributary::compression
