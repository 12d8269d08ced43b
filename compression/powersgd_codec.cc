// Codec powersgd: a tensor as a matrix, sent as two thin factors (PowerSGD, Vogels et al., NeurIPS
// 2019, whose single step of power iteration from the last Q is taken at each client by itself);
// checks, and walking rows.
#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/eden.h"
#include "compression/internal/element_codec.h"
#include "compression/internal/powersgd.h"

namespace tributary::compression {
namespace {

constexpr size_t kHeadBytes = 8;  // u32 columns, u32 elements of the first row that lie before

// What a payload says of itself.
struct Shape {
  uint64_t columns = 0;
  uint64_t skip = 0;  // of the first row, elements before the segment
  uint64_t Rows(uint64_t n) const { return (skip + n + columns - 1) / columns; }
};

class PowerSgdCodec final : public Codec {
 public:
  PowerSgdCodec(uint32_t rank, uint64_t columns) : rank_(rank), columns_(columns) {
    capabilities_ = {.id = CodecId::kPowerSgd,
                     .name = "powersgd",
                     .linear = false,
                     .unbiased = false,
                     .needs_error_feedback = true,
                     .deterministic = false,
                     .minimum_elements = kSmallTensorElements};
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override { return rank_; }
  bool fixed_rate() const override { return false; }
  uint64_t MaxSegmentElements() const override { return kMaxPowerTiles * kTileElements; }
  uint64_t EncodedBytes(uint64_t n) const override {
    if (n == 0) return 0;
    const uint64_t columns = Columns(n);
    return Bytes({columns, columns - 1}, n);  // a segment may begin anywhere in a row
  }

  std::shared_ptr<const Codec> ForShape(std::span<const uint64_t> shape) const override {
    uint64_t columns = 1;
    for (size_t d = 1; d < shape.size(); ++d) columns *= shape[d];
    const bool fits = shape.size() >= 2 && columns > 0 && columns <= MostColumns();
    const uint64_t n = shape.empty() ? 1 : columns * shape[0];
    return std::make_shared<PowerSgdCodec>(rank_, fits ? columns : NearlySquare(n));
  }

  absl::StatusOr<TensorPlan> Plan(std::span<const float> x,
                                  const EncodeContext& context) const override {
    RETURN_IF_ERROR(Check(x));
    TensorPlan plan;
    if (x.empty()) return plan;
    const uint64_t columns = Columns(x.size());
    plan.columns = columns;
    plan.factors =
        std::make_shared<const std::vector<float>>(PowerFactors(x, columns, rank_, context));
    if (context.next_warm != nullptr) {
      context.next_warm->assign(plan.factors->end() - static_cast<ptrdiff_t>(columns * rank_),
                                plan.factors->end());
    }
    return plan;
  }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override;
  absl::StatusOr<SegmentForm> EncodeSegment(std::span<const float> x, const EncodeContext& context,
                                            std::vector<uint8_t>* out) const override;
  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override;
  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override;
  void Decode(const PiecedBytes& payload, std::span<float> out) const override;

 private:
  uint64_t MostColumns() const { return kMaxFactorBytes / (sizeof(float) * rank_); }
  uint64_t Columns(uint64_t n) const { return columns_ > 0 ? columns_ : NearlySquare(n); }
  uint64_t NearlySquare(uint64_t n) const {
    const auto square = static_cast<uint64_t>(std::ceil(std::sqrt(static_cast<double>(n))));
    return std::clamp<uint64_t>(square, 1, MostColumns());
  }
  uint64_t Bytes(const Shape& shape, uint64_t n) const {
    return kHeadBytes + sizeof(float) * rank_ * (shape.Rows(n) + shape.columns);
  }
  absl::Status Check(std::span<const float> x) const {
    if (MaxMagnitudeOf(x.data(), x.size()) < kEdenFirstOverflow) return absl::OkStatus();
    return RefuseElement(capabilities_.name, x, kEdenFirstOverflow);
  }
  static Shape Head(const PiecedBytes& payload) {
    uint8_t head[kHeadBytes] = {};
    ByteCursor(payload).Read(head, sizeof head);
    return {LoadLe<uint32_t>(head), LoadLe<uint32_t>(head + 4)};
  }

  // visit(row, first element within the row, elements, elements before) for `count` elements from
  // `begin`, until it returns false.
  template <class Visit>
  void ForEachRow(const PiecedBytes& payload, uint64_t begin, uint64_t count, uint64_t rows,
                  Visit visit) const;

  const uint32_t rank_;
  const uint64_t columns_;
  Capabilities capabilities_;
};

std::vector<float>& Scratch(int which) {
  thread_local std::vector<float> scratch[2];
  return scratch[which];
}

void ReadFloats(const PiecedBytes& payload, uint64_t offset, size_t n, std::vector<float>* to) {
  to->resize(n);
  ByteCursor(payload, offset).Read(reinterpret_cast<uint8_t*>(to->data()), n * sizeof(float));
}

template <class Visit>
void PowerSgdCodec::ForEachRow(const PiecedBytes& payload, uint64_t begin, uint64_t count,
                               uint64_t rows, Visit visit) const {
  if (count == 0) return;
  const Shape shape = Head(payload);
  const uint64_t first = (shape.skip + begin) / shape.columns;
  const uint64_t last = (shape.skip + begin + count - 1) / shape.columns;
  const size_t row_bytes = sizeof(float) * rank_;
  std::vector<float>& p = Scratch(0);
  std::vector<float>& q = Scratch(1);
  ReadFloats(payload, kHeadBytes + first * row_bytes, (last - first + 1) * rank_, &p);
  ReadFloats(payload, kHeadBytes + rows * row_bytes, shape.columns * rank_, &q);
  uint64_t column = (shape.skip + begin) % shape.columns;
  uint64_t done = 0;
  for (uint64_t i = 0; done < count; ++i, column = 0) {
    const uint64_t n = std::min(shape.columns - column, count - done);
    const PowerRow row{p.data() + i * rank_, q.data(), rank_, shape.columns};
    if (!visit(row, column, n, done)) return;
    done += n;
  }
}

// The largest |q| for each k: with a row's p, a bound on the row's elements.
std::vector<double> LargestOf(const PowerRow& row) {
  std::vector<double> largest(row.rank);
  for (size_t k = 0; k < row.rank; ++k) {
    largest[k] = std::bit_cast<float>(MaxMagnitudeOf(row.q + k * row.columns, row.columns));
  }
  return largest;
}

double BoundOf(const PowerRow& row, const std::vector<double>& largest) {
  double bound = 0;
  for (size_t k = 0; k < row.rank; ++k)
    bound += std::abs(static_cast<double>(row.p[k])) * largest[k];
  return bound;
}

absl::Status PowerSgdCodec::Encode(std::span<const float> x, const EncodeContext& context,
                                   std::vector<uint8_t>* out) const {
  TensorPlan plan;
  uint64_t first = 0;
  if (context.plan != nullptr && context.plan->factors != nullptr) {
    RETURN_IF_ERROR(Check(x));
    plan = *context.plan;
    first = context.first;
  } else {
    ASSIGN_OR_RETURN(plan, Plan(x, context));
  }
  if (x.empty()) return absl::OkStatus();
  const std::vector<float>& factors = *plan.factors;
  const uint64_t columns = plan.columns;
  const Shape shape{columns, first % columns};
  const uint64_t rows = shape.Rows(x.size());
  const size_t at = out->size();
  out->resize(at + Bytes(shape, x.size()));
  uint8_t* to = out->data() + at;
  StoreLe(static_cast<uint32_t>(shape.columns), to);
  StoreLe(static_cast<uint32_t>(shape.skip), to + 4);
  const size_t p_bytes = rows * rank_ * sizeof(float);
  std::memcpy(to + kHeadBytes, factors.data() + first / columns * rank_, p_bytes);
  const float* q = factors.data() + factors.size() - columns * rank_;
  std::memcpy(to + kHeadBytes + p_bytes, q, columns * rank_ * sizeof(float));
  return absl::OkStatus();
}

// Where the factors are no smaller than the floats, those go.
absl::StatusOr<SegmentForm> PowerSgdCodec::EncodeSegment(std::span<const float> x,
                                                         const EncodeContext& context,
                                                         std::vector<uint8_t>* out) const {
  const uint64_t columns = context.plan == nullptr ? Columns(x.size()) : context.plan->columns;
  if (!x.empty() && Bytes({columns, context.first % columns}, x.size()) >= x.size_bytes()) {
    const std::shared_ptr<const Codec> plain = MakeFp32();
    return plain->EncodeSegment(x, context, out);
  }
  RETURN_IF_ERROR(Encode(x, context, out));
  return SegmentForm{capabilities_.id, parameter()};
}

absl::Status PowerSgdCodec::Validate(const PiecedBytes& payload, uint64_t n, double bound) const {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "powersgd payload: ", payload.size(), " bytes do not hold ", n, " elements: ", what,
        "; the payload is cut short, too long, or of another codec"));
  };
  if (n > MaxSegmentElements()) return wrong("more than a segment may have");
  if (n == 0) return payload.size() == 0 ? absl::OkStatus() : wrong("none take no byte");
  if (payload.size() < kHeadBytes) return wrong("the head is cut");
  const Shape shape = Head(payload);
  if (shape.columns == 0 || shape.columns > MostColumns() || shape.skip >= shape.columns) {
    return wrong(absl::StrCat("rows of ", shape.columns, " from element ", shape.skip));
  }
  if (Bytes(shape, n) != payload.size()) {
    return wrong(absl::StrCat("factors of rank ", rank_, " take ", Bytes(shape, n)));
  }
  const size_t floats = (payload.size() - kHeadBytes) / sizeof(float);
  std::vector<float>& all = Scratch(0);
  ReadFloats(payload, kHeadBytes, floats, &all);
  if (MaxMagnitudeOf(all.data(), floats) > 0x7F7FFFFF) {
    return absl::DataLossError("powersgd payload: a factor is infinite or not a number");
  }
  absl::Status status;
  std::vector<double> largest;
  ForEachRow(
      payload, 0, n, shape.Rows(n),
      [&](const PowerRow& row, uint64_t from, uint64_t count, uint64_t done) {
        if (largest.empty()) largest = LargestOf(row);
        if (BoundOf(row, largest) <= bound) return true;  // most rows need no closer look
        for (uint64_t i = 0; i < count; ++i) {
          const double value = row.Value(from + i);
          if (std::abs(value) <= bound) continue;
          status = absl::OutOfRangeError(absl::StrCat("powersgd payload: element ", done + i,
                                                      " is ", value, ", beyond the bound ", bound));
          return false;
        }
        return true;
      });
  return status;
}

