// The kernel bench: kernel and ceiling take turns over an update larger than the caches.
#include "compression/kernel_bench.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <span>

#include "base/philox.h"
#include "compression/codec.h"
#include "compression/internal/bench_ceiling.h"
#include "compression/segment.h"

namespace tributary::compression {
namespace {

constexpr size_t kUpdates = 16;
// Updates of a power of two, side by side in large pages, would have all their bytes of a tile in
// one set of the second-level cache, which has fewer ways: those that came over a network do not.
constexpr size_t kApart = 8192 + 64;
// Of the codecs that make a tile tiny; encoding more would take minutes.
constexpr size_t kMaxTiles = 4096;
constexpr size_t kSumTiles = 1024;  // 256 MiB of sums

// Memory in large pages where they can be had, as the accumulator's sums are: what is measured are
// kernels and memory, not page tables, which cost fp32 a tenth to a third with sixteen updates.
class LargePages {
 public:
  explicit LargePages(size_t bytes)
      : bytes_(std::max<size_t>(bytes, 1)),
        memory_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) std::abort();
    madvise(memory_, bytes_, MADV_HUGEPAGE);
  }
  ~LargePages() { munmap(memory_, bytes_); }
  LargePages(const LargePages&) = delete;
  LargePages& operator=(const LargePages&) = delete;
  template <class T>
  T* As() const {
    return static_cast<T*>(memory_);
  }

 private:
  const size_t bytes_;
  void* const memory_;
};

class Sums {
 public:
  explicit Sums(size_t tiles)
      : tiles_(std::min(tiles, kSumTiles)), memory_(tiles_ * kTileElements * sizeof(int64_t)) {}
  int64_t* Tile(size_t t) const { return memory_.As<int64_t>() + t % tiles_ * kTileElements; }

 private:
  const size_t tiles_;
  const LargePages memory_;
};

// Deltas as training makes them, about normal with deviation 0.01: four uniform numbers' sum.
std::vector<float> SyntheticDeltas(size_t n) {
  PhiloxStream random(1);
  std::vector<float> x(n);
  for (float& v : x) {
    double sum = -2;
    for (int k = 0; k < 4; ++k) sum += random.Next32() * 0x1p-32;
    v = static_cast<float>(sum * 0.0173);
  }
  return x;
}

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// `amount` per second of kernel and ceiling, in units of 1e9: the best of turns that alternate, so
// that a machine that slows down for a while slows both.
KernelFigure Compare(std::string name, std::string unit, double amount, int repetitions,
                     const std::function<void()>& kernel, const std::function<void()>& ceiling) {
  double best_kernel = std::numeric_limits<double>::infinity();
  double best_ceiling = best_kernel;
  for (int r = 0; r <= repetitions; ++r) {
    const double c = Seconds(ceiling);
    const double k = Seconds(kernel);
    if (r == 0) continue;  // the first turn warms up
    best_ceiling = std::min(best_ceiling, c);
    best_kernel = std::min(best_kernel, k);
  }
  KernelFigure figure{std::move(name), amount / best_kernel / 1e9, std::move(unit),
                      amount / best_ceiling / 1e9, 0};
  figure.ratio = figure.value / figure.ceiling;
  return figure;
}

// One codec's figures over one set of buffers: 16 updates of as many tiles, each cut into segments
// as on the wire.
class CodecBench {
 public:
  CodecBench(const std::string& name, const std::string& spec, const KernelBenchOptions& options)
      : name_(name),
        options_(options),
        codec_(MakeCodec(spec).value()),
        floats_(SyntheticDeltas(32 * kTileElements)),
        tile_bytes_(OneTile()),
        length_(Length()),
        tiles_(length_ * kUpdates),
        segment_tiles_(std::min(length_, ElementsPerSegment(*codec_) / kTileElements)),
        sums_(tiles_),
        cursors_(kUpdates) {
    std::vector<uint8_t> encoded;
    encoded.reserve(tiles_ * tile_bytes_ + tiles_ * tile_bytes_ / 8);
    std::vector<size_t> ends;
    for (size_t u = 0; u < kUpdates; ++u) {
      for (size_t t = 0; t < length_; t += segment_tiles_) {
        const std::vector<float> x = Floats(u * length_ + t, std::min(segment_tiles_, length_ - t));
        (void)codec_->Encode(x, {.key = 1, .first = t * kTileElements}, &encoded);
        ends.push_back(encoded.size());
      }
    }
    bytes_ = encoded.size();
    encoded_ = std::make_unique<LargePages>(bytes_ + kUpdates * kApart);
    for (size_t s = 0; s < ends.size(); ++s) {
      const size_t from = s == 0 ? 0 : ends[s - 1];
      uint8_t* const to = encoded_->As<uint8_t>() + from + s / SegmentsOfOne() * kApart;
      std::copy_n(encoded.data() + from, ends[s] - from, to);
      payloads_.emplace_back(ByteSpan(to, ends[s] - from));
    }
  }

