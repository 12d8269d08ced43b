// Learning from each round what the next may wait for.
#include "server/stragglers.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>

#include "google/protobuf/util/message_differencer.h"

namespace tributary::server {

using aggregation::Answer;
using aggregation::ClosedBy;
using aggregation::PaceMetric;

namespace {

const char* Name(ClosedBy why) {
  switch (why) {
    case ClosedBy::kAnswers:
      return "answers";
    case ClosedBy::kTarget:
      return "target";
    case ClosedBy::kMaximum:
      return "maximum";
    case ClosedBy::kDeadline:
      return "deadline";
    case ClosedBy::kTold:
      return "told";
    default:
      return "";
  }
}

}  // namespace

v1::Stragglers StragglersProto(const StragglerConfig& config, const CohortConfig& cohort) {
  v1::Stragglers proto;
  proto.set_late(config.late);
  proto.set_max_staleness(config.max_staleness);
  proto.set_adaptive(config.deadline == "adaptive");
  proto.set_quantile(config.deadline_quantile);
  proto.set_margin(config.deadline_margin);
  proto.set_floor_ms(static_cast<uint64_t>(config.deadline_floor_s * 1000));
  proto.set_participation(config.participation);
  proto.set_degraded_work(config.degraded_work);
  proto.set_partial_work(config.partial_work);
  if (cohort.weighting == "inverse_probability") proto.set_most_gain(cohort.most_gain);
  proto.set_supplement_wait_ms(static_cast<uint64_t>(config.supplement_wait_s * 1000));
  return proto;
}

void Stragglers::BeginRound(const v1::RoundSpec& spec) {
  const absl::Duration given = absl::Milliseconds(spec.deadline_ms());
  measures_ = !spec.has_asynchronous();
  if (!google::protobuf::util::MessageDifferencer::Equals(policy_, spec.stragglers())) {
    policy_ = spec.stragglers();
    aggregation::DeadlineOptions options;
    options.adaptive = policy_.adaptive();
    options.floor = absl::Milliseconds(policy_.floor_ms());
    options.ceiling = absl::InfiniteDuration();
    options.quantile = policy_.quantile();
    options.margin = policy_.margin();
    options.participation = policy_.participation();
    adaptive_ = evaluations_ = aggregation::AdaptiveDeadline(options);
    late_ = policy_.late() == "carry"        ? aggregation::Late::kCarry
            : policy_.late() == "supplement" ? aggregation::Late::kSupplement
                                             : aggregation::Late::kDrop;
    max_staleness_ = policy_.max_staleness();
  }
  deadline_ = std::min(given, adaptive_.Next());
  marks_.clear();
}

double Stragglers::Work(const std::string& id) const {
  return pace_.degraded(id) && policy_.degraded_work() > 0 ? policy_.degraded_work() : 1;
}

double Stragglers::Seconds(const std::string& id, absl::Duration began, absl::Duration left) const {
  if (!policy_.partial_work() || left <= absl::ZeroDuration()) return 0;
  // Who comes after the soft deadline has what the round is still waited for.
  const absl::Duration soft = deadline_ - began;
  const double time = absl::ToDoubleSeconds(soft > absl::ZeroDuration() ? soft : left);
  // What it took to send, as far as is known; a tenth more for what is not (a guess).
  const double upload = pace_.Quantile(id, PaceMetric::kUpload, 0.8).value_or(0);
  return std::max(0.9 * time - upload, 0.1 * time);
}

int64_t Stragglers::Weight(const std::string& id, int64_t weight) const {
  if (!(policy_.most_gain() >= 1)) return weight;
  const double factor = participation_.Factor(id, 1 / policy_.most_gain());
  return std::max<int64_t>(1, std::llround(static_cast<double>(weight) * factor));
}

void Stragglers::TaskSent(const std::string& id, absl::Duration now) {
  if (!measures_) return;
  marks_[id] = {.task = now,
                .offer = absl::ZeroDuration(),
                .download = absl::ZeroDuration(),
                .work = Work(id)};
}

void Stragglers::Downloaded(const std::string& id, absl::Duration took) {
  const auto it = marks_.find(id);
  if (it == marks_.end()) return;
  it->second.download += took;
  pace_.Observe(id, PaceMetric::kDownload, absl::ToDoubleSeconds(took));
}

void Stragglers::OfferSeen(const std::string& id, absl::Duration now) {
  if (!measures_) return;
  Mark& mark = marks_[id];
  const bool first = mark.offer == absl::ZeroDuration();
  mark.offer = now;
  if (!first) return;  // since then it has waited for this node, or sends again
  if (mark.task > absl::ZeroDuration()) {
    const absl::Duration train = std::max(now - mark.task - mark.download, absl::ZeroDuration());
    pace_.Observe(id, PaceMetric::kTrain, absl::ToDoubleSeconds(train) / mark.work);
  }
}

void Stragglers::Whole(const std::string& id, uint64_t bytes, bool aggregator, absl::Duration now) {
  const auto it = marks_.find(id);
  if (it == marks_.end() || it->second.offer == absl::ZeroDuration()) return;
  const double took = absl::ToDoubleSeconds(now - it->second.offer);
  pace_.Observe(id, aggregator ? PaceMetric::kForward : PaceMetric::kUpload, took);
  if (took > 0) pace_.Observe(id, PaceMetric::kThroughput, static_cast<double>(bytes) / took);
}

WaitReport Stragglers::EndRound(const aggregation::RoundMachine& machine, absl::Duration elapsed) {
  const aggregation::RoundResult result = machine.Result();
  const bool by_deadline = result.closed_by == ClosedBy::kDeadline;
  WaitReport report;
  report.deadline = absl::ToDoubleSeconds(deadline_);
  report.closed_by = Name(result.closed_by);
  report.asked = result.asked;
  report.gone = result.gone;
  report.carried = result.carried;
  std::vector<absl::Duration> times;
  for (const aggregation::MemberTime& member : machine.Times()) {
    // Who is refused must not gain by it.
    if (!member.aggregator && member.answer != Answer::kRejected) {
      participation_.Observe(member.id, member.answer == Answer::kAccepted);
    }
    if (member.answer == Answer::kAccepted) {
      times.push_back(member.took);
      // Of less work it says what all of it would have taken, about: else a slow member would seem
      // well as soon as it was spared.
      const auto mark = marks_.find(member.id);
      const double work = mark == marks_.end() ? 1 : mark->second.work;
      pace_.Observe(member.id, PaceMetric::kRound, absl::ToDoubleSeconds(member.took) / work);
    } else if (member.answer == Answer::kAwaited) {
      ++report.unanswered;
      // Where the round closed early nobody knows how much longer it would have taken.
      times.push_back(by_deadline ? absl::InfiniteDuration() : elapsed);
      pace_.Missed(member.id, absl::ToDoubleSeconds(elapsed), by_deadline);
    }
  }
  if (result.closed_by != ClosedBy::kTold) adaptive_.Observe(times);
  for (const aggregation::PaceChange& change : pace_.EndRound()) {
    if (change.degraded) {
      spdlog::warn("\"{}\" is slow but not dead: {}; it is chosen less from now on", change.id,
                   change.why);
    } else {
      spdlog::info("\"{}\" has recovered: {}", change.id, change.why);
    }
  }
  report.degraded = pace_.Degraded();
  return report;
}

void Stragglers::EndEvaluation(const aggregation::RoundMachine& machine, absl::Duration elapsed) {
  const ClosedBy why = machine.Result().closed_by;
  if (why == ClosedBy::kTold) return;
  std::vector<absl::Duration> times;
  for (const aggregation::MemberTime& member : machine.Times()) {
    if (member.answer == Answer::kAccepted) times.push_back(member.took);
    if (member.answer != Answer::kAwaited) continue;
    times.push_back(why == ClosedBy::kDeadline ? absl::InfiniteDuration() : elapsed);
  }
  evaluations_.Observe(times);
}

}  // namespace tributary::server
