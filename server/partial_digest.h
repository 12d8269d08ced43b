// What identifies the packed chunks of a partial sum, from its first on (docs/wire-format.md,
// "Digest").
#pragma once

#include <cstdint>
#include <string>

#include "base/bytes.h"

namespace tributary::server {

// Eight bytes a chunk: the digest of any number of first chunks can be asked for at any time.
// Against mix-ups and damage, not against a forger. Not thread-safe.
class PartialDigest {
 public:
  void Add(ByteSpan packed);
  uint64_t chunks() const { return records_.size() / kRecordBytes; }
  std::string Value() const;  // SHA-256 of what was added, 32 raw bytes
  void Clear() { records_.clear(); }

 private:
  static constexpr size_t kRecordBytes = 8;
  std::string records_;  // of each chunk its length and its CRC32C
};

}  // namespace tributary::server
