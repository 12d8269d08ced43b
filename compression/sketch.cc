// Codec sketch: cells of each tile, added up by places and signs that all clients share.
#include "compression/sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status.h"
#include "compression/internal/eden.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/sketch_kernels.h"
#include "compression/internal/sparse.h"

namespace tributary::compression {
namespace {

constexpr size_t kKeyBytes = 8;
// Keeps the hashes apart from randk's masks under the same shared key.
constexpr uint64_t kPurpose = 0x686374656B73;  // "sketch"

uint32_t TileColumns(const SketchForm& form, uint64_t length) {
  return static_cast<uint32_t>(form.columns * length / kTileElements);
}

SketchTile TileOf(const SketchForm& form, uint64_t tile_key, uint64_t length) {
  return {tile_key, form.rows, TileColumns(form, length)};
}

// cells[j], of one tile, as floats or doubles; out[i] the estimate rounded to float.
template <class Cell>
void EstimateTile(const SketchForm& form, uint64_t tile_key, const Cell* cells,
                  std::span<float> out) {
  if (out.size() < kSketchShortest) {
    std::transform(cells, cells + out.size(), out.begin(),
                   [](Cell cell) { return static_cast<float>(cell); });
  } else {
    SketchEstimateTile(TileOf(form, tile_key, out.size()), cells, out.size(), out.data());
  }
}

class SketchCodec final : public Codec {
 public:
  explicit SketchCodec(const SketchForm& form) : form_(form), cells_(MakeFp32()) {
    capabilities_ = {.id = CodecId::kSketch,
                     .name = "sketch",
                     .linear = true,
                     .unbiased = false,
                     .needs_error_feedback = false,
                     .deterministic = false,
                     .minimum_elements = kSmallTensorElements};
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override { return form_.Parameter(); }
  uint64_t EncodedBytes(uint64_t n) const override {
    return n == 0 ? 0 : kKeyBytes + sizeof(float) * form_.Cells(n);
  }
  const SketchForm& form() const { return form_; }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override {
    if (MaxMagnitudeOf(x.data(), x.size()) >= kEdenFirstOverflow) {
      return RefuseElement(capabilities_.name, x, kEdenFirstOverflow);
    }
    if (x.empty()) return absl::OkStatus();
    const uint64_t key =
        SketchKey(context.shared_key, context.tensor) + context.first / kTileElements;
    const size_t start = out->size();
    out->resize(start + EncodedBytes(x.size()));
    StoreLe(key, out->data() + start);
    uint8_t* p = out->data() + start + kKeyBytes;
    std::vector<double> sums(form_.TileCells(kTileElements));
    std::vector<float> cells(std::max<size_t>(sums.size(), kSketchShortest));
    for (uint64_t at = 0, tile = 0; at < x.size(); at += kTileElements, ++tile) {
      const auto part = x.subspan(at, std::min<uint64_t>(kTileElements, x.size() - at));
      const uint64_t count = form_.TileCells(part.size());
      if (part.size() < kSketchShortest) {
        std::ranges::copy(part, cells.begin());
      } else {
        std::fill_n(sums.begin(), count, 0.0);
        SketchAddTile(TileOf(form_, key + tile, part.size()), part.data(), part.size(),
                      sums.data());
        for (uint64_t j = 0; j < count; ++j) cells[j] = static_cast<float>(sums[j]);
      }
      std::memcpy(p, cells.data(), count * sizeof(float));
      p += count * sizeof(float);
    }
    return absl::OkStatus();
  }

  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override {
    // Of kTileElements elements 32 cells travel at least.
    if (n / kTileElements > payload.size() || EncodedBytes(n) != payload.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("sketch payload: ", payload.size(), " bytes do not hold ", n,
                       " elements; the payload is cut short, too long, or of another codec"));
    }
    if (n == 0) return absl::OkStatus();
    return Annotate(cells_->Validate(Cells(payload, 0, form_.Cells(n)), form_.Cells(n), bound),
                    "sketch payload, an element being a cell");
  }

  // The cells of each tile, onto its first sums: not the elements, which the root alone looks for.
  // `count` reaches to the end of a tile or of the payload, as whoever folds tiles has it.
  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override {
    for (uint64_t done = 0; done < count; done += kTileElements) {
      const uint64_t length = std::min(kTileElements, count - done);
      const auto [first, cells] = TileAt(payload, (begin + done) / kTileElements, length);
      const uint64_t here = std::min(cells, length);
      cells_->Fold(Cells(payload, first, here), 0, here, grid, acc + done);
    }
  }

