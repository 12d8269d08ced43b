// Sketches: cells by the document's hashes, sums of sketches as sketches of sums, and the largest
// elements found in them; and the stage that leaves zeros out.
#include "compression/sketch.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/philox.h"
#include "codec_testing.h"
#include "compression/internal/sparse.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

using testing::HasSubstr;

TEST(Sketch, HasTheCellsThatTheDocumentSays) {
  const auto codec = Make("sketch(0.1)");
  const SketchForm& form = *SketchFormOf(*codec);
  EXPECT_EQ(form.columns, 655u);
  const std::vector<float> x = RandomFloats(3, kTileElements + 5000);
  const EncodeContext context{.tensor = 4, .first = 7 * kTileElements, .shared_key = 99};
  const std::vector<uint8_t> payload = Encode(*codec, x, context);
  const uint64_t key = SketchKey(99, 4) + 7;
  EXPECT_EQ(SketchKeyOf(PiecedBytes(ByteSpan(payload))), key);
  std::vector<double> cells;
  for (uint64_t tile = 0; tile < 2; ++tile) {
    const uint64_t length = tile == 0 ? kTileElements : 5000;
    const uint64_t columns = 655 * length / kTileElements;
    std::vector<double> here(5 * columns);
    for (uint64_t i = 0; i < length; ++i) {
      for (uint32_t row = 0; row < 5; ++row) {
        const SketchPlace place = SketchPlaceOf(key + tile, i, row, columns);
        here[place.cell] += place.sign * x[tile * kTileElements + i];
      }
    }
    cells.insert(cells.end(), here.begin(), here.end());
  }
  ASSERT_EQ(payload.size(), 8 + 4 * cells.size());
  EXPECT_EQ(payload.size(), codec->EncodedBytes(x.size()));
  for (size_t j = 0; j < cells.size(); ++j) {
    float cell;
    std::memcpy(&cell, payload.data() + 8 + 4 * j, 4);
    ASSERT_EQ(cell, static_cast<float>(cells[j])) << j;
  }
}

// A last tile of 655 to 1,023 elements has more of them than a whole one of this form has cells.
TEST(Sketch, ATileTooShortForCellsIsFoldedAndDecodedWholeWhateverAWholeOneHas) {
  const auto codec = Make("sketch(0.02, rows=3)");
  const uint64_t whole = SketchFormOf(*codec)->TileCells(kTileElements);
  EXPECT_EQ(whole, 654u);
  for (const uint64_t n : {uint64_t{1}, whole - 1, whole, whole + 1, kSketchShortest - 1}) {
    for (const uint64_t tiles : {0, 1, 2}) {
      SCOPED_TRACE(std::to_string(n) + " elements after " + std::to_string(tiles) + " tiles");
      const uint64_t first = tiles * kTileElements;
      const std::vector<float> x = RandomFloats(9, first + n, 1.0);
      const std::vector<uint8_t> payload = Encode(*codec, x);
      ASSERT_EQ(payload.size(), 8 + 4 * (tiles * whole + n));
      const PiecedBytes bytes{ByteSpan(payload)};
      ASSERT_EQ(codec->Validate(bytes, x.size(), 4096), absl::OkStatus());
      std::vector<float> decoded(x.size());
      codec->Decode(bytes, decoded);
      const GridFold grid{.fraction_bits = 30, .weight = 3};
      std::vector<int64_t> at_once(x.size()), last(n);
      codec->Fold(bytes, 0, x.size(), grid, at_once.data());
      codec->Fold(bytes, first, n, grid, last.data());
      for (uint64_t i = 0; i < n; ++i) {
        ASSERT_EQ(decoded[first + i], x[first + i]) << i;
        ASSERT_EQ(last[i], ReferenceTerm(x[first + i], grid)) << i;
        ASSERT_EQ(at_once[first + i], last[i]) << i;
      }
      // And of the tiles before it, their own cells alone.
      for (uint64_t i = 0; i < first; ++i) {
        if (i % kTileElements >= whole) {
          ASSERT_EQ(at_once[i], 0) << i;
        }
      }
    }
  }
}

