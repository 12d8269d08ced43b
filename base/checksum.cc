// CRC32C by Intel's ISA-L (PCLMULQDQ where the CPU has it), SHA-256 by OpenSSL.
#include "base/checksum.h"

#include <isa-l/crc.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace tributary {

uint32_t ExtendCrc32c(uint32_t crc, ByteSpan bytes) {
  // ISA-L leaves the inversions of the standard to its caller, and takes an int as length.
  constexpr size_t kMost = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kMost);
    // The parameter is not const in ISA-L's C header, but is only read.
    state = crc32_iscsi(const_cast<unsigned char*>(bytes.data()), static_cast<int>(n), state);
    bytes = bytes.subspan(n);
  }
  return ~state;
}

struct Sha256::State {
  EVP_MD_CTX* ctx = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(ctx); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  // Only a missing provider or no memory can make this fail: neither leaves anything to do.
  if (state_->ctx == nullptr || EVP_DigestInit_ex(state_->ctx, EVP_sha256(), nullptr) != 1)
    std::abort();
}
Sha256::~Sha256() = default;

void Sha256::Update(ByteSpan bytes) {
  if (EVP_DigestUpdate(state_->ctx, bytes.data(), bytes.size()) != 1) std::abort();
}

std::string Sha256::Finish() && {
  std::string out(32, '\0');
  unsigned int length = 0;
  if (EVP_DigestFinal_ex(state_->ctx, reinterpret_cast<unsigned char*>(out.data()), &length) != 1 ||
      length != out.size()) {
    std::abort();
  }
  return out;
}

std::string Sha256Of(ByteSpan bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return std::move(hash).Finish();
}

}  // namespace tributary
