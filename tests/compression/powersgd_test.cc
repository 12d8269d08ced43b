// PowerSGD's own promises: a projection onto few directions, which a warm start makes the best
// ones; and what is refused.
#include <cmath>
#include <cstring>
#include <functional>

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
  const std::vector<uint8_t> payload = Encode(codec, x, context);
  std::vector<float> lost(x.size());
  codec.Decode(PiecedBytes(ByteSpan(payload)), lost);
  for (size_t i = 0; i < x.size(); ++i) lost[i] = x[i] - lost[i];
  return Squares(lost);
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

// The sum of a[i] b[i] as docs/wire-format.md has it: eight sums, added in pairs.
double EightSums(const std::function<double(size_t)>& product, size_t n) {
  double s[8] = {};
  for (size_t i = 0; i < n; ++i) s[i % 8] += product(i);
  return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

// P and Q of x from Q0, by loops alone.
std::vector<float> ReferenceFactors(const std::vector<float>& x, size_t columns, uint32_t rank,
                                    const std::vector<float>& q0) {
  const size_t rows = (x.size() + columns - 1) / columns;
  std::vector<float> factors((rows + columns) * rank);
  std::vector<std::vector<double>> p(rank, std::vector<double>(rows));
  for (uint32_t k = 0; k < rank; ++k) {
    for (size_t i = 0; i < rows; ++i) {
      const auto product = [&](size_t j) {
        return double{x[i * columns + j]} * double{q0[k * columns + j]};
      };
      p[k][i] = EightSums(product, std::min(columns, x.size() - i * columns));
    }
    const auto norm = [&] {
      return std::sqrt(EightSums([&](size_t i) { return p[k][i] * p[k][i]; }, rows));
    };
    const double before = norm();
    for (uint32_t l = 0; l < k; ++l) {
      const double part = EightSums([&](size_t i) { return p[k][i] * p[l][i]; }, rows);
      for (size_t i = 0; i < rows; ++i) p[k][i] -= part * p[l][i];
    }
    const double left = norm();
    for (double& v : p[k]) v = left > 1e-6 * before && left >= 0x1p-140 ? v / left : 0;
    for (size_t i = 0; i < rows; ++i) factors[i * rank + k] = static_cast<float>(p[k][i]);
    for (size_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (size_t i = 0; i * columns + j < x.size(); ++i) {
        sum += double{x[i * columns + j]} * double{factors[i * rank + k]};
      }
      factors[rows * rank + k * columns + j] = static_cast<float>(sum);
    }
  }
  return factors;
}

// To the bit, on every target: all ranks that kernels take apart differently, rows shorter than a
// vector and with a rest, a last row that is cut, and more columns of P than there are directions.
TEST(PowerSgd, HasTheFactorsThatTheDocumentSays) {
  for (const uint32_t rank : {1, 2, 3, 4, 5, 6, 7, 9, 13}) {
    for (const size_t columns : {1, 3, 8, 27, 64, 131}) {
      for (const size_t n : {columns, 4 * columns, 5 * columns + columns / 2 + 1, 29 * columns}) {
        SCOPED_TRACE(std::to_string(rank) + " of " + std::to_string(columns) + " columns, " +
                     std::to_string(n) + " elements");
        std::vector<float> x = RandomFloats(n, n);
        for (size_t i = 0; i < n; i += 7) x[i] = i % 2 == 0 ? -0.0f : 1e30f;
        const std::vector<float> q0 = RandomFloats(rank, columns * rank);
        const std::vector<float> expected = ReferenceFactors(x, columns, rank, q0);
        ForEachTarget([&](const std::string&) {
          const std::vector<float> got = PowerFactors(x, columns, rank, {.warm = q0});
          ASSERT_EQ(got.size(), expected.size());
          ASSERT_EQ(std::memcmp(got.data(), expected.data(), 4 * got.size()), 0);
        });
      }
    }
  }
}

// Every rank's kernels, in rows that segments' ends cut, as the sum of products in the order of k.
TEST(PowerSgd, ElementsAreSumsInTheOrderOfFactors) {
  constexpr size_t kColumns = 531, kFrom = 3;
  for (size_t rank = 1; rank <= 13; ++rank) {
    std::vector<float> p = RandomFloats(rank, rank, 1.0), q = RandomFloats(7, rank * kColumns, 1.0);
    p[0] = -p[0];
    for (size_t i = 0; i < q.size(); i += 5) q[i] = i % 2 == 0 ? 0.0f : -0.0f;
    const PowerRow row{p.data(), q.data(), rank, kColumns};
    for (const size_t n : {size_t{1}, size_t{6}, size_t{256}, size_t{259}, kColumns - kFrom}) {
      ForEachTarget([&](const std::string&) {
        std::vector<float> decoded(n);
        PowerDecode(row, kFrom, n, decoded.data());
        std::vector<int64_t> narrow(n, 5), wide(n, 5);
        PowerFold(row, kFrom, n, {.scale = 0x1p20, .weight = 601, .narrow_limit = 0},
                  narrow.data());
        PowerFold(row, kFrom, n, {.scale = 0x1p40, .weight = 601}, wide.data());
        for (size_t i = 0; i < n; ++i) {
          double value = double{p[0]} * double{q[kFrom + i]};
          for (size_t k = 1; k < rank; ++k) {
            value += double{p[k]} * double{q[k * kColumns + kFrom + i]};
          }
          const auto near = static_cast<float>(value);
          ASSERT_EQ(std::memcmp(&decoded[i], &near, 4), 0) << rank << " " << i;
          const GridFold low{.fraction_bits = 20, .weight = 601};
          const GridFold high{.fraction_bits = 40, .weight = 601};
          ASSERT_EQ(narrow[i], 5 + ReferenceTerm(value, low)) << rank << " " << i;
          ASSERT_EQ(wide[i], 5 + ReferenceTerm(value, high)) << rank << " " << i;
        }
      });
    }
  }
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
  const auto form = codec->EncodeSegment(x, {.plan = &*plan}, &out);
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
