// Cutting a data set among clients: seeded, and the same parts on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tributary::client::trainer {

enum class SplitKind { kIid, kShards, kDirichlet };
// "iid", "shards", "dirichlet". INVALID_ARGUMENT names them.
absl::StatusOr<SplitKind> SplitKindFromName(std::string_view name);

struct SplitSpec {
  SplitKind kind = SplitKind::kIid;
  uint32_t clients = 1;            // 1..1,000,000, and at most one a training example
  uint64_t seed = 1;               // the same parts for the same seed
  double alpha = 0.5;              // Dirichlet's; 0.001..1,000,000; smaller is less equal
  uint32_t shards_per_client = 2;  // of the label shards
};

// For each client the indices of its examples.
using Parts = std::vector<std::vector<uint32_t>>;

// Each index below labels.size() is in exactly one part; each part is ascending and not empty.
//   iid        a random order, cut into parts whose sizes differ by one at most.
//   shards     sorted by label, cut into clients * shards_per_client runs whose sizes differ by one
//              at most, each client getting shards_per_client of them at random: most clients see
//              few labels (McMahan et al., "Communication-Efficient Learning", 2017).
//   dirichlet  for each class, shares of the clients are drawn from Dirichlet(alpha, ..., alpha)
//              and its examples, in random order, dealt by them: clients differ in labels and in
//              size (Hsu, Qi, Brown, 2019; by class over clients as Yurochkin et al., 2019).
//              A client left without any then takes one example from the client that has the most
//              (clients in ascending order; among equals the first; its largest index).
// On sameness: gamma variates need logarithms and exponentials, whose last bits differ between C
// libraries. Here both are computed from IEEE additions, multiplications, divisions and square
// roots alone, the shares are then rounded to 1/2^20, and examples are counted out in integers by
// largest remainder (among equals the first client). So a share below half of 1/2^20 counts as 0,
// and what a machine could change is ruled out as far as it does IEEE double arithmetic.
// INVALID_ARGUMENT: a parameter out of its range, more clients (or shards) than examples.
absl::StatusOr<Parts> SplitTraining(std::span<const uint8_t> labels, const SplitSpec& spec);

// The test set for federated evaluation: `count` examples, in random order, cut into parts whose
// sizes differ by one at most; disjoint, together all. Parts may be empty where clients > count.
absl::StatusOr<Parts> SplitTest(uint64_t count, uint32_t clients, uint64_t seed);

}  // namespace tributary::client::trainer
