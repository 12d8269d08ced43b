// The trainer's memory: it follows what aggregators decode, of rounds that counted alone, and
// survives with the residuals.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "aggregation/grid.h"
#include "base/checksum.h"
#include "client/internal/encode.h"
#include "compression/policy.h"
#include "compression/segment.h"

namespace tributary::client::internal {
namespace {

using aggregation::DType;
using aggregation::ModelLayout;
using aggregation::Policy;

std::shared_ptr<const ModelLayout> Layout() {
  return *ModelLayout::Create(
      {{"a", {700}, DType::kF32, Policy::kMean}, {"b", {700}, DType::kF32, Policy::kMean}});
}

// Encodes as `codec`, with memory step `step` of tensor b; what is decoded of it.
std::vector<float> Send(const std::string& codec, uint64_t round, float step,
                        ResidualStore* store) {
  const auto policy = *compression::CodecPolicy::Parse(codec);
  const auto layout = Layout();
  TrainResult result;
  result.floats.assign(2, std::vector<float>(700));
  for (size_t i = 0; i < 700; ++i) {
    result.floats[1][i] = static_cast<float>((i * 37 + round * 11) % 101) / 1000;
  }
  result.memory_steps = {0, step};
  v1::RoundSpec spec;
  spec.set_round(round);
  *spec.mutable_grid() = aggregation::Grid().ToProto();
  const auto encoded = Encode(*layout, *policy, spec, "c", std::move(result), store);
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  std::vector<float> decoded(700);
  for (const std::vector<uint8_t>& segment : *encoded->segments) {
    const PiecedBytes bytes{ByteSpan(segment)};
    ByteCursor cursor(bytes);
    const auto header = *compression::ReadSegmentHeader(&cursor);
    if (header.tensor != 1) continue;
    const auto used = *compression::CodecFromHeader(header.codec, header.parameter);
    used->Decode(PiecedBytes(ByteSpan(segment).subspan(compression::SegmentHeader::kBytes)),
                 std::span(decoded).subspan(header.first, header.count));
  }
  return decoded;
}

std::vector<float> MemoryOf(const ResidualStore& store, uint32_t tensor) {
  const auto memory = store.Committed(tensor, Kept::kMemory);
  return {memory.begin(), memory.end()};
}

TEST(Memory, FollowsWhatIsDecodedOfRoundsThatCounted) {
  for (const char* codec :
       {"fp32", "int8; small = int8", "topk(0.1) | ef; small = topk(0.1) | ef"}) {
    ResidualStore store;
    std::vector<float> wanted(700, 0.0f);
    for (uint64_t round = 1; round <= 5; ++round) {
      const std::vector<float> decoded = Send(codec, round, -0.5f, &store);
      if (round == 3) {
        store.Rollback(round);
        continue;
      }
      store.Commit(round);
      for (size_t i = 0; i < 700; ++i) wanted[i] += -0.5f * decoded[i];
    }
    EXPECT_EQ(MemoryOf(store, 1), wanted) << codec;
    EXPECT_TRUE(MemoryOf(store, 0).empty()) << codec;
  }
}

TEST(Memory, StaysWhereARoundDoesNotMoveIt) {
  ResidualStore store;
  Send("topk(0.1) | ef; small = topk(0.1) | ef", 1, 1, &store);
  store.Commit(1);
  const std::vector<float> before = MemoryOf(store, 1);
  ASSERT_EQ(before.size(), 700u);
  Send("topk(0.1) | ef; small = topk(0.1) | ef", 2, 0, &store);
  store.Commit(2);
  EXPECT_EQ(MemoryOf(store, 1), before);
}

TEST(Memory, IsInTheFileAndFilesFromBeforeItWereReadAsWithout) {
  const std::string path = ::testing::TempDir() + "memory_test_" + std::to_string(getpid());
  std::vector<float> kept;
  {
    ResidualStore store(path);
    EXPECT_EQ(store.Bind("run", "layout"), "");
    Send("fp32", 1, 1, &store);
    store.Commit(1);
    kept = MemoryOf(store, 1);
    ASSERT_TRUE(store.Save().ok());
  }
  {
    ResidualStore store(path);
    EXPECT_EQ(store.Bind("run", "layout"), "");
    EXPECT_EQ(MemoryOf(store, 1), kept);
  }
  // Formats 2, 3 and 4 have four kinds, five and six. Here one tensor with a residual of two
  // elements, nothing pending.
  for (const uint64_t kinds : {4, 5, 6}) {
    std::string body;
    const auto number = [&body](uint64_t n) { body.append(reinterpret_cast<const char*>(&n), 8); };
    const std::string identity = std::string("run") + '\0' + "layout";
    number(identity.size());
    body += identity;
    number(7);
    number(0);
    number(kinds);
    number(2);
    for (const float v : {0.25f, -2.0f}) body.append(reinterpret_cast<const char*>(&v), 4);
    for (uint64_t i = 1; i < kinds; ++i) number(0);
    number(0);
    const uint64_t checksum = Crc32c({reinterpret_cast<const uint8_t*>(body.data()), body.size()});
    std::string file = "tributary residuals " + std::to_string(kinds - 2) + "\n";
    file.append(reinterpret_cast<const char*>(&checksum), 8);
    std::ofstream(path, std::ios::binary) << file + body;
    ResidualStore old(path);
    EXPECT_EQ(old.Bind("run", "layout"), "");
    const Wide<const float> residual = old.CommittedWide(0, 2, Kept::kResidual);
    ASSERT_EQ(residual.size(), 2u);
    EXPECT_EQ(residual[0], 0.25);
    EXPECT_EQ(residual[1], -2.0);
    EXPECT_TRUE(MemoryOf(old, 0).empty());
    EXPECT_TRUE(old.Committed(0, Kept::kBasis).empty());
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tributary::client::internal
