// What a committed model must be, to the bit: recomputed from the contributor list in its
// checkpoint and from what e2e_client sends.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/philox.h"
#include "models/builtin.h"
#include "tests/e2e/cluster.h"
#include "tributary/v1/checkpoint.pb.h"

namespace tributary {

// What e2e_client sends, by its rules.
inline int64_t WeightOf(const std::string& id) {
  return 5 + static_cast<int64_t>(SeededHash(1, "weight", id) % 20);
}

// base moved by the mean of the contributors' deltas, on the round's grid; all tensors are F32.
inline std::vector<uint8_t> Recomputed(const aggregation::ModelLayout& layout,
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

// The checkpoint's word on round `round`.
inline v1::CheckpointState StateOf(const Cluster& run, int round) {
  v1::CheckpointState state;
  EXPECT_TRUE(state.ParseFromString(
      Read(absl::StrFormat("%s/checkpoints/e2e/%08d/state.pb", run.dir(), round))))
      << run.Log("global");
  return state;
}

// Every committed model from the first on.
inline void CheckModels(const Cluster& run) {
  const std::string folder = run.dir() + "/checkpoints/e2e/";
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
        << "round " << version << " is not the sum of its contributors";
  }
  EXPECT_GT(version, 0u);
}

}  // namespace tributary
