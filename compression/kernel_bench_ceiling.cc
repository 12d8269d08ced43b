// The ceiling kernels of the bench.
#include <cstring>

#include "compression/internal/bench_ceiling.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compression/kernel_bench_ceiling.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::compression::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Words = hn::ScalableTag<uint64_t>;

template <class D>
HWY_INLINE hn::Vec<D> LoadWords(D d, const uint8_t* p) {
#if HWY_TARGET == HWY_SCALAR
  uint64_t word;
  std::memcpy(&word, p, 8);
  return hn::Set(d, word);
#else
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), p));
#endif
}

// Each vector of update bytes is added to kSpread vectors of the tile.
template <size_t kSpread>
HWY_INLINE void Spread(const uint8_t* p, size_t n, int64_t* acc, size_t elements) {
  const Words d;
  const size_t lanes = hn::Lanes(d);
  auto* tile = reinterpret_cast<uint64_t*>(acc);
  size_t i = 0;
  for (size_t at = 0; at + 8 * lanes <= n; at += 8 * lanes) {
    const auto v = LoadWords(d, p + at);
    if (i + kSpread * lanes > elements) continue;  // scales: read, but with no element of their own
    for (size_t s = 0; s < kSpread; ++s, i += lanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, tile + i), v), d, tile + i);
    }
  }
}

// Sparse: as many sums are touched as the update has 32-bit words, all over the tile, and fetched
// from memory 64 sums before that.
void Scatter(const uint8_t* p, size_t n, int64_t* acc, size_t elements) {
  const size_t stride = elements / (n / 4 + 1);
  constexpr size_t kAhead = 64;
  for (size_t i = 0; i < kAhead * stride && i < elements; i += stride) {
    __builtin_prefetch(acc + i, 1, 2);
  }
  for (size_t at = 0, i = 0; at + 4 <= n; at += 4, i += stride) {
    if (i + kAhead * stride < elements) __builtin_prefetch(acc + i + kAhead * stride, 1, 2);
    uint32_t word;
    std::memcpy(&word, p + at, 4);
    acc[i] += word;
  }
}

void Fold(const uint8_t* p, size_t n, int64_t* acc, size_t elements) {
  if (n >= 4 * elements) {
    Spread<2>(p, n, acc, elements);
  } else if (n >= 2 * elements) {
    Spread<4>(p, n, acc, elements);
  } else if (n >= elements) {
    Spread<8>(p, n, acc, elements);
  } else if (2 * n >= elements) {
    Spread<16>(p, n, acc, elements);
  } else if (4 * n >= elements) {
    Spread<32>(p, n, acc, elements);
  } else if (8 * n >= elements) {
    Spread<64>(p, n, acc, elements);
  } else {
    Scatter(p, n, acc, elements);
  }
}

// One sum of each `stride`, fetched from memory 64 sums before.
void Touch(size_t sums, int64_t* acc, size_t stride) {
  constexpr size_t kAhead = 64;
  for (size_t j = 0; j < kAhead && j < sums; ++j) __builtin_prefetch(acc + j * stride, 1, 2);
  for (size_t j = 0; j < sums; ++j) {
    if (j + kAhead < sums) __builtin_prefetch(acc + (j + kAhead) * stride, 1, 2);
    acc[j * stride] += 1;
  }
}

void Read(const uint8_t* p, size_t n, uint64_t* out) {
  const Words d;
  const size_t bytes = 8 * hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  size_t at = 0;
  for (; at + 4 * bytes <= n; at += 4 * bytes) {
    a = hn::Or(a, LoadWords(d, p + at));
    b = hn::Or(b, LoadWords(d, p + at + bytes));
    c = hn::Or(c, LoadWords(d, p + at + 2 * bytes));
    e = hn::Or(e, LoadWords(d, p + at + 3 * bytes));
  }
  // Lane by lane: GCC's sum over a vector is one of signed integers, whose overflow is undefined.
  uint64_t lanes[HWY_MAX_BYTES / 8];
  hn::StoreU(hn::Or(hn::Or(a, b), hn::Or(c, e)), d, lanes);
  *out = 0;
  for (size_t i = 0; i < hn::Lanes(d); ++i) *out |= lanes[i];
}

// Of every 4 bytes read, out_bytes / n are written: the loads of a group are joined into one store.
void Encode(const float* x, size_t n, uint8_t* out, size_t out_bytes) {
  const Words d;
  const size_t bytes = 8 * hn::Lanes(d);
  const auto* p = reinterpret_cast<const uint8_t*>(x);
  size_t group = 1;
  while (group < 32 && group * out_bytes < 4 * n) group *= 2;
  size_t to = 0;
  for (size_t at = 0; at + group * bytes <= 4 * n && to + bytes <= out_bytes;
       at += group * bytes, to += bytes) {
    auto v = LoadWords(d, p + at);
    for (size_t g = 1; g < group; ++g) v = hn::Or(v, LoadWords(d, p + at + g * bytes));
#if HWY_TARGET == HWY_SCALAR
    const uint64_t word = hn::GetLane(v);
    std::memcpy(out + to, &word, 8);
#else
    const hn::Repartition<uint8_t, Words> d8;
    hn::StoreU(hn::BitCast(d8, v), d8, out + to);
#endif
  }
}

}  // namespace tributary::compression::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::compression {

HWY_EXPORT(Fold);
HWY_EXPORT(Read);
HWY_EXPORT(Touch);
HWY_EXPORT(Encode);

void CeilingFold(const uint8_t* p, size_t n, int64_t* acc, size_t elements) {
  HWY_DYNAMIC_DISPATCH(Fold)(p, n, acc, elements);
}
uint64_t CeilingRead(const uint8_t* p, size_t n) {
  uint64_t out = 0;
  HWY_DYNAMIC_DISPATCH(Read)(p, n, &out);
  return out;
}
void CeilingTouch(size_t sums, int64_t* acc, size_t stride) {
  HWY_DYNAMIC_DISPATCH(Touch)(sums, acc, stride);
}
void CeilingEncode(const float* x, size_t n, uint8_t* out, size_t out_bytes) {
  HWY_DYNAMIC_DISPATCH(Encode)(x, n, out, out_bytes);
}

}  // namespace tributary::compression
#endif  // HWY_ONCE