// As hq and randk: added in compressed form at two racks and at the root, to the bit.
TEST(Sketch, SumsOfSketchesAreTheSameHoweverTheyAreGrouped) {
  const auto codec = Make("sketch(0.2, rows=3)");
  EXPECT_TRUE(codec->capabilities().linear);
  constexpr uint64_t kElements = kTileElements + 2000;
  std::vector<int64_t> all(kElements), left(kElements), right(kElements);
  std::vector<std::vector<uint8_t>> payloads;
  for (int client = 0; client < 20; ++client) {
    payloads.push_back(Encode(*codec, RandomFloats(client, kElements), {.shared_key = 5}));
    const PiecedBytes bytes{ByteSpan(payloads.back())};
    ASSERT_EQ(codec->Validate(bytes, kElements, 4096), absl::OkStatus());
    const GridFold grid{.fraction_bits = 30, .weight = client + 1};
    codec->Fold(bytes, 0, kElements, grid, all.data());
    std::vector<int64_t>& rack = client % 3 == 0 ? left : right;
    // Tile by tile, and in pieces.
    const CutBytes cut(payloads.back(), static_cast<uint64_t>(client), 100);
    codec->Fold(cut.bytes(), 0, kTileElements, grid, rack.data());
    codec->Fold(cut.bytes(), kTileElements, 2000, grid, rack.data() + kTileElements);
  }
  // A cell is a float: of each client, times its weight, rounded to the grid.
  const SketchForm& form = *SketchFormOf(*codec);
  const uint64_t whole = form.TileCells(kTileElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(left[i] + right[i], all[i]) << i;
    const uint64_t in_tile = i % kTileElements;
    const bool second = i >= kTileElements;
    int64_t expected = 0;
    if (in_tile < (second ? form.TileCells(2000) : whole)) {
      for (int client = 0; client < 20; ++client) {
        float cell;
        std::memcpy(&cell, payloads[client].data() + 8 + 4 * ((second ? whole : 0) + in_tile), 4);
        expected += ReferenceTerm(cell, {.fraction_bits = 30, .weight = client + 1});
      }
    }
    ASSERT_EQ(all[i], expected) << i;
  }
}

// On the grid, to the bit: whole multiples of 2^-10 whose sums binary32 holds.
TEST(Sketch, OfAWeightedSumIsTheWeightedSumOfTheSketches) {
  constexpr uint64_t kElements = kTileElements + 5000 + 1;
  PhiloxStream random(17);
  std::vector<float> x(kElements), y(kElements), both(kElements);
  for (uint64_t i = 0; i < kElements; ++i) {
    x[i] = std::ldexp(static_cast<float>(random.NextBelow(401)) - 200, -10);
    y[i] = std::ldexp(static_cast<float>(random.NextBelow(401)) - 200, -10);
    both[i] = 3 * x[i] - 5 * y[i];
  }
  for (const CodecCase& c : SketchCases()) {
    const auto codec = Make(c.spec);
    ForEachTarget([&](const std::string&) {
      const auto fold = [&](const std::vector<float>& values, int64_t weight,
                            std::vector<int64_t>* acc) {
        const std::vector<uint8_t> payload = Encode(*codec, values);
        codec->Fold(PiecedBytes(ByteSpan(payload)), 0, kElements,
                    {.fraction_bits = 30, .weight = weight}, acc->data());
      };
      std::vector<int64_t> apart(kElements), at_once(kElements);
      fold(x, 3, &apart);
      fold(y, -5, &apart);
      fold(both, 1, &at_once);
      EXPECT_EQ(apart, at_once) << c.spec;
      EXPECT_NE(apart, std::vector<int64_t>(kElements)) << c.spec;
    });
  }
}

// Charikar, Chen, Farach-Colton 2002: a row's estimate is off by a variance of at most |x|^2 over
// its columns, so that by Chebyshev one in eight rows at most is off by more than sqrt(8 / columns)
// |x|; a median of five is only where three rows are (10 / 8^3 of all), one of three where two are
// (3 / 8^2). A tile too short for cells, and one without anything in it, is exact.
TEST(Sketch, EstimatesAreAsNearAsCountSketchesPromise) {
  const std::map<uint32_t, double> shares = {{1, 1.0 / 8}, {3, 3.0 / 64}, {5, 10.0 / 512}};
  for (const CodecCase& c : SketchCases()) {
    const auto codec = Make(c.spec);
    const SketchForm& form = *SketchFormOf(*codec);
    for (const std::string& pattern : Patterns()) {
      for (const uint64_t n : {uint64_t{1023}, uint64_t{1024}, uint64_t{4095}, uint64_t{4097},
                               (uint64_t{1} << 20) + 7}) {
        SCOPED_TRACE(c.spec + ", " + pattern + ", " + std::to_string(n) + " elements");
        const std::vector<float> x = MakeInput(pattern, n);
        const std::vector<uint8_t> payload = Encode(*codec, x);
        std::vector<float> estimates(n);
        codec->Decode(PiecedBytes(ByteSpan(payload)), estimates);
        for (uint64_t at = 0; at < n; at += kTileElements) {
          const uint64_t length = std::min(kTileElements, n - at);
          const uint64_t columns = form.columns * length / kTileElements;
          double squares = 0;
          for (uint64_t i = at; i < at + length; ++i) squares += double{x[i]} * x[i];
          const double near =
              length < 1024 ? 0 : std::sqrt(8 * squares / static_cast<double>(columns));
          uint64_t beyond = 0;
          for (uint64_t i = at; i < at + length; ++i) {
            beyond += std::abs(double{estimates[i]} - x[i]) > near ? 1 : 0;
          }
          ASSERT_LE(static_cast<double>(beyond),
                    near == 0 ? 0 : shares.at(form.rows) * static_cast<double>(length))
              << "the tile at " << at;
        }
      }
    }
  }
}

