// Who has been in how often: for reports of bias, and for weights against it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tributary::aggregation {

struct ParticipationSummary {
  uint64_t clients = 0;  // known
  uint64_t never = 0;    // of them, in no round
  double least = 0;      // of the shares of the rounds that each was asked for that it was in
  double median = 0;     // the lower of two
  double most = 0;
  double gini = 0;         // of how often each was in: 0 all alike, near 1 where few do all
  uint64_t uncounted = 0;  // observations of clients beyond the bound
};

// Counts of rounds for each client, for `most_clients` of them at most: those that come first. Some
// 60 bytes and its id for each. Not thread-safe; no clock inside.
class Participation {
 public:
  static constexpr size_t kMostClients = 1 << 20;
  explicit Participation(size_t most_clients = kMostClients) : most_clients_(most_clients) {}

  // A round that asked it has closed.
  void Observe(std::string_view client, bool in);
  // A round has closed with these in; whoever is known and not among them was asked in vain.
  void ObserveRound(const std::vector<std::string>& in);
  // (in + 1) / (asked + 1): 1 for who is not known, and for who was never missing.
  double Probability(std::string_view client) const;
  // What an update's weight is multiplied by so that, in expectation, it counts as if its client
  // were in always (Horvitz and Thompson, 1952), and all by `floor`, so that nothing weighs more
  // than it did: floor / max(floor, Probability). `floor` in (0, 1] bounds what one client can gain
  // to 1 / floor times.
  double Factor(std::string_view client, double floor) const;

  ParticipationSummary Summary() const;
  // "client,asked,in" and a line a client, ascending. Ids with a comma, a quote or a line's end are
  // quoted as in RFC 4180.
  std::string Csv() const;

 private:
  struct Counts {
    uint32_t asked = 0;
    uint32_t in = 0;
  };
  size_t most_clients_;
  uint64_t uncounted_ = 0;
  absl::flat_hash_map<std::string, Counts> counts_;
};

}  // namespace tributary::aggregation
