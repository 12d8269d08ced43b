// Whose updates the last committed rounds have counted: for clients that missed being told.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace tributary::aggregation {

enum class Fate {
  kCounted,
  kNotCounted,  // and never will be
  kUnknown,     // forgotten
  kUndecided,   // its round is not over
};

// Of each client the last round that counted it. A client that still waits for the outcome of an
// update has made none since, so a later round that counted it has counted that one (carried over).
// Remembers `rounds` rounds and `most_clients` clients, some 30 bytes and its id for each. Not
// thread-safe.
class OutcomeLog {
 public:
  static constexpr uint64_t kRounds = 64;
  static constexpr size_t kMostClients = 1 << 20;
  explicit OutcomeLog(uint64_t rounds = kRounds, size_t most_clients = kMostClients)
      : rounds_(rounds), most_clients_(most_clients) {}

  // Forgets all; of rounds before `round` nothing is known, of it and those after it everything.
  void Begin(uint64_t round);
  // A round begins. Where it, or a later one, was committed already, the run has gone back: what is
  // known of it is forgotten.
  void Running(uint64_t round);
  // Rounds go forward; those that are left out have counted nobody.
  void Committed(uint64_t round, std::span<const std::string> clients);
  // kCounted, kNotCounted or kUnknown of the update of `client` whose task was of `round`.
  Fate Of(absl::string_view client, uint64_t round) const;

 private:
  uint64_t rounds_;
  size_t most_clients_;
  uint64_t known_from_ = 0;
  uint64_t newest_ = 0;
  absl::flat_hash_map<std::string, uint64_t> last_;
};

}  // namespace tributary::aggregation
