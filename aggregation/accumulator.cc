// Folding, packing and merging of exact sums.
#include "aggregation/accumulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/block_pack.h"
#include "base/status.h"
#include "compression/codec.h"

namespace tributary::aggregation {
namespace {

static_assert(kBlockElements == internal::kBlockValues);

// Sums are added modulo 2^64: right wherever the grid's proof holds, and defined where a peer lies.
int64_t WrappingAdd(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t WrappingSubtract(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

// acc[i] += weight * the update's grid integers of `count` elements from this tile's first on.
void FoldSegment(const EncodedUpdate::Segment& segment, const Tile& tile, uint64_t count,
                 const Grid& grid, int64_t weight, int64_t* acc) {
  const uint64_t begin = tile.first - segment.first;
  if (segment.codec == nullptr) {
    compression::FoldRawInt64(segment.payload, begin, count, weight, acc);
  } else {
    segment.codec->Fold(segment.payload, begin, count, {grid.fraction_bits, weight}, acc);
  }
}

// The segment's elements from this tile's first on, in tiles that begin within the range: all of
// such a tile is folded, beyond the range's end, too.
uint64_t CountWithin(const EncodedUpdate::Segment& segment, const Tile& tile, ElementRange range) {
  constexpr uint64_t kTile = compression::kTileElements;
  const uint64_t tiles = (range.end - tile.offset + kTile - 1) / kTile;
  return std::min(segment.first + segment.count - tile.first, tiles * kTile);
}

// Bits that hold any sum of a float tensor within the grid, as two's complement.
uint8_t FloatSumWidth(const Grid& grid) {
  const int element_bits = std::ilogb(grid.bound) + grid.fraction_bits;
  const auto largest = static_cast<unsigned __int128>(grid.max_weight) << element_bits;
  return static_cast<uint8_t>(
      std::min<int>(64, 1 + std::bit_width(static_cast<uint64_t>(largest))));
}

// The first tile that begins at `element` or after.
uint32_t TileAt(const std::vector<Tile>& tiles, uint64_t element) {
  return static_cast<uint32_t>(std::ranges::lower_bound(tiles, element, {}, &Tile::offset) -
                               tiles.begin());
}

uint64_t BlocksOf(uint64_t elements) { return (elements + kBlockElements - 1) / kBlockElements; }

}  // namespace

double GridMean(int64_t sum, uint64_t weight, int fraction_bits) {
  return std::ldexp(static_cast<double>(sum) / static_cast<double>(weight), -fraction_bits);
}

ExactAccumulator::ExactAccumulator(std::shared_ptr<const ModelLayout> layout, const Grid& grid)
    : layout_(std::move(layout)), grid_(grid) {
  FindStretches();
}

absl::StatusOr<std::unique_ptr<ExactAccumulator>> ExactAccumulator::Create(
    std::shared_ptr<const ModelLayout> layout, const Grid& grid) {
  std::unique_ptr<ExactAccumulator> self(new ExactAccumulator(std::move(layout), grid));
  const uint64_t bytes = self->layout_->elements() * sizeof(int64_t);
  if (bytes > 0) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no memory for the sums of ", self->layout_->elements(), " elements (", bytes,
          " bytes): ", std::strerror(errno), "; use a smaller model or a larger machine"));
    }
    // A wish: folding walks the whole of it, and fewer TLB misses are worth about a tenth.
    madvise(memory, bytes, MADV_HUGEPAGE);
    self->sums_ = static_cast<int64_t*>(memory);
    self->mapped_bytes_ = bytes;
  }
  self->Clear();
  return self;
}

ExactAccumulator::~ExactAccumulator() {
  if (sums_ != nullptr) munmap(sums_, mapped_bytes_);
}

void ExactAccumulator::FindStretches() {
  const uint8_t float_width = FloatSumWidth(grid_);
  for (uint32_t t = 0; t < layout_->tensors().size(); ++t) {
    const TensorSpec& tensor = layout_->tensors()[t];
    const uint64_t elements = layout_->TensorElements(t);
    if (tensor.policy == Policy::kSkip || elements == 0) continue;
    const Combine combine = tensor.policy == Policy::kMax     ? Combine::kMax
                            : tensor.policy == Policy::kFirst ? Combine::kFirst
                                                              : Combine::kAdd;
    // kNothing, which takes all 64 bits, may lie in MAX tensors.
    const uint8_t width = IsFloat(tensor.dtype) && combine != Combine::kMax ? float_width : 64;
    subtractable_ = subtractable_ && combine == Combine::kAdd;
    const uint64_t begin = layout_->TensorElementOffset(t);
    if (!stretches_.empty() && stretches_.back().combine == combine &&
        stretches_.back().max_width == width) {
      stretches_.back().end = begin + elements;
    } else {
      stretches_.push_back({begin, begin + elements, combine, width});
    }
    if (combine == Combine::kFirst) first_ids_.resize(layout_->tiles().size());
  }
}

