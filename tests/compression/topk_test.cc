// Top-k's and random k's own promises: which elements are kept, how places are written, what is
// refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "base/philox.h"
#include "codec_testing.h"
#include "compression/internal/sparse.h"
#include "compression/internal/sparse_kernels.h"
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
        const auto codec = MakeTopK({.fraction = fraction});
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
  const auto codec = MakeTopK({.fraction = 0.5, .values = SparseValues::kTernary});
  EXPECT_THAT(Decoded(*codec, Encode(*codec, x), x.size()),
              testing::ElementsAre(0, -3.25f, 3.25f, 0, 3.25f, 0, 0, -3.25f));
}

TEST(TopK, OfAWholeModelAreTheLargestOfAllTensorsTogether) {
  // Many ties, across tensors too; one tensor has nothing that is large.
  PhiloxStream random(9);
  std::vector<std::vector<float>> tensors = {std::vector<float>(5000), std::vector<float>(300),
                                             std::vector<float>(0), std::vector<float>(40000)};
  std::vector<float> all;
  for (std::vector<float>& x : tensors) {
    const bool tiny = x.size() == 300;
    for (float& v : x) {
      v = static_cast<float>(static_cast<int>(random.NextBelow(41)) - 20) * (tiny ? 0.01f : 1.0f);
    }
    all.insert(all.end(), x.begin(), x.end());
  }
  const std::vector<std::span<const float>> spans(tensors.begin(), tensors.end());
  const auto codec = Make("topk(0.1, across=model)");
  for (const double fraction : {1e-6, 0.003, 0.1, 1.0}) {
    const std::vector<TensorPlan> plans = PlanTogether(spans, fraction);
    std::vector<float> together;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const auto payload = Encode(*codec, tensors[t], {.plan = &plans[t]});
      const auto decoded = Decoded(*codec, payload, tensors[t].size());
      together.insert(together.end(), decoded.begin(), decoded.end());
    }
    const double wished = std::round(fraction * static_cast<double>(all.size()));
    EXPECT_EQ(together, KeptBySorting(all, static_cast<size_t>(std::max(1.0, wished)))) << fraction;
  }
  EXPECT_EQ(codec->SharedFraction(1), 0.1);
  EXPECT_EQ(Make("topk(0.1)")->SharedFraction(1), 0.0);
  EXPECT_EQ(Make("topk(0.1, across=model) | zstd")->SharedFraction(1), 0.1);
}

TEST(TopK, WarmUpFallsByTheSameFactorEachRound) {
  // 0.4, 0.1, 0.025, then 0.00625, of 3,200 elements.
  const auto codec = Make("topk(0.00625, warmup=3, from=0.4) | zstd");
  const std::vector<float> x = RandomFloats(5, 3200);
  for (const auto& [round, k] :
       {std::pair{1u, 1280u}, {2u, 320u}, {3u, 80u}, {4u, 20u}, {99u, 20u}}) {
    const auto plan = codec->Plan(x, {.round = round});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto kept =
        Decoded(*Make("topk(1)"), Encode(*Make("topk(1)"), x, {.plan = &*plan}), 3200);
    EXPECT_EQ(kept, KeptBySorting(x, k)) << round;
  }
  EXPECT_EQ(Make("topk(0.01, across=model, warmup=1)")->SharedFraction(1), 0.25) << "DGC's start";
}

TEST(TopK, GainRaisesTheTernaryMagnitude) {
  const std::vector<float> x = {0, -5, 1, 0.5f, 3, -0.25f, 0, -4};
  const auto codec = Make("topk(0.5, values=ternary, gain=2)");
  EXPECT_THAT(Decoded(*codec, Encode(*codec, x), x.size()),
              testing::ElementsAre(0, -6.5f, 6.5f, 0, 6.5f, 0, 0, -6.5f));
}

// Entropy of the places, a sign each: what any code needs at least; Golomb-Rice comes within 5 %.
TEST(TopK, PlacesTakeHardlyMoreThanTheirEntropy) {
  for (const double p : {0.001, 0.01, 0.1, 0.5}) {
    const std::vector<float> x = RandomFloats(17, 32 * kTileElements);
    const auto codec = MakeTopK({.fraction = p, .values = SparseValues::kTernary});
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
      std::vector<uint16_t> back(kPlacesRoom);
      ASSERT_EQ(CheckIndices(again, bytes.data(), length, back.data()), absl::OkStatus());
      back.resize(places.size());
      EXPECT_EQ(back, places) << length << " " << density;
    }
  }
}

