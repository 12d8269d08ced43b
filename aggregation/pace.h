// Who is slow but not dead: running quantiles of what members take, against their own past and
// their peers, with hysteresis.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tributary::aggregation {

// What is measured of a member; in seconds, but throughput in bytes a second.
enum class PaceMetric : uint8_t { kRound, kDownload, kTrain, kUpload, kForward, kThroughput };
inline constexpr int kPaceMetrics = 6;
const char* PaceMetricName(PaceMetric metric);  // "round", "download", "train", ...

struct PaceOptions {
  uint32_t window = 16;        // values of each metric that are remembered of a member
  uint32_t recent = 3;         // the newest of them whose median is "now"
  uint32_t minimum_past = 4;   // older values without which there is no own past to fall behind
  uint32_t minimum_peers = 4;  // members without which there are no peers
  double enter_own = 2;        // slow: now is more than this times its own past median,
  double enter_peers = 3;      // or more than this times the peers' median
  double leave_own = 1.3;      // healthy: at most this times its past,
  double leave_peers = 1.8;    // and at most this times the peers'; between the two nothing changes
  uint32_t enter_rounds = 2;   // slow in so many rounds in a row: degraded
  uint32_t leave_rounds = 3;   // healthy in so many rounds in a row: restored
  uint32_t forget_rounds = 256;   // a member that was not observed for so many is forgotten
  size_t most_members = 1 << 17;  // beyond, who is new is not looked at until some are forgotten
  double degraded_preference = 0.25;  // its chances in CohortKey's race
};

struct PaceChange {
  std::string id;
  bool degraded = false;  // else restored
  std::string
      why;  // "round 12.1 s, its own median 1.3 s, its peers' 1.2 s; most: upload 9.8 times"
};

// Not thread-safe; no clock inside. A member takes some 300 bytes, and 64 for each metric
// that it has.
class PaceTracker {
 public:
  explicit PaceTracker(const PaceOptions& options) : options_(options) {}

  // A value of the round that runs; finite and not negative, else ignored.
  void Observe(const std::string& id, PaceMetric metric, double value);
  // It was awaited for so long and had not answered: a lower bound, which counts as its round time
  // where it is more than its median is.
  // `at_deadline`: its peers' deadline is past, so it is slow in this round whatever the bound
  // says; else the round closed early, and nobody knows.
  void Missed(const std::string& id, double seconds, bool at_deadline);
  // Judges all who were observed since the last call, by kRound. Changes in the order of ids.
  std::vector<PaceChange> EndRound();
  void Forget(const std::string& id);

  bool degraded(const std::string& id) const;
  std::vector<std::string> Degraded() const;  // ascending
  double Preference(const std::string& id) const {
    return degraded(id) ? options_.degraded_preference : 1;
  }
  // Over the values remembered, the smallest that `share` of them do not exceed; nullopt: none.
  std::optional<double> Quantile(const std::string& id, PaceMetric metric, double share) const;
  size_t members() const { return members_.size(); }

 private:
  using Values = std::vector<float>;  // the newest last
  struct Member {
    std::array<Values, kPaceMetrics> values;
    bool observed = false;  // in this round
    bool missed = false;    // its deadline, in this round
    bool degraded = false;
    double past = 0;  // its own median when it was degraded: its slow rounds must not become normal
    uint64_t last_seen = 0;  // round
    uint32_t slow_rounds = 0;
    uint32_t healthy_rounds = 0;
  };

  Member* Find(const std::string& id);  // or a new one; null: there is no room
  double Now(const Values& values) const;
  double Past(const Member& member, PaceMetric metric) const;  // 0: not known
  std::string Why(const Member& member, double now, double past, double peers) const;
  bool Judge(Member& member, double now, double peers);
  void ForgetTheLongUnseen();

  PaceOptions options_;
  uint64_t round_ = 0;
  absl::flat_hash_map<std::string, Member> members_;
};

}  // namespace tributary::aggregation
