// Real processes killed at random moments: global, racks and clients, over a run of twenty rounds.
// Whatever happened, each committed model is, to the bit, what its contributor list says:
// recomputed here from the clients' deltas, which depend on client and round alone.
#include <gmock/gmock.h>

#include <cmath>
#include <csignal>
#include <cstring>

#include "base/philox.h"
#include "models/builtin.h"
#include "tests/e2e/cluster.h"
#include "tributary/v1/checkpoint.pb.h"

namespace tributary {
namespace {

constexpr int kRounds = 20;
constexpr int kClients = 6;
constexpr int kKills = 8;  // a schedule

// ---- What e2e_client sends, by its rules.

int64_t WeightOf(const std::string& id) {
  return 5 + static_cast<int64_t>(SeededHash(1, "weight", id) % 20);
}

// base moved by the mean of the contributors' deltas, on the round's grid; all tensors are F32.
std::vector<uint8_t> Recomputed(const aggregation::ModelLayout& layout,
                                const std::vector<uint8_t>& base,
                                const v1::CheckpointState& state) {
  const int fraction_bits = static_cast<int>(state.spec().grid().fraction_bits());
  int64_t total = 0;
  for (const std::string& id : state.contributors()) total += WeightOf(id);
  std::vector<uint8_t> next = base;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    std::vector<int64_t> sums(layout.TensorElements(t), 0);
    for (const std::string& id : state.contributors()) {
      PhiloxStream random(SeededHash(state.spec().round(), "delta", id), t);
      for (int64_t& sum : sums) {
        const float delta = static_cast<float>(random.NextDouble() - 0.5) * 0.1f;
        sum += WeightOf(id) * std::llrint(std::ldexp(static_cast<double>(delta), fraction_bits));
      }
    }
    for (uint64_t i = 0; i < sums.size(); ++i) {
      uint8_t* at = next.data() + layout.TensorByteOffset(t) + 4 * i;
      float value;
      std::memcpy(&value, at, 4);
      const double mean =
          std::ldexp(static_cast<double>(sums[i]) / static_cast<double>(total), -fraction_bits);
      value = static_cast<float>(static_cast<double>(value) + mean);
      std::memcpy(at, &value, 4);
    }
  }
  return next;
}

// ---- A schedule of kills

class Chaos : public ::testing::TestWithParam<int> {
 protected:
  void Start() {
    root_ = run_.Port();
    racks_ = {run_.Port(), run_.Port()};
    run_.Root(root_, "keep = 1000\n", kRounds, 1);
    for (size_t r = 0; r < racks_.size(); ++r) {
      run_.Rack(absl::StrCat("rack-", r), racks_[r], root_);
    }
    for (int i = 0; i < kClients; ++i) StartClient(i);
  }
  // Each lists both racks, its own first.
  void StartClient(int i) {
    run_.Client(absl::StrCat("c", i), {racks_[i % 2], racks_[(i + 1) % 2]}, 40);
  }
  void Kill(PhiloxStream* random) {
    const auto victim = static_cast<int>(random->NextBelow(kClients + 3));
    const std::string name = victim == 0   ? "global"
                             : victim <= 2 ? absl::StrCat("rack-", victim - 1)
                                           : absl::StrCat("c", victim - 3);
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random->NextBelow(300))));
    if (!run_["global"].Running()) return;  // the run is over
    story_ += absl::StrCat(" ", name);
    run_[name].Signal(SIGKILL);
    ASSERT_TRUE(run_[name].Wait(kPatience).ok());
    absl::SleepFor(absl::Milliseconds(static_cast<int64_t>(random->NextBelow(200))));
    if (victim <= 2) {
      run_.Serve(name);
    } else {
      StartClient(victim - 3);
    }
  }
  // Every committed model from the first on.
  void CheckModels() {
    const std::string folder = run_.dir() + "/checkpoints/e2e/";
    v1::CheckpointManifest manifest;
    ASSERT_TRUE(manifest.ParseFromString(Read(folder + "MANIFEST")));
    auto model = models::BuiltinModel("logreg", 1);
    ASSERT_TRUE(model.ok()) << model.status();
    std::vector<uint8_t> expected = model->bytes;
    uint64_t version = 0;
    for (const auto& entry : manifest.entries()) {
      v1::CheckpointState state;
      ASSERT_TRUE(state.ParseFromString(Read(folder + entry.directory() + "/state.pb")));
      EXPECT_GT(state.version(), version) << "rounds go back";
      EXPECT_EQ(state.spec().base_version(), version);
      version = state.version();
      ASSERT_GT(state.contributors_size(), 0);
      expected = Recomputed(*model->layout, expected, state);
      const auto saved = models::ReadSafetensors(folder + entry.directory() + "/model.safetensors");
      ASSERT_TRUE(saved.ok()) << saved.status();
      ASSERT_EQ(absl::BytesToHexString(Sha256Of(saved->bytes)),
                absl::BytesToHexString(Sha256Of(expected)))
          << "round " << version << " is not the sum of its contributors; killed:" << story_;
    }
    EXPECT_GT(version, 0u);
  }

  Cluster run_;
  int root_ = 0;
  std::vector<int> racks_;
  std::string story_;
};

TEST_P(Chaos, EveryCommittedModelIsTheSumOfTheContributorsThatItNames) {
  PhiloxStream random(SeededHash(static_cast<uint64_t>(GetParam()), "chaos", "kills"));
  Start();
  ASSERT_TRUE(run_.AwaitRounds(1)) << run_.Log("global");
  for (int kill = 0; kill < kKills && run_["global"].Running(); ++kill) Kill(&random);
  EXPECT_EQ(run_.ExitCode("global"), 0) << "seed " << GetParam() << ", killed:" << story_ << "\n"
                                        << run_.Log("global");
  CheckModels();
}

INSTANTIATE_TEST_SUITE_P(Seeds, Chaos, ::testing::Range(1, 4));
// The same fifty times; only `./run test --full`.
INSTANTIATE_TEST_SUITE_P(Full, Chaos, ::testing::Range(4, 54));

}  // namespace
}  // namespace tributary
