// The queue, and the search for how many at once.
#include "server/grant_pacer.h"

#include <algorithm>
#include <utility>

namespace tributary::server {
namespace {

constexpr size_t kRemembered = 64;  // uploads, for the best rate of one
// The search. Rates of neighbouring epochs differ by some percent with nothing changed; these are
// wide of that.
constexpr double kGrows = 1.2;      // twice as many are worth it from here,
constexpr double kGrowsOn = 1.5;    // and twice as many again: the ingress is not full yet
constexpr double kGrowsMore = 1.1;  // the same of half as many more
constexpr double kGrowsMoreOn = 1.3;
constexpr double kStays = 0.95;    // a third fewer lose nothing above
constexpr double kFalls = 0.6;     // below: it is another network, or there are other senders
constexpr double kForgets = 0.98;  // an epoch, of the best rate

}  // namespace

uint64_t GrantPacer::Ask(uint64_t bytes) {
  const uint64_t key = ++keys_;
  entries_[key].bytes = bytes;
  waiting_.insert(key);
  return key;
}

bool GrantPacer::InTime(uint64_t bytes, absl::Duration now, absl::Duration cut_off) const {
  if (cut_off == absl::InfiniteDuration() || seconds_a_byte_.empty()) return now < cut_off;
  const double best = *std::min_element(seconds_a_byte_.begin(), seconds_a_byte_.end());
  return now + absl::Seconds(best * static_cast<double>(bytes)) <= cut_off;
}

std::vector<uint64_t> GrantPacer::Take(absl::Duration now, absl::Duration cut_off) {
  std::vector<uint64_t> out;
  bool in_time = true;
  while (!waiting_.empty() && outstanding() < limit_) {
    const uint64_t key = *waiting_.begin();
    Entry& entry = entries_[key];
    in_time = InTime(entry.bytes, now, cut_off);
    if (!in_time) break;
    waiting_.erase(waiting_.begin());
    entry.state = State::kPassed;
    ++passed_;
    out.push_back(key);
  }
  if (waiting_.empty() || !in_time) {
    epoch_at_ = absl::InfiniteDuration();
  } else if (epoch_at_ == absl::InfiniteDuration()) {
    epoch_at_ = now;
    look_at_ = now + options_.epoch;
    epoch_received_ = received_;
    full_ = true;
  }
  return out;
}

void GrantPacer::Sent(uint64_t key, absl::Duration now) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.state != State::kPassed) return;
  --passed_;
  it->second.state = State::kSent;
  it->second.sent = now;
  unused_.insert({now + options_.start_within, key});
}

void GrantPacer::Started(uint64_t key, absl::Duration now) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  if (it->second.state == State::kPassed) Sent(key, now);
  if (it->second.state != State::kSent) return;
  unused_.erase({it->second.sent + options_.start_within, key});
  it->second.state = State::kStarted;
}

void GrantPacer::Whole(uint64_t key, absl::Duration now) {
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.state != State::kStarted) return;
  const double bytes = static_cast<double>(std::max<uint64_t>(it->second.bytes, 1));
  seconds_a_byte_.push_back(absl::ToDoubleSeconds(now - it->second.sent) / bytes);
  if (seconds_a_byte_.size() > kRemembered) seconds_a_byte_.pop_front();
  entries_.erase(it);
}

void GrantPacer::Gone(uint64_t key) {
  const auto it = entries_.find(key);
  if (it == entries_.end()) return;
  switch (it->second.state) {
    case State::kWaiting:
      waiting_.erase(key);
      break;
    case State::kPassed:
      --passed_;
      break;
    case State::kSent:
      unused_.erase({it->second.sent + options_.start_within, key});
      break;
    case State::kStarted:
      break;
  }
  entries_.erase(it);
}

std::vector<uint64_t> GrantPacer::Expire(absl::Duration now) {
  std::vector<uint64_t> out;
  while (!unused_.empty() && unused_.begin()->first <= now) {
    const uint64_t key = unused_.begin()->second;
    Gone(key);
    out.push_back(key);
  }
  return out;
}

void GrantPacer::Observe(absl::Duration now, uint64_t received) {
  received_ = received;
  if (epoch_at_ == absl::InfiniteDuration()) return;
  // Where memory is what they wait for, more at once would not help.
  if (passed_ > 0) full_ = false;
  const absl::Duration took = now - epoch_at_;
  const uint64_t bytes = received - epoch_received_;
  if (now < look_at_) return;
  look_at_ = now + options_.epoch;
  if (bytes < options_.epoch_bytes && took < options_.longest_epoch) return;
  if (full_) Judge(static_cast<double>(bytes) / absl::ToDoubleSeconds(took));
  epoch_at_ = now;
  epoch_received_ = received;
  full_ = true;
}

void GrantPacer::Judge(double rate) {
  // Those granted since have not all begun, or those beyond a lower limit not all ended.
  if (std::exchange(settling_, false) || outstanding() > limit_) return;
  best_ = std::max(rate, best_ * kForgets);
  const uint32_t most = rate > 0 ? options_.most : std::min(options_.most, options_.most_blind);
  switch (phase_) {
    case Phase::kGrow:
      if (rate >= kGrowsOn * base_ && limit_ < most) return Grow(rate, most);
      if (rate < kGrows * base_) limit_ = before_;
      return Hold();
    case Phase::kHold:
      base_ = held_ == 0 ? rate : base_ + 0.25 * (rate - base_);
      if (rate < kFalls * best_) {
        // Once more: this epoch may have seen both.
        settling_ = !std::exchange(fallen_, true);
        if (settling_) return;
        best_ = rate;
        return Grow(rate, most);
      }
      fallen_ = false;
      if (++held_ < options_.hold_epochs) return;
      fewer_next_ = !fewer_next_;
      return fewer_next_ ? Try(Phase::kMore, std::min(limit_ + limit_ / 2 + 1, most))
                         : Try(Phase::kFewer, limit_ * 2 / 3);
    case Phase::kFewer:
      if (rate < kStays * best_) limit_ = before_;
      return Hold();
    case Phase::kMore:
      if (rate >= kGrowsMoreOn * base_ && limit_ < most) return Grow(rate, most);
      if (rate < kGrowsMore * base_) limit_ = before_;
      return Hold();
  }
}

void GrantPacer::Grow(double rate, uint32_t most) {
  base_ = rate;
  Try(Phase::kGrow, std::min(limit_ * 2, most));
}

void GrantPacer::Try(Phase phase, uint32_t limit) {
  before_ = limit_;
  limit_ = std::clamp(limit, options_.least, options_.most);
  phase_ = phase;
  settling_ = true;
}

void GrantPacer::Hold() {
  phase_ = Phase::kHold;
  held_ = 0;
  fallen_ = false;
  settling_ = true;
}

std::optional<absl::Duration> GrantPacer::NextTimer() const {
  absl::Duration next = absl::InfiniteDuration();
  if (!unused_.empty()) next = unused_.begin()->first;
  if (epoch_at_ != absl::InfiniteDuration()) next = std::min(next, look_at_);
  if (next == absl::InfiniteDuration()) return std::nullopt;
  return next;
}

}  // namespace tributary::server
