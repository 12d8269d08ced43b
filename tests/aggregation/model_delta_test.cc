// Steps between models: the bits everybody has after them, what error feedback promises, and what
// is refused.
#include "aggregation/model_delta.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "aggregation/internal/narrow_float.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using compression::SegmentHeader;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LayoutPtr;
using testing::MakeLayout;
using Bytes = std::vector<uint8_t>;

constexpr EncodeKeys kKeys{0x1234, 0x5678};

std::shared_ptr<const compression::CodecPolicy> Codec(const std::string& spec) {
  auto policy = ParseDownlinkCodec(spec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.ok() ? *policy : nullptr;
}

Bytes Encode(const ModelLayout& layout, const std::string& spec, uint32_t round, const Bytes& base,
             const Bytes& target) {
  auto delta = EncodeModelDelta(layout, *Codec(spec), kKeys, round, base, target);
  EXPECT_TRUE(delta.ok()) << delta.status();
  return delta.ok() ? *delta : Bytes();
}

// A layout of one float32 matrix: its model is its numbers.
LayoutPtr Matrix(uint64_t elements) {
  return MakeLayout({{"w", {1, elements}, DType::kF32, Policy::kMean}});
}
Bytes ToBytes(const std::vector<float>& x) {
  Bytes bytes(x.size() * 4);
  std::memcpy(bytes.data(), x.data(), bytes.size());
  return bytes;
}
std::vector<float> ToFloats(const Bytes& bytes) {
  std::vector<float> x(bytes.size() / 4);
  std::memcpy(x.data(), bytes.data(), bytes.size());
  return x;
}

// Every element a new finite number of about the size that training gives.
Bytes RandomModel(const ModelLayout& layout, uint64_t seed) {
  Bytes bytes(layout.model_bytes());
  PhiloxStream random(seed);
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    uint8_t* to = bytes.data() + layout.TensorByteOffset(t);
    for (uint64_t i = 0; i < layout.TensorElements(t); ++i) {
      const double x = (random.NextDouble() - 0.5) * 0.2;
      switch (layout.tensors()[t].dtype) {
        case DType::kF32: {
          const auto v = static_cast<float>(x);
          std::memcpy(to + 4 * i, &v, 4);
          break;
        }
        case DType::kF64:
          std::memcpy(to + 8 * i, &x, 8);
          break;
        case DType::kF16:
        case DType::kBf16: {
          const uint16_t v =
              layout.tensors()[t].dtype == DType::kF16 ? internal::ToF16(x) : internal::ToBf16(x);
          std::memcpy(to + 2 * i, &v, 2);
          break;
        }
        default: {
          const auto v = static_cast<int64_t>(random.NextBelow(2));
          std::memcpy(to + DTypeBytes(layout.tensors()[t].dtype) * i, &v,
                      DTypeBytes(layout.tensors()[t].dtype));
        }
      }
    }
  }
  return bytes;
}
// SKIP tensors stay as they are in the base.
void KeepSkipped(const ModelLayout& layout, const Bytes& base, Bytes* model) {
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    if (layout.tensors()[t].policy != Policy::kSkip) continue;
    const uint64_t at = layout.TensorByteOffset(t);
    const uint64_t bytes = layout.TensorElements(t) * DTypeBytes(layout.tensors()[t].dtype);
    std::copy_n(base.begin() + static_cast<ptrdiff_t>(at), bytes,
                model->begin() + static_cast<ptrdiff_t>(at));
  }
}

// ---- The same bits for all

class EveryCodec : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryCodec, LeadsAllWhoTakeTheStepsToTheSameBits) {
  const LayoutPtr layout = testing::MixedLayout();
  Bytes exact = RandomModel(*layout, 1), server = exact, client = exact;
  v1::DeltaChain chain;
  Bytes deltas;
  for (uint32_t round = 1; round <= 4; ++round) {
    Bytes next = RandomModel(*layout, round + 1);
    KeepSkipped(*layout, exact, &next);
    exact = next;
    const Bytes delta = Encode(*layout, GetParam(), round, server, exact);
    ASSERT_TRUE(ApplyModelDelta(*layout, delta, server).ok());
    chain.add_steps()->set_bytes(delta.size());
    deltas.insert(deltas.end(), delta.begin(), delta.end());
  }
  // One who was away takes all of them at once, with other kernels.
  ASSERT_TRUE(compression::ForceTarget(compression::SupportedTargets().back()).ok());
  EXPECT_TRUE(ApplyChain(*layout, chain, deltas, client).ok());
  ASSERT_TRUE(compression::ForceTarget("").ok());
  EXPECT_TRUE(client == server);
}

