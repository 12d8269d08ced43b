// Sums of coefficients, taken back before the optimizer.
#include "aggregation/in_planes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/text.h"
#include "base/status.h"

namespace tributary::aggregation {
namespace {

class InPlanes final : public ServerOptimizer {
 public:
  InPlanes(const std::vector<compression::PlaneShape>& planes,
           std::unique_ptr<ServerOptimizer> inner, std::shared_ptr<const ModelLayout> layout)
      : inner_(std::move(inner)), layout_(std::move(layout)) {
    uint64_t at = 0;
    for (uint32_t t = 0; t < layout_->tensors().size(); ++t) {
      if (layout_->tensors()[t].policy == Policy::kSkip) continue;
      const uint64_t elements = layout_->TensorElements(t);
      if (planes[t].any()) {
        parts_.push_back({t, at, elements, compression::PlaneTransform(planes[t])});
      }
      at += elements;
    }
  }

  std::string_view name() const override { return inner_->name(); }
  absl::Status Apply(const RoundSum& round, std::span<const uint8_t> base,
                     std::span<uint8_t> next) override {
    const std::span<const int64_t> given = round.sums.empty() ? round.sum.sums() : round.sums;
    if (given.size() != layout_->elements()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the round's sum has ", given.size(), " elements, the layout ", layout_->elements()));
    }
    sums_.assign(given.begin(), given.end());
    for (const Part& part : parts_) {
      if (part.transform.Back(std::span(sums_).subspan(part.first, part.elements))) continue;
      return absl::OutOfRangeError(absl::StrCat(
          "the sums of tensor ", internal::Quoted(layout_->tensors()[part.tensor].name),
          " leave 62 bits outside their basis: lower [aggregation] fraction_bits or bound"));
    }
    RoundSum back = round;
    back.sums = sums_;
    return inner_->Apply(back, base, next);
  }
  void Commit() override { inner_->Commit(); }
  std::map<std::string, std::string> State() const override { return inner_->State(); }
  absl::Status Restore(const std::map<std::string, std::string>& state) override {
    return inner_->Restore(state);
  }
  uint64_t state_bytes() const override { return inner_->state_bytes(); }

 private:
  struct Part {  // of the flat space
    uint32_t tensor = 0;
    uint64_t first = 0;
    uint64_t elements = 0;
    compression::PlaneTransform transform;
  };
  const std::unique_ptr<ServerOptimizer> inner_;
  const std::shared_ptr<const ModelLayout> layout_;
  std::vector<Part> parts_;
  std::vector<int64_t> sums_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServerOptimizer>> MakeInPlanes(
    std::vector<compression::PlaneShape> planes, std::unique_ptr<ServerOptimizer> inner,
    std::shared_ptr<const ModelLayout> layout) {
  planes.resize(layout->tensors().size());
  for (uint32_t t = 0; t < layout->tensors().size(); ++t) {
    const TensorSpec& tensor = layout->tensors()[t];
    if (!planes[t].any()) continue;
    if (tensor.policy == Policy::kMean && IsFloat(tensor.dtype) &&
        planes[t].Divides(tensor.shape)) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("dct is for floats that are averaged and made of planes, and tensor ",
                     internal::Quoted(tensor.name), " is not: give it a rule without dct"));
  }
  return std::make_unique<InPlanes>(planes, std::move(inner), std::move(layout));
}

}  // namespace tributary::aggregation
