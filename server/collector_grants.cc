// The collector's grants: updates are offered over sessions, or come as uploads without a word, and
// are let in one after another as the ingress and the memory bear it.
//
// An upload whose turn has not come is not read: of it there is what its stream's window holds. One
// that was offered has not even that, nor a call of its own.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "server/collector.h"

namespace tributary::server {

namespace {
// Keys of asks in the memory budget, apart from tickets.
constexpr uint64_t kAskKeys = uint64_t{1} << 63;
}  // namespace

uint64_t Collector::MostEncodedBytes() const {
  return std::min(aggregation::MaxEncodedBytes(*layout_), budget_.limit());
}

void Collector::SeenUpload() {
  if (first_upload_ != absl::ZeroDuration()) return;
  first_upload_ = loop_->Now();
  callbacks_.passed("train_wait");
}

void Collector::Offered(const std::string& id, const Child& child, const v1::Offer& offer) {
  EndOfferOf(id);
  Ask ask{.id = id,
          .epoch = child.epoch,
          .round = offer.round(),
          .bytes = offer.encoded_bytes(),
          .awaits_word = true};
  if (MayCarry(id, child.epoch, offer.round())) {
    parked_[id] = std::move(ask);
    return;
  }
  const bool open =
      async_ != nullptr || (machine_ != nullptr && machine_->open() && spec_.kind() == v1::TRAIN);
  if (!open || child.aggregator || ask.bytes == 0 || ask.bytes > MostEncodedBytes()) {
    // What is wrong with it the upload's header will be told; that costs next to nothing.
    Tell(&ask);
    return;
  }
  SeenUpload();
  if (async_ != nullptr || machine_->AnswerOf(id) != aggregation::Answer::kGone) {
    stragglers_.OfferSeen(id, loop_->Now());
  }
  ++offers_seen_;
  const uint64_t key = pacer_.Ask(ask.bytes);
  asks_[key] = std::move(ask);
  offers_[id] = key;
  PumpGrants();
}

// The upload's turn, or its place in the line: its own offer's, if it made one.
void Collector::Receive(const std::shared_ptr<Upload>& upload, std::function<void()> admit) {
  const v1::UploadHeader& header = upload->header();
  const uint64_t ticket = upload->ticket;
  const uint64_t bytes = header.encoded_bytes();
  if (bytes <= limits_.stream_window_bytes) {  // it is here already
    EndOfferOf(header.id());
    Reserve(ticket, bytes, std::move(admit));
    return;
  }
  const auto offer = offers_.find(header.id());
  uint64_t key = 0;
  if (offer != offers_.end()) {
    const Ask& ask = asks_[offer->second];
    if (ask.epoch == header.epoch() && ask.bytes == bytes) {
      key = offer->second;
      offers_.erase(offer);
    } else {
      EndOfferOf(header.id());
    }
  }
  if (key == 0) {
    key = pacer_.Ask(bytes);
    asks_[key] = {
        .id = header.id(), .epoch = header.epoch(), .round = header.round(), .bytes = bytes};
  }
  Ask& ask = asks_[key];
  ask.ticket = ticket;
  ask.admit = std::move(admit);
  tickets_[ticket].ask = key;
  if (ask.ready) {
    ask.reserved = 0;
    Granted(key);
    return;
  }
  PumpGrants();
  if (const auto it = asks_.find(key); it != asks_.end() && !it->second.passed) {
    SetEarly(&it->second, true);
  }
}

void Collector::PumpGrants() {
  const bool rounds = async_ == nullptr;
  if (rounds && (machine_ == nullptr || !machine_->open())) return;
  // What is late may still count where it is carried.
  const bool cut = rounds && stragglers_.late() == aggregation::Late::kDrop;
  const absl::Duration cut_off = cut ? machine_->ClosesAt() : absl::InfiniteDuration();
  for (const uint64_t key : pacer_.Take(loop_->Now(), cut_off)) {
    const auto it = asks_.find(key);
    if (it == asks_.end()) continue;
    SetEarly(&it->second, false);
    it->second.passed = true;
    budget_.Reserve(kAskKeys | key, it->second.bytes, [this, key] { Granted(key); });
  }
  if (budget_.waiting() > 0) UndoHalves();  // who waits goes before who may never come back
  if (grant_timer_ != 0) loop_->CancelTimer(grant_timer_);
  grant_timer_ = 0;
  if (const auto next = pacer_.NextTimer(); next.has_value()) {
    grant_timer_ = loop_->PostAfter(std::max(*next - loop_->Now(), absl::ZeroDuration()), [this] {
      grant_timer_ = 0;
      GrantTimer();
    });
  }
}

void Collector::SetEarly(Ask* ask, bool early) {
  if (std::exchange(ask->early, early) == early) return;
  early_ = early ? early_ + 1 : early_ - 1;
  CountEarly();
}

// What gRPC took in for those who waited is not at once another update's when they are through, and
// the next round's first uploads are admitted before the others are seen: so many as waited at a
// time are counted for this round and the next.
void Collector::CountEarly() {
  most_early_ = std::max(most_early_, early_);
  budget_.SetUnasked(std::max(most_early_, early_last_round_) * limits_.stream_window_bytes);
}

// Its memory is reserved.
void Collector::Granted(uint64_t key) {
  const auto it = asks_.find(key);
  if (it == asks_.end()) return;
  Ask& ask = it->second;
  ask.ready = true;
  const absl::Duration now = loop_->Now();
  if (ask.ticket != 0) {
    tickets_[ask.ticket].reserved = ask.bytes;
    pacer_.Started(key, now);
    const auto admit = std::move(ask.admit);
    admit();
    return;
  }
  ask.reserved = ask.bytes;
  pacer_.Sent(key, now);
  Tell(&ask);
}

void Collector::Tell(Ask* ask) {
  if (!std::exchange(ask->awaits_word, false)) return;
  const auto child = children_.find(ask->id);
  if (child == children_.end()) return;
  auto response = std::make_shared<v1::SessionResponse>();
  response->mutable_grant()->set_round(ask->round);
  child->second.session->Send(std::move(response));
}

void Collector::GrantTimer() {
  const absl::Duration now = loop_->Now();
  for (const uint64_t key : pacer_.Expire(now)) {
    ++unused_grants_;
    spdlog::warn(
        "\"{}\" was told to send its update of round {} and has not begun for {:.0f} s: "
        "its place goes to the next",
        asks_[key].id, asks_[key].round, limits_.grant_timeout_s);
    EndAsk(key);
  }
  pacer_.Observe(now, door_ == nullptr ? 0 : door_->counters().upload_bytes.load());
  PumpGrants();
}

void Collector::UploadRead(uint64_t ticket) {
  Ticket& entry = tickets_[ticket];
  const uint64_t key = std::exchange(entry.ask, 0);
  if (key == 0) return;
  pacer_.Whole(key, loop_->Now());
  asks_.erase(key);  // the memory is the ticket's
  PumpGrants();
}

void Collector::EndAsk(uint64_t key) {
  const auto it = asks_.find(key);
  if (it == asks_.end()) return;
  Ask ask = std::move(it->second);
  asks_.erase(it);
  SetEarly(&ask, false);
  if (const auto offer = offers_.find(ask.id); offer != offers_.end() && offer->second == key) {
    offers_.erase(offer);
  }
  pacer_.Gone(key);
  if (!ask.ready) budget_.Drop(kAskKeys | key);
  if (ask.reserved > 0) budget_.Release(ask.reserved);
  // An upload that came late took the offer's place and broke off: its client must not wait for
  // ever.
  Tell(&ask);
  PumpGrants();
}

void Collector::EndOfferOf(const std::string& id) {
  parked_.erase(id);
  if (const auto offer = offers_.find(id); offer != offers_.end()) EndAsk(offer->second);
}

void Collector::SettleOffers() {
  if (async_ != nullptr || spec_.kind() != v1::TRAIN) return;
  std::map<std::string, Ask> left;
  for (const auto& [id, key] : offers_) {
    left[id] = asks_[key];
    asks_[key].awaits_word = false;
  }
  for (auto& [id, ask] : left) {
    EndOfferOf(id);
    ask.ready = false;
    ask.reserved = 0;
    ask.awaits_word = true;
    // Who has missed the round learns so from its outcome.
    if (MayCarry(id, ask.epoch, ask.round) || MaySupplement(id, ask.round)) {
      parked_[id] = std::move(ask);
    }
  }
}

// Of this round, or of one whose update is still owed; who was late for any other has learnt so,
// and must not be given a place that it will not use.
void Collector::TakeParkedOffers() {
  for (auto& [id, ask] : std::exchange(parked_, {})) {
    const auto child = children_.find(id);
    if (child == children_.end() || child->second.epoch != ask.epoch) continue;
    if (ask.round != spec_.round() && ask.round != child->second.owes) continue;
    v1::Offer offer;
    offer.set_round(ask.round);
    offer.set_encoded_bytes(ask.bytes);
    Offered(id, child->second, offer);
  }
}

}  // namespace tributary::server
