// Clients that missed being told whether their update counted ask; so do racks, for theirs.
// Answered here where that is known, once it is decided; at a rack else by the parent.
#include <spdlog/spdlog.h>

#include <utility>

#include "server/collector.h"

namespace tributary::server {

using aggregation::Fate;

namespace {

constexpr size_t kMostQuestions = size_t{1} << 20;
// A parent that was asked answers, unless it was restarted or lost the question.
constexpr absl::Duration kAskAgainAfter = absl::Seconds(10);

}  // namespace

void Collector::Inquired(const std::string& asker, const Child& child, const v1::Inquiry& inquiry) {
  Update update(child.aggregator ? inquiry.id() : asker, inquiry.round());
  const bool valid = !update.first.empty() && update.first.size() <= aggregation::kMostIdBytes;
  const bool room = questions_.size() < kMostQuestions || questions_.contains(update);
  if (!valid || !room || update.second == 0) return TellFate(asker, update, Fate::kUnknown);
  questions_[update].askers.insert(asker);
  Resolve(update, false);
}

Fate Collector::FateOf(const Update& update) const {
  const auto& [id, round] = update;
  if (async_ != nullptr) return async_->FateOf(id, round - 1);
  const bool runs = machine_ != nullptr && spec_.kind() == v1::TRAIN && spec_.round() == round;
  return runs ? Fate::kUndecided : outcomes_.Of(id, round);
}

void Collector::Resolve(const Update& update, bool ask_again) {
  Question& question = questions_.at(update);
  Fate fate = FateOf(update);
  if (fate == Fate::kUndecided) return;
  if (fate != Fate::kCounted && callbacks_.inquire != nullptr) {
    if (claims_allowed_) return PassOn(update, ask_again, &question);
    fate = Fate::kUnknown;  // the rounds of a rack's own have other numbers than the parent's
  }
  if (fate == Fate::kNotCounted && async_ != nullptr) {
    async_->Void(update.first, update.second - 1);
  }
  const std::set<std::string> askers = std::move(question.askers);
  questions_.erase(update);
  for (const std::string& asker : askers) TellFate(asker, update, fate);
}

void Collector::PassOn(const Update& update, bool again, Question* question) {
  const absl::Duration now = loop_->Now();
  if (question->asked.has_value() && !again && now - *question->asked < kAskAgainAfter) return;
  question->asked = now;
  v1::Inquiry inquiry;
  inquiry.set_id(update.first);
  inquiry.set_round(update.second);
  callbacks_.inquire(inquiry);
}

void Collector::ResolveAll(bool ask_again) {
  std::vector<Update> all;
  for (const auto& [update, question] : questions_) all.push_back(update);
  for (const Update& update : all) Resolve(update, ask_again);
}

void Collector::ParentKnows(const v1::Verdict& verdict) {
  const auto it = questions_.find(Update(verdict.id(), verdict.outcome().round()));
  if (it == questions_.end() || !it->second.asked.has_value()) return;
  const auto [update, question] = *it;
  questions_.erase(it);
  const Fate fate = verdict.outcome().included()  ? Fate::kCounted
                    : verdict.outcome().unknown() ? Fate::kUnknown
                                                  : Fate::kNotCounted;
  for (const std::string& asker : question.askers) TellFate(asker, update, fate);
}

void Collector::TellFate(const std::string& asker, const Update& update, Fate fate) {
  const auto child = children_.find(asker);
  if (child == children_.end()) return;  // it will ask wherever it is now
  auto response = std::make_shared<v1::SessionResponse>();
  v1::Outcome* outcome = response->mutable_outcome();
  if (child->second.aggregator) {
    response->mutable_verdict()->set_id(update.first);
    outcome = response->mutable_verdict()->mutable_outcome();
  }
  outcome->set_round(update.second);
  outcome->set_committed(fate == Fate::kCounted);
  outcome->set_included(fate == Fate::kCounted);
  outcome->set_unknown(fate == Fate::kUnknown);
  if (fate == Fate::kNotCounted) outcome->set_reason("its update did not come in");
  if (fate == Fate::kUnknown) {
    outcome->set_reason("it was missed while away, and nobody knows it any more");
    spdlog::warn("whether the update of \"{}\" for round {} has counted is not known any more",
                 update.first, update.second);
  }
  child->second.session->Send(std::move(response));
}

}  // namespace tributary::server