void ExactAccumulator::Reset() {
  if (sums_ != nullptr) std::memset(sums_, 0, mapped_bytes_);
  Clear();
}

void ExactAccumulator::Clear() {
  for (const Stretch& stretch : stretches_) {
    if (stretch.combine == Combine::kMax)
      std::fill(sums_ + stretch.begin, sums_ + stretch.end, kNothing);
  }
  for (std::string& id : first_ids_) id.clear();
}

std::vector<ElementRange> ExactAccumulator::Split(int parts) const {
  const std::vector<Tile>& tiles = layout_->tiles();
  const uint64_t elements = layout_->elements();
  std::vector<ElementRange> ranges;
  uint64_t begin = 0;
  for (int part = 1; part <= parts; ++part) {
    uint64_t end = elements;
    if (part < parts) {
      // The tile boundary at or after the ideal cut. 128 bits: 2^38 elements times 256 parts is
      // well within.
      const auto cut =
          static_cast<uint64_t>(static_cast<unsigned __int128>(elements) * part / parts);
      const uint32_t tile = TileAt(tiles, cut);
      end = tile < tiles.size() ? tiles[tile].offset : elements;
    }
    if (end > begin) ranges.push_back({begin, end});
    begin = end;
  }
  if (ranges.empty()) ranges.push_back({0, 0});
  return ranges;
}

// --- Folding.

// `cursor` is of `segment`'s payload.
struct ExactAccumulator::Walk {
  const EncodedUpdate::Segment* segment = nullptr;
  compression::FoldCursor cursor;
};

void ExactAccumulator::Fold(std::span<const EncodedUpdate* const> updates, ElementRange range) {
  const std::vector<Tile>& tiles = layout_->tiles();
  // Only MAX and FIRST tensors need it.
  std::unique_ptr<int64_t[]> scratch;
  if (!subtractable_) scratch = std::make_unique<int64_t[]>(compression::kTileElements);
  std::vector<Walk> walks(updates.size());
  for (uint32_t tile = TileAt(tiles, range.begin);
       tile < tiles.size() && tiles[tile].offset < range.end; ++tile) {
    const Policy policy = layout_->tensors()[tiles[tile].tensor].policy;
    if (policy == Policy::kMean || policy == Policy::kSum) {
      AddToTile(updates, tile, range, 1, walks);
    } else {
      for (const EncodedUpdate* update : updates) FoldTile(*update, tile, scratch.get());
    }
  }
}

// `times` is 1, or -1 to undo: integers cancel to the bit. Updates that follow one another with the
// same codec go together; what can only be read whole is folded at its first tile, for all of the
// range.
void ExactAccumulator::AddToTile(std::span<const EncodedUpdate* const> updates, uint32_t index,
                                 ElementRange range, int64_t times, std::span<Walk> walks) {
  const Tile& tile = layout_->tiles()[index];
  const bool mean = layout_->tensors()[tile.tensor].policy == Policy::kMean;
  int64_t* const sums = sums_ + tile.offset;
  thread_local std::vector<compression::FoldPart> parts;
  const compression::Codec* codec = nullptr;
  const auto flush = [&] {
    if (codec != nullptr) codec->FoldMany(parts, tile.count, grid_.fraction_bits, sums);
    parts.clear();
  };
  for (size_t i = 0; i < updates.size(); ++i) {
    const EncodedUpdate::Segment& segment = updates[i]->ForTile(index);
    const int64_t weight = times * (mean ? updates[i]->weight() : 1);
    Walk& walk = walks[i];
    const bool first = walk.segment != &segment;
    if (first) walk = {.segment = &segment, .cursor = {}};
    if (segment.codec == nullptr) {
      FoldSegment(segment, tile, tile.count, grid_, weight, sums);
      continue;
    }
    if (segment.codec->folds_whole()) {
      if (first) FoldSegment(segment, tile, CountWithin(segment, tile, range), grid_, weight, sums);
      continue;
    }
    if (codec != nullptr && (codec->capabilities().id != segment.codec->capabilities().id ||
                             codec->parameter() != segment.codec->parameter())) {
      flush();
    }
    codec = segment.codec.get();
    parts.push_back({&segment.payload, tile.first - segment.first, weight, &walk.cursor});
  }
  flush();
}

