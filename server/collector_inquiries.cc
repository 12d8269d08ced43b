// Clients that missed being told whether their update counted ask; so do racks, for theirs.
// Answered here where that is known, once it is decided; at a rack else by the parent.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "server/collector.h"

namespace tributary::server {

using aggregation::Fate;

namespace {

// Of a client one, the newest. What comes beyond is answered as not known.
constexpr size_t kMostQuestions = size_t{1} << 17;
// A parent that was asked answers, unless it was restarted or lost the question.
constexpr absl::Duration kAskAgainAfter = absl::Seconds(10);
// In one message, which keeps it under 2 MiB with ids of 256 bytes. A session holds 64 messages:
// as many as all questions take are half of that.
constexpr int kMostInMessage = 4096;

}  // namespace

void Collector::Inquired(const std::string& asker, const Child& child, const v1::Inquiry& inquiry) {
  if (!child.aggregator) return Question(asker, {asker, inquiry.round()});
  for (const v1::UpdateName& name : inquiry.updates()) {
    Question(asker, {name.client(), name.round()});
  }
}

void Collector::Question(const std::string& asker, const Update& update) {
  const auto& [id, round] = update;
  const auto old = questions_.find(id);
  const bool valid = !id.empty() && id.size() <= aggregation::kMostIdBytes && round > 0;
  const bool room = old != questions_.end() || questions_.size() < kMostQuestions;
  if (!valid || !room) return TellFate(asker, update, Fate::kUnknown);
  // A client has one update whose outcome it awaits: who asks for another one has settled the
  // first.
  if (old != questions_.end() && old->second.round != round) questions_.erase(old);
  OpenQuestion& question = questions_[id];
  question.round = round;
  question.askers.insert(asker);
  Resolve(id, false);
}

Fate Collector::FateOf(const Update& update) const {
  const auto& [id, round] = update;
  if (async_ != nullptr) return async_->FateOf(id, round - 1);
  const Fate fate = outcomes_.Of(id, round);
  if (machine_ == nullptr || spec_.kind() != v1::TRAIN || fate == Fate::kCounted) return fate;
  if (spec_.round() == round) return Fate::kUndecided;
  if (stragglers_.late() != aggregation::Late::kCarry || round > spec_.round()) return fate;
  // It may be in this round's sums, here or at a rack.
  const bool tiers = aggregators_here_ > 0;
  const bool recent = spec_.round() - round <= spec_.stragglers().max_staleness();
  if ((tiers && recent) || machine_->RoundOf(id) == round) return Fate::kUndecided;
  return fate;
}

void Collector::Resolve(const std::string& id, bool ask_again) {
  OpenQuestion& question = questions_.at(id);
  const Update update(id, question.round);
  Fate fate = FateOf(update);
  if (fate == Fate::kUndecided) return;
  if (fate != Fate::kCounted && callbacks_.inquire != nullptr) {
    // The rounds of a rack's own have other numbers than the parent's.
    if (claims_allowed_ && parent_answers_) return PassOn(update, ask_again, &question);
    fate = Fate::kUnknown;
  }
  if (fate == Fate::kNotCounted && async_ != nullptr) async_->Void(id, update.second - 1);
  const std::set<std::string> askers = std::move(question.askers);
  questions_.erase(id);
  for (const std::string& asker : askers) TellFate(asker, update, fate);
}

void Collector::PassOn(const Update& update, bool again, OpenQuestion* question) {
  const absl::Duration now = loop_->Now();
  if (question->asked.has_value() && !again && now - *question->asked < kAskAgainAfter) return;
  question->asked = now;
  v1::UpdateName* const name = to_ask_.add_updates();
  name->set_client(update.first);
  name->set_round(update.second);
  SendInquiriesSoon();
}

void Collector::ResolveAll(bool ask_again) {
  std::vector<std::string> all;
  for (const auto& [id, question] : questions_) all.push_back(id);
  for (const std::string& id : all) Resolve(id, ask_again);
}

void Collector::ParentKnows(const v1::Verdicts& verdicts) {
  for (const v1::Verdict& verdict : verdicts.verdicts()) {
    const auto it = questions_.find(verdict.client());
    if (it == questions_.end() || it->second.round != verdict.round() ||
        !it->second.asked.has_value()) {
      continue;
    }
    const Update update(verdict.client(), verdict.round());
    const Fate fate = verdict.counted()   ? Fate::kCounted
                      : verdict.unknown() ? Fate::kUnknown
                                          : Fate::kNotCounted;
    // Else this node's whole sum would be refused for it.
    if (fate == Fate::kNotCounted && async_ != nullptr)
      async_->Void(update.first, update.second - 1);
    const std::set<std::string> askers = std::move(it->second.askers);
    questions_.erase(it);
    for (const std::string& asker : askers) TellFate(asker, update, fate);
  }
}

void Collector::TellFate(const std::string& asker, const Update& update, Fate fate) {
  const auto child = children_.find(asker);
  if (child == children_.end()) return;  // it will ask wherever it is now
  if (fate == Fate::kUnknown) {
    spdlog::warn("whether the update of \"{}\" for round {} has counted is not known any more",
                 update.first, update.second);
  }
  if (child->second.aggregator) {
    v1::Verdict* const verdict = to_tell_[asker].add_verdicts();
    verdict->set_client(update.first);
    verdict->set_round(update.second);
    verdict->set_counted(fate == Fate::kCounted);
    verdict->set_unknown(fate == Fate::kUnknown);
    return SendInquiriesSoon();
  }
  auto response = std::make_shared<v1::SessionResponse>();
  v1::Outcome* const outcome = response->mutable_outcome();
  outcome->set_round(update.second);
  outcome->set_committed(fate == Fate::kCounted);
  outcome->set_included(fate == Fate::kCounted);
  outcome->set_unknown(fate == Fate::kUnknown);
  outcome->set_answer(true);
  if (fate == Fate::kNotCounted) outcome->set_reason("its update did not come in");
  if (fate == Fate::kUnknown) {
    outcome->set_reason("it was missed while away, and nobody knows it any more");
  }
  child->second.session->Send(std::move(response));
}

// Many at once fill a session's queue: what one turn of the loop brings together goes together.
void Collector::SendInquiriesSoon() {
  if (std::exchange(inquiries_posted_, true)) return;
  loop_->Post([this] { SendInquiries(); });
}

void Collector::SendInquiries() {
  inquiries_posted_ = false;
  const v1::Inquiry ask = std::exchange(to_ask_, {});
  for (int from = 0; from < ask.updates_size(); from += kMostInMessage) {
    v1::Inquiry message;
    const int to = std::min(ask.updates_size(), from + kMostInMessage);
    for (int i = from; i < to; ++i) *message.add_updates() = ask.updates(i);
    callbacks_.inquire(message);
  }
  for (const auto& [asker, verdicts] : std::exchange(to_tell_, {})) {
    const auto child = children_.find(asker);
    if (child == children_.end()) continue;
    for (int from = 0; from < verdicts.verdicts_size(); from += kMostInMessage) {
      auto response = std::make_shared<v1::SessionResponse>();
      const int to = std::min(verdicts.verdicts_size(), from + kMostInMessage);
      for (int i = from; i < to; ++i) {
        *response->mutable_verdicts()->add_verdicts() = verdicts.verdicts(i);
      }
      child->second.session->Send(std::move(response));
    }
  }
}

}  // namespace tributary::server
