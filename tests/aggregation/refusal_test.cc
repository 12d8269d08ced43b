// Promises of refusals: each offence has its reason, the message names client, tensor and value,
// and the others' result is what it would be without the offender.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "aggregation/update.h"
#include "base/checksum.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using compression::SegmentHeader;
using ::testing::HasSubstr;
using Segments = std::vector<std::vector<uint8_t>>;

// "w" takes two segments (262,144 and 7,856 elements), the others one each.
testing::LayoutPtr Layout() {
  return testing::MakeLayout({{"w", {270'000}, DType::kF32, Policy::kMean},
                              {"frozen", {9}, DType::kF32, Policy::kSkip},
                              {"counter", {5}, DType::kI64, Policy::kMean},
                              {"b", {10}, DType::kBf16, Policy::kMean}});
}

testing::Recorded Good(const ModelLayout& layout, const std::string& id, uint64_t seed,
                       const std::string& codec = "fp32") {
  auto deltas = testing::RandomDeltas(layout, seed);
  return testing::Record(layout, {codec}, id, 10, deltas);
}

// Sends the segments, declaring `declared` (their size, when 0) and their CRC changed by
// `crc_flip`.
Refusal Send(const Segments& segments, uint64_t declared = 0, uint32_t crc_flip = 0) {
  const testing::Recorded recorded{"mallory", 10, segments};
  const uint64_t size = declared == 0 ? recorded.size() : declared;
  UpdateAssembler assembler(Layout(), Grid(), recorded.id, recorded.weight, size);
  bool taken = true;
  for (const auto& segment : segments) {
    const auto owned = std::make_shared<const std::vector<uint8_t>>(segment);
    taken = taken && assembler.Add(PiecedBytes(ByteSpan(*owned)), owned);
  }
  const auto update = assembler.Finish(size, recorded.crc() ^ crc_flip);
  EXPECT_TRUE(taken || update == nullptr) << "a refused update was finished";
  EXPECT_EQ(update == nullptr, !assembler.refusal().reason.empty());
  if (update == nullptr) {
    EXPECT_THAT(assembler.refusal().message, HasSubstr("client \"mallory\""));
  }
  return assembler.refusal();
}

// The good update's segments with one changed by `change`.
Segments Changed(size_t index, const std::function<void(std::vector<uint8_t>&)>& change) {
  Segments segments = Good(*Layout(), "mallory", 1).segments;
  change(segments[index]);
  return segments;
}
Segments HeaderChanged(size_t index, const std::function<void(SegmentHeader&)>& change) {
  return Changed(index, [&](std::vector<uint8_t>& segment) {
    const PiecedBytes bytes{ByteSpan(segment)};
    ByteCursor cursor(bytes);
    SegmentHeader header = *compression::ReadSegmentHeader(&cursor);
    change(header);
    compression::WriteSegmentHeader(header, segment.data());
  });
}
// Segment 0 with element `i` of "w" set.
Segments FloatSet(size_t i, float value) {
  return Changed(0,
                 [&](std::vector<uint8_t>& s) { std::memcpy(s.data() + 32 + 4 * i, &value, 4); });
}

void ExpectRefusal(const Refusal& refusal, const std::string& reason,
                   const std::vector<std::string>& words) {
  EXPECT_EQ(refusal.reason, reason) << refusal.message;
  for (const std::string& word : words) EXPECT_THAT(refusal.message, HasSubstr(word));
}

TEST(RefusalTest, TheGoodUpdateIsTaken) {
  EXPECT_EQ(Send(Good(*Layout(), "mallory", 1).segments).reason, "");
}

TEST(RefusalTest, ElementsThatAreNotFinite) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    ExpectRefusal(Send(FloatSet(1234, bad)), "non_finite", {"tensor \"w\"", "1234"});
  }
}