// Of a tensor whose policy is MAX or FIRST.
void ExactAccumulator::FoldTile(const EncodedUpdate& update, uint32_t index, int64_t* scratch) {
  const Tile& tile = layout_->tiles()[index];
  const EncodedUpdate::Segment& segment = update.ForTile(index);
  int64_t* sums = sums_ + tile.offset;
  const Policy policy = layout_->tensors()[tile.tensor].policy;
  if (policy == Policy::kFirst && !TakesFirst(index, update.id())) return;
  std::fill(scratch, scratch + tile.count, 0);
  FoldSegment(segment, tile, tile.count, grid_, 1, scratch);
  if (policy == Policy::kFirst) {
    std::copy(scratch, scratch + tile.count, sums);
  } else {
    for (uint64_t i = 0; i < tile.count; ++i) sums[i] = std::max(sums[i], scratch[i]);
  }
}

// Whether this id's values replace those in the tile, and if so notes it. The same id again does: a
// partial sum reaches a tile in two parts where the tile lies across two chunks.
bool ExactAccumulator::TakesFirst(uint32_t tile, std::string_view id) {
  std::string& owner = first_ids_[tile];
  if (!owner.empty() && owner < id) return false;
  owner = id;
  return true;
}

absl::Status ExactAccumulator::CheckSubtractable(bool subtractable) {
  if (subtractable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "there are tensors with policy max or first, which nothing can be subtracted from; hold the "
      "contribution back until it is whole");
}

bool ExactAccumulator::CanSubtractChunk(uint64_t chunk) const {
  if (subtractable_) return true;
  const uint64_t begin = chunk * kChunkElements;
  const uint64_t end = begin + ElementsOf(chunk);
  for (const Stretch* s = &StretchAt(begin);
       s < stretches_.data() + stretches_.size() && s->begin < end; ++s) {
    if (s->combine != Combine::kAdd) return false;
  }
  return true;
}

absl::Status ExactAccumulator::Subtract(const EncodedUpdate& update, ElementRange range) {
  RETURN_IF_ERROR(CheckSubtractable(subtractable_));
  const std::vector<Tile>& tiles = layout_->tiles();
  const EncodedUpdate* const one = &update;
  Walk walk;
  for (uint32_t t = TileAt(tiles, range.begin); t < tiles.size() && tiles[t].offset < range.end;
       ++t) {
    AddToTile({&one, 1}, t, range, -1, {&walk, 1});
  }
  return absl::OkStatus();
}

// --- The packed form.

uint64_t ExactAccumulator::chunk_count() const {
  return (layout_->elements() + kChunkElements - 1) / kChunkElements;
}

uint64_t ExactAccumulator::ElementsOf(uint64_t chunk) const {
  return std::min(kChunkElements, layout_->elements() - chunk * kChunkElements);
}

const int64_t* ExactAccumulator::BlockOf(uint64_t chunk, uint64_t block, int64_t* padded) const {
  const int64_t* values = sums_ + chunk * kChunkElements + block * kBlockElements;
  const uint64_t count = std::min(kBlockElements, ElementsOf(chunk) - block * kBlockElements);
  if (count == kBlockElements) return values;
  std::fill(std::copy(values, values + count, padded), padded + kBlockElements, 0);
  return padded;
}

uint64_t ExactAccumulator::PackedBytes() const {
  int64_t padded[kBlockElements];
  uint64_t bytes = 0;
  for (uint64_t chunk = 0; chunk < chunk_count(); ++chunk) {
    const uint64_t blocks = BlocksOf(ElementsOf(chunk));
    bytes += blocks;
    for (uint64_t block = 0; block < blocks; ++block) {
      bytes += internal::BlockWidth(BlockOf(chunk, block, padded)) * internal::kBytesPerBit;
    }
  }
  return bytes;
}

size_t ExactAccumulator::PackChunk(uint64_t chunk, uint8_t* out) const {
  const uint64_t blocks = BlocksOf(ElementsOf(chunk));
  uint8_t* to = out + blocks;
  int64_t padded[kBlockElements];
  for (uint64_t block = 0; block < blocks; ++block) {
    const int64_t* values = BlockOf(chunk, block, padded);
    const size_t width = internal::BlockWidth(values);
    out[block] = static_cast<uint8_t>(width);
    internal::PackBlock(values, width, to);
    to += width * internal::kBytesPerBit;
  }
  return static_cast<size_t>(to - out);
}