TEST_P(EveryCodec, EncodesToTheSameBytesAgain) {
  const LayoutPtr layout = testing::MixedLayout();
  const Bytes base = RandomModel(*layout, 1), target = RandomModel(*layout, 2);
  const Bytes once = Encode(*layout, GetParam(), 7, base, target);
  ASSERT_TRUE(compression::ForceTarget(compression::SupportedTargets().back()).ok());
  const Bytes again = Encode(*layout, GetParam(), 7, base, target);
  ASSERT_TRUE(compression::ForceTarget("").ok());
  EXPECT_TRUE(once == again);
}

// The sum of what went down is what the model moved by, but for what is still to come, which is
// within one step's loss, not many's. In binary64; P itself is binary32, each of whose additions
// may be off by half a unit in the last place.
TEST_P(EveryCodec, LosesNothingForGood) {
  constexpr uint32_t kRounds = 40;
  constexpr uint64_t kElements = 3 * 4096;
  const LayoutPtr layout = Matrix(kElements);
  std::vector<float> exact(kElements, 1.0f), steps(kElements);
  Bytes published = ToBytes(exact);
  std::vector<double> moved(kElements, 0), given(kElements, 0);
  PhiloxStream random(3);
  double norm = 0, first_loss = 0, last_loss = 0;
  for (uint32_t round = 1; round <= kRounds; ++round) {
    for (uint64_t i = 0; i < kElements; ++i) {
      const float before = exact[i];
      exact[i] = before + static_cast<float>(random.NextDouble() - 0.5) * 0.01f;
      moved[i] += static_cast<double>(exact[i]) - static_cast<double>(before);
    }
    const Bytes delta = Encode(*layout, GetParam(), round, published, ToBytes(exact));
    // What this step gives, apart from P: taken from a model of zeros.
    Bytes alone(published.size(), 0);
    ASSERT_TRUE(ApplyModelDelta(*layout, delta, alone).ok());
    const std::vector<float> values = ToFloats(alone);
    ASSERT_TRUE(ApplyModelDelta(*layout, delta, published).ok());
    norm = last_loss = 0;
    const std::vector<float> p = ToFloats(published);
    for (uint64_t i = 0; i < kElements; ++i) {
      given[i] += static_cast<double>(values[i]);
      const double rest = static_cast<double>(exact[i]) - static_cast<double>(p[i]);
      ASSERT_NEAR(given[i] + rest, moved[i], round * 0x1p-24 * 2) << "element " << i;
      last_loss += rest * rest;
      norm += moved[i] * moved[i];
    }
    if (round == 1) first_loss = last_loss;
  }
  // Without feedback, losses would add up to kRounds times the first, or stay for good.
  if (GetParam().find("topk") == std::string::npos &&
      GetParam().find("randk") == std::string::npos) {
    EXPECT_LE(last_loss, 9 * first_loss + 1e-9);
  }
  EXPECT_LT(last_loss, norm) << "the published model is nearer to the model than the first one";
}

INSTANTIATE_TEST_SUITE_P(Specs, EveryCodec,
                         ::testing::Values("bf16", "fp16", "int8", "int8(rounding=nearest)", "int4",
                                           "int2(rounding=nearest)", "sign", "fp8", "mxfp4",
                                           "eden(bits=2)", "topk(0.05)",
                                           "topk(0.05, values=ternary) | zstd",
                                           "randk(0.1, scaled=no)", "fp32 | lz4",
                                           "int4; small = bf16"),
                         [](const auto& info) { return absl::StrCat("Spec", info.index); });

// Once the model rests, top-k sends what it left behind, the largest first, to the last bit.
TEST(ModelDeltaTest, TopKCatchesUpWithAModelThatRests) {
  constexpr uint64_t kElements = 4096;
  const LayoutPtr layout = Matrix(kElements);
  std::vector<float> exact(kElements);
  PhiloxStream random(5);
  for (float& x : exact) x = static_cast<float>(random.NextBelow(1 << 12)) * 0x1p-10f;
  Bytes published(kElements * 4, 0);
  for (uint32_t round = 1; round <= 20; ++round) {  // 20 times a twentieth
    const Bytes delta = Encode(*layout, "topk(0.05)", round, published, ToBytes(exact));
    ASSERT_TRUE(ApplyModelDelta(*layout, delta, published).ok());
  }
  EXPECT_TRUE(published == ToBytes(exact));
}