TEST(RefusalTest, ElementsBeyondTheBoundAndNotThoseAtIt) {
  EXPECT_EQ(Send(FloatSet(0, 4096)).reason, "");
  EXPECT_EQ(Send(FloatSet(0, -4096)).reason, "");
  ExpectRefusal(Send(FloatSet(77, std::nextafter(4096.0f, 5000.0f))), "bound",
                {"tensor \"w\"", "77", "4096"});
  ExpectRefusal(Send(FloatSet(77, -1e30f)), "bound", {"tensor \"w\"", "77"});
}

TEST(RefusalTest, IntegersBeyondTheirBoundAndNotThoseAtIt) {
  const int64_t bound = Grid().IntegerBound();
  const auto with = [](int64_t value) {
    return Send(Changed(
        2, [&](std::vector<uint8_t>& s) { std::memcpy(s.data() + 32 + 8 * 3, &value, 8); }));
  };
  EXPECT_EQ(with(bound).reason, "");
  EXPECT_EQ(with(-bound).reason, "");
  ExpectRefusal(with(bound + 1), "bound", {"tensor \"counter\"", std::to_string(bound + 1)});
  ExpectRefusal(with(std::numeric_limits<int64_t>::min()), "bound", {"tensor \"counter\""});
}

TEST(RefusalTest, Int8BlocksWithABadScale) {
  const auto with = [](float scale) {
    Segments segments = Good(*Layout(), "mallory", 1, "int8(block=64)").segments;
    std::memcpy(segments[0].data() + 32 + 68 * 2, &scale, 4);  // of block 2
    return Send(segments);
  };
  ExpectRefusal(with(std::nanf("")), "non_finite", {"tensor \"w\""});
  ExpectRefusal(with(std::numeric_limits<float>::infinity()), "non_finite", {"tensor \"w\""});
  ExpectRefusal(with(33), "bound", {"tensor \"w\""});  // 33 * 128 > 4096
  ExpectRefusal(with(-1), "malformed", {"tensor \"w\""});
  EXPECT_EQ(with(32).reason, "");
}

TEST(RefusalTest, BytesBeyondTheDeclaredLength) {
  const auto good = Good(*Layout(), "mallory", 1);
  ExpectRefusal(Send(good.segments, good.size() - 1), "size", {std::to_string(good.size() - 1)});
  Segments longer = good.segments;
  longer.push_back(longer.back());
  ExpectRefusal(Send(longer, good.size()), "size", {});
}

TEST(RefusalTest, FewerBytesThanDeclared) {
  const auto good = Good(*Layout(), "mallory", 1);
  ExpectRefusal(Send(good.segments, good.size() + 1), "size", {std::to_string(good.size() + 1)});
}

TEST(RefusalTest, ADeclaredLengthThatNoUpdateOfThisLayoutCanHave) {
  UpdateAssembler assembler(Layout(), Grid(), "mallory", 1, uint64_t{1} << 62);
  const std::vector<uint8_t> nothing;
  EXPECT_FALSE(assembler.Add(PiecedBytes(ByteSpan(nothing)), nullptr));
  ExpectRefusal(assembler.refusal(), "size",
                {"4611686018427387904", std::to_string(MaxEncodedBytes(*Layout()))});
}

TEST(RefusalTest, AWeightThatTheGridHasNoRoomFor) {
  for (const int64_t weight :
       {int64_t{0}, int64_t{-1}, int64_t{(1 << 20) + 1}, std::numeric_limits<int64_t>::min()}) {
    UpdateAssembler assembler(Layout(), Grid(), "mallory", weight, 100);
    EXPECT_EQ(assembler.Finish(100, 0), nullptr);
    ExpectRefusal(assembler.refusal(), "weight", {std::to_string(weight)});
  }
}

