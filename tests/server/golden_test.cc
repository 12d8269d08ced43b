// The golden messages and checkpoint of tests/golden, which a Python program wrote from
// docs/wire-format.md and the .proto files: this side reads the same values and writes the same
// bytes.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "server/checkpoint.h"
#include "server/door/framing.h"
#include "server/partial_digest.h"
#include "tests/aggregation/testing.h"
#include "tests/server/node_fixture.h"
#include "tributary/v1/tier_service.pb.h"

namespace tributary::server {
namespace {

namespace fs = std::filesystem;
using aggregation::DType;
using aggregation::Policy;
using aggregation::testing::Hex;
using aggregation::testing::ReadBytes;

const std::string kGolden = TRIBUTARY_SOURCE_DIR "/tests/golden/";

ByteSpan Span(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// As in tests/reference/aggregation_golden.py.
aggregation::testing::LayoutPtr GoldenLayout() {
  return aggregation::testing::MakeLayout({{"fc.weight", {3, 5}, DType::kF32, Policy::kMean},
                                           {"fc.bias", {3}, DType::kBf16, Policy::kMean},
                                           {"h\u00e4lfte", {4}, DType::kF16, Policy::kSum},
                                           {"frozen", {2, 2}, DType::kF64, Policy::kSkip},
                                           {"empty", {0}, DType::kF32, Policy::kMean},
                                           {"steps", {}, DType::kI64, Policy::kMax}});
}

// ---- A checkpoint

// The values of float tensors: small multiples of 2^-5.
double GoldenValue(int tensor, int i) { return ((tensor * 7 + i * 5) % 23 - 11) / 32.0; }

std::vector<uint8_t> GoldenModel(const aggregation::ModelLayout& layout) {
  std::vector<uint8_t> bytes(layout.model_bytes());
  const auto put = [&](int tensor, int i, const void* value, size_t size) {
    std::memcpy(bytes.data() + layout.TensorByteOffset(tensor) + i * size, value, size);
  };
  for (int i = 0; i < 15; ++i) {
    const auto x = static_cast<float>(GoldenValue(0, i));
    put(0, i, &x, 4);
  }
  for (int i = 0; i < 3; ++i) {
    const auto x = static_cast<float>(GoldenValue(1, i));
    put(1, i, reinterpret_cast<const uint8_t*>(&x) + 2, 2);  // bfloat16: the upper half
  }
  // 3/32, 8/32, -10/32, -5/32 as binary16.
  const uint16_t half[] = {0x2E00, 0x3400, 0xB500, 0xB100};
  put(2, 0, half, sizeof(half));
  for (int i = 0; i < 4; ++i) {
    const double x = GoldenValue(3, i);
    put(3, i, &x, 8);
  }
  const int64_t steps = -(int64_t{1} << 40);
  put(5, 0, &steps, 8);
  return bytes;
}

v1::RoundSpec GoldenSpec(const aggregation::ModelLayout& layout) {
  v1::RoundSpec spec;
  spec.set_run("run-1");
  spec.set_round(3);
  spec.set_kind(v1::TRAIN);
  spec.set_seed(42);
  spec.set_base_version(2);
  spec.set_base_sha256(Sha256Of(Span("base")));
  spec.set_layout_hash(layout.hash());
  spec.mutable_grid()->set_fraction_bits(30);
  spec.mutable_grid()->set_bound(4096);
  spec.mutable_grid()->set_max_weight(1 << 20);
  spec.mutable_grid()->set_weight_fraction_bits(16);
  spec.set_codec("int8(block=128)");
  spec.set_cohort_fraction(1);
  spec.set_deadline_ms(600'000);
  spec.set_minimum(2);
  spec.set_quorum(0.75);
  spec.set_max_client_weight(1024);
  (*spec.mutable_hyperparameters())["lr"] = 0.05;
  return spec;
}

v1::CheckpointState GoldenState() {
  const auto layout = GoldenLayout();
  v1::CheckpointState state;
  state.set_run("run-1");
  state.set_round(3);
  state.set_version(3);
  state.set_seed(42);
  *state.mutable_layout() = layout->ToProto();
  *state.mutable_spec() = GoldenSpec(*layout);
  state.set_model_sha256(Sha256Of(GoldenModel(*layout)));
  for (const char* child : {"client-9", "rack-1"}) state.add_children(child);
  for (const char* client : {"client-7", "client-9"}) state.add_contributors(client);
  state.set_failed_in_a_row(1);
  (*state.mutable_optimizer())["m"] = std::string("\0\xFF\x01", 3);
  state.set_finished(true);
  (*state.mutable_parts())["rack-1"] = 2;
  return state;
}

TEST(GoldenTest, CheckpointIsReadToTheSameValues) {
  const TempDir dir;
  fs::copy(kGolden + "checkpoint", dir / "", fs::copy_options::recursive);
  const auto store = CheckpointStore::Open({.directory = dir / "", .run = "run-1"});
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<std::string> warnings;
  const auto checkpoint = (*store)->Load(&warnings);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(warnings.empty()) << warnings[0];
  EXPECT_EQ(checkpoint->state.DebugString(), GoldenState().DebugString());
  EXPECT_EQ(checkpoint->model.layout->hash(), GoldenLayout()->hash());
  EXPECT_EQ(Hex(checkpoint->model.bytes), Hex(GoldenModel(*GoldenLayout())));
  EXPECT_TRUE(checkpoint->published.empty());
}

TEST(GoldenTest, CheckpointIsWrittenToTheSameBytes) {
  const TempDir dir;
  const auto store = CheckpointStore::Open({.directory = dir / "", .run = "run-1"});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto layout = GoldenLayout();
  const absl::Status saved = (*store)->Save(GoldenState(), *layout, GoldenModel(*layout));
  ASSERT_TRUE(saved.ok()) << saved;
  for (const char* file : {"MANIFEST", "00000003/model.safetensors", "00000003/state.pb"}) {
    EXPECT_EQ(Hex(ReadBytes(dir / absl::StrCat("run-1/", file))),
              Hex(ReadBytes(absl::StrCat(kGolden, "checkpoint/run-1/", file))))
        << file;
  }
}

// ---- An upload, as the front door reads it (tests/client has the sender's side)

TEST(GoldenTest, UploadIsReadToTheSameValues) {
  const std::vector<uint8_t> golden = ReadBytes(kGolden + "messages/upload.bin");
  const PiecedBytes pieces{ByteSpan(golden)};
  const auto upload = door::ParseUploadMessage(pieces);
  ASSERT_TRUE(upload.ok()) << upload.status();
  ASSERT_TRUE(upload->header.has_value() && upload->trailer.has_value());
  const v1::UploadHeader& header = *upload->header;
  EXPECT_EQ(header.run(), "run-1");
  EXPECT_EQ(header.round(), 3u);
  EXPECT_EQ(header.id(), "client-7");
  EXPECT_EQ(header.epoch(), 1'700'000'000'000'000u);
  EXPECT_EQ(header.base_version(), 2u);
  EXPECT_EQ(header.layout_hash(), GoldenLayout()->hash());
  EXPECT_EQ(header.weight(), 3);
  EXPECT_EQ(header.metrics(0).name(), "loss");
  EXPECT_EQ(header.metrics(0).value(), 0.75);
  EXPECT_EQ(header.metrics(0).weight(), 3u);
  const std::vector<uint8_t> segments = ReadBytes(kGolden + "aggregation/update.bin");
  std::vector<uint8_t> got;
  for (const ByteSpan piece : upload->segments.pieces()) {
    got.insert(got.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(Hex(got), Hex(segments));
  EXPECT_EQ(header.encoded_bytes(), segments.size());
  EXPECT_EQ(upload->trailer->encoded_bytes(), segments.size());
  EXPECT_EQ(upload->trailer->crc32c(), Crc32c(segments));
}

// ---- A partial sum's messages; its chunk is in tests/aggregation

TEST(GoldenTest, PartialSumHeaderIsReadAndWrittenToTheSameBytes) {
  const std::vector<uint8_t> chunk = ReadBytes(kGolden + "aggregation/chunk.bin");
  v1::PartialSumHeader header;
  header.set_run("run-1");
  header.set_round(3);
  header.set_id("rack-1");
  header.set_epoch(1'700'000'000'000'001u);
  header.set_layout_hash(GoldenLayout()->hash());
  header.set_base_version(2);
  header.set_weight(40);
  for (const char* client : {"client-7", "client-9"}) header.add_contributors(client);
  auto* loss = header.add_metrics();
  loss->set_name("loss");
  loss->set_sum(int64_t{-5} * (1 << 30));
  loss->set_weight(40);
  header.set_chunks(1);
  header.set_packed_bytes(chunk.size());
  header.add_rejected()->set_reason("non_finite");
  header.mutable_rejected(0)->set_count(2);
  header.set_late(1);
  header.set_ingress_bytes(4321);
  header.set_attempt(2);
  header.set_part(1);
  const std::vector<uint8_t> golden = ReadBytes(kGolden + "messages/partial_header.bin");
  EXPECT_EQ(Hex(Span(header.SerializeAsString())), Hex(golden));
  v1::PartialSumHeader read;
  ASSERT_TRUE(read.ParseFromArray(golden.data(), static_cast<int>(golden.size())));
  EXPECT_EQ(read.DebugString(), header.DebugString());
}

TEST(GoldenTest, PartialSumTrailerHasTheDigestOfTheChunk) {
  PartialDigest digest;
  digest.Add(ReadBytes(kGolden + "aggregation/chunk.bin"));
  v1::PartialSumTrailer trailer;
  trailer.set_digest(digest.Value());
  EXPECT_EQ(Hex(Span(trailer.SerializeAsString())),
            Hex(ReadBytes(kGolden + "messages/partial_trailer.bin")));
}

}  // namespace
}  // namespace tributary::server
