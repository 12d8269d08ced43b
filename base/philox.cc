// The keyed hash over Philox.
#include "base/philox.h"

namespace tributary {

uint64_t SeededHash(uint64_t seed, std::string_view purpose, std::string_view text) {
  uint64_t h = 0xcbf29ce484222325;
  const auto mix = [&h](std::string_view bytes) {
    for (const char c : bytes) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  };
  mix(purpose);
  mix(std::string_view("\0", 1));
  mix(text);
  const PhiloxBlock out =
      Philox4x32(seed, {static_cast<uint32_t>(h), static_cast<uint32_t>(h >> 32), 0, 0});
  return out[0] | (uint64_t{out[1]} << 32);
}

}  // namespace tributary