// To the bit, on every target, of the root's cells and of a payload's: zeros of both signs, of
// which the median is one, too; tiles with a rest after the last vector.
TEST(Sketch, EstimatesAreTheMediansThatTheDocumentSays) {
  const auto median = [](std::vector<double> v) {
    const auto three = [](double a, double b, double c) {
      return std::max(std::min(a, b), std::min(std::max(a, b), c));
    };
    if (v.size() == 1) return v[0];
    if (v.size() == 3) return three(v[0], v[1], v[2]);
    return three(std::max(std::min(v[0], v[1]), std::min(v[2], v[3])),
                 std::min(std::max(v[0], v[1]), std::max(v[2], v[3])), v[4]);
  };
  for (const uint32_t rows : {1, 3, 5}) {
    const SketchForm form{.rows = rows, .columns = 3276};
    const auto codec = MakeSketch(form);
    for (const uint64_t n : {uint64_t{1024}, uint64_t{1037}, kTileElements + 4999}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(n) + " elements");
      PhiloxStream random(n);
      std::vector<uint8_t> payload(8 + 4 * form.Cells(n));
      const uint64_t key = 12345;
      std::memcpy(payload.data(), &key, 8);
      std::vector<double> cells(form.Cells(n));
      for (size_t j = 0; j < cells.size(); ++j) {
        const uint32_t kind = random.Next32() % 8;
        const float cell = kind < 2 ? 0.0f : kind < 4 ? -0.0f : random.Next32() * 0x1p-30f - 2;
        std::memcpy(payload.data() + 8 + 4 * j, &cell, 4);
        cells[j] = cell;
      }
      std::vector<float> expected(n);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t tile = i / kTileElements;
        const uint64_t columns =
            form.columns * std::min(kTileElements, n - tile * kTileElements) / kTileElements;
        const uint64_t first = tile * form.TileCells(kTileElements);
        std::vector<double> v;
        for (uint32_t r = 0; r < rows; ++r) {
          const SketchPlace place = SketchPlaceOf(key + tile, i % kTileElements, r, columns);
          v.push_back(place.sign * cells[first + place.cell]);
        }
        expected[i] = static_cast<float>(median(v));
      }
      ForEachTarget([&](const std::string&) {
        std::vector<float> of_doubles(n), of_floats(n);
        SketchEstimate(form, key, cells, of_doubles);
        codec->Decode(PiecedBytes(ByteSpan(payload)), of_floats);
        EXPECT_EQ(std::memcmp(of_doubles.data(), expected.data(), 4 * n), 0);
        EXPECT_EQ(std::memcmp(of_floats.data(), expected.data(), 4 * n), 0);
      });
    }
  }
}

// What racks sum and the root takes apart: spikes so few that three of five rows nearly never meet
// another come out of the grid whole, and nothing is left in the cells.
TEST(Sketch, SpikesComeOutOfTheGridWhole) {
  constexpr uint64_t kElements = 3 * kTileElements;
  constexpr GridFold kGrid{.fraction_bits = 30, .weight = 12};
  const auto codec = Make("sketch(0.2)");
  const SketchForm& form = *SketchFormOf(*codec);
  std::vector<std::pair<uint64_t, double>> spikes;
  std::vector<float> x(kElements);
  for (uint64_t i = 5; i < kElements; i += 8009) {
    spikes.emplace_back(i, std::ldexp(i % 2 == 0 ? 1.0 : -1.0, -static_cast<int>(i % 11)));
    x[i] = static_cast<float>(spikes.back().second);
  }
  ForEachTarget([&](const std::string&) {
    const std::vector<uint8_t> payload = Encode(*codec, x, {.tensor = 2, .shared_key = 31});
    const PiecedBytes bytes{ByteSpan(payload)};
    std::vector<int64_t> acc(kElements);
    codec->Fold(bytes, 0, kElements, kGrid, acc.data());
    // A tile's cells lie in the places of its first elements.
    std::vector<double> cells;
    const uint64_t whole = form.TileCells(kTileElements);
    for (uint64_t at = 0; at < kElements; at += kTileElements) {
      for (uint64_t j = 0; j < whole; ++j) {
        cells.push_back(std::ldexp(static_cast<double>(acc[at + j]), -30) / 12);
      }
    }
    EXPECT_EQ(SketchRecover(form, SketchKeyOf(bytes), kElements, spikes.size(), 16, cells), spikes);
    EXPECT_EQ(cells, std::vector<double>(cells.size()));
  });
}

