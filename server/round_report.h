// What a node reports of each round: a line of rounds.jsonl, and a line for people.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "aggregation/participation.h"
#include "server/collector.h"

namespace tributary::server {

struct RoundReport {
  std::string run;
  std::string node;
  std::string role;  // "root" or "rack"
  uint64_t round = 0;
  bool committed = false;
  std::string why_not;
  CollectedRound collected;
  int weight_fraction_bits = 0;  // of collected.result.weight: its units are 2^-this of an example
  double seconds = 0;            // announce to commit (racks: to forward)
  // Really used: at the root towards the tier below ("tcp", "shm+tcp"; "none" where no aggregator
  // took part), elsewhere towards the parent.
  std::string transport;
  uint64_t link_retransmits = 0;  // segments that this node sent again on links, in this round
  std::string codec;
  std::string model_sha256;      // hex; of the model after this round; a rack's: that it holds then
  std::string published_sha256;  // hex; of what clients are given of it (server/downlink.h)
  uint64_t model_bytes = 0;
  std::map<std::string, double>
      metrics;  // means over examples: what clients reported with their updates
  // Of this node's clients; at the root of all that were ever in.
  aggregation::ParticipationSummary participation;
  std::map<std::string, double> evaluation;  // of the model after this round; empty: not evaluated
  std::map<std::string, uint64_t> evaluation_examples;  // so many each of these is the mean over
  uint64_t evaluation_clients = 0;                      // who evaluated it
  // The same by the root's evaluator (server/evaluator.h), or why there is none, where it was
  // asked.
  std::map<std::string, double> root_evaluation;
  std::string root_evaluation_failed;
};

std::string ToJson(const RoundReport& report);  // one line, no newline
std::string ToText(const RoundReport& report);  // one line for a terminal

// Appends lines to a file, each written whole: one for which the disk has no room is left out,
// those after it are written again. Not thread-safe.
class RoundsFile {
 public:
  ~RoundsFile();
  RoundsFile(const RoundsFile&) = delete;
  RoundsFile& operator=(const RoundsFile&) = delete;
  // "" opens nothing: Append does nothing. Errors name the path.
  static absl::StatusOr<std::unique_ptr<RoundsFile>> Open(const std::string& path);
  absl::Status Append(const RoundReport& report);

 private:
  RoundsFile() = default;
  std::string path_;
  int fd_ = -1;
  bool cut_ = false;  // it does not end with a whole line
};

// Mean of each metric by name.
std::map<std::string, double> MetricMeans(
    const google::protobuf::RepeatedPtrField<v1::MetricSum>& sums);

}  // namespace tributary::server
