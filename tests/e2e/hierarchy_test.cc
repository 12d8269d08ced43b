// A rack killed in the second of its own rounds: the root's round goes on without it, and the model
// is what the other rack's clients make of it, worked out here from what e2e_client sends.
#include <cmath>
#include <csignal>
#include <cstring>

#include "base/philox.h"
#include "models/builtin.h"
#include "tests/e2e/cluster.h"

namespace tributary {
namespace {

constexpr int kOwnRounds = 3;
constexpr int kFractionBits = 30;

double OnGrid(double x) {
  return std::ldexp(std::nearbyint(std::ldexp(x, kFractionBits)), -kFractionBits);
}

// The model after round 1 with client "a" alone, all of whose rack's own rounds count.
std::string ModelOfA() {
  auto model = models::BuiltinModel("logreg", 1);
  const std::vector<uint8_t> base = model->bytes;
  auto* values = reinterpret_cast<float*>(model->bytes.data());
  for (int own = 1; own <= kOwnRounds; ++own) {
    uint64_t at = 0;
    for (uint32_t t = 0; t < model->layout->tensors().size(); ++t) {
      PhiloxStream random(SeededHash(own, "delta", "a"), t);
      for (uint64_t i = 0; i < model->layout->TensorElements(t); ++i, ++at) {
        const float delta = static_cast<float>(random.NextDouble() - 0.5) * 0.1f;
        values[at] = static_cast<float>(double{values[at]} + OnGrid(double{delta}));
      }
    }
  }
  for (uint64_t i = 0; i < base.size() / 4; ++i) {
    float start;
    std::memcpy(&start, base.data() + 4 * i, 4);
    values[i] = static_cast<float>(double{start} + OnGrid(double{values[i]} - double{start}));
  }
  return absl::BytesToHexString(Sha256Of(model->bytes));
}

TEST(RackWithRoundsOfItsOwn, KilledInItsSecondTheRoundGoesOnWithoutIt) {
  Cluster run;
  const int root = run.Port(), one = run.Port(), two = run.Port();
  run.Write(
      "global",
      absl::StrFormat("[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n[transport]\nlisten = "
                      "\"127.0.0.1:0\"\n[run]\nname = \"e2e\"\nrounds = 1\nmodel = \"logreg\"\n"
                      "rack_rounds = %d\n[cohort]\nminimum = 2\nfraction = 0.999999\n[straggler]\n"
                      "deadline = \"fixed\"\ndeadline_s = 100\nrejoin_grace_s = 0.5\n[checkpoint]\n"
                      "directory = \"%s/checkpoints\"\n",
                      root, kOwnRounds, run.dir()));
  run.Serve("global");
  run.Rack("rack-1", one, root);
  run.Rack("rack-2", two, root);
  run.Client("a", {one});
  // Each of its rounds takes a while: the kill falls into the second.
  run.Client("b", {two}, 1000);
  ASSERT_TRUE(run.AwaitLog("rack-2", "its own round 1 of 3")) << run.Log("rack-2");
  run.Kill("rack-2");
  EXPECT_EQ(run.Log("rack-2").find("its own round 2 of 3"), std::string::npos);
  ASSERT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  const auto rounds = run.Rounds();
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0]["committed"], true);
  EXPECT_EQ(rounds[0]["accepted"], 1);
  EXPECT_EQ(rounds[0]["model_sha256"], ModelOfA());
  EXPECT_EQ(rounds[0]["evaluation"]["test_accuracy"], 0.5);
}

}  // namespace
}  // namespace tributary