TEST(RefusalTest, HeadersThatDoNotRead) {
  ExpectRefusal(Send(HeaderChanged(0, [](SegmentHeader& h) { h.version = 2; })), "malformed", {});
  ExpectRefusal(Send(HeaderChanged(1, [](SegmentHeader& h) { h.first = 1; })), "malformed", {});
  ExpectRefusal(Send(HeaderChanged(0, [](SegmentHeader& h) { h.count = 0; })), "malformed", {});
  ExpectRefusal(Send(HeaderChanged(0, [](SegmentHeader& h) { h.payload_bytes = 1u << 31; })),
                "malformed", {});
  ExpectRefusal(Send(HeaderChanged(0,
                                   [](SegmentHeader& h) {
                                     h.first = 0xFFFFFFFFFFFF8000;
                                     h.count = 0xFFFFFFFF;
                                   })),
                "malformed", {});
  ExpectRefusal(Send(Changed(3, [](std::vector<uint8_t>& s) { s.resize(31); })), "malformed", {});
}

TEST(RefusalTest, PayloadsCutShortOrTooLong) {
  ExpectRefusal(Send(Changed(3, [](std::vector<uint8_t>& s) { s.pop_back(); })), "malformed",
                {"tensor 3"});
  ExpectRefusal(Send(HeaderChanged(3, [](SegmentHeader& h) { h.payload_bytes -= 4; })), "malformed",
                {});
  ExpectRefusal(Send(HeaderChanged(3, [](SegmentHeader& h) { h.count = 9; })), "layout",
                {"tensor \"b\""});
  // Claims 10 elements of an int8 block with the bytes of fp32.
  ExpectRefusal(Send(HeaderChanged(3,
                                   [](SegmentHeader& h) {
                                     h.codec = 5;
                                     h.parameter = 128;
                                   })),
                "malformed", {"tensor \"b\""});
}

TEST(RefusalTest, SegmentsThatAreNotTheNextOne) {
  const Segments good = Good(*Layout(), "mallory", 1).segments;
  Segments swapped = good;
  std::swap(swapped[0], swapped[1]);
  ExpectRefusal(Send(swapped), "layout", {"expected tensor \"w\" at element 0"});
  Segments repeated = good;
  repeated[3] = repeated[2];
  ExpectRefusal(Send(repeated), "layout", {"expected tensor \"b\" at element 0"});
  Segments skipped = good;
  skipped.erase(skipped.begin() + 2);
  ExpectRefusal(Send(skipped), "layout", {"tensor \"b\"", "expected tensor \"counter\""});
  Segments extra = good;
  extra.push_back(good[3]);
  const uint64_t size = testing::Recorded{"", 1, extra}.size();
  ExpectRefusal(Send(extra, size), "layout", {"expected the end"});
}

TEST(RefusalTest, TensorsThatTheLayoutLacksOrNeverSends) {
  ExpectRefusal(Send(HeaderChanged(3, [](SegmentHeader& h) { h.tensor = 4; })), "layout",
                {"tensor 4", "4 tensors"});
  ExpectRefusal(Send(HeaderChanged(3, [](SegmentHeader& h) { h.tensor = 0xFFFFFFFF; })), "layout",
                {});
  ExpectRefusal(Send(HeaderChanged(2, [](SegmentHeader& h) { h.tensor = 1; })), "layout",
                {"\"frozen\"", "skip"});
}

TEST(RefusalTest, CountsBeyondTheTensorOrOffTheTiles) {
  ExpectRefusal(Send(HeaderChanged(1, [](SegmentHeader& h) { h.count += 1; })), "layout",
                {"7856 are left"});
  ExpectRefusal(Send(HeaderChanged(0, [](SegmentHeader& h) { h.count -= 1; })), "layout",
                {"multiple of 32768"});
}

TEST(RefusalTest, RawIntegersForFloatsAndTheOtherWayRound) {
  ExpectRefusal(Send(HeaderChanged(3, [](SegmentHeader& h) { h.codec = 1; })), "layout", {"BF16"});
  ExpectRefusal(Send(HeaderChanged(2, [](SegmentHeader& h) { h.codec = 2; })), "layout", {"I64"});
}