// By hand: blocks of 16 with scales 1 and 2, ties to even.
TEST(ModelDeltaTest, AddsWhatTheCodecSaysOfTheDifference) {
  const LayoutPtr layout = Matrix(32);
  std::vector<float> base(32, 10), target(32, 10), expected(32, 10);
  target[0] += 127;  // scale 1
  target[1] += 2.5f;
  target[2] -= 3.5f;
  expected[0] += 127;
  expected[1] += 2;
  expected[2] -= 4;
  target[16] -= 254;  // scale 2
  target[17] += 0.9f;
  target[31] += 6;
  expected[16] -= 254;
  expected[31] += 6;
  Bytes model = ToBytes(base);
  const Bytes delta =
      Encode(*layout, "fp32; small = int8(block=16, rounding=nearest)", 1, model, ToBytes(target));
  EXPECT_EQ(delta.size(), SegmentHeader::kBytes + 32 + 2 * 4);
  ASSERT_TRUE(ApplyModelDelta(*layout, delta, model).ok());
  EXPECT_EQ(ToFloats(model), expected);
}

TEST(ModelDeltaTest, TakesADifferenceInBinary64AndRoundsASumOnce) {
  const LayoutPtr layout = MakeLayout({{"double", {1, 2}, DType::kF64, Policy::kMean},
                                       {"brain", {1, 2}, DType::kBf16, Policy::kSum}});
  Bytes base(layout->model_bytes()), target(layout->model_bytes());
  const double from[2] = {1, 0x1p-40}, to[2] = {1 + 0x1p-40, 0x1p-40 + 3};
  std::memcpy(base.data(), from, 16);
  std::memcpy(target.data(), to, 16);
  // 1 to 1.0078125 is one place of bf16; 256 to 257 is half of one, and cannot be a target.
  const uint16_t brain_from[2] = {internal::ToBf16(1), internal::ToBf16(256)};
  const uint16_t brain_to[2] = {internal::ToBf16(1.0078125), internal::ToBf16(258)};
  std::memcpy(base.data() + 16, brain_from, 4);
  std::memcpy(target.data() + 16, brain_to, 4);
  const Bytes delta = Encode(*layout, "bf16", 1, base, target);
  ASSERT_TRUE(ApplyModelDelta(*layout, delta, base).ok());
  EXPECT_TRUE(base == target) << "2^-40, 3, 2^-7 and 2 are bf16 numbers";
}

// ---- The elements themselves

TEST(ModelDeltaTest, Fp32ReachesTheModelExactlyWhateverItsElements) {
  const LayoutPtr layout = testing::MixedLayout();
  Bytes base = RandomModel(*layout, 1), target = RandomModel(*layout, 2);
  KeepSkipped(*layout, base, &target);
  for (uint32_t t = 0; t < layout->tensors().size(); ++t) {
    if (layout->tensors()[t].dtype != DType::kF32 || layout->TensorElements(t) < 5 ||
        layout->tensors()[t].policy == Policy::kSkip) {
      continue;
    }
    const float odd[5] = {NAN, -INFINITY, -0.0f, 0x1p-149f, 0x1.fffffep127f};
    std::memcpy(target.data() + layout->TensorByteOffset(t), odd, sizeof odd);
  }
  const Bytes delta = Encode(*layout, "fp32", 1, base, target);
  ASSERT_TRUE(ApplyModelDelta(*layout, delta, base).ok());
  EXPECT_TRUE(base == target);
}

TEST(ModelDeltaTest, LeavesOutWhatDoesNotChange) {
  const LayoutPtr layout = MakeLayout({{"frozen", {64, 64}, DType::kF32, Policy::kMean},
                                       {"head", {10, 3}, DType::kF32, Policy::kMean},
                                       {"steps", {}, DType::kI64, Policy::kMax}});
  const Bytes base = RandomModel(*layout, 1);
  EXPECT_EQ(Encode(*layout, "fp32", 1, base, base).size(), 0u);
  EXPECT_EQ(Encode(*layout, "int8; small = int8", 1, base, base).size(), 0u);
  Bytes target = base;
  target[layout->TensorByteOffset(1)] ^= 1;
  EXPECT_EQ(Encode(*layout, "fp32", 1, base, target).size(), SegmentHeader::kBytes + 30 * 4);
  EXPECT_EQ(Encode(*layout, "int8; small = int8", 1, base, target).size(),
            SegmentHeader::kBytes + 4 + 30);
}

TEST(ModelDeltaTest, SendsOnlyTheSegmentsOfPlainElementsThatChange) {
  constexpr uint64_t kSegment = compression::kMaxPayloadBytes / 4;
  const LayoutPtr layout = Matrix(2 * kSegment + 5);
  const Bytes base = RandomModel(*layout, 1);
  Bytes target = base;
  target[4 * kSegment] ^= 1;  // the second segment's first
  Bytes model = base;
  const Bytes delta = Encode(*layout, "fp32", 1, base, target);
  EXPECT_EQ(delta.size(), SegmentHeader::kBytes + compression::kMaxPayloadBytes);
  ASSERT_TRUE(ApplyModelDelta(*layout, delta, model).ok());
  EXPECT_TRUE(model == target);
}

