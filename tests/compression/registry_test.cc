// Codecs by name and by number.
#include <set>

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
                      {"int8(rounding=nearest,block=1024)", CodecId::kInt8, 1024, true}};
  for (const Row& row : rows) {
    const auto codec = MakeCodec(row.spec);
    ASSERT_TRUE(codec.ok()) << codec.status();
    EXPECT_EQ((*codec)->capabilities().id, row.id) << row.spec;
    EXPECT_EQ((*codec)->parameter(), row.parameter) << row.spec;
    EXPECT_EQ((*codec)->capabilities().deterministic, row.deterministic) << row.spec;
  }
}

TEST(MakeCodec, RefusesTheRestAndNamesTheSpecTheFaultAndTheKnown) {
  for (const char* spec :
       {"", "fp64", "FP32", "int64", "int8(", "int8(block=)", "int8(block=100)", "int8(block=8)",
        "int8(block=8192)", "int8(block=-16)", "int8(block=16", "int8(rounding=up)",
        "int8(blocks=16)", "fp32(block=16)", "int8(nearest)", "int8)"}) {
    const auto codec = MakeCodec(spec);
    EXPECT_EQ(codec.status().code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(
        std::string(codec.status().message()),
        testing::AllOf(HasSubstr(std::string("\"") + spec + "\""), HasSubstr("known are fp32")));
  }
}

TEST(CodecFromHeader, GivesTheCodecThatWroteTheHeader) {
  const std::vector<float> x = RandomFloats(1, 999);
  for (const CodecCase& c : AllCases()) {
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
  const std::pair<uint16_t, uint32_t> bad[] = {{0, 0},   {1, 0},  {6, 0},    {65535, 0},
                                               {2, 1},   {3, 16}, {4, 1},    {5, 0},
                                               {5, 100}, {5, 8},  {5, 8192}, {5, 0x80000000}};
  for (const auto& [id, parameter] : bad) {
    const auto codec = CodecFromHeader(id, parameter);
    EXPECT_EQ(codec.status().code(), absl::StatusCode::kInvalidArgument) << id << " " << parameter;
    EXPECT_THAT(std::string(codec.status().message()), HasSubstr(std::to_string(id)));
  }
}

TEST(AllCodecs, ListsEveryNumberOnce) {
  std::set<CodecId> ids;
  for (const Capabilities& row : AllCodecs()) {
    EXPECT_TRUE(ids.insert(row.id).second) << row.name;
    EXPECT_FALSE(row.name.empty());
  }
  EXPECT_EQ(ids.size(), 5u);
}

}  // namespace
}  // namespace tributary::compression