  void AppendFigures(std::vector<KernelFigure>* out) {
    KernelFigure fold = FoldFigure();
    KernelFigure fold16 = Fold16Figure();
    for (KernelFigure* const one : {&fold, &fold16}) {
      const double elements = static_cast<double>(tiles_ * kTileElements);
      one->ns_an_element = Bytes() / one->value / elements;  // bytes over GB/s are nanoseconds
    }
    out->push_back(fold);
    out->push_back(fold16);
    if (!codec_->folds_whole()) out->push_back(TogetherFigure(fold, fold16));
    if (codec_->capabilities().id == CodecId::kTopK) {
      out->push_back(NonzeroFigure("kernels.nonzero.", fold, 1));
      out->push_back(NonzeroFigure("kernels.nonzero16.", fold16, kUpdates));
    }
    out->push_back(ValidateFigure());
    out->push_back(EncodeFigure());
    out->back().ns_an_element = 1 / out->back().value;
  }

 private:
  std::span<const float> Floats(size_t t) const {
    return std::span(floats_).subspan(t % 32 * kTileElements, kTileElements);
  }
  std::vector<float> Floats(size_t first, size_t tiles) const {
    std::vector<float> x;
    for (size_t t = first; t < first + tiles; ++t) {
      x.insert(x.end(), Floats(t).begin(), Floats(t).end());
    }
    return x;
  }
  double Bytes() const { return static_cast<double>(bytes_); }
  // A variable rate's tiles differ a little; this is the first one's.
  size_t OneTile() const {
    std::vector<uint8_t> out;
    (void)codec_->Encode(Floats(0), {.key = 1}, &out);
    return out.size();
  }
  // An update's tiles. Of what is folded a segment at a time: whole segments, of 8 tiles.
  size_t Length() const {
    const size_t tiles =
        std::clamp<size_t>(options_.update_bytes / tile_bytes_, kUpdates, kMaxTiles) / kUpdates;
    return codec_->folds_whole() ? (tiles + 7) / 8 * 8 : tiles;
  }
  size_t SegmentsOfOne() const { return (length_ + segment_tiles_ - 1) / segment_tiles_; }

  // Tile t of an update: its segment's payload, and which tile it is of that.
  struct Place {
    const PiecedBytes& payload;
    size_t tile;
    size_t tiles;  // of the segment
  };
  Place PlaceOf(size_t update, size_t t) const {
    const size_t within = t % segment_tiles_;
    return {payloads_[update * SegmentsOfOne() + t / segment_tiles_], within,
            std::min(segment_tiles_, length_ - (t - within))};
  }
  // The bytes of the tile; where a payload has none of its own, its share.
  ByteSpan Tile(size_t update, size_t t) const {
    const Place at = PlaceOf(update, t);
    const ByteSpan all = at.payload.pieces()[0];
    const size_t from = all.size() * at.tile / at.tiles;
    return all.subspan(from, all.size() * (at.tile + 1) / at.tiles - from);
  }
  FoldPart Part(size_t update, size_t t) {
    const Place at = PlaceOf(update, t);
    return {&at.payload, at.tile * kTileElements, 600 + static_cast<int64_t>(update),
            &cursors_[update]};
  }
  // As an accumulator folds a tile of the updates.
  void Fold(std::span<const FoldPart> parts, size_t t, int64_t* sums) {
    const bool first = t % segment_tiles_ == 0;
    if (first) std::ranges::fill(cursors_, FoldCursor{});
    if (!codec_->folds_whole()) return codec_->FoldMany(parts, kTileElements, 30, sums);
    if (!first) return;
    const uint64_t elements = PlaceOf(0, t).tiles * kTileElements;
    for (const FoldPart& part : parts) {
      codec_->Fold(*part.payload, 0, elements, {.fraction_bits = 30, .weight = part.weight}, sums);
    }
  }

  // The updates one after the other, each over sums of its own.
  KernelFigure FoldFigure() {
    return Compare(
        "kernels.fold." + name_, "GB/s", Bytes(), options_.repetitions,
        [&] {
          for (size_t u = 0; u < kUpdates; ++u) {
            for (size_t t = 0; t < length_; ++t) {
              const FoldPart part = Part(u, t);
              Fold({&part, 1}, t, sums_.Tile(u * length_ + t));
            }
          }
        },
        [&] {
          for (size_t u = 0; u < kUpdates; ++u) {
            for (size_t t = 0; t < length_; ++t) {
              const ByteSpan tile = Tile(u, t);
              CeilingFold(tile.data(), tile.size(), sums_.Tile(u * length_ + t), kTileElements);
            }
          }
        });
  }