// As docs/wire-format.md has it, bit by bit: for each gap (gap >> rice) zeros and a one; apart from
// that the gaps' lower bits.
std::vector<uint8_t> RiceBytes(const std::vector<uint16_t>& places, uint32_t rice) {
  std::vector<bool> unary, rest;
  uint32_t next = 0;
  for (const uint32_t place : places) {
    const uint32_t gap = place - next;
    next = place + 1;
    unary.insert(unary.end(), gap >> rice, false);
    unary.push_back(true);
    for (uint32_t b = 0; b < rice; ++b) rest.push_back((gap >> b & 1) != 0);
  }
  std::vector<uint8_t> bytes;
  for (const std::vector<bool>& bits : {unary, rest}) {
    const size_t first = bytes.size();
    bytes.resize(first + (bits.size() + 7) / 8);
    for (size_t i = 0; i < bits.size(); ++i) {
      if (bits[i]) bytes[first + i / 8] |= static_cast<uint8_t>(1 << i % 8);
    }
  }
  return bytes;
}

TEST(SparseIndex, GolombRiceOfEveryParameterIsReadOnEveryTarget) {
  PhiloxStream random(23);
  int read = 0;
  for (const uint64_t count : {1, 2, 31, 32, 33, 63, 64, 65, 127, 500, 3000, 12000}) {
    for (const uint64_t span : {uint64_t{40}, 3 * count, uint64_t{kTileElements}}) {
      std::set<uint16_t> chosen;
      const uint64_t end = std::min<uint64_t>(std::max(span, count), kTileElements);
      while (chosen.size() < count) chosen.insert(static_cast<uint16_t>(random.NextBelow(end)));
      const std::vector<uint16_t> places(chosen.begin(), chosen.end());
      for (uint32_t rice = 0; rice <= 14; ++rice) {
        const std::vector<uint8_t> bytes = RiceBytes(places, rice);
        if (bytes.size() > kBitmapBytes) continue;
        ++read;
        const TileEntry entry{static_cast<uint32_t>(count), static_cast<uint32_t>(bytes.size()),
                              rice};
        ForEachTarget([&](const std::string& target) {
          std::vector<uint16_t> back(kPlacesRoom);
          ASSERT_EQ(CheckIndices(entry, bytes.data(), kTileElements, back.data()),
                    absl::OkStatus());
          back.resize(count);
          ASSERT_EQ(back, places) << count << " of " << end << ", rice " << rice << ", " << target;
        });
      }
    }
  }
  EXPECT_GT(read, 300);
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
  std::vector<uint16_t> back(kPlacesRoom);
  ASSERT_EQ(CheckIndices(again, bytes.data(), kTileElements, back.data()), absl::OkStatus());
  EXPECT_EQ(std::vector(back.begin(), back.begin() + again.count), places);
  EXPECT_THAT(std::string(CheckIndices(again, bytes.data(), 29239, back.data()).message()),
              HasSubstr("beyond the tile"));
}

TEST(SparseIndex, RefusesStreamVByteThatDoesNotFit) {
  const auto message = [](uint32_t count, std::vector<uint8_t> bytes) {
    const TileEntry entry{count, static_cast<uint32_t>(bytes.size()), kStreamVByteTag};
    std::vector<uint16_t> back(kPlacesRoom);
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

// A sample of every 65th element sees none but large ones, and guesses a threshold far too high.
TEST(TopK, KeepsTheLargestWhereASampleMisleads) {
  std::vector<float> x = RandomFloats(21, 70000);
  for (size_t i = 0; i < x.size(); i += 65) x[i] += 100;
  const auto codec = MakeTopK({.fraction = 4000.0 / 70000});
  EXPECT_EQ(Decoded(*codec, Encode(*codec, x), x.size()), KeptBySorting(x, 4000));
}

// Steps of one length, as by signs: all reach any threshold that a sample can propose.
TEST(TopK, KeepsTheFirstOfManyThatAreEqual) {
  std::vector<float> x = RandomFloats(22, 70000);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 4 != 1) x[i] = x[i] < 0 ? -1e-3f : 1e-3f;
    if (i % 4 == 1) x[i] *= 1e-6f;
  }
  for (const size_t large : {12345, 67890}) x[large] = -2;
  for (const size_t kept : {1, 2, 3, 700, 4000}) {
    const auto codec = MakeTopK({.fraction = static_cast<double>(kept) / 70000});
    EXPECT_EQ(Decoded(*codec, Encode(*codec, x), x.size()), KeptBySorting(x, kept)) << kept;
  }
}

