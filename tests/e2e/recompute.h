// What a committed model must be, to the bit: recomputed from what its checkpoint says is in
// it and from what e2e_client sends.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
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

// An update that counts: whose, for the task of which round, and what it weighs.
struct Counted {
  std::string id;
  uint64_t round = 0;
  int64_t weight = 0;
};

// One of each of these clients, in one round.
template <typename Ids>
std::vector<Counted> InRound(uint64_t round, const Ids& ids) {
  std::vector<Counted> counted;
  for (const std::string& id : ids) counted.push_back({id, round, WeightOf(id)});
  return counted;
}

// Their deltas on the grid, weighted and added up, tensor after tensor; all tensors are F32.
inline std::vector<int64_t> SumsOf(const aggregation::ModelLayout& layout,
                                   const std::vector<Counted>& counted, int fraction_bits) {
  std::vector<int64_t> sums(layout.elements(), 0);
  for (const Counted& update : counted) {
    uint64_t at = 0;
    for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
      PhiloxStream random(SeededHash(update.round, "delta", update.id), t);
      for (uint64_t i = 0; i < layout.TensorElements(t); ++i) {
        const float delta = static_cast<float>(random.NextDouble() - 0.5) * 0.1f;
        sums[at++] += update.weight * std::llrint(std::ldexp(double{delta}, fraction_bits));
      }
    }
  }
  return sums;
}

// base moved by their mean.
inline std::vector<uint8_t> Recomputed(const aggregation::ModelLayout& layout,
                                       std::vector<uint8_t> base,
                                       const std::vector<Counted>& counted, int fraction_bits) {
  const std::vector<int64_t> sums = SumsOf(layout, counted, fraction_bits);
  int64_t total = 0;
  for (const Counted& update : counted) total += update.weight;
  auto* values = reinterpret_cast<float*>(base.data());
  for (uint64_t i = 0; i < sums.size(); ++i) {
    const double mean =
        std::ldexp(static_cast<double>(sums[i]) / static_cast<double>(total), -fraction_bits);
    values[i] = static_cast<float>(double{values[i]} + mean);
  }
  return base;
}

// The checkpoint's word on round `round`.
inline v1::CheckpointState StateOf(const Cluster& run, int round) {
  v1::CheckpointState state;
  EXPECT_TRUE(state.ParseFromString(
      Read(absl::StrFormat("%s/checkpoints/e2e/%08d/state.pb", run.dir(), round))))
      << run.Log("global");
  return state;
}

// What a checkpoint of synchronous rounds says that its model is made of.
inline std::vector<Counted> Contributors(const v1::CheckpointState& state) {
  return InRound(state.spec().round(), state.contributors());
}

// Every committed model from the first on; counted(state) is what went into each.
inline void CheckModels(
    const Cluster& run,
    const std::function<std::vector<Counted>(const v1::CheckpointState&)>& counted = Contributors) {
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
    EXPECT_GT(state.version(), version) << "versions go back";
    EXPECT_EQ(state.spec().base_version(), version);
    version = state.version();
    const std::vector<Counted> updates = counted(state);
    ASSERT_FALSE(updates.empty());
    expected = Recomputed(*model->layout, std::move(expected), updates,
                          static_cast<int>(state.spec().grid().fraction_bits()));
    const auto saved = models::ReadSafetensors(folder + entry.directory() + "/model.safetensors");
    ASSERT_TRUE(saved.ok()) << saved.status();
    ASSERT_EQ(absl::BytesToHexString(Sha256Of(saved->bytes)),
              absl::BytesToHexString(Sha256Of(expected)))
        << "version " << version << " is not the sum of what its checkpoint names";
  }
  EXPECT_GT(version, 0u);
}

}  // namespace tributary
