// A rack killed, or its link cut, at 40 % of its partial sum. [transport.faults] makes it stop
// there by itself; what the parent has is read in its log. The models that must come out are worked
// out here, from what e2e_client sends.
#include <gmock/gmock.h>

#include <bit>
#include <csignal>

#include "tests/e2e/recompute.h"

namespace tributary {
namespace {

constexpr uint64_t kElements = 1'300'000;
constexpr uint64_t kChunkElements = 131'072;
constexpr int kChunks = 10;
constexpr int kHalf = 4;
constexpr int kFractionBits = 30;

// Round 1's deltas of these clients on the grid, weighted and added up.
std::vector<int64_t> SumsOfRound1(const std::vector<std::string>& ids) {
  const auto model = models::BuiltinModel(absl::StrCat("synthetic:", kElements), 1);
  EXPECT_TRUE(model.ok()) << model.status();
  return SumsOf(*model->layout, InRound(1, ids), kFractionBits);
}

// The model after round 1 with these clients in it, as rounds.jsonl has it.
std::string ModelWith(const std::vector<std::string>& ids) {
  const auto model = models::BuiltinModel(absl::StrCat("synthetic:", kElements), 1);
  EXPECT_TRUE(model.ok()) << model.status();
  return absl::BytesToHexString(
      Sha256Of(Recomputed(*model->layout, model->bytes, InRound(1, ids), kFractionBits)));
}

// The packed length of the first chunks (docs/wire-format.md, "Partial sum").
uint64_t PackedBytes(const std::vector<int64_t>& sums, int chunks) {
  uint64_t bytes = 0;
  const uint64_t end = std::min<uint64_t>(sums.size(), chunks * kChunkElements);
  for (uint64_t block = 0; block < end; block += 512) {
    int width = 0;
    for (uint64_t i = block; i < std::min<uint64_t>(block + 512, end); ++i) {
      const auto bits = static_cast<uint64_t>(sums[i] < 0 ? ~sums[i] : sums[i]);
      if (sums[i] != 0) width = std::max<int>(width, std::bit_width(bits) + 1);
    }
    bytes += 1 + 64 * width;
  }
  return bytes;
}

// A root with a client of its own, and a rack with another.
class RackAtFortyPercent : public ::testing::TestWithParam<std::string> {
 protected:
  void Start(const std::string& grace, const std::string& rack_transport) {
    root_ = run_.Port();
    rack_ = run_.Port();
    run_.Write(
        "global",
        absl::StrFormat(
            "[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n"
            "[transport]\nkind = \"%s\"\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"debug\"\n"
            "[run]\nname = \"e2e\"\nrounds = 1\nmodel = \"synthetic:%d\"\nevaluate_every = "
            "0\n[cohort]\nminimum = 2\nfraction = 0.999999\n[aggregation]\nfraction_bits = %d\n"
            "[straggler]\ndeadline = \"fixed\"\ndeadline_s = 100\nrejoin_grace_s = %s\n"
            "[checkpoint]\ndirectory = \"%s/checkpoints\"\n",
            root_, GetParam(), kElements, kFractionBits, grace, run_.dir()));
    run_.Serve("global");
    Rack(absl::StrCat(rack_transport, "[transport.faults]\nstall_after = ", 1 + kHalf, "\n"));
    run_.Client("a", {rack_});
    run_.Client("b", {root_});
    ASSERT_TRUE(run_.AwaitLog("global", absl::StrCat("chunk ", kHalf, " of ", kChunks, " is in")))
        << run_.Log("global") << run_.Log("rack-0");
  }
  void Rack(const std::string& more) {
    run_.Write("rack-0", absl::StrFormat("[node]\nname = \"rack-0\"\nlisten = \"127.0.0.1:%d\"\n"
                                         "parent = \"127.0.0.1:%d\"\n[transport]\nkind = \"%s\"\n"
                                         "listen = \"127.0.0.1:0\"\n%s",
                                         rack_, root_, GetParam(), more));
    run_.Serve("rack-0");
  }
  nlohmann::json Round() {
    EXPECT_EQ(run_.ExitCode("global"), 0) << run_.Log("global");
    const auto rounds = run_.Rounds();
    EXPECT_EQ(rounds.size(), 1u);
    return rounds.empty() ? nlohmann::json() : rounds[0];
  }

  Cluster run_;
  int root_ = 0, rack_ = 0;
};

TEST_P(RackAtFortyPercent, KilledForGoodLeavesTheModelOfTheOthersToTheBit) {
  Start("0.5", "");
  run_.Kill("rack-0");
  const auto round = Round();
  EXPECT_EQ(round["accepted"], 1);
  EXPECT_EQ(round["model_sha256"], ModelWith({"b"}));
  EXPECT_EQ(round["bytes"]["from_aggregators"], PackedBytes(SumsOfRound1({"a"}), kHalf));
}

TEST_P(RackAtFortyPercent, KilledAndStartedAgainSendsOnlyTheMissingChunks) {
  Start("60", "");
  run_.Kill("rack-0");
  Rack("");
  const auto round = Round();
  EXPECT_EQ(round["accepted"], 2);
  EXPECT_EQ(round["model_sha256"], ModelWith({"a", "b"}));
  EXPECT_EQ(round["bytes"]["from_aggregators"], PackedBytes(SumsOfRound1({"a"}), kChunks));
  EXPECT_THAT(run_.Log("global"), testing::HasSubstr("goes on after chunk 4 of 10"));
}

// Each of its links stalls after four chunks, is given up after a second, and is made anew.
TEST_P(RackAtFortyPercent, CutAgainAndAgainNeverSendsAChunkTwice) {
  Start("60", "heartbeat_s = 0.2\nprogress_timeout_s = 1\n");
  const auto round = Round();
  EXPECT_EQ(round["accepted"], 2);
  EXPECT_EQ(round["model_sha256"], ModelWith({"a", "b"}));
  EXPECT_EQ(round["bytes"]["from_aggregators"], PackedBytes(SumsOfRound1({"a"}), kChunks));
  EXPECT_THAT(run_.Log("global"),
              testing::AllOf(testing::HasSubstr("goes on after chunk 4 of 10"),
                             testing::HasSubstr("goes on after chunk 8 of 10")));
}

INSTANTIATE_TEST_SUITE_P(Kinds, RackAtFortyPercent, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary
