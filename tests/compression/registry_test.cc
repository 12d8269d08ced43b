// Codecs by name and by number.
#include <initializer_list>
#include <map>
#include <set>
#include <string>

#include "codec_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tributary::compression {
namespace {

using testing::HasSubstr;

TEST(MakeCodec, ReadsEveryDocumentedSpec) {
  struct Row {
    const char* spec;
    CodecId id;
    uint32_t parameter;
    bool deterministic;
  };
  const Row rows[] = {{"fp32", CodecId::kFp32, 0, true},
                      {"fp16", CodecId::kFp16, 0, true},
                      {" bf16 ", CodecId::kBf16, 0, true},
                      {"int8", CodecId::kInt8, 128, false},
                      {"int8()", CodecId::kInt8, 128, false},
                      {"int8(block=16)", CodecId::kInt8, 16, false},
                      {"int8( block = 4096 )", CodecId::kInt8, 4096, false},
                      {"int8(rounding=nearest)", CodecId::kInt8, 128, true},
                      {"int8(block=64, rounding=stochastic)", CodecId::kInt8, 64, false},
                      {"int8(rounding=nearest,block=1024)", CodecId::kInt8, 1024, true},
                      {"int4", CodecId::kInt4, 128, false},
                      {"int2(block=256, rounding=nearest)", CodecId::kInt2, 256, true},
                      {"sign", CodecId::kSign, 1024, true},
                      {"sign(mode=vote, step=2^-20)", CodecId::kSign, 0x80000014, true},
                      {"topk(0.01)", CodecId::kTopK, 0, true},
                      {"topk(0.5, values=fp16)", CodecId::kTopK, 1, true},
                      {"topk(1e-3, values=int8)", CodecId::kTopK, 2, true},
                      {"topk(1, values=ternary)", CodecId::kTopK, 3, true},
                      {"fp8", CodecId::kFp8, 128, true},
                      {"fp8(format=e5m2, block=32)", CodecId::kFp8, 0x10020, true},
                      {"mxfp8", CodecId::kMxFp8, 0, true},
                      {"mxfp8(format=e5m2)", CodecId::kMxFp8, 1, true},
                      {"mxfp4", CodecId::kMxFp4, 0, true},
                      {"mxint8", CodecId::kMxInt8, 0, true},
                      {"randk(0.01)", CodecId::kRandK, 100, false},
                      {"randk(0.5, values=fp16, scaled=no)", CodecId::kRandK, 0x80010002, false},
                      {"eden", CodecId::kEden, 0x40400, false},
                      {"eden(bits=1, block=64)", CodecId::kEden, 0x10040, false},
                      {"powersgd", CodecId::kPowerSgd, 2, false},
                      {"powersgd(rank=64)", CodecId::kPowerSgd, 64, false},
                      {"sketch(0.1)", CodecId::kSketch, 655 << 4 | 5, false},
                      {"sketch(0.5, rows=1, recover=0.2)", CodecId::kSketch, 16384 << 4 | 1, false},
                      {"fp32 | zeros", CodecId::kZeros, 0, true},
                      {"hq(step=auto)", CodecId::kHq, 0xC08, false},
                      {"hq", CodecId::kHq, 0xC08, false},
                      {"hq(bits=4, step=2^-8, rounding=nearest)", CodecId::kHq, 0x804, true}};
  for (const Row& row : rows) {
    const auto codec = MakeCodec(row.spec);
    ASSERT_TRUE(codec.ok()) << codec.status();
    EXPECT_EQ((*codec)->capabilities().id, row.id) << row.spec;
    EXPECT_EQ((*codec)->parameter(), row.parameter) << row.spec;
    EXPECT_EQ((*codec)->capabilities().deterministic, row.deterministic) << row.spec;
  }
}

TEST(MakeCodec, RefusesTheRestAndNamesTheSpecTheFaultAndTheKnown) {
  for (const char* spec : {"",
                           "fp64",
                           "FP32",
                           "int64",
                           "int8(",
                           "int8(block=)",
                           "int8(block=100)",
                           "int8(block=8)",
                           "int8(block=8192)",
                           "int8(block=-16)",
                           "int8(block=16",
                           "int8(rounding=up)",
                           "int8(blocks=16)",
                           "fp32(block=16)",
                           "int8(nearest)",
                           "int8)",
                           "topk",
                           "topk(0)",
                           "topk(1.5)",
                           "topk(-1)",
                           "topk(nan)",
                           "topk(0.1, 0.2)",
                           "topk(0.1, values=int4)",
                           "randk(0.6)",
                           "randk(1e-9)",
                           "randk(0.1, scaled=maybe)",
                           "eden(bits=5)",
                           "eden(bits=0)",
                           "eden(block=32)",
                           "eden(block=100)",
                           "powersgd(rank=0)",
                           "powersgd(rank=65)",
                           "sketch",
                           "sketch(0.6)",
                           "sketch(0.001)",
                           "sketch(0.1, rows=2)",
                           "sketch(0.1, recover=0)",
                           "hq(bits=2)",
                           "hq(step=12)",
                           "hq(step=2^-61)",
                           "sign(mode=loud)",
                           "sign(block=8192)",
                           "fp8(format=e3m4)",
                           "mxfp4(block=64)"}) {
    const auto codec = MakeCodec(spec);
    EXPECT_EQ(codec.status().code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(
        std::string(codec.status().message()),
        testing::AllOf(HasSubstr(std::string("\"") + spec + "\""), HasSubstr("known are fp32")));
  }
}

TEST(CodecFromHeader, GivesTheCodecThatWroteTheHeader) {
  const std::vector<float> x = RandomFloats(1, 1999);
  for (const CodecCase& c : AllDecodedCases()) {
    const auto sender = Make(c.spec);
    const auto receiver =
        CodecFromHeader(static_cast<uint16_t>(sender->capabilities().id), sender->parameter());
    ASSERT_TRUE(receiver.ok()) << receiver.status();
    const std::vector<uint8_t> payload = Encode(*sender, x);
    const PiecedBytes pieced{ByteSpan(payload)};
    ASSERT_EQ((*receiver)->Validate(pieced, x.size(), 4096), absl::OkStatus());
    std::vector<float> here(x.size()), there(x.size());
    sender->Decode(pieced, here);
    (*receiver)->Decode(pieced, there);
    EXPECT_EQ(here, there);
  }
}

TEST(CodecFromHeader, RefusesUnknownNumbersAndParameters) {
  const std::pair<uint16_t, uint32_t> bad[] = {
      {0, 0},        {1, 0},      {17, 1},         {18, 1},       {22, 0},       {65535, 0},
      {19, 0},       {19, 65},    {20, 0},         {20, 0x204},   {20, 0x1F5},   {20, 0x199A5},
      {21, 1},       {2, 1},      {3, 16},         {4, 1},        {5, 0},        {5, 100},
      {5, 8},        {5, 8192},   {5, 0x80000000}, {6, 0},        {6, 100},      {7, 8},
      {8, 0},        {8, 8192},   {8, 0x8000003D}, {9, 4},        {10, 0},       {10, 0x20080},
      {11, 2},       {12, 1},     {13, 1},         {14, 0},       {14, 1},       {14, 0x8001},
      {14, 0x20002}, {15, 0x400}, {15, 0x50400},   {15, 0x10020}, {15, 0x12000}, {16, 0},
      {16, 0xC02},   {16, 0x3D08}};
  for (const auto& [id, parameter] : bad) {
    const auto codec = CodecFromHeader(id, parameter);
    EXPECT_EQ(codec.status().code(), absl::StatusCode::kInvalidArgument) << id << " " << parameter;
    EXPECT_THAT(std::string(codec.status().message()), HasSubstr(std::to_string(id)));
  }
}

// ---- What each promises, by what its definition says of it

// Minimum sizes: tensors of every size; or none of the small ones, which suffer most and are the
// least of a model.
constexpr uint64_t kAll = 0, kLarge = 4096;

struct Promises {
  const char* spec;
  bool linear;
  bool unbiased;
  bool needs_error_feedback;
  bool deterministic;
  uint64_t minimum_elements;
  const char* why;
};

// One row a codec, named as AllCodecs names it; its usual parameters.
const Promises kPromises[] = {
    {"int64", true, true, false, true, kAll, "integers, and integers add up"},
    {"fp32", false, true, false, true, kAll, "exact; but floats that are added round"},
    {"fp16", false, false, false, true, kLarge, "rounds to nearest, to 11 bits"},
    {"bf16", false, false, false, true, kLarge, "rounds to nearest, to 8 bits"},
    {"int8", false, true, false, false, kLarge,
     "QSGD's stochastic rounding (Alistarh et al. 2017); scales differ from block to block"},
    {"int4", false, true, false, false, kLarge, "as int8"},
    {"int2", false, true, false, false, kLarge,
     "TernGrad's three levels, at random (Wen et al. 2017)"},
    {"sign", false, false, true, true, kLarge,
     "a sign and a mean magnitude: signSGD that converges by error feedback (Karimireddy et al. "
     "2019)"},
    {"topk", false, false, true, true, kLarge,
     "drops what is small, and each client its own places (Stich et al. 2018)"},
    {"fp8", false, false, false, true, kLarge,
     "rounds to nearest within a block's scale (Micikevicius et al. 2022)"},
    {"mxfp8", false, false, false, true, kLarge, "rounds to nearest (OCP Microscaling 1.0)"},
    {"mxfp4", false, false, false, true, kLarge, "likewise"},
    {"mxint8", false, false, false, true, kLarge, "likewise"},
    {"randk", true, true, false, false, kLarge,
     "places at random, the same for all clients; values times n/k (Wangni et al. 2018)"},
    {"eden", false, false, false, false, kLarge,
     "a random rotation for each client (Vargaftik et al. 2022); unbiased were it uniform, and a "
     "Hadamard's is not"},
    {"hq", true, false, true, false, kLarge,
     "integers of one step for all (THC, Li et al. 2024); at random, but cut at the outermost "
     "level"},
    {"zstd", false, true, false, true, kAll, "fp32 within: its values, but not its bytes to add"},
    {"lz4", false, true, false, true, kAll, "likewise"},
    {"zeros", false, true, false, true, kAll, "fp32 within, of blocks that differ by client"},
    {"powersgd", false, false, true, false, kLarge,
     "a low rank, from a random first factor (Vogels et al. 2019); sums of factors' products have "
     "no such factors"},
    {"sketch", true, false, false, false, kLarge,
     "cells add up (Rothchild et al. 2020); the root recovers the largest, and keeps the rest "
     "itself"},
};

void ExpectPromises(const Capabilities& row, const Promises& wanted) {
  SCOPED_TRACE(std::string(wanted.spec) + ": " + wanted.why);
  EXPECT_EQ(row.linear, wanted.linear);
  EXPECT_EQ(row.unbiased, wanted.unbiased);
  EXPECT_EQ(row.needs_error_feedback, wanted.needs_error_feedback);
  EXPECT_EQ(row.deterministic, wanted.deterministic);
  EXPECT_EQ(row.minimum_elements, wanted.minimum_elements);
}

TEST(Capabilities, OfEveryCodecAreWhatItsDefinitionSays) {
  std::map<std::string, const Promises*> wanted;
  for (const Promises& row : kPromises) EXPECT_TRUE(wanted.emplace(row.spec, &row).second);
  for (const Capabilities& row : AllCodecs()) {
    const auto it = wanted.find(row.name);
    ASSERT_NE(it, wanted.end()) << row.name << " has no row here: say what it promises, and why";
    ExpectPromises(row, *it->second);
    wanted.erase(it);
  }
  for (const auto& [name, row] : wanted) ADD_FAILURE() << name << " is not a codec any more";
}

TEST(Capabilities, OfParametersThatChangeThemAreWhatTheirDefinitionsSay) {
  for (const Promises& row : std::initializer_list<Promises>{
           {"int8(rounding=nearest)", false, false, false, true, kLarge, "no random numbers"},
           {"int4(rounding=nearest)", false, false, false, true, kLarge, "likewise"},
           {"int2(rounding=nearest)", false, false, false, true, kLarge, "likewise"},
           {"hq(rounding=nearest)", true, false, true, true, kLarge, "likewise"},
           {"sign(mode=vote)", true, false, false, true, kLarge,
            "votes are counted: majority vote has no residual (Bernstein et al. 2019)"},
           {"topk(0.01, across=model)", false, false, true, true, kAll,
            "one threshold for the model gives small tensors what is theirs"},
           {"randk(0.01, scaled=no)", true, false, true, false, kLarge,
            "n/k too small in the mean: the rest has to come later"},
           {"int4 | zstd", false, true, false, false, kLarge, "without loss: int4's"},
           {"topk(0.01) | lz4", false, false, true, true, kLarge, "topk's"},
           {"randk(0.01) | zstd", false, true, false, false, kLarge,
            "randk's, but compressed bytes do not add up"},
           {"hq | zeros", false, false, true, false, kLarge,
            "hq's, but blocks are left out by each client for itself"}}) {
    const auto codec = MakeCodec(row.spec);
    ASSERT_TRUE(codec.ok()) << codec.status();
    ExpectPromises((*codec)->capabilities(), row);
  }
}

TEST(AllCodecs, ListsEveryNumberOnce) {
  std::set<CodecId> ids;
  for (const Capabilities& row : AllCodecs()) {
    EXPECT_TRUE(ids.insert(row.id).second) << row.name;
    EXPECT_FALSE(row.name.empty());
  }
  EXPECT_EQ(ids.size(), 21u);
}

}  // namespace
}  // namespace tributary::compression
