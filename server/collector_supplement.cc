// A rack's clients that came to it within the round, or were late in it: claimed of the parent, so
// that nobody counts them twice, and counted in a second partial sum where the first has closed.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "aggregation/cohort.h"
#include "base/status.h"
#include "server/claim_messages.h"
#include "server/collector.h"

namespace tributary::server {

// ---- Who has to be claimed

bool Collector::MustClaim(const std::string& id, const Child& child) const {
  if (!MayClaim() || child.aggregator || async_ != nullptr) return false;
  if (spec_.kind() != v1::TRAIN || stopped_.has_value() || machine_->Knows(id)) return false;
  // A fixed count has chosen others.
  if (spec_.cohort_count() > 0 ||
      !aggregation::InCohort(spec_.seed(), spec_.round(), id, spec_.cohort_fraction())) {
    return false;
  }
  return machine_->part() == 0 || machine_->open();
}

void Collector::Enter(const std::string& id, const Child& child) {
  if (machine_->Crowded() && !machine_->Knows(id)) {
    spdlog::warn(
        "\"{}\" came when as many had left round {} as it remembers: it sits the round out", id,
        spec_.round());
    return;
  }
  if (callbacks_.claim != nullptr && !claims_allowed_ && spec_.kind() == v1::TRAIN &&
      !machine_->Knows(id)) {
    spdlog::info(
        "\"{}\" came while this rack runs rounds of its own, in which nobody is claimed: where "
        "another rack counts it too, the later of the two racks' sums is refused",
        id);
  }
  aggregation::RoundMachine::Member member = MemberOf(id, child);
  member.unclaimed = MustClaim(id, child);
  if (member.unclaimed && ClaimsFull() && !claims_.clients.contains(id)) {
    spdlog::warn(
        "\"{}\" came while round {} was running, as more did than may be claimed: it sits "
        "the round out",
        id, spec_.round());
    return;
  }
  Act(machine_->Joined(member, loop_->Now()));
  if (machine_ == nullptr || !MayClaim()) return;
  const bool late = !member.unclaimed && machine_->open() && machine_->Unclaimed(id);
  if (!member.unclaimed && !late) return;
  const auto claim = claims_.clients.find(id);
  if (claim == claims_.clients.end() && late) {
    Claim({id}, true);
  } else if (claim == claims_.clients.end()) {
    spdlog::info("\"{}\" came while round {} was running: claimed of the parent", id,
                 spec_.round());
    Claim({id}, false);
  } else if (claim->second == ClaimState::kGranted && machine_->open()) {
    Act(machine_->Claimed(id, late, loop_->Now()));
  }
}

void Collector::Claim(const std::vector<std::string>& ids, bool late) {
  v1::Claims claims;
  for (const std::string& id : ids) {
    claims.add_clients(id);
    claims_.clients.emplace(id, ClaimState::kAsked);
    if (late) claims_.late.insert(id);
  }
  claims.set_late(late);
  claims.set_open(claims_.open_told);
  SendUp(std::move(claims));
}

// With all else that each message has.
void Collector::SendUp(v1::Claims claims) {
  claims.set_round(spec_.round());
  claims.set_done(claims_.done_told);
  claims.set_blank(machine_->Blank());
  for (const v1::Claims& message : InMessages(std::move(claims))) callbacks_.claim(message);
}

void Collector::ClaimLate(const std::vector<std::string>& ids) {
  if (!MayClaim() || async_ != nullptr || !machine_->CanReopen(loop_->Now())) {
    return;
  }
  std::vector<std::string> clients;
  for (const std::string& id : ids) {
    const auto child = children_.find(id);
    const bool here = child != children_.end() && !child->second.aggregator;
    if (here && !claims_.clients.contains(id)) clients.push_back(id);
  }
  if (clients.empty()) return;
  claims_.open = claims_.open_told = true;  // there may be something
  Claim(clients, true);
}

void Collector::ClaimAgain() {
  if (!MayClaim() || machine_ == nullptr) return;
  v1::Claims awaited, late;
  late.set_late(true);
  for (auto& [id, state] : claims_.clients) {
    // Taken is who was counted in the parent's life of then, and refused who was too many for it.
    if (state != ClaimState::kGranted) state = ClaimState::kAsked;
    (claims_.late.contains(id) ? late : awaited).add_clients(id);
  }
  for (v1::Claims* claims : {&awaited, &late}) {
    if (claims->clients().empty()) continue;
    claims->set_open(claims_.open);
    SendUp(std::move(*claims));
  }
}

// ---- What the parent says

void Collector::ClaimsAnswered(const v1::ClaimsAnswer& answer) {
  // Each of them may be what the round ends by.
  const auto runs = [&] {
    return machine_ != nullptr && answer.round() == spec_.round() && spec_.kind() == v1::TRAIN;
  };
  for (const std::string& id : answer.granted()) {
    if (!runs()) return;
    const auto claim = claims_.clients.find(id);
    if (claim == claims_.clients.end() || claim->second == ClaimState::kGranted) continue;
    Granted(id);
  }
  for (const std::string& id : answer.taken()) {
    if (runs()) Taken(id);
  }
  for (const std::string& id : answer.refused()) {
    if (runs()) ClaimRefused(id);
  }
  if (!runs()) return;
  TellBelow();
  Rearm();
}

void Collector::Granted(const std::string& id) {
  const auto claim = claims_.clients.find(id);
  if (claim == claims_.clients.end()) return;
  if (!machine_->open() && !closed_reported_) {
    claims_.grants.push_back(id);  // it closes just now
    return;
  }
  const bool late = claims_.late.contains(id);
  claim->second = ClaimState::kGranted;
  const uint64_t round = spec_.round();
  Admit(id, late);
  // Only now: what is granted and not among the machine's open claims counts as done.
  if (spec_.round() == round) claims_.granted += late ? 0 : 1;
}

// Who is granted takes part, in this sum or a second one.
void Collector::Admit(const std::string& id, bool late) {
  if (!machine_->open() && !Reopen()) return;
  if (const auto below = claims_.below.find(id); below != claims_.below.end()) {
    claims_.answers[below->second].add_granted(id);
    return;
  }
  const auto child = children_.find(id);
  if (child == children_.end()) return;  // it has gone elsewhere
  if (!machine_->Knows(id) || machine_->CountedElsewhere(id)) {
    aggregation::RoundMachine::Member member = MemberOf(id, child->second);
    member.unclaimed = true;
    Act(machine_->Joined(member, loop_->Now()));
  }
  Act(machine_->Claimed(id, late, loop_->Now()));
  TakeHeldOf(id);
}

void Collector::Taken(const std::string& id) {
  const auto claim = claims_.clients.find(id);
  if (claim == claims_.clients.end() || claim->second == ClaimState::kGranted) return;
  claim->second = ClaimState::kTaken;
  if (const auto below = claims_.below.find(id); below != claims_.below.end()) {
    claims_.answers[below->second].add_taken(id);
    Act(machine_->Ungrant(id, loop_->Now()));
    return;
  }
  spdlog::info("\"{}\" is counted in round {} through another aggregator already", id,
               spec_.round());
  Act(machine_->Elsewhere(id, loop_->Now()));
  TakeHeldOf(id);
}

// Its update is refused here; in the next round it is a member as any other.
void Collector::ClaimRefused(const std::string& id) {
  const auto claim = claims_.clients.find(id);
  if (claim == claims_.clients.end() || claim->second != ClaimState::kAsked) return;
  if (const auto below = claims_.below.find(id); below != claims_.below.end()) {
    claims_.answers[below->second].add_refused(id);
    claims_.below.erase(below);
    claims_.clients.erase(claim);  // whoever makes up clients makes up others next
    Act(machine_->Ungrant(id, loop_->Now()));
    return;
  }
  claim->second = ClaimState::kRefused;
  spdlog::warn("the parent refuses to have \"{}\" counted here in round {}", id, spec_.round());
  TakeHeldOf(id);
}

// ---- The second sum

bool Collector::Reopen() {
  if (!machine_->CanReopen(loop_->Now())) return false;
  auto second = aggregation::ExactAccumulator::Create(layout_, grid_);
  if (!second.ok()) {
    spdlog::warn("round {}: no second partial sum: {}", spec_.round(), Text(second.status()));
    return false;
  }
  machine_->Reopen(loop_->Now());
  first_sum_ = std::exchange(sum_, *std::move(second));
  pool_.Target(sum_.get());
  metrics_.Clear();
  bytes_ = {};
  closed_reported_ = false;
  claims_.open = true;
  spdlog::info("round {}: a second partial sum is open, for who came after the first",
               spec_.round());
  TakeParkedOffers();
  Rearm();
  return true;
}

void Collector::CollectSecond() {
  if (machine_ == nullptr) return;
  if (machine_->part() > 0) return Act(machine_->Call(loop_->Now()));
  if (closed_reported_) SecondDone();  // nobody's claim was granted
}

void Collector::SecondDone() {
  claims_.open = false;
  if (machine_ != nullptr) TellClaims();
}

// How far it is with what was granted, where that has changed.
void Collector::TellClaims() {
  if (!MayClaim() || (claims_.granted == 0 && !claims_.open && !claims_.open_told)) {
    return;
  }
  const uint64_t done = claims_.granted - std::min(claims_.granted, machine_->ClaimsOutstanding());
  if (done <= claims_.done_told && claims_.open == claims_.open_told) return;
  claims_.done_told = std::max(claims_.done_told, done);
  claims_.open_told = claims_.open;
  v1::Claims claims;
  claims.set_open(claims_.open_told);
  SendUp(std::move(claims));
}

// ---- Uploads of those who are claimed

bool Collector::AwaitsClaim(const v1::UploadHeader& header) const {
  if (machine_ == nullptr || spec_.kind() != v1::TRAIN || header.round() != spec_.round()) {
    return false;
  }
  const auto claim = claims_.clients.find(header.id());
  if (claim == claims_.clients.end() || stopped_.has_value()) return false;
  return claim->second == ClaimState::kAsked ||
         std::count(claims_.grants.begin(), claims_.grants.end(), header.id()) > 0;
}

bool Collector::MaySupplement(const std::string& id, uint64_t round) const {
  if (!MayClaim() || async_ != nullptr || machine_ == nullptr) return false;
  if (machine_->part() > 0 || round != spec_.round()) return false;
  return stragglers_.late() == aggregation::Late::kSupplement || claims_.clients.contains(id);
}

void Collector::TakeHeldOf(const std::string& id) {
  for (size_t i = 0; i < held_.size(); ++i) {
    if (held_[i]->header().id() != id) continue;
    const std::shared_ptr<Upload> upload = held_[i];
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    UploadStart(upload);
    return;
  }
}

// ---- For aggregators below

void Collector::ClaimedBelow(const std::string& id, const Child& child, const v1::Claims& claims) {
  if (machine_ == nullptr || claims.round() != spec_.round() || spec_.kind() != v1::TRAIN ||
      async_ != nullptr) {
    return;
  }
  aggregation::ClaimRequest request = {
      .clients = {claims.clients().begin(), claims.clients().end()},
      .late = claims.late(),
      .done = claims.done(),
      .open = claims.open(),
      .blank = claims.blank()};
  if (ClaimsFull() && !request.clients.empty()) {
    AnswerClaims({.kind = aggregation::Action::Kind::kClaims,
                  .member = id,
                  .refused = std::exchange(request.clients, {})});
  }
  Act(machine_->Claim(id, child.epoch, request, loop_->Now()));
}

// This node's own word first, and then, before a grant is passed on, its parent's.
void Collector::AnswerClaims(const aggregation::Action& action) {
  v1::ClaimsAnswer answer;
  if (!action.refused.empty()) {
    spdlog::warn(
        "\"{}\" claims more clients in round {} than it may, or ids that are none: {} claims "
        "refused",
        action.member, spec_.round(), action.refused.size());
    answer.mutable_refused()->Assign(action.refused.begin(), action.refused.end());
  }
  answer.mutable_taken()->Assign(action.taken.begin(), action.taken.end());
  std::vector<std::string> counted;  // of the granted, as the parent has said before
  if (!MayClaim()) {
    answer.mutable_granted()->Assign(action.granted.begin(), action.granted.end());
  } else if (!action.granted.empty()) {
    for (const std::string& id : action.granted) claims_.below[id] = action.member;
    std::vector<std::string> ask;
    for (const std::string& id : action.granted) {
      const auto claim = claims_.clients.find(id);
      if (claim == claims_.clients.end()) {
        ask.push_back(id);
      } else if (claim->second == ClaimState::kGranted) {
        answer.add_granted(id);
      } else if (claim->second == ClaimState::kTaken) {
        answer.add_taken(id);
        counted.push_back(id);
      }
    }
    if (!ask.empty()) Claim(ask, false);
  }
  if (!counted.empty()) {
    loop_->Post([this, counted = std::move(counted), round = spec_.round()] {
      for (const std::string& id : counted) {
        if (machine_ == nullptr || spec_.round() != round) return;
        Act(machine_->Ungrant(id, loop_->Now()));  // nobody is to wait for it
      }
    });
  }
  if (!answer.granted().empty() || !answer.taken().empty() || !answer.refused().empty()) {
    SendClaims(action.member, answer);
  }
}

// As few messages as may be: a session that has many unread is taken for one that does not read.
void Collector::TellBelow() {
  for (const auto& [child, answer] : std::exchange(claims_.answers, {})) SendClaims(child, answer);
}

void Collector::SendClaims(const std::string& child, v1::ClaimsAnswer answer) {
  const auto it = children_.find(child);
  if (it == children_.end()) return;
  answer.set_round(spec_.round());
  for (v1::ClaimsAnswer& message : InMessages(answer)) {
    auto response = std::make_shared<v1::SessionResponse>();
    *response->mutable_claims() = std::move(message);
    it->second.session->Send(std::move(response));
  }
}

}  // namespace tributary::server
