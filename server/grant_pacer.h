// Who may upload now: a pure policy, with no clock, sockets or threads inside.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace tributary::server {

struct GrantOptions {
  uint32_t first = 16;                             // uploads at once, before anything was measured
  uint32_t least = 2;                              // never fewer at once,
  uint32_t most = 1024;                            // never more,
  uint32_t most_blind = 64;                        // and never more while nothing at all comes in
  absl::Duration start_within = absl::Seconds(5);  // a grant that is not used by then is taken back
  // A rate is measured over so long; longer, up to `longest_epoch`, until `epoch_bytes` have come:
  // bytes are counted by messages, and a message more or less must not matter.
  absl::Duration epoch = absl::Milliseconds(50);
  absl::Duration longest_epoch = absl::Seconds(1);
  uint64_t epoch_bytes = uint64_t{16} << 20;
  uint32_t hold_epochs = 10;  // between two trials of another limit
};

// Updates ask, and are granted in the order of their asking, so many at a time as the ingress makes
// use of. That number is found by trying: it is doubled as long as the measured rate grows by half,
// so that it is not yet full, and a doubling is kept that brought a fifth; then, in turn and with
// rests between, a third fewer are tried, and kept where the rate stays, and half as many more, and
// kept where it grows. Where the rate falls far below what it
// was (the fast have sent, the slow are left), doubling begins anew. So senders that are slower
// than the ingress get enough company to fill it, and those that are not do not queue in the
// network, where too many at once would cost more than time.
//
//   Ask --Take--> passed --Sent--> granted --Started--> sending --Whole--> gone
//                                     '--Expire--> gone         any --Gone--> gone
//
// Keys are the pacer's, ascending and never used again; calls with keys that are gone are ignored.
// `now` is monotonic. What it keeps grows with those who ask, one entry each.
class GrantPacer {
 public:
  explicit GrantPacer(const GrantOptions& options) : options_(options), limit_(options.first) {}

  uint64_t Ask(uint64_t bytes);
  // Who is to be granted now. Nobody whose update could not be in by `cut_off` even at the best
  // rate that an upload had lately; nor anybody behind it.
  std::vector<uint64_t> Take(absl::Duration now, absl::Duration cut_off);
  void Sent(uint64_t key, absl::Duration now);     // memory is reserved, and the sender knows
  void Started(uint64_t key, absl::Duration now);  // its upload is being read
  void Whole(uint64_t key, absl::Duration now);    // has been read
  void Gone(uint64_t key);
  // Takes back grants that were not used in time, and returns them.
  std::vector<uint64_t> Expire(absl::Duration now);
  // `received`: bytes of uploads taken in so far, ever. To be called when NextTimer is due.
  void Observe(absl::Duration now, uint64_t received);
  std::optional<absl::Duration> NextTimer() const;

  size_t waiting() const { return waiting_.size(); }
  size_t outstanding() const { return entries_.size() - waiting_.size(); }  // passed and not gone
  size_t unused() const { return unused_.size(); }  // granted, and its upload not begun
  uint32_t limit() const { return limit_; }

 private:
  enum class State : uint8_t { kWaiting, kPassed, kSent, kStarted };
  struct Entry {
    uint64_t bytes = 0;
    State state = State::kWaiting;
    absl::Duration sent;
  };
  enum class Phase : uint8_t { kGrow, kHold, kFewer, kMore };

  void Judge(double rate);
  void Grow(double rate, uint32_t most);
  void Try(Phase phase, uint32_t limit);
  void Hold();
  bool InTime(uint64_t bytes, absl::Duration now, absl::Duration cut_off) const;

  const GrantOptions options_;
  uint64_t keys_ = 0;
  absl::flat_hash_map<uint64_t, Entry> entries_;
  std::set<uint64_t> waiting_;
  std::set<std::pair<absl::Duration, uint64_t>> unused_;  // granted, by when they expire
  uint64_t passed_ = 0;                                   // waiting for memory
  std::deque<double> seconds_a_byte_;                     // of the last uploads

  // The epoch that is measured.
  absl::Duration epoch_at_ = absl::InfiniteDuration();  // infinite: none
  absl::Duration look_at_;                              // whether it has its bytes
  uint64_t epoch_received_ = 0;
  uint64_t received_ = 0;
  bool full_ = true;  // more would have been granted, had the limit allowed it

  uint32_t limit_;
  uint32_t before_ = 0;  // the limit that the present one is tried against
  Phase phase_ = Phase::kGrow;
  bool settling_ = true;  // the limit was changed in the last epoch
  bool fewer_next_ = true;
  uint32_t held_ = 0;
  bool fallen_ = false;  // the rate, in the epoch before
  double base_ = 0;      // bytes a second with `before_`
  double best_ = 0;      // lately
};

}  // namespace tributary::server