// Sums wait in a queue that all updates of a pass share: short tiles, empty ones, several to a
// payload, of which the last is folded in part.
TEST(TopK, ManyUpdatesAreFoldedAsEachAloneWouldBe) {
  const uint64_t n = 2 * kTileElements + 100, count = 2 * kTileElements + 50;
  for (const char* spec :
       {"topk(1)", "topk(1, values=fp16)", "topk(1, values=int8)", "topk(1, values=ternary)"}) {
    const auto codec = Make(spec);
    std::vector<std::vector<uint8_t>> payloads;
    std::vector<int64_t> expected(count, 5), sums(count, 5);
    const std::vector<size_t> kept = {1, 0, 63, 64, 65, 127, 128, 129, 1000, 2, 191};
    for (size_t u = 0; u < kept.size(); ++u) {
      std::vector<float> x(n);
      for (size_t j = 0; j < kept[u]; ++j) {
        x[(j * j * 7 + u) % kTileElements] = j % 3 == 0 ? -0.75f : 0.1f;
        x[n - 1 - j % 100] = 0.5f;
      }
      payloads.push_back(Encode(*codec, x));
      const std::vector<float> values = Decoded(*codec, payloads.back(), n);
      for (size_t i = 0; i < count; ++i) {
        expected[i] += static_cast<int64_t>(u + 1) * std::llrint(std::ldexp(values[i], 20));
      }
    }
    std::vector<PiecedBytes> pieced;
    pieced.reserve(payloads.size());
    for (const auto& payload : payloads) pieced.emplace_back(ByteSpan(payload));
    std::vector<FoldPart> parts;
    for (size_t u = 0; u < pieced.size(); ++u) {
      parts.push_back({&pieced[u], 0, static_cast<int64_t>(u + 1)});
    }
    codec->FoldMany(parts, count, 20, sums.data());
    EXPECT_EQ(sums, expected) << spec;
  }
}

// Tile by tile, each fold going on where the last one ended: from any tile on, over pieces, with
// tiles skipped and a cursor that is ahead of what is asked for.
TEST(TopK, FoldThatGoesOnWhereTheLastEndedFindsEveryTile) {
  const uint64_t n = 6 * kTileElements + 100;
  std::vector<float> x = RandomFloats(23, n);
  std::fill_n(x.begin() + 2 * kTileElements, kTileElements, 0.0f);  // a tile without places
  for (const char* spec : {"topk(0.01)", "topk(0.4, values=int8)", "topk(0.01, values=ternary)"}) {
    const auto codec = Make(spec);
    const std::vector<uint8_t> bytes = Encode(*codec, x);
    const std::vector<float> values = Decoded(*codec, bytes, n);
    PiecedBytes pieced;
    for (size_t at = 0; at < bytes.size(); at += 777) {
      pieced.Append(ByteSpan(bytes).subspan(at, std::min<size_t>(777, bytes.size() - at)));
    }
    FoldCursor cursor;
    const auto expect_tile = [&](uint64_t tile) {
      const uint64_t begin = tile * kTileElements, count = std::min(kTileElements, n - begin);
      std::vector<int64_t> sums(count, 3), expected(count, 3);
      for (uint64_t i = 0; i < count; ++i) {
        expected[i] += 5 * std::llrint(std::ldexp(values[begin + i], 20));
      }
      const FoldPart part{&pieced, begin, 5, &cursor};
      codec->FoldMany({&part, 1}, count, 20, sums.data());
      EXPECT_EQ(sums, expected) << spec << ", tile " << tile;
    };
    for (const uint64_t tile : {0, 1, 2, 3, 4, 5, 6}) expect_tile(tile);
    cursor = {};
    for (const uint64_t tile : {3, 4, 6, 1, 2, 5}) expect_tile(tile);
  }
}

