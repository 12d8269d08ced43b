// A model beyond 2 GiB through the whole of it: announced, downloaded, uploaded, folded, applied,
// committed. Takes some 20 GB of memory.
#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "models/builtin.h"
#include "tests/e2e/cluster.h"

namespace tributary {
namespace {

TEST(HugeModel, OfMoreThanTwoGibibytesGoesThroughARound) {
  constexpr uint64_t kElements = 600'000'000;
  const std::string name = absl::StrCat("synthetic:", kElements);
  Cluster run;
  const int root = run.Port();
  run.Write("global", absl::StrFormat(
                          "[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n"
                          "[limits]\ninflight_bytes = \"3GiB\"\n"
                          "[run]\nname = \"e2e\"\nrounds = 1\nmodel = \"%s\"\nevaluate_every = 0\n"
                          "[cohort]\nminimum = 1\n[compression]\ncodec = \"fp32\"\n"
                          "[straggler]\ndeadline_s = 1000\n"
                          "[checkpoint]\ndirectory = \"%s/checkpoints\"\n",
                          root, name, run.dir()));
  run.Serve("global");
  run.Client("c0", {root});
  const auto code = run["global"].Wait(absl::Seconds(800));
  ASSERT_TRUE(code.ok() && *code == 0) << run.Log("global");
  EXPECT_EQ(run.ExitCode("c0"), 0) << run.Log("c0");

  const auto base = models::BuiltinModel(name, 1);  // [run] seed is 1 unless told
  ASSERT_TRUE(base.ok()) << base.status();
  const auto next =
      models::ReadSafetensors(run.dir() + "/checkpoints/e2e/00000001/model.safetensors");
  ASSERT_TRUE(next.ok()) << next.status();
  ASSERT_GT(next->bytes.size(), uint64_t{1} << 31);
  ASSERT_EQ(next->bytes.size(), base->bytes.size());
  const auto* before = reinterpret_cast<const float*>(base->bytes.data());
  const auto* after = reinterpret_cast<const float*>(next->bytes.data());
  // What the client sends (e2e_client.cc), onto the grid of 2^-30, added in double, rounded once.
  uint64_t wrong = 0, at = 0;
  for (uint32_t t = 0; t < base->layout->tensors().size(); ++t) {
    PhiloxStream random(SeededHash(1, "delta", "c0"), t);
    for (uint64_t i = 0; i < base->layout->TensorElements(t); ++i, ++at) {
      const float delta = static_cast<float>(random.NextDouble() - 0.5) * 0.1f;
      const double q = std::nearbyint(std::ldexp(static_cast<double>(delta), 30));
      wrong +=
          after[at] != static_cast<float>(static_cast<double>(before[at]) + std::ldexp(q, -30));
    }
  }
  EXPECT_EQ(at, kElements);
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace tributary
