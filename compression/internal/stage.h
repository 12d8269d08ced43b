// Stages behind a codec, kept only where they win: zeros, then zstd or lz4.
#pragma once

#include <cstdint>
#include <memory>

#include "compression/codec.h"

namespace tributary::compression {

// Before the compressed bytes: u16 inner codec, u16 0, u32 inner parameter, u32 inner bytes.
inline constexpr size_t kStageHeadBytes = 12;
// A stage's segment stays short: it is decompressed as a whole, by each worker that folds a part of
// it, and its tiles' sums should still be in a cache; and what a byte of it may become is bounded.
inline constexpr uint64_t kMaxStageTiles = 8;
inline constexpr uint64_t kMaxStageRatio = 32768;

// Elements that are left out, or not, together.
inline constexpr uint64_t kZeroBlock = 256;

// Whether a payload of `id` may lie within one of `stage`: zeros within zstd and lz4, no stage
// within itself, and no sketch, whose cells are not elements, in any.
inline bool MayBeWithin(uint16_t id, CodecId stage) {
  const auto inner = static_cast<CodecId>(id);
  if (inner == CodecId::kZstd || inner == CodecId::kLz4 || inner == CodecId::kSketch) return false;
  return inner != CodecId::kZeros || stage != CodecId::kZeros;
}

std::shared_ptr<const Codec> MakeZeros(std::shared_ptr<const Codec> inner);
std::shared_ptr<const Codec> MakeZstd(std::shared_ptr<const Codec> inner, int level);
std::shared_ptr<const Codec> MakeLz4(std::shared_ptr<const Codec> inner);
// What a stage's encoder is around; null of another codec.
const Codec* WithinZeros(const Codec& codec);
const Codec* WithinCompressed(const Codec& codec);  // zstd or lz4
// To decode: what is inside, each payload says.
std::shared_ptr<const Codec> MakeStageDecoder(CodecId id);

}  // namespace tributary::compression