// Floats that compare as none, few or all; -0, subnormals and what is just at a limit among them.
std::vector<float> AwkwardFloats(size_t n) {
  const float some[] = {0, -0.0f, 1, -1, 0x1p-149f, -0x1p-149f, 2, -2, 0x1.000002p0f, 0.5f};
  PhiloxStream random(n);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = n % 5 == 0 ? 0.0f : some[random.NextBelow(10)];
  return x;
}

TEST(SparseKernels, CollectWhatComparisonsOneByOneDoOnEveryTarget) {
  const uint32_t one = 0x3F800000, two = 0x40000000;
  ForEachTarget([&](const std::string&) {
    for (size_t n = 0; n < 300; ++n) {
      const std::vector<float> x = AwkwardFloats(n);
      std::vector<float> above, between;
      std::vector<uint16_t> places;
      size_t ones = 0, after_third = 0, last = 0;
      bool any = false;
      for (size_t i = 0; i < n; ++i) {
        const float v = std::abs(x[i]);
        any = any || v != 0;
        if (v > 1) {
          above.push_back(x[i]);
          places.push_back(static_cast<uint16_t>(1000 + i));
        }
        if (v >= 1 && v < 2) between.push_back(x[i]);
        if (v != 1) continue;
        last = i + 1;
        if (++ones == 3) after_third = i + 1;
      }
      std::vector<float> found(n + kKeptRoom);
      std::vector<uint16_t> at(n + kKeptRoom);
      found.resize(CollectAbove(x.data(), n, one, 1000, at.data(), found.data()));
      at.resize(found.size());
      EXPECT_EQ(found, above) << n;
      EXPECT_EQ(at, places) << n;
      found.resize(n + kKeptRoom);
      found.resize(CollectBetween(x.data(), n, one, two - 1, found.data()));
      EXPECT_EQ(found, between) << n;
      EXPECT_EQ(AnyNonzero(x.data(), n), any) << n;
      uint64_t ties = 3, many = 1000, none = 0;
      EXPECT_EQ(AfterTies(x.data(), n, one, &ties), ones < 3 ? last : after_third) << n;
      EXPECT_EQ(ties, ones < 3 ? 3 - ones : 0) << n;
      EXPECT_EQ(AfterTies(x.data(), n, one, &many), last) << n;
      EXPECT_EQ(many, 1000 - ones) << n;
      EXPECT_EQ(AfterTies(x.data(), n, one, &none), 0u) << n;
    }
  });
}

TEST(SparseKernels, WriteValuesAndTermsAsArithmeticOneByOneDoesOnEveryTarget) {
  const FoldArgs args{.scale = 0x1p30, .weight = (uint64_t{1} << 20) + 7};
  ForEachTarget([&](const std::string&) {
    for (size_t n = 0; n < 70; ++n) {
      const std::vector<float> x = AwkwardFloats(n);
      std::vector<uint8_t> signs((n + 7) / 8), quantized(n);
      PackSigns(x.data(), n, signs.data());
      QuantizeKept(x.data(), n, 2.0f / 127, quantized.data());
      std::vector<int64_t> of_floats(n), of_signs(n), of_int8s(n), added(n, 1);
      TermsOfFloats(reinterpret_cast<const uint8_t*>(x.data()), n, args, of_floats.data());
      TermsOfSigns(signs.data(), n, 12345, of_signs.data());
      TermsOfInt8s(quantized.data(), n, args, of_int8s.data());
      AddSums(of_floats.data(), n, added.data());
      for (size_t i = 0; i < n; ++i) {
        const GridFold grid{.fraction_bits = 30, .weight = (int64_t{1} << 20) + 7};
        const int q = static_cast<int>(std::lrint(x[i] / (2.0f / 127)));
        EXPECT_EQ(of_floats[i], ReferenceTerm(x[i], grid));
        EXPECT_EQ(added[i], of_floats[i] + 1);
        EXPECT_EQ(of_signs[i], x[i] < 0 ? -12345 : 12345);
        EXPECT_EQ(static_cast<int8_t>(quantized[i]), q);
        EXPECT_EQ(of_int8s[i], ReferenceTerm(q, grid));
      }
      if (n % 8 != 0) {
        EXPECT_EQ(signs.back() >> n % 8, 0) << "bits after the last sign";
      }
    }
  });
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
