// Top-k's and random k's own promises: which elements are kept, how places are written, what is
// refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/philox.h"
#include "codec_testing.h"
#include "compression/internal/sparse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

using testing::HasSubstr;

std::vector<float> Decoded(const Codec& codec, const std::vector<uint8_t>& payload, size_t n) {
  std::vector<float> out(n);
  codec.Decode(PiecedBytes(ByteSpan(payload)), out);
  return out;
}

// The k largest by sorting, the earlier of equals first.
std::vector<float> KeptBySorting(const std::vector<float>& x, size_t k) {
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  std::vector<float> kept(x.size());
  for (size_t j = 0; j < k; ++j) kept[order[j]] = x[order[j]];
  return kept;
}

TEST(TopK, KeepsTheLargestAndTheFirstOfEqualOnes) {
  PhiloxStream random(4);
  for (const size_t n : {size_t{1}, size_t{7}, size_t{1000}, size_t{70000}}) {
    std::vector<float> few(n), many = RandomFloats(n, n);
    for (float& v : few) v = static_cast<float>(static_cast<int>(random.NextBelow(7)) - 3);
    for (const auto& x : {few, many}) {
      for (const double fraction : {0.001, 0.1, 0.5, 1.0}) {
        const auto codec = MakeTopK(fraction, SparseValues::kFloat32);
        const auto k = static_cast<size_t>(std::max(1.0, std::round(fraction * n)));
        EXPECT_EQ(Decoded(*codec, Encode(*codec, x), n), KeptBySorting(x, k))
            << n << " " << fraction;
      }
    }
  }
}