TEST(Sketch, FindsTheLargestOfASumAndLeavesTheRestInTheCells) {
  constexpr uint64_t kElements = 2 * kTileElements + 3000;
  const SketchForm form{.rows = 5, .columns = 3276, .recover = 0.001};
  std::vector<float> x = RandomFloats(8, kElements, 1e-4);
  std::vector<uint64_t> heavy;
  for (uint64_t i = 17; i < kElements; i += 1501) heavy.push_back(i);
  for (size_t j = 0; j < heavy.size(); ++j) x[heavy[j]] = (j % 2 == 0 ? 1.0f : -1.0f) * (1 + j % 7);
  std::vector<double> cells(form.Cells(kElements));
  for (uint64_t i = 0; i < kElements; ++i) SketchAdd(form, 123, kElements, i, x[i], cells);
  const auto found = SketchRecover(form, 123, kElements, heavy.size(), 4096, cells);
  ASSERT_EQ(found.size(), heavy.size());
  std::vector<double> rest(form.Cells(kElements));
  std::vector<float> left = x;
  for (size_t j = 0; j < found.size(); ++j) {
    EXPECT_EQ(found[j].first, heavy[j]);
    // Some ten small ones in a cell, of deviation 1e-4.
    EXPECT_NEAR(found[j].second, x[heavy[j]], 0.01);
  }
  for (uint64_t i = 0; i < kElements; ++i) SketchAdd(form, 123, kElements, i, x[i], rest);
  for (const auto& [i, value] : found) SketchAdd(form, 123, kElements, i, -value, rest);
  for (size_t c = 0; c < cells.size(); ++c) ASSERT_NEAR(cells[c], rest[c], 1e-9) << c;
}

TEST(Sketch, NothingFoundIsBeyondTheBoundAndZerosAreNotFound) {
  const SketchForm form{.rows = 3, .columns = 10'000, .recover = 0.1};
  std::vector<double> cells(form.Cells(5000));
  EXPECT_TRUE(SketchRecover(form, 1, 5000, 50, 16, cells).empty());
  SketchAdd(form, 1, 5000, 1234, -100, cells);
  const auto found = SketchRecover(form, 1, 5000, 1, 16, cells);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], (std::pair<uint64_t, double>{1234, -16}));
  // 84 are left for another round.
  EXPECT_EQ(SketchRecover(form, 1, 5000, 1, 1000, cells)[0],
            (std::pair<uint64_t, double>{1234, -84}));
}

