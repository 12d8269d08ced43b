// The two checksums of the wire formats: CRC32C (RFC 3720, Castagnoli) for chunks, SHA-256 for
// models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"

namespace tributary {

// CRC32C of the bytes seen so far, `crc` being 0 at the start. Thread-safe.
uint32_t ExtendCrc32c(uint32_t crc, ByteSpan bytes);
inline uint32_t Crc32c(ByteSpan bytes) { return ExtendCrc32c(0, bytes); }

// Streaming SHA-256 (FIPS 180-4). Not thread-safe.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void Update(ByteSpan bytes);
  std::string Finish() &&;  // 32 raw bytes; the object is spent

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string Sha256Of(ByteSpan bytes);  // 32 raw bytes

}  // namespace tributary