TEST(TopK, ChoosesOverTheWholeTensorHoweverItIsCut) {
  // The large elements lie in the last tile alone.
  std::vector<float> x = RandomFloats(8, 3 * kTileElements + 1000, 1e-3);
  for (size_t i = 3 * kTileElements; i < x.size(); ++i) x[i] *= 1000;
  const auto codec = Make("topk(0.01)");
  const auto plan = codec->Plan(x, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<float> together;
  for (uint64_t first = 0; first < x.size(); first += kTileElements) {
    const auto part = std::span(x).subspan(first, std::min(kTileElements, x.size() - first));
    const auto payload = Encode(*codec, part, {.first = first, .plan = &*plan});
    const auto decoded = Decoded(*codec, payload, part.size());
    together.insert(together.end(), decoded.begin(), decoded.end());
  }
  EXPECT_EQ(together, KeptBySorting(x, static_cast<size_t>(std::round(0.01 * x.size()))));
}

TEST(TopK, TernaryScaleIsTheMeanMagnitudeOfWhatIsKept) {
  const std::vector<float> x = {0, -5, 1, 0.5f, 3, -0.25f, 0, -4};
  const auto codec = MakeTopK(0.5, SparseValues::kTernary);
  EXPECT_THAT(Decoded(*codec, Encode(*codec, x), x.size()),
              testing::ElementsAre(0, -3.25f, 3.25f, 0, 3.25f, 0, 0, -3.25f));
}

// Entropy of the places, a sign each: what any code needs at least; Golomb-Rice comes within 5 %.
TEST(TopK, PlacesTakeHardlyMoreThanTheirEntropy) {
  for (const double p : {0.001, 0.01, 0.1, 0.5}) {
    const std::vector<float> x = RandomFloats(17, 32 * kTileElements);
    const auto codec = MakeTopK(p, SparseValues::kTernary);
    const double bits = 8.0 * static_cast<double>(Encode(*codec, x).size());
    const double entropy = -(p * std::log2(p) + (1 - p) * std::log2(1 - p)) + p;
    EXPECT_LE(bits, 1.05 * entropy * static_cast<double>(x.size()) + 32 * 40) << p;
  }
}

TEST(SparseIndex, ComeBackFromEveryDensityAndLength) {
  PhiloxStream random(11);
  for (const uint32_t length : {1u, 7u, 8u, 9u, 1000u, 32767u, 32768u}) {
    for (const double density : {0.0, 1e-4, 0.01, 0.2, 0.5, 0.9, 1.0}) {
      std::vector<uint16_t> places;
      for (uint32_t i = 0; i < length; ++i) {
        if (random.NextDouble() < density) places.push_back(static_cast<uint16_t>(i));
      }
      std::vector<uint8_t> bytes;
      const TileEntry entry = AppendIndices(places, length, &bytes);
      ASSERT_EQ(bytes.size(), entry.index_bytes);
      ASSERT_LE(bytes.size(), (length + 7) / 8);
      const TileEntry again = TileEntry::FromWord(entry.Word());
      ASSERT_EQ(again.count, places.size());
      if (places.empty()) continue;
      std::vector<uint16_t> back(places.size());
      ASSERT_EQ(CheckIndices(again, bytes.data(), length, back.data()), absl::OkStatus());
      EXPECT_EQ(back, places) << length << " " << density;
    }
  }
}

// Runs of neighbours far apart: two bits a neighbour, where Golomb-Rice takes a bit for each that
// is not there, and a bitmap for all. By the text: a byte for four gaps, then 0, 1 or 2 bytes each.
TEST(SparseIndex, TakeStreamVByteWhereGapsAreOfVeryDifferentSizes) {
  std::vector<uint16_t> places;
  for (uint16_t run = 0; run < 20; ++run) {
    for (uint16_t i = 0; i < 40; ++i) places.push_back(static_cast<uint16_t>(1500 * run + 700 + i));
  }
  std::vector<uint8_t> bytes;
  const TileEntry entry = AppendIndices(places, kTileElements, &bytes);
  EXPECT_EQ(entry.tag, kStreamVByteTag);
  EXPECT_EQ(bytes.size(), 800u / 4 + 20 * 2);
  EXPECT_EQ(bytes[0], 0b10) << "two bytes for 700, none for three neighbours";
  EXPECT_EQ(bytes[200] | bytes[201] << 8, 700);
  EXPECT_EQ(bytes[202] | bytes[203] << 8, 1460);
  const TileEntry again = TileEntry::FromWord(entry.Word());
  EXPECT_EQ(again.tag, kStreamVByteTag);
  std::vector<uint16_t> back(again.count);
  ASSERT_EQ(CheckIndices(again, bytes.data(), kTileElements, back.data()), absl::OkStatus());
  EXPECT_EQ(back, places);
  EXPECT_THAT(std::string(CheckIndices(again, bytes.data(), 29239, back.data()).message()),
              HasSubstr("beyond the tile"));
}

TEST(SparseIndex, RefusesStreamVByteThatDoesNotFit) {
  const auto message = [](uint32_t count, std::vector<uint8_t> bytes) {
    const TileEntry entry{count, static_cast<uint32_t>(bytes.size()), kStreamVByteTag};
    std::vector<uint16_t> back(count);
    return std::string(CheckIndices(entry, bytes.data(), 1000, back.data()).message());
  };
  EXPECT_EQ(message(2, {0b1001, 5, 0xE0, 3}), "");  // 5, and 992 after it
  EXPECT_THAT(message(2, {0b1001, 5, 0xE3, 3}), HasSubstr("beyond the tile"));
  EXPECT_THAT(message(1, {0b11, 0xFF, 0xFF, 0xFF, 0xFF}), HasSubstr("beyond the tile"));
  EXPECT_THAT(message(2, {0b1001, 5, 1}), HasSubstr("do not match"));
  EXPECT_THAT(message(2, {0b1001, 5, 1, 0, 0}), HasSubstr("do not match"));
  EXPECT_THAT(message(2, {0b010000}), HasSubstr("after the last"));
  EXPECT_THAT(message(9, {0, 0}), HasSubstr("too few"));
}

TEST(TopK, RefusesPlacesThatAreNotThoseOfTheTile) {
  const auto codec = Make("topk(1)");
  const auto verdict = [&](uint32_t entry, std::vector<uint8_t> places, size_t values, uint64_t n) {
    std::vector<uint8_t> payload(4);
    StoreLe(entry, payload.data());
    payload.insert(payload.end(), places.begin(), places.end());
    payload.resize(payload.size() + 4 * values);
    return std::string(codec->Validate(PiecedBytes(ByteSpan(payload)), n, 4096).message());
  };
  const auto entry = [](uint32_t count, uint32_t bytes, uint32_t tag) {
    return TileEntry{count, bytes, tag}.Word();
  };
  EXPECT_EQ(verdict(entry(1, 1, 0), {0b100}, 1, 9), "");
  EXPECT_THAT(verdict(entry(1, 1, 0), {0b1000}, 1, 3), HasSubstr("beyond the tile"));
  EXPECT_THAT(verdict(entry(2, 1, 0), {0b100}, 2, 9), HasSubstr("do not match"));
  EXPECT_THAT(verdict(entry(1, 2, 0), {1, 0}, 1, 9), HasSubstr("do not match"));
  EXPECT_THAT(verdict(entry(1, 1, 3), {0b100}, 1, 9), HasSubstr("too few"));
  EXPECT_THAT(verdict(entry(1, 2, 3), {1, 0b1000}, 1, 9), HasSubstr("set after"));
  EXPECT_THAT(verdict(entry(1, 2, 15), {0, 2}, 1, 9), HasSubstr("beyond the tile"));
  EXPECT_THAT(verdict(entry(1, 1, 15), {1}, 1, 9), HasSubstr("another length"));
  EXPECT_THAT(verdict(entry(2, 2, 15), {1, 0}, 2, 9), HasSubstr("does not match"));
  EXPECT_THAT(verdict(entry(10, 2, 15), {255, 1}, 10, 9), HasSubstr("claims 10"));
  EXPECT_THAT(verdict(entry(1, 1, 0), {1}, 2, 9), HasSubstr("left over"));
  EXPECT_THAT(verdict(entry(1, 1, 0), {1}, 0, 9), HasSubstr("is cut"));
  EXPECT_THAT(verdict(0, {}, 0, kMaxSparseTiles * kTileElements + 1), HasSubstr("more than"));
}

TEST(TopK, RefusesValuesAndScalesThatAreNotNumbersOrBeyondTheBound) {
  std::vector<float> x(100);
  x[3] = 8;
  x[90] = -2;
  for (const auto& [spec, offset] : {std::pair<const char*, int>{"topk(0.02)", -4},
                                     {"topk(0.02, values=int8)", 0},
                                     {"topk(0.02, values=ternary)", 0}}) {
    const auto codec = Make(spec);
    std::vector<uint8_t> payload = Encode(*codec, x);
    const size_t at = offset < 0 ? payload.size() - 4 : 0;
    const auto with = [&](float value) {
      std::memcpy(payload.data() + at, &value, 4);
      return codec->Validate(PiecedBytes(ByteSpan(payload)), 100, 4096).code();
    };
    EXPECT_EQ(with(1), absl::StatusCode::kOk);
    EXPECT_EQ(with(NAN), absl::StatusCode::kDataLoss) << spec;
    EXPECT_EQ(with(INFINITY), absl::StatusCode::kDataLoss) << spec;
    EXPECT_EQ(with(4097), absl::StatusCode::kOutOfRange) << spec;
    if (offset == 0) {
      EXPECT_EQ(with(-1), absl::StatusCode::kInvalidArgument) << spec;
    }
  }
}

TEST(RandK, AllClientsOfARoundKeepTheSamePlacesSoThatValuesAddUp) {
  const auto codec = Make("randk(0.25)");
  const std::vector<float> a = RandomFloats(1, 5000), b = RandomFloats(2, 5000);
  const auto first = Encode(*codec, a, {.key = 1, .round = 9, .tensor = 4, .shared_key = 77});
  const auto second = Encode(*codec, b, {.key = 2, .round = 9, .tensor = 4, .shared_key = 77});
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 8, second.begin())) << "one mask";
  const auto from_a = Decoded(*codec, first, 5000), from_b = Decoded(*codec, second, 5000);
  for (size_t i = 0; i < 5000; ++i) EXPECT_EQ(from_a[i] != 0, from_b[i] != 0) << i;
}

}  // namespace
}  // namespace tributary::compression
