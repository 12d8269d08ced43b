// The digest of packed chunks.
#include "server/partial_digest.h"

#include "base/checksum.h"

namespace tributary::server {
namespace {

void AppendLittleEndian(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>(value >> shift));
}

}  // namespace

void PartialDigest::Add(ByteSpan packed) {
  AppendLittleEndian(static_cast<uint32_t>(packed.size()), &records_);
  AppendLittleEndian(Crc32c(packed), &records_);
}

std::string PartialDigest::Value() const {
  return Sha256Of({reinterpret_cast<const uint8_t*>(records_.data()), records_.size()});
}

}  // namespace tributary::server
