// JSON and text forms of a round's report.
#include "server/round_report.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "aggregation/grid.h"
#include "base/status.h"

namespace tributary::server {

std::map<std::string, double> MetricMeans(
    const google::protobuf::RepeatedPtrField<v1::MetricSum>& sums) {
  std::map<std::string, double> out;
  for (const v1::MetricSum& sum : sums) {
    if (sum.weight() > 0) out[sum.name()] = aggregation::MetricMean(sum);
  }
  return out;
}

std::string ToJson(const RoundReport& r) {
  const CollectedRound& c = r.collected;
  nlohmann::ordered_json json;
  json["run"] = r.run;
  json["node"] = r.node;
  json["role"] = r.role;
  json["round"] = r.round;
  json["committed"] = r.committed;
  if (!r.why_not.empty()) json["why_not"] = r.why_not;
  json["seconds"] = r.seconds;
  json["collect_seconds"] = c.seconds;
  json["phases"] = {{"announce", c.phases.announce},
                    {"download", c.phases.download},
                    {"train_wait", c.phases.train_wait},
                    {"upload", c.phases.upload},
                    {"fold", c.phases.fold},
                    {"forward", c.phases.forward},
                    {"apply", c.phases.apply},
                    {"commit", c.phases.commit}};
  json["accepted"] = c.result.clients;
  if (r.weight_fraction_bits == 0) {
    json["weight"] = c.result.weight;
  } else {
    json["weight"] = std::ldexp(static_cast<double>(c.result.weight), -r.weight_fraction_bits);
  }
  json["late"] = c.result.late;
  json["rejected"] = c.result.rejected.empty() ? nlohmann::ordered_json::object()
                                               : nlohmann::ordered_json(c.result.rejected);
  json["wait"] = {{"deadline", c.wait.deadline},
                  {"closed_by", c.wait.closed_by},
                  {"asked", c.wait.asked},
                  {"gone", c.wait.gone},
                  {"unanswered", c.wait.unanswered},
                  {"carried", c.wait.carried},
                  {"degraded", c.wait.degraded},
                  {"offers", c.wait.offers},
                  {"unused_grants", c.wait.unused_grants}};
  if (r.participation.clients > 0) {
    json["participation"] = {
        {"clients", r.participation.clients}, {"never", r.participation.never},
        {"least", r.participation.least},     {"median", r.participation.median},
        {"most", r.participation.most},       {"gini", r.participation.gini}};
  }
  json["children"] = c.result.children.size();
  if (!c.contributions.empty()) {
    // What is in the sum: [client, version trained from, weight as folded].
    auto& list = json["contributions"] = nlohmann::ordered_json::array();
    for (const aggregation::Contribution& one : c.contributions) {
      list.push_back(
          {one.id, one.base, std::ldexp(static_cast<double>(one.weight), -r.weight_fraction_bits)});
    }
  }
  json["bytes"] = {{"from_clients", c.bytes.from_clients},
                   {"from_aggregators", c.bytes.from_aggregators},
                   {"updates_below", c.bytes.below},
                   {"model_to_clients", c.bytes.model_to_clients},
                   {"model_to_aggregators", c.bytes.model_to_aggregators},
                   {"saved_to_clients", c.bytes.saved_to_clients},
                   {"saved_to_aggregators", c.bytes.saved_to_aggregators}};
  json["transport"] = r.transport;
  json["link_retransmits"] = r.link_retransmits;
  json["codec"] = r.codec;
  json["model_bytes"] = r.model_bytes;
  json["model_sha256"] = r.model_sha256;
  json["published_sha256"] = r.published_sha256;
  json["metrics"] =
      r.metrics.empty() ? nlohmann::ordered_json::object() : nlohmann::ordered_json(r.metrics);
  if (!r.evaluation.empty()) {
    json["evaluation"] = r.evaluation;
    json["evaluation_examples"] = r.evaluation_examples;
    json["evaluation_clients"] = r.evaluation_clients;
  }
  if (!r.root_evaluation.empty()) json["root_evaluation"] = r.root_evaluation;
  if (!r.root_evaluation_failed.empty()) json["root_evaluation_failed"] = r.root_evaluation_failed;
  // Ids are a peer's bytes: what is not UTF-8 must not throw here.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string ToText(const RoundReport& r) {
  const CollectedRound& c = r.collected;
  if (!r.committed) return absl::StrFormat("round %3d  failed: %s", r.round, r.why_not);
  std::string line = absl::StrFormat("round %3d ", r.round);
  if (const auto it = r.evaluation.find("test_accuracy"); it != r.evaluation.end()) {
    absl::StrAppendFormat(&line, " accuracy %5.2f %%", 100 * it->second);
  }
  if (const auto it = r.evaluation.find("test_loss"); it != r.evaluation.end()) {
    absl::StrAppendFormat(&line, "  loss %.4f", it->second);
  }
  if (const auto it = r.root_evaluation.find("accuracy"); it != r.root_evaluation.end()) {
    absl::StrAppendFormat(&line, "  at the root %5.2f %%", 100 * it->second);
  }
  absl::StrAppendFormat(
      &line,
      "  %4.2f s (train %.2f, upload %.2f, fold %.3f, forward %.3f, apply %.3f, commit %.3f)",
      r.seconds, c.phases.train_wait, c.phases.upload, c.phases.fold, c.phases.forward,
      c.phases.apply, c.phases.commit);
  absl::StrAppendFormat(&line, "  %d clients", c.result.clients);
  const double dense = static_cast<double>(r.model_bytes) * static_cast<double>(c.result.clients);
  if (dense > 0 && c.bytes.below > 0) {
    absl::StrAppendFormat(&line, "  uploads %.1f MB, %.1f MB saved",
                          static_cast<double>(c.bytes.below) / 1e6,
                          (dense - static_cast<double>(c.bytes.below)) / 1e6);
  }
  return line;
}

RoundsFile::~RoundsFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<RoundsFile>> RoundsFile::Open(const std::string& path) {
  auto file = std::unique_ptr<RoundsFile>(new RoundsFile());
  if (path.empty()) return file;
  file->path_ = path;
  std::error_code ignored;  // the open below says what is wrong
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  file->fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file->fd_ < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot append to [metrics] rounds_file ", path, ": ", std::strerror(errno)));
  }
  // A machine that went down may have left a part of a line.
  struct stat now = {};
  char last = '\n';
  if (fstat(file->fd_, &now) == 0 && now.st_size > 0 &&
      pread(file->fd_, &last, 1, now.st_size - 1) == 1 && last != '\n') {
    file->cut_ = true;
  }
  return file;
}

absl::Status RoundsFile::Append(const RoundReport& report) {
  if (path_.empty()) return absl::OkStatus();
  const std::string line = absl::StrCat(cut_ ? "\n" : "", ToJson(report), "\n");
  struct stat before = {};
  const bool known = fstat(fd_, &before) == 0;
  size_t at = 0;
  while (at < line.size()) {
    const ssize_t n = write(fd_, line.data() + at, line.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    at += static_cast<size_t>(n);
  }
  if (at == line.size()) {
    cut_ = false;
    return absl::OkStatus();
  }
  absl::Status status = absl::DataLossError(
      absl::StrCat("cannot write to ", path_, ": ", std::strerror(errno), "; is the disk full?"));
  // Nothing of it, or else the next one begins on a line of its own.
  if (at > 0 && (!known || ftruncate(fd_, before.st_size) != 0)) cut_ = true;
  return status;
}

}  // namespace tributary::server
