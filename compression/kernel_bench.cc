// The kernel bench: kernel and ceiling take turns over an update larger than the caches.
#include "compression/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "base/philox.h"
#include "compression/codec.h"
#include "compression/internal/bench_ceiling.h"

namespace tributary::compression {
namespace {

constexpr size_t kUpdates = 16;
// Of the codecs that make a tile tiny; encoding more would take minutes.
constexpr size_t kMaxTiles = 4096;

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
        tile_(kTileElements) {
    encoded_.reserve(tiles_ * tile_bytes_ + tiles_ * tile_bytes_ / 8);
    std::vector<size_t> ends;
    for (size_t t = 0; t < tiles_; ++t) {
      (void)codec_->Encode(Floats(t), {.key = 1, .first = t * kTileElements}, &encoded_);
      ends.push_back(encoded_.size());
    }
    for (size_t t = 0; t < tiles_; ++t) {
      const size_t from = t == 0 ? 0 : ends[t - 1];
      payloads_.emplace_back(ByteSpan(encoded_).subspan(from, ends[t] - from));
    }
  }

  void AppendFigures(std::vector<KernelFigure>* out) {
    // Tiles in the order of the update; and as 16 updates of tiles_/16 tiles, one tile at a time.
    std::vector<size_t> streamed(tiles_), interleaved(tiles_);
    const size_t length = tiles_ / kUpdates;
    for (size_t t = 0; t < tiles_; ++t) {
      streamed[t] = t;
      interleaved[t] = t % kUpdates * length + t / kUpdates;
    }
    out->push_back(FoldFigure("kernels.fold." + name_, streamed, 1));
    out->push_back(FoldFigure("kernels.fold16." + name_, interleaved, kUpdates));
    out->push_back(ValidateFigure());
    out->push_back(EncodeFigure());
  }

 private:
  std::span<const float> Floats(size_t t) const {
    return std::span(floats_).subspan(t % 32 * kTileElements, kTileElements);
  }
  double Bytes() const { return static_cast<double>(encoded_.size()); }
  // A variable rate's tiles differ a little; this is the first one's.
  size_t OneTile() const {
    std::vector<uint8_t> out;
    (void)codec_->Encode(Floats(0), {.key = 1}, &out);
    return out.size();
  }
  ByteSpan Tile(size_t t) const { return payloads_[t].pieces()[0]; }

  KernelFigure FoldFigure(std::string name, const std::vector<size_t>& order, int64_t weight) {
    const GridFold grid{.fraction_bits = 30, .weight = 600 + weight};
    return Compare(
        std::move(name), "GB/s", Bytes(), options_.repetitions,
        [&] {
          for (const size_t t : order) {
            codec_->Fold(payloads_[t], 0, kTileElements, grid, tile_.data());
          }
        },
        [&] {
          for (const size_t t : order) {
            CeilingFold(Tile(t).data(), Tile(t).size(), tile_.data(), kTileElements);
          }
        });
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
    std::vector<float> source;
    source.reserve(tiles * kTileElements);
    for (size_t t = 0; t < tiles; ++t) {
      source.insert(source.end(), Floats(t).begin(), Floats(t).end());
    }
    std::vector<uint8_t> segment(tile_bytes_);
    const auto part = [&](size_t t) {
      return std::span<const float>(source).subspan(t * kTileElements, kTileElements);
    };
    return Compare(
        "kernels.encode." + name_, "Gelem/s", static_cast<double>(source.size()),
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
  std::vector<int64_t> tile_;
  std::vector<uint8_t> encoded_;
  std::vector<PiecedBytes> payloads_;
  volatile uint64_t sink_ = 0;  // keeps the measured reads alive
};

}  // namespace

std::vector<KernelFigure> RunKernelBench(const KernelBenchOptions& options) {
  std::vector<KernelFigure> figures;
  const std::pair<const char*, const char*> codecs[] = {
      {"fp32", "fp32"},         {"bf16", "bf16"},
      {"fp16", "fp16"},         {"int8", "int8"},
      {"int4", "int4"},         {"int2", "int2"},
      {"sign", "sign"},         {"fp8", "fp8"},
      {"mxfp8", "mxfp8"},       {"mxfp4", "mxfp4"},
      {"mxint8", "mxint8"},     {"hq", "hq"},
      {"topk", "topk(0.01)"},   {"topk_ternary", "topk(0.01, values=ternary)"},
      {"randk", "randk(0.01)"}, {"eden1", "eden(bits=1)"},
      {"eden4", "eden(bits=4)"}};
  for (const auto& [name, spec] : codecs) {
    if (!options.only.empty() && options.only != name) continue;
    CodecBench(name, spec, options).AppendFigures(&figures);
  }
  return figures;
}

}  // namespace tributary::compression
