// Codecs whose payloads may be summed without decoding: numbers of all clients in the same places,
// added at two racks and at the root, are to the bit what the updates are, decoded one by one; and
// what a round allows at most, nothing wraps and nothing saturates at.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "base/philox.h"
#include "codec_testing.h"
#include "compression/internal/scalar.h"
#include "compression/sketch.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

constexpr int kFractionBits = 30;

// A payload by docs/wire-format.md: numbers that may be added, and the element (of a sketch, the
// sum) that each belongs to; nothing where that is beyond the tile.
struct Compressed {
  std::vector<double> numbers;
  std::vector<std::optional<uint64_t>> places;
};

Compressed OfCodes(const Codec& codec, std::span<const uint8_t> payload, uint64_t n) {
  const uint32_t parameter = codec.parameter();
  const bool vote = codec.capabilities().id == CodecId::kSign;
  const int bits = vote ? 1 : static_cast<int>(parameter & 0xFF);
  const int step = static_cast<int>(vote ? parameter & 0x7FFFFFFF : parameter >> 8);
  Compressed out;
  for (uint64_t i = 0; i < n; ++i) {
    const int code = payload[i * bits / 8] >> i * bits % 8 & ((1 << bits) - 1);
    const int number = vote ? 1 - 2 * code : code >> (bits - 1) != 0 ? code - (1 << bits) : code;
    out.numbers.push_back(std::ldexp(number, -step));
    out.places.emplace_back(i);
  }
  return out;
}

Compressed OfRandomK(const Codec& codec, std::span<const uint8_t> payload, uint64_t n) {
  const uint64_t stride = codec.parameter() & 0xFFFF;
  const bool half = (codec.parameter() & 0x10000) != 0;
  const double factor = codec.parameter() >> 31 != 0 ? 1 : static_cast<double>(stride);
  const auto key = LoadLe<uint64_t>(payload.data());
  const uint8_t* value = payload.data() + 8;
  Compressed out;
  for (uint64_t tile = 0; tile * kTileElements < n; ++tile) {
    const uint64_t length = std::min(kTileElements, n - tile * kTileElements);
    for (uint64_t j = 0; j * stride < length; ++j) {
      const PhiloxBlock words =
          Philox4x32(key, {static_cast<uint32_t>(j / 4), static_cast<uint32_t>(tile), 0, 0});
      const uint64_t place = j * stride + (words[j % 4] * stride >> 32);
      out.numbers.push_back(
          factor * double{half ? HalfToFloat(LoadLe<uint16_t>(value)) : LoadLe<float>(value)});
      value += half ? 2 : 4;
      out.places.push_back(place < length ? std::optional(tile * kTileElements + place)
                                          : std::nullopt);
    }
  }
  EXPECT_EQ(value, payload.data() + payload.size());
  return out;
}

Compressed OfSketch(const Codec& codec, std::span<const uint8_t> payload, uint64_t n) {
  const uint64_t rows = codec.parameter() & 15, columns = codec.parameter() >> 4;
  Compressed out;
  const uint8_t* cell = payload.data() + 8;
  for (uint64_t tile = 0; tile * kTileElements < n; ++tile) {
    const uint64_t length = std::min(kTileElements, n - tile * kTileElements);
    const uint64_t cells = length < 1024 ? length : rows * (columns * length / kTileElements);
    for (uint64_t j = 0; j < cells; ++j, cell += 4) {
      out.numbers.push_back(double{LoadLe<float>(cell)});
      out.places.emplace_back(tile * kTileElements + j);
    }
  }
  EXPECT_EQ(cell, payload.data() + payload.size());
  return out;
}

Compressed Read(const Codec& codec, std::span<const uint8_t> payload, uint64_t n) {
  const CodecId id = codec.capabilities().id;
  if (id == CodecId::kRandK) return OfRandomK(codec, payload, n);
  if (id == CodecId::kSketch) return OfSketch(codec, payload, n);
  return OfCodes(codec, payload, n);
}

const char* const kSpecs[] = {"sign(mode=vote, step=2^-10)",
                              "hq(bits=8, step=2^-12)",
                              "hq(bits=4, step=2^-8)",
                              "randk(0.5)",
                              "randk(0.03)",
                              "randk(0.1, values=fp16)",
                              "randk(0.1, scaled=no)",
                              "sketch(0.2)",
                              "sketch(0.1, rows=1)"};

TEST(Linear, EveryCodecWhoseRowSaysSoIsHeldToIt) {
  std::set<CodecId> held = {CodecId::kRawInt64};
  for (const char* spec : kSpecs) {
    const Capabilities& row = Make(spec)->capabilities();
    EXPECT_TRUE(row.linear) << spec;
    held.insert(row.id);
  }
  for (const Capabilities& row : AllCodecs()) {
    if (row.linear) {
      EXPECT_TRUE(held.contains(row.id)) << row.name;
    }
  }
}

