// Places of non-zeros in a tile: Golomb-Rice coded gaps (Golomb 1966; Rice 1979), unary parts and
// remainders apart so that decoding has no serial bit reader, StreamVByte (Lemire, Kurz, Rupp 2018)
// where gaps are of very different sizes, or a bitmap; and the selection of the k largest.
#include <streamvbyte.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "compression/internal/sparse.h"
#include "compression/internal/sparse_kernels.h"
#include "compression/internal/sparse_places.h"

namespace tributary::compression {
namespace {

// How far each place is behind the one before, neighbours 0.
std::vector<uint32_t> GapsOf(std::span<const uint16_t> places) {
  std::vector<uint32_t> gaps(places.size());
  int32_t before = -1;
  for (size_t j = 0; j < places.size(); ++j) {
    gaps[j] = static_cast<uint32_t>(places[j] - before - 1);
    before = places[j];
  }
  return gaps;
}

// Bytes of gaps in Golomb-Rice code: for each a unary quotient and `rice` bits. The compiler makes
// vectors of it.
size_t RiceBytes(std::span<const uint32_t> gaps, uint32_t rice) {
  uint32_t quotients = 0;  // of a tile's gaps, below 32,768 together
  for (const uint32_t gap : gaps) quotients += gap >> rice;
  return (quotients + gaps.size() + 7) / 8 + RemainderBytes(gaps.size(), rice);
}

void AppendRice(std::span<const uint32_t> gaps, const TileEntry& entry, std::vector<uint8_t>* out) {
  const size_t at = out->size();
  out->resize(at + entry.index_bytes);
  uint8_t* unary = out->data() + at;
  uint8_t* rest = unary + (entry.index_bytes - RemainderBytes(gaps.size(), entry.tag));
  const uint32_t mask = (1u << entry.tag) - 1;
  size_t unary_bit = 0;
  uint64_t word = 0;  // remainders that are not written yet, and how many bits they are
  uint32_t bits = 0;
  for (const uint32_t gap : gaps) {
    unary_bit += gap >> entry.tag;
    unary[unary_bit / 8] |= static_cast<uint8_t>(1 << unary_bit % 8);
    ++unary_bit;
    word |= uint64_t{gap & mask} << bits;
    bits += entry.tag;
    if (bits < 32) continue;
    StoreLe(static_cast<uint32_t>(word), rest);
    rest += 4;
    word >>= 32;
    bits -= 32;
  }
  std::memcpy(rest, &word, (bits + 7) / 8);
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

size_t StreamVByteBytes(std::span<const uint32_t> gaps) {
  uint32_t bytes = 0;
  for (const uint32_t gap : gaps) bytes += (gap > 0 ? 1 : 0) + (gap > 255 ? 1 : 0);
  return ControlBytes(gaps.size()) + bytes;
}

void AppendStreamVByte(std::span<const uint32_t> gaps, std::vector<uint8_t>* out) {
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
  const std::vector<uint32_t> gaps = GapsOf(places);
  for (uint32_t rice = 0; rice < kBitmapTag; ++rice) {
    const size_t bytes = RiceBytes(gaps, rice);
    if (bytes < entry.index_bytes) {
      entry.index_bytes = static_cast<uint32_t>(bytes);
      entry.tag = rice;
    }
  }
  if (const size_t bytes = StreamVByteBytes(gaps); bytes < entry.index_bytes) {
    entry.index_bytes = static_cast<uint32_t>(bytes);
    entry.tag = kStreamVByteTag;
    AppendStreamVByte(gaps, out);
    return entry;
  }
  if (entry.tag != kBitmapTag) {
    AppendRice(gaps, entry, out);
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
  if (entry.tag < kBitmapTag) return RicePlaces(entry, p, out);
  ForEachPlace(entry, p, [&](uint32_t place) { *out++ = static_cast<uint16_t>(place); });
}

namespace {

// The k-th largest |bits|, and how many of exactly that are among the k.
struct Threshold {
  uint32_t bits = 0;
  uint64_t ties = 0;
};

constexpr uint32_t kMostBits = 0x7FFFFFFF;
constexpr size_t kChunk = 2048;  // collected floats at a time stay in the first-level cache

// visit(floats) for stretches of those whose |bits| are in [low, high].
template <class Visit>
void ForThoseBetween(std::span<const std::span<const float>> parts, uint32_t low, uint32_t high,
                     Visit visit) {
  float found[kChunk + kKeptRoom];
  for (const std::span<const float> x : parts) {
    for (size_t at = 0; at < x.size(); at += kChunk) {
      const auto chunk = x.subspan(at, std::min(kChunk, x.size() - at));
      visit(std::span<const float>(found,
                                   CollectBetween(chunk.data(), chunk.size(), low, high, found)));
    }
  }
}

// How many floats have each digit. Equal digits often follow each other; four counters each keep
// an addition from waiting for the one before.
class DigitCounts {
 public:
  void Add(std::span<const float> x, int shift, int width) {
    const uint32_t mask = (1u << width) - 1;
    for (size_t i = 0; i < x.size(); ++i) {
      ++counts_[std::bit_cast<uint32_t>(x[i]) >> shift & mask][i % 4];
    }
  }
  uint64_t Of(uint32_t digit) const {
    const auto& c = counts_[digit];
    return c[0] + c[1] + c[2] + c[3];
  }

 private:
  std::array<std::array<uint64_t, 4>, 2048> counts_{};
};

// By counting, eleven bits at a time (31 in all); after the first pass only what can be it.
Threshold CountDown(std::span<const std::span<const float>> parts, uint64_t k) {
  constexpr int kShifts[] = {20, 10, 0};
  constexpr int kWidths[] = {11, 10, 10};
  Threshold found{0, k};
  for (int pass = 0; pass < 3; ++pass) {
    DigitCounts counts;
    const auto add = [&](std::span<const float> x) { counts.Add(x, kShifts[pass], kWidths[pass]); };
    if (pass == 0) {
      for (const std::span<const float> x : parts) add(x);
    } else {
      const int above = kShifts[pass] + kWidths[pass];
      const uint32_t low = found.bits << above;
      // Not zeros: how many have digit 0 is never asked.
      ForThoseBetween(parts, std::max(low, 1u), low | ((1u << above) - 1), add);
    }
    uint32_t digit = (1u << kWidths[pass]) - 1;
    while (digit > 0 && counts.Of(digit) < found.ties) found.ties -= counts.Of(digit--);
    found.bits = found.bits << kWidths[pass] | digit;
  }
  return found;
}

// |bits| that, by a sample, a few more than k elements reach; 0: no telling.
uint32_t LikelyReached(std::span<const std::span<const float>> parts, uint64_t elements,
                       uint64_t k) {
  const uint64_t stride = elements / std::clamp<uint64_t>(elements / 64, 512, 16384) | 1;
  std::vector<uint32_t> sample;
  uint64_t next = 0;
  for (const std::span<const float> x : parts) {
    for (; next < x.size(); next += stride) {
      sample.push_back(std::bit_cast<uint32_t>(x[next]) & kMostBits);
    }
    next -= x.size();
  }
  // Four deviations above the expected rank: one sample in some ten thousand is not enough.
  const double expected = static_cast<double>(k) / static_cast<double>(stride);
  const auto rank = static_cast<size_t>(expected + 4 * std::sqrt(expected) + 4);
  if (rank >= sample.size()) return 0;
  std::nth_element(sample.begin(), sample.begin() + static_cast<ptrdiff_t>(rank), sample.end(),
                   std::greater<>());
  return sample[rank];
}

Threshold FindThreshold(std::span<const std::span<const float>> parts, uint64_t k) {
  uint64_t elements = 0;
  for (const std::span<const float> x : parts) elements += x.size();
  // Where few are kept, all but a few are out by one look at them; and the few are small memory.
  const bool few = elements >= 4096 && k <= elements / 16;
  const uint32_t pivot = few ? LikelyReached(parts, elements, k) : 0;
  if (pivot == 0) return CountDown(parts, k);
  // Where many are equal, all of them reach it: those are counted where they are.
  const uint64_t most = elements / 8;
  std::vector<float> reaching;
  uint64_t reached = 0;
  ForThoseBetween(parts, pivot, kMostBits, [&](std::span<const float> x) {
    reached += x.size();
    if (reached <= most) reaching.insert(reaching.end(), x.begin(), x.end());
  });
  const std::span<const float> one = reaching;
  return reached < k || reached > most ? CountDown(parts, k) : CountDown({&one, 1}, k);
}

// `ties` is lowered by the ties that x has among its own.
TensorPlan PlanBy(const Threshold& threshold, std::span<const float> x, uint64_t* ties) {
  TensorPlan plan;
  plan.threshold = threshold.bits;
  if (threshold.bits == 0) return plan;  // fewer than k are not zero: all those, no tie
  plan.ties_end = AfterTies(x.data(), x.size(), threshold.bits, ties);
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