void PowerSgdCodec::Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count,
                         const GridFold& grid, int64_t* acc) const {
  if (count == 0) return;
  const FoldArgs args = MakeFoldArgs(grid, [](double) { return 0; });
  // The payload may hold more elements than are asked for; its length says how many rows.
  const uint64_t rows =
      (payload.size() - kHeadBytes) / (sizeof(float) * rank_) - Head(payload).columns;
  std::vector<double> largest;
  ForEachRow(payload, begin, count, rows,
             [&](const PowerRow& row, uint64_t from, uint64_t n, uint64_t done) {
               if (largest.empty()) largest = LargestOf(row);
               FoldArgs here = args;
               if (BoundOf(row, largest) * args.scale > 0x1.fffffep30) here.narrow_limit = -1;
               PowerFold(row, from, n, here, acc + done);
               return true;
             });
}

void PowerSgdCodec::Decode(const PiecedBytes& payload, std::span<float> out) const {
  if (out.empty()) return;
  ForEachRow(payload, 0, out.size(), Head(payload).Rows(out.size()),
             [&](const PowerRow& row, uint64_t from, uint64_t n, uint64_t done) {
               PowerDecode(row, from, n, out.data() + done);
               return true;
             });
}

}  // namespace

std::shared_ptr<const Codec> MakePowerSgd(uint32_t rank, uint64_t columns) {
  return std::make_shared<PowerSgdCodec>(rank, columns);
}

}  // namespace tributary::compression