absl::Status ExactAccumulator::ValidateChunk(uint64_t chunk, ByteSpan packed) const {
  if (chunk >= chunk_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk ", chunk, " of a partial sum that has ", chunk_count(),
                     "; it was built from another layout, use the run's model"));
  }
  const uint64_t begin = chunk * kChunkElements;
  const uint64_t elements = std::min(kChunkElements, layout_->elements() - begin);
  const uint64_t blocks = BlocksOf(elements);
  if (packed.size() < blocks) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, " has ", packed.size(),
                                                   " bytes, fewer than its ", blocks,
                                                   " blocks' widths; send it again"));
  }
  uint64_t bytes = blocks;
  for (uint64_t block = 0; block < blocks; ++block) {
    const uint64_t first = begin + block * kBlockElements;
    const size_t limit = MaxWidth(first, std::min(first + kBlockElements, begin + elements));
    if (packed[block] > limit) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chunk ", chunk, ", block ", block, " is ", packed[block], " bits wide, the grid allows ",
          limit, "; the sender uses another grid or is damaged, restart it with the run's config"));
    }
    bytes += packed[block] * internal::kBytesPerBit;
  }
  if (packed.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, " has ", packed.size(),
                                                   " bytes, its widths say ", bytes,
                                                   "; send it again"));
  }
  return absl::OkStatus();
}

// The most bits that a block of these elements may need.
size_t ExactAccumulator::MaxWidth(uint64_t begin, uint64_t end) const {
  uint8_t width = 0;
  for (const Stretch* s = &StretchAt(begin);
       s < stretches_.data() + stretches_.size() && s->begin < end; ++s) {
    width = std::max(width, s->max_width);
  }
  return width;
}

const ExactAccumulator::Stretch& ExactAccumulator::StretchAt(uint64_t element) const {
  return *std::ranges::upper_bound(stretches_, element, {}, &Stretch::end);
}

void ExactAccumulator::MergeChunk(uint64_t chunk, ByteSpan packed, std::string_view first_id,
                                  ElementRange range) {
  ApplyChunk(chunk, packed, first_id, range, Direction::kAdd);
}

absl::Status ExactAccumulator::SubtractChunk(uint64_t chunk, ByteSpan packed, ElementRange range) {
  RETURN_IF_ERROR(CheckSubtractable(CanSubtractChunk(chunk)));
  ApplyChunk(chunk, packed, {}, range, Direction::kSubtract);
  return absl::OkStatus();
}

void ExactAccumulator::ApplyChunk(uint64_t chunk, ByteSpan packed, std::string_view first_id,
                                  ElementRange range, Direction direction) {
  const uint64_t begin = chunk * kChunkElements;
  const uint64_t end = std::min(begin + kChunkElements, layout_->elements());
  const uint64_t blocks = BlocksOf(end - begin);
  const uint8_t* from = packed.data() + blocks;
  for (uint64_t block = 0; block < blocks; ++block) {
    const size_t width = packed[block];
    const uint8_t* bits = from;
    from += width * internal::kBytesPerBit;
    const uint64_t first = begin + block * kBlockElements;
    const uint64_t last = std::min(first + kBlockElements, end);
    const uint64_t low = std::max(first, range.begin);
    const uint64_t high = std::min(last, range.end);
    if (low >= high) continue;
    const Stretch& stretch = StretchAt(low);
    const bool plain = stretch.combine == Combine::kAdd && stretch.end >= high;
    if (plain && high - low == kBlockElements) {
      if (direction == Direction::kAdd) {
        internal::UnpackAddBlock(bits, width, sums_ + first);
      } else {
        internal::UnpackSubtractBlock(bits, width, sums_ + first);
      }
      continue;
    }
    int64_t values[kBlockElements];
    internal::UnpackBlock(bits, width, values);
    ApplyValues(values + (low - first), low, high, first_id, direction);
  }
}

// Combines values with the elements [begin, end), which may lie in several stretches.
void ExactAccumulator::ApplyValues(const int64_t* values, uint64_t begin, uint64_t end,
                                   std::string_view first_id, Direction direction) {
  const std::vector<Tile>& tiles = layout_->tiles();
  while (begin < end) {
    const Stretch& stretch = StretchAt(begin);
    uint64_t stop = std::min(end, stretch.end);
    int64_t* sums = sums_ + begin;
    switch (stretch.combine) {
      case Combine::kAdd:
        for (uint64_t i = 0; i < stop - begin; ++i) {
          sums[i] = direction == Direction::kAdd ? WrappingAdd(sums[i], values[i])
                                                 : WrappingSubtract(sums[i], values[i]);
        }
        break;
      case Combine::kMax:
        for (uint64_t i = 0; i < stop - begin; ++i) sums[i] = std::max(sums[i], values[i]);
        break;
      case Combine::kFirst: {
        const uint32_t tile = TileAt(tiles, begin + 1) - 1;  // the tile that holds `begin`
        stop = std::min(stop, tiles[tile].offset + tiles[tile].count);
        if (TakesFirst(tile, first_id)) std::copy(values, values + (stop - begin), sums);
        break;
      }
    }
    values += stop - begin;
    begin = stop;
  }
}

}  // namespace tributary::aggregation
