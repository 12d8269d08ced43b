// Safetensors files against an independent Python reader and writer, and every refusal of a damaged
// file.
#include "models/safetensors.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/models/python.h"

namespace tributary::models {
namespace {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;
using aggregation::TensorSpec;
using testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

std::shared_ptr<const ModelLayout> MakeLayout(std::vector<TensorSpec> tensors) {
  auto layout = ModelLayout::Create(std::move(tensors));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

// All dtypes, a scalar, empty tensors, a name that JSON must escape, in no sorted order.
std::shared_ptr<const ModelLayout> MixedLayout() {
  return MakeLayout({{"z.weight", {3, 2}, DType::kF32, Policy::kMean},
                     {"counter", {}, DType::kI64, Policy::kMax},
                     {"empty", {4, 0, 2}, DType::kF16, Policy::kMean},
                     {"a \"quoted\\name\"\n é", {5}, DType::kU8, Policy::kFirst},
                     {"empty too", {0}, DType::kF32, Policy::kMean},
                     {"half", {3}, DType::kF16, Policy::kMean},
                     {"brain", {1}, DType::kBf16, Policy::kMean},
                     {"double", {2}, DType::kF64, Policy::kMean},
                     {"int", {2}, DType::kI32, Policy::kSum},
                     {"flags", {3}, DType::kBool, Policy::kSkip}});
}

std::vector<uint8_t> RandomBytes(uint64_t n) {
  std::vector<uint8_t> out(n);
  PhiloxStream random(7);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random.Next32());
  return out;
}

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() : directory_(absl::StrCat(testing::TempDir(), "/safetensors-", getpid())) {
    std::filesystem::create_directories(directory_);
  }
  ~SafetensorsTest() override { std::filesystem::remove_all(directory_); }
  std::string Path(const std::string& name = "model.safetensors") const {
    return directory_ + "/" + name;
  }