TEST(RefusalTest, CodecsThatAreUnknownOrHaveABadParameter) {
  ExpectRefusal(Send(HeaderChanged(0, [](SegmentHeader& h) { h.codec = 999; })), "codec", {"999"});
  ExpectRefusal(Send(HeaderChanged(0,
                                   [](SegmentHeader& h) {
                                     h.codec = 5;
                                     h.parameter = 17;
                                   })),
                "codec", {"17"});
  ExpectRefusal(Send(HeaderChanged(2, [](SegmentHeader& h) { h.parameter = 3; })), "codec",
                {"parameter 3"});
}

TEST(RefusalTest, AnUpdateThatEndsEarly) {
  Segments cut = Good(*Layout(), "mallory", 1).segments;
  cut.pop_back();
  ExpectRefusal(Send(cut), "layout", {"ends before tensor \"b\""});
  UpdateAssembler assembler(Layout(), Grid(), "mallory", 1, 0);
  EXPECT_EQ(assembler.Finish(0, 0), nullptr);
  ExpectRefusal(assembler.refusal(), "layout", {"ends before tensor \"w\""});
}

TEST(RefusalTest, BytesThatDoNotMatchTheirChecksum) {
  ExpectRefusal(Send(Good(*Layout(), "mallory", 1).segments, 0, 1), "checksum", {"CRC32C"});
}

TEST(RefusalTest, EveryFlippedBitIsFoundAndNothingElse) {
  const auto good = Good(*Layout(), "mallory", 1);
  PhiloxStream random(4);
  for (int i = 0; i < 300; ++i) {
    // Small segments and headers, mostly: that is where structure is.
    const size_t index = i % 4;
    const size_t byte = random.NextBelow(std::min<uint64_t>(good.segments[index].size(), 64));
    Segments segments = good.segments;
    segments[index][byte] ^= static_cast<uint8_t>(1u << random.NextBelow(8));
    UpdateAssembler assembler(Layout(), Grid(), "mallory", 10, good.size());
    for (const auto& segment : segments) {
      const auto owned = std::make_shared<const std::vector<uint8_t>>(segment);
      if (!assembler.Add(PiecedBytes(ByteSpan(*owned)), owned)) break;
    }
    ASSERT_EQ(assembler.Finish(good.size(), good.crc()), nullptr) << index << " " << byte;
    EXPECT_NE(assembler.refusal().reason, "");
  }
}

TEST(RefusalTest, ARefusalIsFinalAndTheSameEachTime) {
  Segments bad = FloatSet(0, std::nanf(""));
  UpdateAssembler assembler(Layout(), Grid(), "mallory", 1, testing::Recorded{"", 1, bad}.size());
  const auto owned = std::make_shared<const std::vector<uint8_t>>(bad[0]);
  EXPECT_FALSE(assembler.Add(PiecedBytes(ByteSpan(*owned)), owned));
  const std::string message = assembler.refusal().message;
  EXPECT_EQ(owned.use_count(), 1) << "a refused update's bytes are not held";
  EXPECT_FALSE(assembler.Add(PiecedBytes(ByteSpan(*owned)), owned));
  EXPECT_EQ(assembler.Finish(0, 0), nullptr);
  EXPECT_EQ(assembler.refusal().message, message);
}

TEST(RefusalTest, OthersResultIsWhatItIsWithoutTheOffender) {
  const auto layout = Layout();
  const auto result = [&](bool with_offenders) {
    auto sum = testing::MakeAccumulator(layout, Grid());
    for (int i = 0; i < 4; ++i) {
      testing::FoldAll(sum.get(),
                       {testing::Assemble(layout, Grid(), Good(*layout, absl::StrCat("c", i), i))});
      if (with_offenders) {
        EXPECT_EQ(Send(FloatSet(200'000, std::nanf(""))).reason, "non_finite");
        EXPECT_EQ(Send(Changed(3, [](std::vector<uint8_t>& s) { s.pop_back(); })).reason,
                  "malformed");
      }
    }
    return testing::DigestOf(*sum);
  };
  EXPECT_EQ(result(true), result(false));
}

}  // namespace
}  // namespace tributary::aggregation
