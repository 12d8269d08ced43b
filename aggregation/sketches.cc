// Who is sketched, and recovery.
#include "aggregation/sketches.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/text.h"
#include "base/philox.h"
#include "base/status.h"
#include "compression/policy.h"

namespace tributary::aggregation {

using compression::kTileElements;
using compression::SketchForm;

absl::StatusOr<std::shared_ptr<const SketchedTensors>> SketchedTensors::Create(
    const ModelLayout& layout, std::string_view codec, uint64_t seed) {
  ASSIGN_OR_RETURN(const auto policy, compression::CodecPolicy::Parse(codec));
  const uint64_t shared = SeededHash(seed, "mask", "");  // as clients' EncodeKeys
  auto made = std::make_shared<SketchedTensors>();
  made->tensors_.resize(layout.tensors().size());
  bool any = false;
  for (uint32_t t = 0; t < made->tensors_.size(); ++t) {
    const TensorSpec& tensor = layout.tensors()[t];
    if (tensor.policy == Policy::kSkip || !IsFloat(tensor.dtype)) continue;
    const auto& chosen = policy->For(tensor.name, layout.TensorElements(t), tensor.shape.size());
    const SketchForm* form = compression::SketchFormOf(*chosen.codec);
    if (form == nullptr) continue;
    if (tensor.policy != Policy::kMean) {
      return absl::FailedPreconditionError(absl::StrCat(
          "codec sketch on tensor ", internal::Quoted(tensor.name),
          ": only tensors of policy mean can be sketched; give it a rule of its own, as in \"",
          tensor.name, " = fp32\""));
    }
    made->tensors_[t] = {true, *form, compression::SketchKey(shared, t)};
    any = true;
  }
  if (!any) return std::shared_ptr<const SketchedTensors>();
  return made;
}

absl::Status CheckSketch(const SketchedTensors* sketched, const compression::SegmentHeader& header,
                         const PiecedBytes& payload) {
  const bool is = header.codec == static_cast<uint16_t>(compression::CodecId::kSketch);
  const auto* tensor = sketched == nullptr ? nullptr : &sketched->tensors()[header.tensor];
  const bool should = tensor != nullptr && tensor->sketched;
  if (is != should) {
    return absl::InvalidArgumentError(
        is ? "a sketch, which this round's codec has none of for it; encode with the round's codec"
           : "not a sketch, which this round's codec wants for it; encode with the round's codec");
  }
  if (!is) return absl::OkStatus();
  if (header.parameter != tensor->form.Parameter()) {
    return absl::InvalidArgumentError(absl::StrCat("a sketch of parameter ", header.parameter,
                                                   ", the round's has ", tensor->form.Parameter()));
  }
  if (compression::SketchKeyOf(payload) != tensor->key + header.first / kTileElements) {
    return absl::InvalidArgumentError(
        "a sketch with another key than the run's, which could not be summed; take the seed of the "
        "round's spec");
  }
  return absl::OkStatus();
}

SketchRecovery::SketchRecovery(std::shared_ptr<const ModelLayout> layout,
                               std::shared_ptr<const SketchedTensors> sketched)
    : layout_(std::move(layout)), sketched_(std::move(sketched)), committed_(Cells()) {}

uint64_t SketchRecovery::Cells() const {
  uint64_t cells = 0;
  for (uint32_t t = 0; t < sketched_->tensors().size(); ++t) {
    const SketchedTensors::Tensor& tensor = sketched_->tensors()[t];
    if (tensor.sketched) cells += tensor.form.Cells(layout_->TensorElements(t));
  }
  return cells;
}

void SketchRecovery::Recover(const Grid& grid, uint64_t weight, ExactAccumulator* sum) {
  staged_ = committed_;
  uint64_t at = 0;
  for (uint32_t t = 0; t < sketched_->tensors().size(); ++t) {
    const SketchedTensors::Tensor& tensor = sketched_->tensors()[t];
    const uint64_t n = layout_->TensorElements(t);
    if (!tensor.sketched || n == 0) continue;
    const std::span<double> cells = std::span(staged_).subspan(at, tensor.form.Cells(n));
    at += cells.size();
    const std::span<int64_t> sums = sum->MutableSums().subspan(layout_->TensorElementOffset(t), n);
    uint64_t cell = 0;
    for (uint64_t first = 0; first < n; first += kTileElements) {
      const uint64_t count = tensor.form.TileCells(std::min(kTileElements, n - first));
      for (uint64_t j = 0; j < count; ++j) {
        cells[cell++] += GridMean(sums[first + j], weight, grid.fraction_bits);
      }
    }
    std::ranges::fill(sums, 0);
    const auto k = static_cast<uint64_t>(
        std::max(1.0, std::round(tensor.form.recover * static_cast<double>(n))));
    for (const auto& [i, value] :
         compression::SketchRecover(tensor.form, tensor.key, n, k, grid.bound, cells)) {
      // Within bound * W * 2^f, which the grid proves to be below 2^63.
      sums[i] = std::llrint(std::ldexp(value * static_cast<double>(weight), grid.fraction_bits));
    }
  }
}

void SketchRecovery::Commit() {
  if (!staged_.empty()) committed_ = std::exchange(staged_, {});
}

std::string SketchRecovery::State() const {
  const std::vector<double>& cells = staged_.empty() ? committed_ : staged_;
  return {reinterpret_cast<const char*>(cells.data()), cells.size() * sizeof(double)};
}

absl::Status SketchRecovery::Restore(std::string_view state) {
  if (state.empty()) return absl::OkStatus();
  if (state.size() != committed_.size() * sizeof(double)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the checkpoint has ", state.size(), " bytes of sketch cells, the config's codec ",
        committed_.size() * sizeof(double), "; give the run another name, or its codec back"));
  }
  std::vector<double> cells(committed_.size());
  std::memcpy(cells.data(), state.data(), state.size());
  if (!std::ranges::all_of(cells, [](double v) { return std::isfinite(v); })) {
    return absl::InvalidArgumentError("the checkpoint's sketch cells are not all finite");
  }
  committed_ = std::move(cells);
  staged_.clear();
  return absl::OkStatus();
}

}  // namespace tributary::aggregation
