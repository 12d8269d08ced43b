// Totals of estimates, staged with each round and kept in the checkpoint.
#include "aggregation/ef21.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "aggregation/internal/text.h"
#include "base/status.h"

namespace tributary::aggregation {
namespace {

constexpr char kTotals[] = "ef21";
constexpr char kBits[] = "ef21_fraction_bits";

class Ef21 final : public ServerOptimizer {
 public:
  Ef21(Ef21Options options, std::unique_ptr<ServerOptimizer> inner,
       std::shared_ptr<const ModelLayout> layout)
      : options_(std::move(options)), inner_(std::move(inner)), layout_(std::move(layout)) {
    uint64_t at = 0;
    for (uint32_t t = 0; t < layout_->tensors().size(); ++t) {
      const bool skipped = layout_->tensors()[t].policy == Policy::kSkip;
      const uint64_t elements = skipped ? 0 : layout_->TensorElements(t);
      if (options_.tensors[t]) estimated_.push_back({t, at, elements});
      weights_.push_back(options_.tensors[t] ? options_.population_weight : 0);
      at += elements;
    }
    for (const Part& part : estimated_) elements_ += part.elements;
    totals_.assign(layout_->elements(), 0);
  }

  std::string_view name() const override { return inner_->name(); }

  absl::Status Apply(const RoundSum& round, std::span<const uint8_t> base,
                     std::span<uint8_t> next) override {
    staged_ = false;
    if (round.weight > options_.population_weight) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the round weighs ", round.weight, ", all clients together ", options_.population_weight,
          " by [compression] population_weight: give the weight of all clients"));
    }
    if (round.sum.sums().size() != totals_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the round's sum has ", round.sum.sums().size(), " elements, ef21 ", totals_.size()));
    }
    next_.assign(round.sum.sums().begin(), round.sum.sums().end());
    for (const Part& part : estimated_) RETURN_IF_ERROR(AddTotals(part));
    RoundSum whole = round;
    whole.sums = next_;
    whole.tensor_weights = weights_;
    RETURN_IF_ERROR(inner_->Apply(whole, base, next));
    staged_ = true;
    return absl::OkStatus();
  }

  void Commit() override {
    inner_->Commit();
    if (std::exchange(staged_, false)) std::swap(totals_, next_);
  }

  std::map<std::string, std::string> State() const override {
    std::map<std::string, std::string> state = inner_->State();
    const std::vector<int64_t>& totals = staged_ ? next_ : totals_;
    std::string& packed = state[kTotals];
    for (const Part& part : estimated_) {
      packed.append(reinterpret_cast<const char*>(totals.data() + part.first),
                    part.elements * sizeof(int64_t));
    }
    state[kBits] = absl::StrCat(options_.fraction_bits);
    return state;
  }

  absl::Status Restore(const std::map<std::string, std::string>& state) override {
    const auto totals = state.find(kTotals);
    const auto bits = state.find(kBits);
    if (totals == state.end() || bits == state.end()) {
      return absl::InvalidArgumentError(
          "the checkpoint has no estimates of ef21, which the config's codec asks for; take ef21 "
          "out of [compression] codec, or give the run another name");
    }
    int fraction_bits = 0;
    if (!absl::SimpleAtoi(bits->second, &fraction_bits) ||
        fraction_bits != options_.fraction_bits) {
      return absl::InvalidArgumentError(
          absl::StrCat("the checkpoint's estimates of ef21 have ", bits->second,
                       " fraction bits, the grid ", options_.fraction_bits,
                       "; give [aggregation] its fraction_bits and max_round_weight "
                       "back, or the run another name"));
    }
    if (totals->second.size() != elements_ * sizeof(int64_t)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the checkpoint's estimates of ef21 have ", totals->second.size(), " bytes, the ",
          elements_, " elements with ef21 need ", elements_ * sizeof(int64_t),
          "; the codec or the model is another, give the run another name"));
    }
    std::map<std::string, std::string> rest = state;
    rest.erase(kTotals);
    rest.erase(kBits);
    RETURN_IF_ERROR(inner_->Restore(rest));
    const char* from = totals->second.data();
    for (const Part& part : estimated_) {
      std::memcpy(totals_.data() + part.first, from, part.elements * sizeof(int64_t));
      from += part.elements * sizeof(int64_t);
    }
    staged_ = false;
    return absl::OkStatus();
  }

  uint64_t state_bytes() const override {
    return inner_->state_bytes() + elements_ * sizeof(int64_t);
  }

 private:
  struct Part {  // of the flat space
    uint32_t tensor = 0;
    uint64_t first = 0;
    uint64_t elements = 0;
  };

  absl::Status AddTotals(const Part& part) {
    bool over = false;
    for (uint64_t i = part.first; i < part.first + part.elements; ++i) {
      over |= __builtin_add_overflow(next_[i], totals_[i], &next_[i]);
    }
    if (!over) return absl::OkStatus();
    return absl::OutOfRangeError(absl::StrCat(
        "the estimates of tensor ", internal::Quoted(layout_->tensors()[part.tensor].name),
        " leave 63 bits: lower [aggregation] fraction_bits or bound"));
  }

  const Ef21Options options_;
  const std::unique_ptr<ServerOptimizer> inner_;
  const std::shared_ptr<const ModelLayout> layout_;
  std::vector<Part> estimated_;
  std::vector<uint64_t> weights_;  // by tensor
  uint64_t elements_ = 0;          // of the estimated
  std::vector<int64_t> totals_;    // of the flat space; meaningful in estimated_ alone
  std::vector<int64_t> next_;
  bool staged_ = false;  // next_ goes with the last Apply
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServerOptimizer>> MakeEf21(
    Ef21Options options, std::unique_ptr<ServerOptimizer> inner,
    std::shared_ptr<const ModelLayout> layout) {
  if (options.population_weight == 0) {
    return absl::InvalidArgumentError(
        "ef21 averages over all clients: [compression] population_weight must be above 0");
  }
  options.tensors.resize(layout->tensors().size());
  for (uint32_t t = 0; t < layout->tensors().size(); ++t) {
    const TensorSpec& tensor = layout->tensors()[t];
    if (!options.tensors[t] || (tensor.policy == Policy::kMean && IsFloat(tensor.dtype))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("ef21 is for floats that are averaged, and tensor ",
                     internal::Quoted(tensor.name), " is not: give it a rule without ef21"));
  }
  return std::make_unique<Ef21>(std::move(options), std::move(inner), std::move(layout));
}

}  // namespace tributary::aggregation