// What a rack or the root has of a round.
struct Sums {
  std::vector<int64_t> compressed;  // a sum for each number of a payload
  std::vector<int64_t> elements;    // decoded and folded
};

void Add(const Sums& from, Sums* to) {
  for (size_t j = 0; j < from.compressed.size(); ++j) to->compressed[j] += from.compressed[j];
  for (size_t i = 0; i < from.elements.size(); ++i) to->elements[i] += from.elements[i];
}

TEST(Linear, SummedInCompressedFormAtTwoRacksAndDecodedAtTheRootIsDecodedEachAndSummedToTheBit) {
  constexpr uint64_t kElements = kTileElements + 5003;
  constexpr uint32_t kClients = 40;
  std::vector<std::vector<float>> inputs;
  for (uint32_t client = 0; client < kClients; ++client) {
    inputs.push_back(RandomFloats(client, kElements, 0.03));
  }
  for (const char* spec : kSpecs) {
    const auto codec = Make(spec);
    std::vector<std::optional<uint64_t>> places;
    Sums racks[2], root;
    std::vector<int64_t> one_by_one(kElements);
    for (uint32_t client = 0; client < kClients; ++client) {
      const auto payload =
          Encode(*codec, inputs[client], {.key = client, .round = 3, .tensor = 1, .shared_key = 7});
      const GridFold grid{.fraction_bits = kFractionBits, .weight = 1 + 977 * client};
      const Compressed read = Read(*codec, payload, kElements);
      Sums& rack = racks[client * 7 % 3 == 0 ? 0 : 1];
      for (Sums* sums : {&rack, &root}) {
        sums->compressed.resize(read.numbers.size());
        sums->elements.resize(kElements);
      }
      // The first client's places are everyone's: sums need to know nothing else.
      if (client == 0) places = read.places;
      ASSERT_EQ(read.places, places) << spec << ", client " << client;
      const std::vector<int64_t> terms = ReferenceTerms(read.numbers, grid);
      for (size_t j = 0; j < terms.size(); ++j) rack.compressed[j] += terms[j];
      const CutBytes cut(payload, client, 500);
      for (uint64_t at = 0; at < kElements; at += kTileElements) {
        codec->Fold(cut.bytes(), at, std::min(kTileElements, kElements - at), grid,
                    rack.elements.data() + at);
      }
      codec->Fold(PiecedBytes(ByteSpan(payload)), 0, kElements, grid, one_by_one.data());
    }
    for (const Sums& rack : racks) {
      ASSERT_FALSE(rack.elements.empty());
      Add(rack, &root);
    }
    EXPECT_EQ(root.elements, one_by_one) << spec;
    std::vector<int64_t> decoded(kElements);
    for (size_t j = 0; j < places.size(); ++j) {
      if (places[j].has_value()) decoded[*places[j]] += root.compressed[j];
    }
    EXPECT_EQ(decoded, one_by_one) << spec;
    EXPECT_GT(std::count_if(decoded.begin(), decoded.end(), [](int64_t s) { return s != 0; }), 900)
        << spec;
  }
}

// Of values that floats hold, the mean is also that of the decoded floats, however they are added.
TEST(Linear, SumsOfStepsAreTheDecodedFloatsSumsExactly) {
  constexpr uint64_t kElements = 4099;
  for (const char* spec :
       {"sign(mode=vote, step=2^-10)", "hq(bits=8, step=2^-12)", "hq(bits=4, step=2^-8)"}) {
    const auto codec = Make(spec);
    std::vector<int64_t> sums(kElements);
    std::vector<double> floats(kElements);
    std::vector<float> decoded(kElements);
    for (uint32_t client = 0; client < 300; ++client) {  // int16 holds 258 int8
      const auto payload = Encode(*codec, RandomFloats(client, kElements, 0.05), {.key = client});
      const PiecedBytes bytes{ByteSpan(payload)};
      codec->Fold(bytes, 0, kElements, {.fraction_bits = kFractionBits}, sums.data());
      codec->Decode(bytes, decoded);
      for (size_t i = 0; i < kElements; ++i) floats[i] += double{decoded[i]};
    }
    for (size_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(std::ldexp(static_cast<double>(sums[i]), -kFractionBits), floats[i]) << spec;
    }
  }
}