  // What folding together is worth, and what it could be.
  KernelFigure TogetherFigure(const KernelFigure& fold, const KernelFigure& fold16) {
    std::vector<FoldPart> parts;
    double bytes = 0;
    for (size_t u = 0; u < kUpdates; ++u) {
      parts.push_back({&PlaceOf(u, 0).payload, 0, 600 + static_cast<int64_t>(u)});
      bytes += static_cast<double>(Tile(u, 0).size());
    }
    // 16 KiB of bytes and 8 KiB of sums at most, where codecs can be cut there.
    const bool dense = 16 * bytes >= kUpdates * static_cast<double>(kTileElements) &&
                       codec_->capabilities().id != CodecId::kEden;
    const uint64_t elements = dense ? 1024 : kTileElements;
    const double passes = std::ceil(Bytes() / bytes);
    const double share = static_cast<double>(elements) / static_cast<double>(kTileElements);
    const auto folds = static_cast<uint64_t>(std::ceil(passes / share));
    const KernelFigure bounds = Compare(
        "", "", 1, options_.repetitions,
        [&] {
          for (uint64_t i = 0; i < folds; ++i) {
            codec_->FoldMany(parts, elements, 30, sums_.Tile(0));
          }
        },
        [&] { ReadAll(); });
    // Compare counts in units of 1e9, as the folds do.
    const double cached = bounds.value * bytes * share * static_cast<double>(folds);
    const double read = bounds.ceiling * Bytes();
    KernelFigure figure{"kernels.together." + name_, fold16.value / fold.value, "times",
                        std::min(cached, read) / fold.value, 0};
    figure.ratio = figure.value / figure.ceiling;
    return figure;
  }

  // Top-k's, by how many elements it keeps: `fold` was measured with `updates` a pass.
  KernelFigure NonzeroFigure(const std::string& prefix, const KernelFigure& fold, size_t updates) {
    std::vector<float> decoded(segment_tiles_ * kTileElements);
    codec_->Decode(payloads_[0], decoded);
    const auto kept =
        static_cast<size_t>(std::ranges::count_if(decoded, [](float v) { return v != 0; })) /
        segment_tiles_;
    if (kept == 0) return {};  // not of random values
    const size_t stride = kTileElements / kept;
    // Each of the updates' own places, as they mostly are.
    const auto touch = [&] {
      for (size_t t = 0; t < tiles_; ++t) {
        const size_t offset = t % updates * stride / updates;
        CeilingTouch(kept, sums_.Tile(t / updates) + offset, stride);
      }
    };
    const double touched = static_cast<double>(kept * tiles_);
    const KernelFigure bound = Compare(
        "", "", touched, options_.repetitions, [] {}, touch);
    const double fold_seconds = Bytes() / (fold.value * 1e9);
    KernelFigure figure{prefix + name_, 1e9 * fold_seconds / touched, "ns", 1 / bound.ceiling, 0};
    figure.ratio = figure.value / figure.ceiling;
    return figure;
  }

  // The updates together, tile by tile of the same sums.
  KernelFigure Fold16Figure() {
    std::vector<std::vector<FoldPart>> tiles(length_);
    std::vector<std::vector<ByteSpan>> bytes(length_);
    for (size_t t = 0; t < length_; ++t) {
      for (size_t u = 0; u < kUpdates; ++u) {
        tiles[t].push_back(Part(u, t));
        bytes[t].push_back(Tile(u, t));
      }
    }
    return Compare(
        "kernels.fold16." + name_, "GB/s", Bytes(), options_.repetitions,
        [&] {
          for (size_t t = 0; t < length_; ++t) Fold(tiles[t], t, sums_.Tile(t));
        },
        [&] {
          for (size_t t = 0; t < length_; ++t) CeilingMany(bytes[t], sums_.Tile(t));
        });
  }

  // Stretch by stretch where there are bytes enough to cut: the sums of so many elements, 16 KiB,
  // stay in the first-level cache while several updates pass over them.
  static void CeilingMany(std::span<const ByteSpan> tiles, int64_t* sums) {
    const bool dense = 8 * tiles[0].size() >= kTileElements;
    const uint64_t stretch = dense ? 2048 : kTileElements;
    for (uint64_t at = 0; at < kTileElements; at += stretch) {
      for (const ByteSpan all : tiles) {
        const ByteSpan part =
            all.subspan(all.size() * at / kTileElements, all.size() * stretch / kTileElements);
        CeilingFold(part.data(), part.size(), sums + at, stretch);
      }
    }
  }