// ---- The golden files, by tests/reference/model_delta.py

Bytes Golden(const std::string& name) {
  return testing::ReadBytes(absl::StrCat(TRIBUTARY_SOURCE_DIR, "/tests/golden/downlink/", name));
}

TEST(ModelDeltaTest, GoldenStepIsEncodedAndTakenToTheSameBytes) {
  const LayoutPtr layout = MakeLayout({{"int8", {10, 13}, DType::kF32, Policy::kMean},
                                       {"topk", {300}, DType::kF32, Policy::kMean},
                                       {"same", {6}, DType::kF32, Policy::kMean},
                                       {"plain", {5}, DType::kF32, Policy::kMean},
                                       {"half", {7}, DType::kF16, Policy::kMean},
                                       {"double", {9}, DType::kF64, Policy::kMean},
                                       {"brain", {33}, DType::kBf16, Policy::kMean},
                                       {"count", {3}, DType::kI64, Policy::kMax},
                                       {"skip", {2}, DType::kF32, Policy::kSkip}});
  const char* spec =
      "fp32; int8 = int8(block=16, rounding=nearest); topk = topk(0.02, values=int8);"
      "half = fp16; double = fp16; brain = topk(0.1, values=int8)";
  Bytes model = Golden("base.bin");
  ASSERT_EQ(model.size(), layout->model_bytes());
  EXPECT_EQ(testing::Hex(Encode(*layout, spec, 1, model, Golden("target.bin"))),
            testing::Hex(Golden("delta.bin")));
  ASSERT_TRUE(ApplyModelDelta(*layout, Golden("delta.bin"), model).ok());
  EXPECT_EQ(testing::Hex(model), testing::Hex(Golden("result.bin")));
}

// ---- Refusals

TEST(ModelDeltaTest, ADifferenceThatTheCodecCannotHoldNamesItsTensor) {
  const LayoutPtr layout = Matrix(8);
  std::vector<float> base(8, 0), target(8, 0);
  target[3] = NAN;
  for (const char* spec : {"int8", "bf16", "eden"}) {
    const auto delta = EncodeModelDelta(*layout, *Codec(absl::StrCat("fp32; w = ", spec)), kKeys, 1,
                                        ToBytes(base), ToBytes(target));
    EXPECT_EQ(delta.status().code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(std::string(delta.status().message()), HasSubstr("\"w\"")) << spec;
  }
}

TEST(DownlinkCodecTest, RefusesWhatOnlyUpdatesCanUseWithTheReason) {
  const std::pair<const char*, const char*> rows[] = {
      {"hq", "nothing is summed"},
      {"hq(bits=4) | zstd", "nothing is summed"},
      {"sign(mode=vote)", "use sign"},
      {"int8; head.* = sign(mode=vote, step=2^-8)", "nothing is summed"},
      {"int8; small = hq", "use int8"},
      {"randk(0.01)", "scaled=no"},
      {"randk(0.01) | lz4", "feeds back"},
      {"int8 | ef21", "each client"},
      {"topk(0.1) | dct(28x28)", "transforms back"},
      {"topk(0.1) | ef(decay=0.9)", "without decay or momentum"},
      {"topk(0.1, values=ternary, gain=1.5)", "leave gain out"},
      {"topk(0.1, values=ternary, gain = 1.5)", "leave gain out"},
      {"topk(0.1) | ef\t (decay=0.5)", "leave ef out"},
      {"topk(0.1, across=model)", "leave out across"},
      {"powersgd(rank=2)", "one way down for all"},
      {"sketch(0.01)", "nothing is summed"},
      {"int8 | int4", "quantise twice"},
      {"int9", "is not a codec"},
  };
  for (const auto& [spec, reason] : rows) {
    const auto policy = ParseDownlinkCodec(spec);
    ASSERT_FALSE(policy.ok()) << spec;
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr(reason)) << spec;
  }
  for (const char* spec : {"fp32", "int4 | ef", "topk(0.01, values=ternary) | zstd; small = int8",
                           "randk(0.01, scaled=no)", "sign", "eden(bits=1)"}) {
    EXPECT_TRUE(ParseDownlinkCodec(spec).ok()) << spec;
  }
}

