// Byte stages behind a codec: zstd and lz4, kept only where they win.
#pragma once

#include <cstdint>
#include <memory>

#include "compression/codec.h"

namespace tributary::compression {

// Before the compressed bytes: u16 inner codec, u16 0, u32 inner parameter, u32 inner bytes.
inline constexpr size_t kStageHeadBytes = 12;
// A stage's segment stays short, for it is decompressed for each of its tiles; and what a byte of
// it may become is bounded.
inline constexpr uint64_t kMaxStageTiles = 8;
inline constexpr uint64_t kMaxStageRatio = 32768;

std::shared_ptr<const Codec> MakeZstd(std::shared_ptr<const Codec> inner, int level);
std::shared_ptr<const Codec> MakeLz4(std::shared_ptr<const Codec> inner);
// To decode: what is inside, each payload says.
std::shared_ptr<const Codec> MakeStageDecoder(CodecId id);

}  // namespace tributary::compression