  // A file with this JSON header and this many bytes of zeros.
  std::string FileOf(const std::string& json, uint64_t data_bytes) const {
    const uint64_t length = json.size();
    std::ofstream out(Path(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << json << std::string(data_bytes, '\0');
    return Path();
  }
  std::string Refusal(const std::string& json, uint64_t data_bytes) const {
    const auto model = ReadSafetensors(FileOf(json, data_bytes));
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(Text(model.status()), HasSubstr(Path())) << json;
    return Text(model.status());
  }

  const std::string directory_;
};

TEST_F(SafetensorsTest, AnIndependentReaderFindsEveryTensorAndTheMetadata) {
  const auto layout = MixedLayout();
  const std::vector<uint8_t> bytes = RandomBytes(layout->model_bytes());
  ASSERT_TRUE(WriteSafetensors(Path(), *layout, bytes, {{"run", "r\"1"}, {"round", "12"}}).ok());

  const auto seen =
      nlohmann::json::parse(RunPython("safetensors_check.py read " + Path()), nullptr, false);
  ASSERT_TRUE(seen.is_object()) << "the reference refused the file";
  EXPECT_EQ(seen["metadata"], (nlohmann::json{{"run", "r\"1"}, {"round", "12"}}));
  ASSERT_EQ(seen["tensors"].size(), layout->tensors().size());
  for (uint32_t t = 0; t < layout->tensors().size(); ++t) {
    const TensorSpec& spec = layout->tensors()[t];
    const uint64_t n = layout->TensorElements(t) * aggregation::DTypeBytes(spec.dtype);
    const std::string hash = Sha256Of(ByteSpan(bytes).subspan(layout->TensorByteOffset(t), n));
    EXPECT_EQ(seen["tensors"][t], (nlohmann::json{spec.name, aggregation::DTypeName(spec.dtype),
                                                  spec.shape, absl::BytesToHexString(hash)}));
  }
}

TEST_F(SafetensorsTest, AFileOfAnIndependentWriterIsReadToTheBit) {
  ASSERT_EQ(RunPython("safetensors_check.py write " + Path()), "");
  const auto model = ReadSafetensors(Path());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto expected = MakeLayout({{"zeta", {1, 3}, DType::kF32, Policy::kMean},
                                    {"alpha", {}, DType::kI64, Policy::kMax},
                                    {"empty b", {0, 3}, DType::kF16, Policy::kMean},
                                    {"empty a", {0}, DType::kU8, Policy::kMax},
                                    {"naïve", {2}, DType::kF16, Policy::kMean},
                                    {"flag", {3}, DType::kBool, Policy::kMax}});
  EXPECT_EQ(model->layout->hash(), expected->hash())
      << model->layout->DescribeDifference(*expected);
  // 1.5, -2.25, 0.1 as float32; -7 as int64; 0.5, -65504 as float16; booleans: by IEEE 754, by
  // hand.
  const std::vector<uint8_t> bytes = {0,    0,    0xC0, 0x3F, 0,    0,    0x10, 0xC0, 0xCD,
                                      0xCC, 0xCC, 0x3D, 0xF9, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                      0xFF, 0xFF, 0,    0x38, 0xFF, 0xFB, 1,    0,    1};
  EXPECT_EQ(model->bytes, bytes);
}

TEST_F(SafetensorsTest, WhatIsWrittenIsReadBack) {
  const auto layout = MixedLayout();
  const std::vector<uint8_t> bytes = RandomBytes(layout->model_bytes());
  ASSERT_TRUE(WriteSafetensors(Path(), *layout, bytes, {}).ok());
  const auto as = ReadSafetensorsAs(Path(), layout);
  ASSERT_TRUE(as.ok()) << as.status();
  EXPECT_EQ(as->bytes, bytes);
  EXPECT_EQ(as->layout, layout);
  const auto plain = ReadSafetensors(Path());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->bytes, bytes);
  ASSERT_EQ(plain->layout->tensors().size(), layout->tensors().size());
  for (size_t t = 0; t < layout->tensors().size(); ++t) {
    EXPECT_EQ(plain->layout->tensors()[t].name, layout->tensors()[t].name);
  }
  // The format carries no policies: the defaults come back.
  EXPECT_EQ(plain->layout->tensors()[0].policy, Policy::kMean);
  EXPECT_EQ(plain->layout->tensors()[8].policy, Policy::kMax);
}

TEST_F(SafetensorsTest, AnotherOrderInTheFileIsPutIntoTheGivenLayouts) {
  const auto written =
      MakeLayout({{"a", {2}, DType::kU8, Policy::kMax}, {"b", {3}, DType::kU8, Policy::kMax}});
  const auto wanted =
      MakeLayout({{"b", {3}, DType::kU8, Policy::kSum}, {"a", {2}, DType::kU8, Policy::kMax}});
  ASSERT_TRUE(WriteSafetensors(Path(), *written, std::vector<uint8_t>{1, 2, 3, 4, 5}, {}).ok());
  const auto model = ReadSafetensorsAs(Path(), wanted);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->bytes, (std::vector<uint8_t>{3, 4, 5, 1, 2}));
}

TEST_F(SafetensorsTest, ALayoutThatDiffersIsRefusedNamingTheTensor) {
  const auto written =
      MakeLayout({{"a", {2}, DType::kF32, Policy::kMean}, {"b", {3}, DType::kF32, Policy::kMean}});
  ASSERT_TRUE(WriteSafetensors(Path(), *written, std::vector<uint8_t>(20), {}).ok());
  const auto refusal = [&](std::vector<TensorSpec> tensors) {
    const auto model = ReadSafetensorsAs(Path(), MakeLayout(std::move(tensors)));
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    return Text(model.status());
  };
  EXPECT_THAT(refusal({{"a", {2}}, {"b", {3}}, {"c", {1}}}), HasSubstr("\"c\" is missing"));
  EXPECT_THAT(refusal({{"a", {2}}, {"c", {3}}}), HasSubstr("\"c\" is missing"));
  EXPECT_THAT(refusal({{"a", {2}}}), HasSubstr("\"b\" is not in the run's layout"));
  EXPECT_THAT(refusal({{"a", {1, 2}}, {"b", {3}}}), HasSubstr("\"a\" has another shape"));
  EXPECT_THAT(refusal({{"a", {2}}, {"b", {3}, DType::kI32}}), HasSubstr("\"b\" has another dtype"));
}

TEST_F(SafetensorsTest, TheDataStartsOnAMultipleOfEightWhateverTheHeadersLength) {
  for (size_t n = 1; n <= 9; ++n) {
    ASSERT_TRUE(WriteSafetensors(Path(), *MakeLayout({{std::string(n, 'x'), {1}}}),
                                 std::vector<uint8_t>(4), {})
                    .ok());
    EXPECT_EQ((std::filesystem::file_size(Path()) - 4) % 8, 0u) << n;
    EXPECT_TRUE(ReadSafetensors(Path()).ok()) << n;
  }
}

TEST_F(SafetensorsTest, HeadersThatDoNotCoverTheDataExactlyAreRefused) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  EXPECT_THAT(Refusal("{" + a + "}", 5),
              HasSubstr("describes 4 bytes of tensors, the file holds 5"));
  EXPECT_THAT(Refusal("{" + a + "}", 3), HasSubstr("cut short"));
  EXPECT_THAT(Refusal("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9),
              HasSubstr("a gap"));
  EXPECT_THAT(Refusal("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}})", 7),
              HasSubstr("overlapping"));
  EXPECT_THAT(Refusal("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4),
              HasSubstr("overlapping"));
  EXPECT_THAT(Refusal("{" + a + "," + a + "}", 4), HasSubstr("twice"));
  EXPECT_THAT(Refusal("{}", 0), HasSubstr("tensor"));
}

TEST_F(SafetensorsTest, TensorsDescribedWronglyAreRefused) {
  const auto refusal = [&](const std::string& entry) {
    return Refusal("{\"a\":" + entry + "}", 4);
  };
  EXPECT_THAT(refusal(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"),
              HasSubstr("F32 of shape [2] takes 8"));
  EXPECT_THAT(refusal(R"({"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]})"),
              HasSubstr("F8_E4M3"));
  EXPECT_THAT(refusal(R"({"dtype":7,"shape":[4],"data_offsets":[0,4]})"),
              HasSubstr("no string \"dtype\""));
  EXPECT_THAT(refusal(R"({"dtype":"U8","shape":4,"data_offsets":[0,4]})"), HasSubstr("\"shape\""));
  EXPECT_THAT(refusal(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})"),
              HasSubstr("0 or more"));
  EXPECT_THAT(refusal(R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})"),
              HasSubstr("0 or more"));
  EXPECT_THAT(refusal(R"({"dtype":"U8","shape":[4],"data_offsets":[0]})"),
              HasSubstr("[begin, end]"));
  EXPECT_THAT(refusal(R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})"),
              HasSubstr("[begin, end]"));
  EXPECT_THAT(refusal(R"({"dtype":"U8","shape":[4]})"), HasSubstr("data_offsets"));
  EXPECT_THAT(refusal(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1})"),
              HasSubstr("unknown property \"x\""));
  // 2^62 x 4 x 4 wraps to 0 in 64 bits; 2^61 F64 is just 2^64.
  EXPECT_THAT(refusal(R"({"dtype":"U8","shape":[4611686018427387904,4,4],"data_offsets":[0,4]})"),
              HasSubstr("more than 2^64"));
  EXPECT_THAT(refusal(R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"),
              HasSubstr("more than 2^64"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not described by an object"));
  EXPECT_THAT(Refusal(R"({"__metadata__":{"n":1}})", 0), HasSubstr("not a string"));
}

TEST_F(SafetensorsTest, WhatIsNoSafetensorsFileIsRefusedBeforeMemoryIsTaken) {
  EXPECT_THAT(Refusal("", 0), HasSubstr("does not start with '{'"));
  EXPECT_THAT(Refusal("{\"a\":", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(Refusal("[1]", 0), HasSubstr("does not start with '{'"));
  EXPECT_THAT(Refusal(std::string(100'000, '['), 0), HasSubstr("does not start with '{'"));
  EXPECT_THAT(Refusal("{\"a\":" + std::string(1'000'000, '['), 0), HasSubstr("not a JSON object"));
  std::ofstream(Path("short"), std::ios::binary) << "1234567";
  EXPECT_THAT(Text(ReadSafetensors(Path("short")).status()), HasSubstr("it has 7 bytes"));
  // Claims 2^56 bytes of header.
  std::ofstream(Path("huge"), std::ios::binary) << std::string(7, '\0') << '\1' << "{}";
  EXPECT_THAT(Text(ReadSafetensors(Path("huge")).status()),
              HasSubstr("claims a header of 72057594037927936 bytes"));
  EXPECT_EQ(ReadSafetensors(Path("absent")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Text(ReadSafetensors(Path("absent")).status()), HasSubstr(Path("absent")));
  EXPECT_THAT(Text(ReadSafetensors(directory_).status()), HasSubstr("not a regular file"));
}

// Every prefix of a good file, and every single flipped bit of its header, is refused or reads as
// some well-formed model; none crashes.
TEST_F(SafetensorsTest, CutOrFlippedFilesNeverCrashTheReader) {
  const auto layout = MakeLayout({{"a", {3}}, {"b", {2, 2}}});
  ASSERT_TRUE(WriteSafetensors(Path(), *layout, RandomBytes(28), {{"k", "v"}}).ok());
  std::ifstream in(Path(), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  for (size_t n = 0; n < good.size(); ++n) {
    std::ofstream(Path("cut"), std::ios::binary) << good.substr(0, n);
    EXPECT_EQ(ReadSafetensors(Path("cut")).status().code(), absl::StatusCode::kInvalidArgument)
        << n;
  }
  for (size_t bit = 0; bit < (good.size() - 28) * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    std::ofstream(Path("flipped"), std::ios::binary) << bad;
    const auto model = ReadSafetensors(Path("flipped"));
    if (model.ok()) {
      EXPECT_EQ(model->bytes.size(), 28u) << bit;
    } else {
      EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument) << bit;
    }
  }
}

TEST_F(SafetensorsTest, ThatWhichTheFormatCannotCarryIsNotWritten) {
  const auto bad_name = MakeLayout({{"weight\xFF", {1}}});
  EXPECT_THAT(Text(WriteSafetensors(Path(), *bad_name, std::vector<uint8_t>(4), {})),
              HasSubstr("not UTF-8"));
  const auto reserved = MakeLayout({{"__metadata__", {1}}});
  EXPECT_THAT(Text(WriteSafetensors(Path(), *reserved, std::vector<uint8_t>(4), {})),
              HasSubstr("metadata"));
  const auto good = MakeLayout({{"a", {1}}});
  EXPECT_THAT(Text(WriteSafetensors(Path(), *good, std::vector<uint8_t>(5), {})),
              HasSubstr("5 bytes, its layout 4"));
  EXPECT_FALSE(std::filesystem::exists(Path()));
}

TEST_F(SafetensorsTest, WriteErrorsNameThePathAndTheReason) {
  const auto layout = MakeLayout({{"a", {1}}});
  const absl::Status absent =
      WriteSafetensors(Path("no/where"), *layout, std::vector<uint8_t>(4), {});
  EXPECT_THAT(Text(absent), HasSubstr(Path("no/where")));
  EXPECT_THAT(Text(absent), HasSubstr("No such file or directory"));
  const absl::Status full = WriteSafetensors("/dev/full", *layout, std::vector<uint8_t>(4), {});
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(full), HasSubstr("No space left on device"));
}

// Lengths beyond 32 bits, in a file that holds a hole: 3 GB are described, and nothing is read of
// them into memory.
TEST_F(SafetensorsTest, OffsetsBeyondThirtyTwoBitsArePlacedRight) {
  const std::string json =
      R"({"big":{"dtype":"U8","shape":[3000000000],"data_offsets":[0,3000000000]},)"
      R"("tail":{"dtype":"U8","shape":[5],"data_offsets":[3000000000,3000000005]}})";
  FileOf(json, 0);
  std::filesystem::resize_file(Path(), 8 + json.size() + 3'000'000'005);
  const auto wanted = MakeLayout({{"tail", {5}, DType::kU8, Policy::kMax},
                                  {"big", {2'999'999'999}, DType::kU8, Policy::kMax}});
  // A layout that asks for less than there is: found by the header alone.
  EXPECT_THAT(Text(ReadSafetensorsAs(Path(), wanted).status()),
              HasSubstr("\"big\" has another shape"));
  std::filesystem::resize_file(Path(), 8 + json.size() + 3'000'000'004);
  EXPECT_THAT(Text(ReadSafetensors(Path()).status()), HasSubstr("describes 3000000005 bytes"));
}

}  // namespace
}  // namespace tributary::models