// A segment of tensor w (40,000 elements: two tiles), of which one thing is wrong.
struct Wrong {
  const char* name;
  std::function<void(SegmentHeader*, Bytes*)> make;
  const char* says;
};

class Damaged : public ::testing::TestWithParam<Wrong> {};

TEST_P(Damaged, IsRefusedInWords) {
  const LayoutPtr layout = MakeLayout({{"w", {40000}, DType::kF32, Policy::kMean},
                                       {"s", {4}, DType::kF32, Policy::kSkip},
                                       {"n", {4}, DType::kI64, Policy::kMax}});
  SegmentHeader header;
  header.codec = 5;
  header.parameter = 128;
  header.count = 40000;
  Bytes payload(40000 + 4 * 313, 0);
  GetParam().make(&header, &payload);
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  Bytes delta(SegmentHeader::kBytes);
  compression::WriteSegmentHeader(header, delta.data());
  delta.insert(delta.end(), payload.begin(), payload.end());
  if (std::string(GetParam().name) == "CutShort") delta.pop_back();
  if (std::string(GetParam().name) == "Twice") {
    const Bytes copy = delta;
    delta.insert(delta.end(), copy.begin(), copy.end());
  }
  Bytes model(layout->model_bytes(), 0);
  const absl::Status status = ApplyModelDelta(*layout, delta, model);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("model delta"), HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    Segments, Damaged,
    ::testing::Values(
        Wrong{"CutShort", [](SegmentHeader*, Bytes*) {}, "cut short"},
        Wrong{"Twice", [](SegmentHeader*, Bytes*) {}, "goes back"},
        Wrong{"NoSuchTensor", [](SegmentHeader* h, Bytes*) { h->tensor = 3; }, "none of"},
        Wrong{"SkippedTensor", [](SegmentHeader* h, Bytes*) { h->tensor = 1; }, "stays"},
        Wrong{"TooMany", [](SegmentHeader* h, Bytes*) { h->count = 40001; }, "the tensor 40000"},
        Wrong{"BeyondTheEnd", [](SegmentHeader* h, Bytes*) { h->first = 65536; },
              "the tensor 40000"},
        Wrong{"WithinATile", [](SegmentHeader* h, Bytes*) { h->count = 39000; }, "within a tile"},
        Wrong{"Unaligned", [](SegmentHeader* h, Bytes*) { h->first = 5; }, "model delta"},
        Wrong{"Empty", [](SegmentHeader* h, Bytes*) { h->count = 0; }, "model delta"},
        Wrong{"UnknownCodec", [](SegmentHeader* h, Bytes*) { h->codec = 999; }, "999"},
        Wrong{"RawIntegers", [](SegmentHeader* h, Bytes*) { h->codec = 1; }, "codec 1"},
        Wrong{"BadParameter", [](SegmentHeader* h, Bytes*) { h->parameter = 77; }, "77"},
        Wrong{"ShortPayload", [](SegmentHeader*, Bytes* p) { p->pop_back(); }, "\"w\""},
        Wrong{"ScaleNotANumber", [](SegmentHeader*, Bytes* p) { (*p)[2] = (*p)[3] = 0xff; },
              "scale"},
        Wrong{"PlainTooShort", [](SegmentHeader* h, Bytes*) { h->codec = 0; }, "plain elements"},
        Wrong{"PlainWithParameter",
              [](SegmentHeader* h, Bytes* p) {
                h->codec = 0;
                p->assign(160000, 0);
              },
              "parameter 128"},
        Wrong{"FloatCodecOfIntegers",
              [](SegmentHeader* h, Bytes* p) {
                h->tensor = 2;
                h->count = 4;
                p->assign(8, 0);
              },
              "plain elements (codec 0) alone"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ModelDeltaTest, AChainFitsWhereItsStepsAddUpToLessThanTheModel) {
  const LayoutPtr layout = Matrix(100);
  v1::DeltaChain chain;
  chain.add_steps()->set_bytes(150);
  chain.add_steps()->set_bytes(249);
  EXPECT_TRUE(ChainFits(*layout, chain, 399));
  EXPECT_FALSE(ChainFits(*layout, chain, 398));
  chain.mutable_steps(1)->set_bytes(250);
  EXPECT_FALSE(ChainFits(*layout, chain, 400)) << "as large as the model";
  chain.mutable_steps(1)->set_bytes(~uint64_t{0} - 149 + 50);
  EXPECT_FALSE(ChainFits(*layout, chain, 50)) << "wraps";
}

TEST(ModelDeltaTest, AModelOfAnotherSizeIsRefused) {
  Bytes model(12);
  EXPECT_EQ(ApplyModelDelta(*Matrix(4), {}, model).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary::aggregation