TEST(Linear, RawIntegersOfTwoRacksAreTheSumOfAll) {
  constexpr uint64_t kElements = 1000;
  PhiloxStream random(5);
  std::vector<int64_t> racks[2] = {std::vector<int64_t>(kElements),
                                   std::vector<int64_t>(kElements)};
  std::vector<__int128> all(kElements);
  for (int64_t client = 1; client <= 20; ++client) {
    std::vector<int64_t> x(kElements);
    std::vector<uint8_t> payload;
    for (size_t i = 0; i < kElements; ++i) {
      x[i] = static_cast<int64_t>(random.NextBelow(1u << 31)) - (1 << 30);
      all[i] += static_cast<__int128>(x[i]) * client;
    }
    EncodeRawInt64(x, &payload);
    FoldRawInt64(PiecedBytes(ByteSpan(payload)), 0, kElements, client, racks[client % 2].data());
  }
  for (size_t i = 0; i < kElements; ++i) {
    ASSERT_EQ(static_cast<__int128>(racks[0][i]) + racks[1][i], all[i]);
  }
}

// Every number of a payload the largest that a bound lets by, all of one sign: of a vote or hq the
// code that is furthest from 0, of the others +-bound.
std::vector<uint8_t> Extreme(const Codec& codec, uint64_t n, double bound, bool minus) {
  std::vector<uint8_t> payload(codec.EncodedBytes(n));
  switch (codec.capabilities().id) {
    case CodecId::kSign:
      std::ranges::fill(payload, minus ? 0xFF : 0);
      return payload;
    case CodecId::kHq:
      std::ranges::fill(
          payload, (codec.parameter() & 0xFF) == 8 ? (minus ? 0x80 : 0x7F) : (minus ? 0x88 : 0x77));
      return payload;
    default:
      break;
  }
  const bool scaled = codec.capabilities().id == CodecId::kRandK && codec.parameter() >> 31 == 0;
  const double factor = scaled ? static_cast<double>(codec.parameter() & 0xFFFF) : 1;
  const auto value = static_cast<float>((minus ? -bound : bound) / factor);
  for (size_t at = 8; at < payload.size(); at += sizeof value) StoreLe(value, payload.data() + at);
  return payload;
}

// A round allows weights W with bound * 2^f * W < 2^63 in all (aggregation/grid.h): there the
// sums of two racks, and of sixteen updates in a pass, are still those of 128-bit integers.
TEST(Linear, AtTheLargestWeightThatARoundAllowsNothingWrapsOrSaturates) {
  constexpr uint64_t kElements = 2048;
  struct Row {
    const char* spec;
    double bound;  // the least power of two that lets the largest number by
    int fraction_bits;
  };
  for (const Row& row : {Row{"sign(mode=vote, step=2^-0)", 1, 50},
                         Row{"hq(bits=8, step=2^-0)", 128, 43}, Row{"hq(bits=8, step=2^-7)", 1, 50},
                         Row{"hq(bits=4, step=2^-3)", 1, 50}, Row{"randk(0.25)", 4096, 30},
                         Row{"randk(0.25, scaled=no)", 1, 50}, Row{"sketch(0.5)", 4096, 38}}) {
    const auto codec = Make(row.spec);
    const double limit = 0x1p63 / std::ldexp(row.bound, row.fraction_bits);
    const auto most = static_cast<int64_t>(limit) - 1;
    ASSERT_GE(most, 8191) << row.spec;
    for (const bool minus : {false, true}) {
      const std::vector<uint8_t> payload = Extreme(*codec, kElements, row.bound, minus);
      const PiecedBytes bytes{ByteSpan(payload)};
      ASSERT_EQ(codec->Validate(bytes, kElements, row.bound), absl::OkStatus()) << row.spec;
      ASSERT_FALSE(codec->Validate(bytes, kElements, row.bound / 2).ok()) << row.spec;
      // All but sixteen of the weight at one rack, sixteen updates of weight 1 at the other.
      std::vector<int64_t> left(kElements), right(kElements), expected(kElements);
      codec->Fold(bytes, 0, kElements, {row.fraction_bits, most - 16}, left.data());
      const std::vector<FoldPart> parts(16, {&bytes, 0, 1});
      codec->FoldMany(parts, kElements, row.fraction_bits, right.data());
      const Compressed read = Read(*codec, payload, kElements);
      for (size_t j = 0; j < read.numbers.size(); ++j) {
        if (!read.places[j].has_value()) continue;
        // ReferenceTerm works in 128 bits, and says where 64 do not hold it.
        expected[*read.places[j]] =
            ReferenceTerm(read.numbers[j], {.fraction_bits = row.fraction_bits, .weight = most});
      }
      for (size_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(static_cast<__int128>(left[i]) + right[i], expected[i]) << row.spec << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tributary::compression
