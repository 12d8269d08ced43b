// Private to client/trainer: a whole file, its checksum compared, unpacked from gzip (RFC 1952).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace tributary::client::trainer {

// NOT_FOUND or PERMISSION_DENIED with the path and errno's text.
absl::StatusOr<std::vector<uint8_t>> ReadWholeFile(const std::string& path);

// OK where the bytes' SHA-256 is `sha256` (hex); else DATA_LOSS with both.
absl::Status CheckSha256(const std::string& path, ByteSpan bytes, std::string_view sha256);

// DATA_LOSS: not gzip, damaged, or more than `limit` bytes when unpacked.
absl::StatusOr<std::vector<uint8_t>> Gunzip(const std::string& path, ByteSpan packed, size_t limit);

}  // namespace tributary::client::trainer
