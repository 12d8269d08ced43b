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

// One codec's figures over one set of buffers. The update is cut into segments of a tile, as on the
// wire.
class CodecBench {
 public:
  CodecBench(const std::string& name, const std::string& spec, const KernelBenchOptions& options)
      : name_(name),
        options_(options),
        codec_(MakeCodec(spec).value()),
        floats_(SyntheticDeltas(32 * kTileElements)),
        tile_bytes_(OneTile()),
        tiles_(std::clamp<size_t>(options.update_bytes / tile_bytes_ / kUpdates * kUpdates,
                                  kUpdates, kMaxTiles)),
        sums_(tiles_) {
    std::vector<uint8_t> encoded;
    encoded.reserve(tiles_ * tile_bytes_ + tiles_ * tile_bytes_ / 8);
    std::vector<size_t> ends;
    for (size_t t = 0; t < tiles_; ++t) {
      (void)codec_->Encode(Floats(t), {.key = 1, .first = t * kTileElements}, &encoded);
      ends.push_back(encoded.size());
    }
    bytes_ = encoded.size();
    encoded_ = std::make_unique<LargePages>(bytes_ + kUpdates * kApart);
    const size_t length = std::max<size_t>(1, tiles_ / kUpdates);
    for (size_t t = 0; t < tiles_; ++t) {
      const size_t from = t == 0 ? 0 : ends[t - 1];
      uint8_t* const to = encoded_->As<uint8_t>() + from + t / length * kApart;
      std::copy_n(encoded.data() + from, ends[t] - from, to);
      payloads_.emplace_back(ByteSpan(to, ends[t] - from));
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
    out->push_back(TogetherFigure(fold, fold16));
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
  double Bytes() const { return static_cast<double>(bytes_); }
  // A variable rate's tiles differ a little; this is the first one's.
  size_t OneTile() const {
    std::vector<uint8_t> out;
    (void)codec_->Encode(Floats(0), {.key = 1}, &out);
    return out.size();
  }
  ByteSpan Tile(size_t t) const { return payloads_[t].pieces()[0]; }

  // The tiles as one update, in order.
  KernelFigure FoldFigure() {
    const GridFold grid{.fraction_bits = 30, .weight = 601};
    return Compare(
        "kernels.fold." + name_, "GB/s", Bytes(), options_.repetitions,
        [&] {
          for (size_t t = 0; t < tiles_; ++t) {
            codec_->Fold(payloads_[t], 0, kTileElements, grid, sums_.Tile(t));
          }
        },
        [&] {
          for (size_t t = 0; t < tiles_; ++t) {
            CeilingFold(Tile(t).data(), Tile(t).size(), sums_.Tile(t), kTileElements);
          }
        });
  }

  // What folding together is worth, and what it could be.
  KernelFigure TogetherFigure(const KernelFigure& fold, const KernelFigure& fold16) {
    std::vector<FoldPart> parts;
    double bytes = 0;
    for (size_t u = 0; u < kUpdates; ++u) {
      parts.push_back({&payloads_[u], 0, 600 + static_cast<int64_t>(u)});
      bytes += static_cast<double>(Tile(u).size());
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
        [&] {
          for (size_t t = 0; t < tiles_; ++t) {
            sink_ = sink_ + CeilingRead(Tile(t).data(), Tile(t).size());
          }
        });
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
    std::vector<float> decoded(kTileElements);
    codec_->Decode(payloads_[0], decoded);
    const auto kept =
        static_cast<size_t>(std::ranges::count_if(decoded, [](float v) { return v != 0; }));
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

  // The tiles as 16 updates of tiles_ / 16 tiles, which lie one after the other.
  KernelFigure Fold16Figure() {
    const size_t length = tiles_ / kUpdates;
    std::vector<std::vector<FoldPart>> tiles(length);
    for (size_t t = 0; t < length; ++t) {
      for (size_t u = 0; u < kUpdates; ++u) {
        tiles[t].push_back({&payloads_[u * length + t], 0, 600 + static_cast<int64_t>(u)});
      }
    }
    return Compare(
        "kernels.fold16." + name_, "GB/s", Bytes(), options_.repetitions,
        [&] {
          for (size_t t = 0; t < length; ++t) {
            codec_->FoldMany(tiles[t], kTileElements, 30, sums_.Tile(t));
          }
        },
        [&] {
          for (size_t t = 0; t < length; ++t) CeilingMany(tiles[t], sums_.Tile(t));
        });
  }

  // Stretch by stretch where there are bytes enough to cut: the sums of so many elements, 16 KiB,
  // stay in the first-level cache while several updates pass over them.
  static void CeilingMany(std::span<const FoldPart> parts, int64_t* sums) {
    const auto bytes = [&](size_t i) { return parts[i].payload->pieces()[0]; };
    const bool dense = 8 * bytes(0).size() >= kTileElements;
    const uint64_t stretch = dense ? 2048 : kTileElements;
    for (uint64_t at = 0; at < kTileElements; at += stretch) {
      for (size_t i = 0; i < parts.size(); ++i) {
        const ByteSpan all = bytes(i);
        const ByteSpan part =
            all.subspan(all.size() * at / kTileElements, all.size() * stretch / kTileElements);
        CeilingFold(part.data(), part.size(), sums + at, stretch);
      }
    }
  }

  KernelFigure ValidateFigure() {
    return Compare(
        "kernels.validate." + name_, "GB/s", Bytes(), options_.repetitions,
        [&] {
          for (const PiecedBytes& payload : payloads_) {
            sink_ = sink_ + codec_->Validate(payload, kTileElements, 4096).ok();
          }
        },
        [&] {
          for (size_t t = 0; t < tiles_; ++t) {
            sink_ = sink_ + CeilingRead(Tile(t).data(), Tile(t).size());
          }
        });
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
  const size_t tiles_;
  Sums sums_;
  size_t bytes_ = 0;  // of encoded_
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
