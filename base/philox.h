// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3" (SC'11): the same numbers from any language, thread or device, by key and counter alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// In front of what CUDA's kernels call too; nothing to other compilers.
#ifdef __CUDACC__
#define TRIBUTARY_HOST_DEVICE __host__ __device__
#else
#define TRIBUTARY_HOST_DEVICE
#endif

namespace tributary {

// Four 32-bit words. Not std::array, whose members a kernel cannot call.
struct PhiloxBlock {
  uint32_t word[4];
  TRIBUTARY_HOST_DEVICE constexpr uint32_t operator[](size_t i) const { return word[i]; }
  // Words 0 and 1 as one number, word 0 the lower half: a key made of another.
  TRIBUTARY_HOST_DEVICE constexpr uint64_t Low64() const {
    return word[0] | uint64_t{word[1]} << 32;
  }
};

// 128 random bits for a 128-bit counter (word 0 the least significant) and a 64-bit key (low word
// first).
TRIBUTARY_HOST_DEVICE constexpr PhiloxBlock Philox4x32(uint64_t key, PhiloxBlock c) {
  uint32_t k0 = static_cast<uint32_t>(key);
  uint32_t k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

// A 64-bit hash of (seed, purpose, text): 64-bit FNV-1a over purpose, a zero byte and text, then
// one Philox block under `seed`. `purpose` keeps streams apart ("cohort", "codec", "split"): none
// is ever shared between two uses.
constexpr uint64_t SeededHash(uint64_t seed, std::string_view purpose, std::string_view text) {
  uint64_t h = 0xcbf29ce484222325;
  const auto mix = [&h](std::string_view bytes) {
    for (const char c : bytes) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  };
  mix(purpose);
  mix(std::string_view("\0", 1));
  mix(text);
  return Philox4x32(seed, {static_cast<uint32_t>(h), static_cast<uint32_t>(h >> 32), 0, 0}).Low64();
}

// A sequential stream over one key, for code that wants "the next number". Not thread-safe.
class PhiloxStream {
 public:
  TRIBUTARY_HOST_DEVICE explicit constexpr PhiloxStream(uint64_t key, uint64_t stream = 0)
      : key_(key), stream_(stream) {}
  TRIBUTARY_HOST_DEVICE constexpr uint32_t Next32() {
    if (at_ == 4) {
      block_ =
          Philox4x32(key_, {static_cast<uint32_t>(counter_), static_cast<uint32_t>(counter_ >> 32),
                            static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)});
      ++counter_;
      at_ = 0;
    }
    return block_[at_++];
  }
  TRIBUTARY_HOST_DEVICE constexpr uint64_t Next64() {
    const uint64_t low = Next32();
    return low | (uint64_t{Next32()} << 32);
  }
  TRIBUTARY_HOST_DEVICE constexpr double NextDouble() {  // [0, 1)
    return static_cast<double>(Next64() >> 11) * 0x1p-53;
  }
  // Uniform in [0, n), n > 0, without modulo bias (Lemire 2019).
  TRIBUTARY_HOST_DEVICE constexpr uint64_t NextBelow(uint64_t n) {
    while (true) {
      const unsigned __int128 m = static_cast<unsigned __int128>(Next64()) * n;
      const uint64_t low = static_cast<uint64_t>(m);
      if (low >= (0 - n) % n) return static_cast<uint64_t>(m >> 64);
    }
  }

 private:
  uint64_t key_;
  uint64_t stream_;
  uint64_t counter_ = 0;
  PhiloxBlock block_{};
  size_t at_ = 4;
};

}  // namespace tributary
