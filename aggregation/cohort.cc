// Choosing a cohort, and what a late update weighs.
#include "aggregation/cohort.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace tributary::aggregation {
namespace {

uint64_t CohortHash(uint64_t seed, uint64_t round, const std::string& id) {
  return SeededHash(seed, "cohort", absl::StrCat(round, "/", id));
}

}  // namespace

bool InCohort(uint64_t seed, uint64_t round, const std::string& id, double fraction) {
  if (fraction >= 1) return true;
  if (!(fraction > 0)) return false;
  // Below 1 a double's product with 2^64 fits, and hash < x is hash < ceil(x) for an integer hash.
  return CohortHash(seed, round, id) < static_cast<uint64_t>(std::ceil(std::ldexp(fraction, 64)));
}

double CohortKey(uint64_t seed, uint64_t round, const std::string& id, double preference) {
  const double uniform =
      std::ldexp(static_cast<double>(CohortHash(seed, round, id)) + 0.5, -64);  // may round to 1
  return -std::log(uniform) / preference;
}

uint64_t OverSelected(uint64_t count, double over_selection) {
  // 10 * 1.3 is 13 and needs 13, though the product in doubles may lie just above.
  const double wanted = static_cast<double>(count) * over_selection * (1 - 1e-12);
  return std::max(count, static_cast<uint64_t>(std::ceil(wanted)));
}

std::vector<uint64_t> SplitCount(uint64_t count, const std::vector<uint64_t>& sizes) {
  std::vector<uint64_t> shares(sizes.size(), 0);
  // Sizes are what children say: their sum may not fit.
  using Wide = unsigned __int128;
  const Wide total = std::accumulate(sizes.begin(), sizes.end(), Wide{0});
  if (total == 0) return shares;
  if (total < count) count = static_cast<uint64_t>(total);
  uint64_t given = 0;
  std::vector<Wide> remainders(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Wide product = static_cast<Wide>(count) * sizes[i];
    shares[i] = static_cast<uint64_t>(product / total);
    remainders[i] = product % total;
    given += shares[i];
  }
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  // Each of the first has a remainder, so its share is below its size.
  for (size_t i = 0; given < count; ++i, ++given) ++shares[order[i]];
  return shares;
}

int64_t StaleWeight(int64_t units, uint64_t staleness) {
  const double scaled = static_cast<double>(units) / std::sqrt(1 + static_cast<double>(staleness));
  return std::max<int64_t>(1, std::llrint(scaled));
}

uint64_t WeightShare(uint64_t all, uint64_t mine, uint64_t total, uint64_t groups) {
  const auto part = [&](uint64_t whole) {
    if (total == 0) return uint64_t{0};
    return static_cast<uint64_t>(static_cast<unsigned __int128>(whole) * std::min(mine, total) /
                                 total);
  };
  if (total >= all) return std::max<uint64_t>(1, part(all));
  const uint64_t half = (all - total) / 2;
  const uint64_t share = std::min(mine, total) + part(half) + half / std::max<uint64_t>(groups, 1);
  return std::max<uint64_t>(1, share);
}

}  // namespace tributary::aggregation
