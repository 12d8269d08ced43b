// Metrics as exact sums on the grid of 2^-30.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "aggregation/grid.h"
#include "aggregation/internal/text.h"
#include "base/status.h"

namespace tributary::aggregation {
namespace {

using Sums = google::protobuf::RepeatedPtrField<v1::MetricSum>;

constexpr int kMaxMetrics = 32;
constexpr size_t kMaxNameBytes = 64;
constexpr double kMaxValue = 4096;

std::string MetricText(std::string_view name) {
  return absl::StrCat("metric ", internal::Quoted(name.substr(0, 80)));
}

absl::Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(MetricText(name), " has a name of ", name.size(),
                                                 " bytes; give it 1 to ", kMaxNameBytes));
}

absl::Status CheckCount(int count) {
  if (count <= kMaxMetrics) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there are ", count, " metrics; at most ", kMaxMetrics, " are kept"));
}

void WriteSorted(const std::map<std::string, v1::MetricSum>& sums, Sums* into) {
  into->Clear();
  for (const auto& [name, sum] : sums) *into->Add() = sum;
}

}  // namespace

absl::StatusOr<int64_t> MetricToGrid(double value) {
  // Written so that NaN is refused too.
  if (!(std::fabs(value) <= kMaxValue)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a metric's value is %g; it must be finite and within [-4096, 4096]", value));
  }
  return std::llrint(value * 0x1p30);  // the default rounding: to nearest, ties to even
}

double MetricMean(const v1::MetricSum& sum) {
  if (sum.weight() == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(sum.sum()) / static_cast<double>(sum.weight()) * 0x1p-30;
}

absl::Status MergeMetrics(const Sums& from, Sums* into) {
  std::map<std::string, v1::MetricSum> sums;
  for (const v1::MetricSum& sum : *into) sums[sum.name()] = sum;
  for (const v1::MetricSum& sum : from) {
    RETURN_IF_ERROR(CheckName(sum.name()));
    v1::MetricSum& total = sums[sum.name()];
    int64_t value = 0;
    uint64_t weight = 0;
    if (__builtin_add_overflow(total.sum(), sum.sum(), &value) ||
        __builtin_add_overflow(total.weight(), sum.weight(), &weight)) {
      return absl::InvalidArgumentError(absl::StrCat(
          MetricText(sum.name()), " overflows: ", total.sum(), " and ", sum.sum(), " of weights ",
          total.weight(), " and ", sum.weight(), "; send smaller values or weights"));
    }
    total.set_name(sum.name());
    total.set_sum(value);
    total.set_weight(weight);
    RETURN_IF_ERROR(CheckCount(static_cast<int>(sums.size())));
  }
  WriteSorted(sums, into);  // only now: a refusal leaves `into` as it was
  return absl::OkStatus();
}

absl::StatusOr<Sums> MetricsToSums(const google::protobuf::RepeatedPtrField<v1::Metric>& metrics) {
  RETURN_IF_ERROR(CheckCount(metrics.size()));
  std::map<std::string, v1::MetricSum> sums;
  for (const v1::Metric& metric : metrics) {
    RETURN_IF_ERROR(CheckName(metric.name()));
    const absl::StatusOr<int64_t> on_grid = MetricToGrid(metric.value());
    if (!on_grid.ok()) return Annotate(on_grid.status(), MetricText(metric.name()));
    if (metric.weight() == 0) continue;
    int64_t value = 0;
    if (metric.weight() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) ||
        __builtin_mul_overflow(*on_grid, static_cast<int64_t>(metric.weight()), &value)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: value %g with weight %d overflows; lower the weight",
                          MetricText(metric.name()), metric.value(), metric.weight()));
    }
    v1::MetricSum& sum = sums[metric.name()];
    if (!sum.name().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(MetricText(metric.name()), " is reported twice; report each once"));
    }
    sum.set_name(metric.name());
    sum.set_sum(value);
    sum.set_weight(metric.weight());
  }
  Sums out;
  WriteSorted(sums, &out);
  return out;
}

}  // namespace tributary::aggregation