  void ReadAll() {
    for (const PiecedBytes& payload : payloads_) {
      sink_ = sink_ + CeilingRead(payload.pieces()[0].data(), payload.size());
    }
  }

  KernelFigure ValidateFigure() {
    return Compare(
        "kernels.validate." + name_, "GB/s", Bytes(), options_.repetitions,
        [&] {
          for (size_t u = 0; u < kUpdates; ++u) {
            for (size_t t = 0; t < length_; t += segment_tiles_) {
              const Place at = PlaceOf(u, t);
              sink_ = sink_ + codec_->Validate(at.payload, at.tiles * kTileElements, 4096).ok();
            }
          }
        },
        [&] { ReadAll(); });
  }

  // From floats that pass by once into a segment's buffer that is used again, as a client does.
  KernelFigure EncodeFigure() {
    const size_t tiles = std::max<size_t>(1, options_.update_bytes / (4 * kTileElements));
    const LargePages source(tiles * kTileElements * sizeof(float));
    for (size_t t = 0; t < tiles; ++t) {
      std::ranges::copy(Floats(t), source.As<float>() + t * kTileElements);
    }
    std::vector<uint8_t> segment(tile_bytes_);
    const auto part = [&](size_t t) {
      return std::span<const float>(source.As<float>() + t * kTileElements, kTileElements);
    };
    return Compare(
        "kernels.encode." + name_, "Gelem/s", static_cast<double>(tiles * kTileElements),
        options_.repetitions,
        [&] {
          for (size_t t = 0; t < tiles; ++t) {
            segment.clear();
            (void)codec_->Encode(part(t), {.key = 1, .first = t * kTileElements}, &segment);
          }
        },
        [&] {
          segment.resize(tile_bytes_);
          for (size_t t = 0; t < tiles; ++t) {
            CeilingEncode(part(t).data(), kTileElements, segment.data(), tile_bytes_);
          }
        });
  }

  const std::string name_;
  const KernelBenchOptions options_;
  const std::shared_ptr<const Codec> codec_;
  const std::vector<float> floats_;
  const size_t tile_bytes_;
  const size_t length_;  // tiles of an update
  const size_t tiles_;   // of all updates
  const size_t segment_tiles_;
  Sums sums_;
  std::vector<FoldCursor> cursors_;  // by update
  size_t bytes_ = 0;                 // of encoded_
  std::unique_ptr<LargePages> encoded_;
  std::vector<PiecedBytes> payloads_;
  volatile uint64_t sink_ = 0;  // keeps the measured reads alive
};

}  // namespace

std::vector<KernelFigure> RunKernelBench(const KernelBenchOptions& options) {
  std::vector<KernelFigure> figures;
  const std::pair<const char*, const char*> codecs[] = {
      {"fp32", "fp32"},
      {"bf16", "bf16"},
      {"fp16", "fp16"},
      {"int8", "int8"},
      {"int4", "int4"},
      {"int2", "int2"},
      {"sign", "sign"},
      {"vote", "sign(mode=vote, step=2^-10)"},
      {"fp8", "fp8"},
      {"fp8_e5m2", "fp8(format=e5m2)"},
      {"mxfp8", "mxfp8"},
      {"mxfp8_e5m2", "mxfp8(format=e5m2)"},
      {"mxfp4", "mxfp4"},
      {"mxint8", "mxint8"},
      {"hq", "hq"},
      {"hq4", "hq(bits=4)"},
      {"topk", "topk(0.01)"},
      {"topk_fp16", "topk(0.01, values=fp16)"},
      {"topk_int8", "topk(0.01, values=int8)"},
      {"topk_ternary", "topk(0.01, values=ternary)"},
      {"topk_ternary_zstd", "topk(0.01, values=ternary) | zstd"},
      {"int4_zstd", "int4 | zstd"},
      {"randk", "randk(0.01)"},
      {"eden1", "eden(bits=1)"},
      {"eden2", "eden(bits=2)"},
      {"eden3", "eden(bits=3)"},
      {"eden4", "eden(bits=4)"},
      {"powersgd", "powersgd(rank=2)"},
      {"sketch", "sketch(0.1)"}};
  for (const auto& [name, spec] : codecs) {
    if (!options.only.empty() && options.only != name) continue;
    CodecBench(name, spec, options).AppendFigures(&figures);
  }
  return figures;
}

}  // namespace tributary::compression
