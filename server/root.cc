// The root's life: it opens, waits for clients before each round, and ends the run.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "server/internal/config_checks.h"
#include "server/internal/policies.h"
#include "server/internal/root.h"

namespace tributary::server {
namespace {

constexpr absl::Duration kWaitingLogEvery = absl::Seconds(10);

std::string Some(std::vector<std::string> ids) {
  const size_t all = ids.size();
  if (all > 5) ids.resize(5);
  return absl::StrCat(absl::StrJoin(ids, ", "),
                      all > 5 ? absl::StrCat(" and ", all - 5, " more") : "");
}

}  // namespace

absl::Status Root::Open() {
  std::string note;
  ASSIGN_OR_RETURN(grid_, aggregation::ProveGrid(GridRequestOf(c_.aggregation), &note));
  if (!note.empty()) spdlog::warn("{}", note);
  auto store = CheckpointStore::Open(
      {.directory = c_.checkpoint.directory, .run = c_.run->name, .keep = c_.checkpoint.keep});
  if (!store.ok()) return Annotate(store.status(), Where("checkpoint.directory"));
  store_ = *std::move(store);
  if (options_.config.metrics.rounds_file.empty())
    options_.config.metrics.rounds_file = store_->path() + "/rounds.jsonl";
  RETURN_IF_ERROR(LoadModel());
  collector_->Open(c_.run->name, model_->layout);
  return OpenPorts();
}

// ---- Waiting for members

void Root::Begin() {
  waiting_since_ = loop_.Now();
  if (finished_ || round_ >= c_.run->rounds) {
    // Nothing to do but to tell whoever asks; those who come within the hang-up time learn it.
    spdlog::info("run \"{}\" is complete already ({} rounds)", c_.run->name, round_);
    End(v1::Stop::FINISHED, "the run is complete", absl::OkStatus());
    return;
  }
  NextRound();
}

void Root::NextRound() {
  waiting_ = true;
  waiting_since_ = loop_.Now();
  WaitingTimer();
  MembersChanged();
}

void Root::WaitingTimer() {
  if (waiting_timer_ != 0) loop_.CancelTimer(waiting_timer_);
  const absl::Duration limit =
      waiting_since_ + absl::Seconds(c_.run->startup_limit_s) - loop_.Now();
  waiting_timer_ =
      loop_.PostAfter(std::clamp(limit, absl::ZeroDuration(), kWaitingLogEvery), [this] {
        waiting_timer_ = 0;
        if (!waiting_ || ending()) return;
        const Collector::Census census = collector_->Count();
        const std::string message = absl::StrCat(
            "round ", round_ + 1, " awaits clients: ", census.clients, " of ", c_.cohort.minimum,
            " are here",
            census.ids.empty() ? "" : absl::StrCat(" (through ", Some(census.ids), ")"), ", ",
            Missing(census), " missing");
        if (loop_.Now() - waiting_since_ >= absl::Seconds(c_.run->startup_limit_s)) {
          spdlog::error("{}; given up after [run] startup_limit_s = {:.0f}", message,
                        c_.run->startup_limit_s);
          End(v1::Stop::FAILED, message, absl::AbortedError(message));
          return;
        }
        spdlog::info("{}", message);
        WaitingTimer();
      });
}

uint64_t Root::Missing(const Collector::Census& census) const {
  return census.clients >= c_.cohort.minimum ? 0 : c_.cohort.minimum - census.clients;
}

void Root::MembersChanged() {
  if (!waiting_ || collector_->running() || shutting_down_) return;
  if (collector_->Count().clients < c_.cohort.minimum) return;
  waiting_ = false;
  if (waiting_timer_ != 0) loop_.CancelTimer(waiting_timer_);
  waiting_timer_ = 0;
  StartRound(v1::TRAIN);
}

// ---- The end

void Root::AfterRound() {
  if (ending()) return;
  if (round_ >= c_.run->rounds) {
    spdlog::info("run \"{}\" is complete: {} rounds, model version {}, SHA-256 {}", c_.run->name,
                 round_, model_->version, absl::BytesToHexString(model_->sha256));
    End(v1::Stop::FINISHED, "the run is complete", absl::OkStatus());
  } else if (shutting_down_) {
    End(v1::Stop::GOING_AWAY, "shutting down", absl::OkStatus());
  } else {
    NextRound();
  }
}

void Root::ShutdownAsked() {
  shutting_down_ = true;
  spdlog::info("shutting down: {}", collector_->running()
                                        ? "the running round may finish within the grace time"
                                        : "no round is running");
  if (!collector_->running()) {
    if (std::exchange(awaiting_judge_, false)) Publish(report_);
    End(v1::Stop::GOING_AWAY, "shutting down", absl::OkStatus());
    return;
  }
  if (asynchronous()) collector_->CloseNow();  // with what has come
  loop_.PostAfter(absl::Seconds(c_.limits.shutdown_grace_s), [this] {
    if (!ending()) End(v1::Stop::GOING_AWAY, "shutting down", absl::OkStatus());
  });
}

absl::StatusOr<std::unique_ptr<Node>> CreateRoot(Node::Options options) {
  auto root = std::make_unique<Root>(std::move(options));
  RETURN_IF_ERROR(root->Open());
  return std::unique_ptr<Node>(std::move(root));
}

}  // namespace tributary::server
