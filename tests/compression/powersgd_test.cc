// PowerSGD's own promises: a projection onto few directions, which a warm start makes the best
// ones; and what is refused.
#include <cmath>
#include <cstring>

#include "codec_testing.h"
#include "compression/internal/powersgd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

using testing::HasSubstr;

double Squares(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += double{v} * double{v};
  return sum;
}

double Lost(const Codec& codec, std::span<const float> x, const EncodeContext& context) {
  std::vector<float> residual(x.size());
  std::vector<uint8_t> payload;
  EXPECT_EQ(codec.Encode(x, context, &payload, residual), absl::OkStatus());
  return Squares(residual);
}

// Column (k, row i) of an orthonormal basis: the cosines of the DCT-II.
double Cosine(int k, int i, int n) {
  const double scale = std::sqrt((k == 0 ? 1.0 : 2.0) / n);
  return scale * std::cos(M_PI * k * (2 * i + 1) / (2.0 * n));
}

// A matrix with known singular values: sum of value * u v^T.
std::vector<float> WithSingularValues(std::span<const double> values, int rows, int columns) {
  std::vector<float> x(static_cast<size_t>(rows * columns));
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      double v = 0;
      for (size_t k = 0; k < values.size(); ++k) {
        const int which = static_cast<int>(k) * 3 + 1;
        v += values[k] * Cosine(which, i, rows) * Cosine(which + 1, j, columns);
      }
      x[static_cast<size_t>(i * columns + j)] = static_cast<float>(v);
    }
  }
  return x;
}

std::shared_ptr<const Codec> Shaped(const std::string& spec, std::vector<uint64_t> shape) {
  return Make(spec)->ForShape(shape);
}

TEST(PowerSgd, GivesAMatrixOfItsRankBack) {
  const double values[] = {3, 0.5};
  const std::vector<float> x = WithSingularValues(values, 60, 47);
  const auto codec = Shaped("powersgd(rank=2)", {60, 47});
  EXPECT_LE(Lost(*codec, x, {.key = 1}), 1e-12 * Squares(x));
  EXPECT_EQ(Encode(*codec, x).size(), 8u + 4 * 2 * (60 + 47));
}

// Of all matrices of rank r the nearest leaves the squares of the other singular values (Eckart and
// Young 1936).
TEST(PowerSgd, ComesToTheBestRankByWarmStartAndIsFurtherFromItCold) {
  const double values[] = {4, 3, 2, 1, 0.5};
  const std::vector<float> x = WithSingularValues(values, 64, 48);
  const double best = 2 * 2 + 1 + 0.25;
  const auto codec = Shaped("powersgd(rank=2)", {64, 48});
  std::vector<float> warm;
  double cold_loss = 0, loss = 0;
  for (uint32_t round = 1; round <= 40; ++round) {
    std::vector<float> next;
    const auto plan = codec->Plan(x, {.key = 7, .round = round, .warm = warm, .next_warm = &next});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(next.size(), 48u * 2);
    loss = Lost(*codec, x, {.key = 7, .round = round, .plan = &*plan});
    if (round == 1) cold_loss = loss;
    warm = next;
  }
  EXPECT_NEAR(loss, best, 1e-4 * best);
  EXPECT_GT(cold_loss, 1.02 * best);
  EXPECT_LE(cold_loss, Squares(x) * (1 + 1e-6)) << "a projection makes nothing larger";
}

TEST(PowerSgd, StartsAnewWhereAWarmStartWouldStayAtZero) {
  const std::vector<float> x = RandomFloats(3, 40 * 30);
  const auto codec = Shaped("powersgd(rank=3)", {40, 30});
  const std::vector<float> zero(30 * 3);
  const auto cold = codec->Plan(x, {.key = 5});
  const auto from_zero = codec->Plan(x, {.key = 5, .warm = zero});
  EXPECT_EQ(*cold->factors, *from_zero->factors);
  const std::vector<float> other(29 * 3, 1.0f);  // of another shape
  EXPECT_EQ(*cold->factors, *codec->Plan(x, {.key = 5, .warm = other})->factors);
}

TEST(PowerSgd, TakesTensorsByTheirFirstDimensionAndLongRowsAsOthers) {
  const auto columns = [](const std::string& spec, std::vector<uint64_t> shape, size_t n) {
    const std::vector<float> x = RandomFloats(1, n);
    const auto payload = Encode(*Shaped(spec, shape), x);
    uint32_t value;
    std::memcpy(&value, payload.data(), 4);
    return value;
  };
  EXPECT_EQ(columns("powersgd", {8, 3, 5, 5}, 600), 75u);
  EXPECT_EQ(columns("powersgd", {600}, 600), 25u) << "about a square";
  EXPECT_EQ(columns("powersgd", {2, 70'000}, 140'000), 375u) << "Q would take over half a segment";
}

TEST(PowerSgd, SendsFloatsWhereFactorsAreNotSmaller) {
  const auto codec = Shaped("powersgd(rank=8)", {10, 10});
  const std::vector<float> x = RandomFloats(1, 100);
  std::vector<uint8_t> out;
  const auto plan = codec->Plan(x, {});
  const auto form = codec->EncodeSegment(x, {.plan = &*plan}, &out, {});
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_EQ(form->id, CodecId::kFp32);
  EXPECT_EQ(out.size(), 400u);
}

TEST(PowerSgd, RefusesShapesLengthsAndNumbersThatCannotBe) {
  const auto codec = Make("powersgd(rank=2)");
  const std::vector<float> x = RandomFloats(2, 100, 1.0);
  const std::vector<uint8_t> good = Encode(*codec, x);
  const auto verdict = [&](size_t at, uint32_t word, uint64_t n = 100, double bound = 4096) {
    std::vector<uint8_t> payload = good;
    std::memcpy(payload.data() + at, &word, 4);
    return codec->Validate(PiecedBytes(ByteSpan(payload)), n, bound);
  };
  EXPECT_EQ(verdict(0, 10), absl::OkStatus());
  const auto refused = [](const absl::Status& status, absl::StatusCode code, const char* what) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  };
  const auto malformed = absl::StatusCode::kInvalidArgument;
  refused(verdict(0, 0), malformed, "rows of 0");
  refused(verdict(0, 0xFFFFFFFF), malformed, "rows of 4294967295");
  refused(verdict(0, 11), malformed, "take ");
  refused(verdict(4, 10), malformed, "from element 10");
  refused(verdict(4, 1), malformed, "take ");
  refused(verdict(0, 10, 101), malformed, "do not hold 101");
  refused(verdict(0, 10, kMaxPowerTiles * kTileElements + 1), malformed, "more than");
  refused(verdict(8, 0x7F800000), absl::StatusCode::kDataLoss, "not a number");
  refused(verdict(good.size() - 4, 0x7FC00001), absl::StatusCode::kDataLoss, "not a number");
  refused(verdict(good.size() - 4, 0x7F000000), absl::StatusCode::kOutOfRange, "beyond the bound");
  // The largest element passes as the bound, and not below.
  std::vector<float> decoded(100);
  codec->Decode(PiecedBytes(ByteSpan(good)), decoded);
  float largest = 0;
  for (const float v : decoded) largest = std::max(largest, std::abs(v));
  EXPECT_EQ(verdict(0, 10, 100, largest * 1.0001), absl::OkStatus());
  refused(verdict(0, 10, 100, largest * 0.9999), absl::StatusCode::kOutOfRange, "beyond the bound");
}

}  // namespace
}  // namespace tributary::compression