  void Decode(const PiecedBytes& payload, std::span<float> out) const override {
    const uint64_t key = SketchKeyOf(payload);
    std::vector<float> cells;
    for (uint64_t at = 0, tile = 0; at < out.size(); at += kTileElements, ++tile) {
      const auto part = out.subspan(at, std::min<uint64_t>(kTileElements, out.size() - at));
      const auto [first, count] = TileAt(payload, tile, part.size());
      cells.resize(count);
      cells_->Decode(Cells(payload, first, count), cells);
      EstimateTile(form_, key + tile, cells.data(), part);
    }
  }

 private:
  // The first cell of a tile of `length` elements and how many it has; the payload's length says
  // what the last one has. One too short for cells has its elements, which may be more than a
  // whole tile's cells.
  std::pair<uint64_t, uint64_t> TileAt(const PiecedBytes& payload, uint64_t tile,
                                       uint64_t length) const {
    const uint64_t all = (payload.size() - kKeyBytes) / sizeof(float);
    const uint64_t whole = form_.TileCells(kTileElements);
    return {tile * whole, std::min(length < kSketchShortest ? length : whole, all - tile * whole)};
  }
  static PiecedBytes Cells(const PiecedBytes& payload, uint64_t first, uint64_t count) {
    ByteCursor cursor(payload, kKeyBytes + first * sizeof(float));
    PiecedBytes cells;
    cursor.Take(count * sizeof(float), &cells);
    return cells;
  }

  const SketchForm form_;
  const std::shared_ptr<const Codec> cells_;
  Capabilities capabilities_;
};

}  // namespace

uint64_t SketchForm::TileCells(uint64_t length) const {
  return length < kSketchShortest ? length : uint64_t{rows} * TileColumns(*this, length);
}
uint64_t SketchForm::Cells(uint64_t n) const {
  return n / kTileElements * TileCells(kTileElements) + TileCells(n % kTileElements);
}

const SketchForm* SketchFormOf(const Codec& codec) {
  const auto* sketch = dynamic_cast<const SketchCodec*>(&codec);
  return sketch == nullptr ? nullptr : &sketch->form();
}

uint64_t SketchKey(uint64_t shared_key, uint32_t tensor) {
  return Philox4x32(shared_key ^ kPurpose, {0, 0, tensor, 0}).Low64();
}

uint64_t SketchKeyOf(const PiecedBytes& payload) {
  uint8_t bytes[kKeyBytes] = {};
  ByteCursor(payload).Read(bytes, kKeyBytes);
  return LoadLe<uint64_t>(bytes);
}

void SketchAdd(const SketchForm& form, uint64_t key, uint64_t n, uint64_t i, double value,
               std::span<double> cells) {
  const uint64_t tile = i / kTileElements, place = i % kTileElements;
  const uint64_t length = std::min(kTileElements, n - tile * kTileElements);
  double* const first = cells.data() + tile * form.TileCells(kTileElements);
  if (length < kSketchShortest) {
    first[place] += value;
    return;
  }
  const SketchHash hash(TileOf(form, key + tile, length), place);
  for (uint32_t r = 0; r < form.rows; ++r) {
    first[hash.Cell(r)] += hash.Minus(r) ? -value : value;
  }
}

void SketchEstimate(const SketchForm& form, uint64_t key, std::span<const double> cells,
                    std::span<float> out) {
  const double* first = cells.data();
  for (uint64_t at = 0, tile = 0; at < out.size(); at += kTileElements, ++tile) {
    const auto part = out.subspan(at, std::min<uint64_t>(kTileElements, out.size() - at));
    EstimateTile(form, key + tile, first, part);
    first += form.TileCells(part.size());
  }
}

std::vector<std::pair<uint64_t, double>> SketchRecover(const SketchForm& form, uint64_t key,
                                                       uint64_t n, uint64_t k, double bound,
                                                       std::span<double> cells) {
  std::vector<float> estimates(n);
  SketchEstimate(form, key, cells, estimates);
  std::vector<std::pair<uint64_t, double>> found;
  if (n == 0 || k == 0) return found;
  const TensorPlan plan = SelectLargest(estimates, std::min(k, n));
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(estimates[i]) & 0x7FFFFFFF;
    if (bits == 0 || bits < plan.threshold) continue;
    if (bits == plan.threshold && i >= plan.ties_end) continue;
    const double value = std::clamp(static_cast<double>(estimates[i]), -bound, bound);
    found.emplace_back(i, value);
    SketchAdd(form, key, n, i, -value, cells);
  }
  return found;
}

std::shared_ptr<const Codec> MakeSketch(const SketchForm& form) {
  return std::make_shared<SketchCodec>(form);
}

}  // namespace tributary::compression
