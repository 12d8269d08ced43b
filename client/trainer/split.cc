// The three ways to cut a training set, and the one for a test set.
#include "client/trainer/split.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status.h"
#include "client/trainer/internal/dirichlet.h"

namespace tributary::client::trainer {
namespace {

constexpr uint32_t kMaxClients = 1'000'000;
constexpr double kMinAlpha = 0.001;
constexpr double kMaxAlpha = 1e6;

void Shuffle(std::vector<uint32_t>* items, PhiloxStream* random) {  // Fisher and Yates
  for (size_t i = items->size(); i > 1; --i) {
    std::swap((*items)[i - 1], (*items)[random->NextBelow(i)]);
  }
}

PhiloxStream StreamFor(uint64_t seed, std::string_view use, uint64_t stream = 0) {
  return PhiloxStream(SeededHash(seed, "split", use), stream);
}

std::vector<uint32_t> AllIndices(size_t count) {
  std::vector<uint32_t> indices(count);
  std::iota(indices.begin(), indices.end(), uint32_t{0});
  return indices;
}

// Run `i` of `items` cut into `runs` whose sizes differ by one at most.
std::span<const uint32_t> Run(std::span<const uint32_t> items, uint64_t i, uint64_t runs) {
  const uint64_t begin = i * items.size() / runs;
  const uint64_t end = (i + 1) * items.size() / runs;
  return items.subspan(begin, end - begin);
}

void Append(std::vector<uint32_t>* part, std::span<const uint32_t> run) {
  part->insert(part->end(), run.begin(), run.end());
}

Parts CutAtRandom(uint64_t count, uint32_t clients, PhiloxStream random) {
  std::vector<uint32_t> order = AllIndices(count);
  Shuffle(&order, &random);
  Parts parts(clients);
  for (uint32_t i = 0; i < clients; ++i) Append(&parts[i], Run(order, i, clients));
  return parts;
}

Parts CutShards(std::span<const uint8_t> labels, const SplitSpec& spec) {
  std::vector<uint32_t> by_label = AllIndices(labels.size());
  std::stable_sort(by_label.begin(), by_label.end(),
                   [labels](uint32_t a, uint32_t b) { return labels[a] < labels[b]; });
  const size_t shards = size_t{spec.clients} * spec.shards_per_client;
  std::vector<uint32_t> order = AllIndices(shards);
  PhiloxStream random = StreamFor(spec.seed, "shards");
  Shuffle(&order, &random);
  Parts parts(spec.clients);
  for (size_t i = 0; i < shards; ++i) {
    Append(&parts[i / spec.shards_per_client], Run(by_label, order[i], shards));
  }
  return parts;
}

void GiveOneToEach(Parts* parts) {
  // The largest first, of equals the first. Who is given one never has to give.
  using Size = std::pair<size_t, int64_t>;  // and the part's number, negated
  std::priority_queue<Size> sizes;
  for (size_t i = 0; i < parts->size(); ++i) {
    sizes.emplace((*parts)[i].size(), -static_cast<int64_t>(i));
  }
  for (auto& part : *parts) {
    if (!part.empty()) continue;
    const auto [size, number] = sizes.top();
    sizes.pop();
    auto& largest = (*parts)[static_cast<size_t>(-number)];
    const auto last = std::max_element(largest.begin(), largest.end());
    part.push_back(*last);
    largest.erase(last);
    sizes.emplace(size - 1, number);
  }
}

Parts CutDirichlet(std::span<const uint8_t> labels, const SplitSpec& spec) {
  std::vector<std::vector<uint32_t>> classes(256);
  for (uint32_t i = 0; i < labels.size(); ++i) classes[labels[i]].push_back(i);
  Parts parts(spec.clients);
  for (size_t label = 0; label < classes.size(); ++label) {
    std::vector<uint32_t>& members = classes[label];
    if (members.empty()) continue;
    // A stream of its own for each class: a class's draws do not depend on the others'.
    PhiloxStream random = StreamFor(spec.seed, "dirichlet", label);
    const auto shares = DrawShares(spec.alpha, spec.clients, &random);
    const auto counts = Apportion(members.size(), shares);
    Shuffle(&members, &random);
    std::span<const uint32_t> left = members;
    for (uint32_t client = 0; client < spec.clients; ++client) {
      Append(&parts[client], left.first(counts[client]));
      left = left.subspan(counts[client]);
    }
  }
  GiveOneToEach(&parts);
  return parts;
}

absl::Status CheckClients(uint32_t clients) {
  if (clients >= 1 && clients <= kMaxClients) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the data is to be cut for ", clients, " clients; 1 to ", kMaxClients, " can"));
}

absl::Status CheckSpec(uint64_t examples, const SplitSpec& spec) {
  RETURN_IF_ERROR(CheckClients(spec.clients));
  uint64_t pieces = spec.clients;
  if (spec.kind == SplitKind::kShards) {
    if (spec.shards_per_client == 0) {
      return absl::InvalidArgumentError("shards_per_client is 0; give each client 1 at least");
    }
    pieces *= spec.shards_per_client;
  }
  if (pieces > examples) {
    return absl::InvalidArgumentError(absl::StrCat(examples,
                                                   " training examples cannot be cut into ", pieces,
                                                   " parts; use fewer clients or shards"));
  }
  if (spec.kind == SplitKind::kDirichlet && !(spec.alpha >= kMinAlpha && spec.alpha <= kMaxAlpha)) {
    return absl::InvalidArgumentError(absl::StrCat("Dirichlet's alpha is ", spec.alpha,
                                                   ", expected ", kMinAlpha, " to ", kMaxAlpha));
  }
  return absl::OkStatus();
}

Parts Sorted(Parts parts) {
  for (auto& part : parts) std::sort(part.begin(), part.end());
  return parts;
}

}  // namespace

absl::StatusOr<SplitKind> SplitKindFromName(std::string_view name) {
  if (name == "iid") return SplitKind::kIid;
  if (name == "shards") return SplitKind::kShards;
  if (name == "dirichlet") return SplitKind::kDirichlet;
  return absl::InvalidArgumentError(
      absl::StrCat("no split \"", std::string(name), "\"; known are iid, shards, dirichlet"));
}

absl::StatusOr<Parts> SplitTraining(std::span<const uint8_t> labels, const SplitSpec& spec) {
  RETURN_IF_ERROR(CheckSpec(labels.size(), spec));
  switch (spec.kind) {
    case SplitKind::kIid:
      return Sorted(CutAtRandom(labels.size(), spec.clients, StreamFor(spec.seed, "iid")));
    case SplitKind::kShards:
      return Sorted(CutShards(labels, spec));
    case SplitKind::kDirichlet:
      return Sorted(CutDirichlet(labels, spec));
  }
  return absl::InternalError("a split of no known kind");
}

absl::StatusOr<Parts> SplitTest(uint64_t count, uint32_t clients, uint64_t seed) {
  RETURN_IF_ERROR(CheckClients(clients));
  return Sorted(CutAtRandom(count, clients, StreamFor(seed, "test")));
}

}  // namespace tributary::client::trainer