TEST(Sketch, RefusesLengthsCellsAndParametersThatCannotBe) {
  const auto codec = Make("sketch(0.1, rows=1)");
  std::vector<uint8_t> payload = Encode(*codec, RandomFloats(1, 4000));
  const auto verdict = [&](uint64_t n) {
    return codec->Validate(PiecedBytes(ByteSpan(payload)), n, 4096);
  };
  EXPECT_EQ(verdict(4000), absl::OkStatus());
  for (const uint64_t n : {uint64_t{0}, uint64_t{3000}, uint64_t{40'000}, ~uint64_t{0}}) {
    EXPECT_THAT(std::string(verdict(n).message()), HasSubstr("bytes do not hold")) << n;
  }
  const float bad[] = {NAN, INFINITY, 4097};
  const absl::StatusCode codes[] = {absl::StatusCode::kDataLoss, absl::StatusCode::kDataLoss,
                                    absl::StatusCode::kOutOfRange};
  for (int k = 0; k < 3; ++k) {
    std::memcpy(payload.data() + 8 + 4 * 33, &bad[k], 4);
    EXPECT_EQ(verdict(4000).code(), codes[k]);
    EXPECT_THAT(std::string(verdict(4000).message()), HasSubstr("element 33 "));
  }
  payload.resize(payload.size() - 1);
  EXPECT_THAT(std::string(verdict(4000).message()), HasSubstr("bytes do not hold"));
}

TEST(Zeros, AreLeftOutWhereThatIsSmallerAndNotWhereItIsNot) {
  std::vector<float> x(20 * 256 + 100);
  for (size_t i = 5 * 256; i < 7 * 256; ++i) x[i] = static_cast<float>(i % 9) - 4;
  x.back() = 3;
  const auto codec = Make("fp32 | zeros");
  const auto plain = Make("fp32");
  std::vector<uint8_t> out;
  const auto form = codec->EncodeSegment(x, {}, &out);
  ASSERT_TRUE(form.ok()) << form.status();
  EXPECT_EQ(form->id, CodecId::kZeros);
  // A head of 12 bytes, 21 blocks' bits, and 612 floats.
  EXPECT_EQ(out.size(), 12u + 3 + 4 * (2 * 256 + 100));
  EXPECT_EQ(out[12 + 5 / 8], 0b01100000);
  EXPECT_EQ(out[12 + 2], 1 << 4);
  std::vector<float> back(x.size(), 7);
  codec->Decode(PiecedBytes(ByteSpan(out)), back);
  EXPECT_EQ(back, x);

  const std::vector<float> full = RandomFloats(1, x.size());
  out.clear();
  const auto other = codec->EncodeSegment(full, {}, &out);
  EXPECT_EQ(other->id, CodecId::kFp32);
  EXPECT_EQ(out, Encode(*plain, full));
}

TEST(Zeros, RefuseHeadsThatDoNotFit) {
  std::vector<float> x(1000);
  x[700] = 1;
  const auto codec = Make("fp32 | zeros");
  const std::vector<uint8_t> good = Encode(*codec, x);
  const auto message = [&](size_t at, uint8_t byte, uint64_t n = 1000) {
    std::vector<uint8_t> payload = good;
    payload[at] = byte;
    return std::string(codec->Validate(PiecedBytes(ByteSpan(payload)), n, 4096).message());
  };
  EXPECT_EQ(message(0, good[0]), "");
  EXPECT_THAT(message(0, 17), HasSubstr("within a stage"));
  EXPECT_THAT(message(0, 20), HasSubstr("within a stage"));
  EXPECT_THAT(message(0, 21), HasSubstr("within a stage"));
  EXPECT_THAT(message(0, 99), HasSubstr("99"));
  EXPECT_THAT(message(2, 1), HasSubstr("not 0"));
  EXPECT_THAT(message(4, 1), HasSubstr("parameter"));
  EXPECT_THAT(message(8, 0, 1000), HasSubstr("they are of 768"));
  EXPECT_THAT(message(0, good[0], 1001), HasSubstr("they are of 1000"));
  EXPECT_THAT(message(11, 1), HasSubstr("more than a segment"));
  EXPECT_THAT(message(12, good[12] | 1 << 4), HasSubstr("after the last block"));
  EXPECT_THAT(message(12, good[12] | 1), HasSubstr("do not hold"));
}

// Updates without large elements, the worst case: what is left over after 60 rounds is below the
// sum of all updates (their norms added) where no more than SafelyRecovered are taken out, and far
// above it where four times as many are.
TEST(Sketch, LeftoversOfFlatUpdatesGrowByAFactorOnlyBeyondWhatIsSafe) {
  constexpr uint64_t kElements = 8192;
  const SketchForm form{.rows = 5, .columns = 3200};  // 800 a row of this tile
  const auto most = static_cast<uint64_t>(SafelyRecovered(form) * kElements);
  EXPECT_EQ(most, 100u);
  for (const uint64_t k : {most, 4 * most}) {
    std::vector<double> cells(form.Cells(kElements));
    PhiloxStream random(5);
    double norms = 0;
    for (int round = 0; round < 60; ++round) {
      double squares = 0;
      for (uint64_t i = 0; i < kElements; ++i) {
        const double value = random.Next32() * 0x1p-31 - 1;
        squares += value * value;
        SketchAdd(form, 9, kElements, i, value, cells);
      }
      norms += std::sqrt(squares);
      SketchRecover(form, 9, kElements, k, 1e30, cells);
    }
    double squares = 0;
    for (const double cell : cells) squares += cell * cell / form.rows;
    if (k == most) {
      EXPECT_LT(std::sqrt(squares), norms);
    } else {
      EXPECT_GT(std::sqrt(squares), 10 * norms);
    }
  }
}

}  // namespace
}  // namespace tributary::compression
