// The queue of events, and the flags that long work looks at.
#include "client/internal/mailbox.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace tributary::client::internal {

TaskKey KeyOf(const v1::RoundSpec& spec) { return {spec.round(), spec.kind(), spec.base_sha256()}; }

void Mailbox::Changed() {
  ++changes_;
  changed_.notify_all();
}

void Mailbox::Push(decltype(Event::what) what) {
  events_.push_back({++sequence_, std::chrono::steady_clock::now(), std::move(what)});
  Changed();
}

void Mailbox::DropTasks() {
  std::erase_if(events_,
                [](const Event& event) { return std::holds_alternative<v1::Task>(event.what); });
}

void Mailbox::PostJoined(v1::Joined joined, std::shared_ptr<grpc::Channel> channel) {
  std::lock_guard lock(mu_);
  uplink_ = {std::move(channel), ++generations_, joined.offer_above_bytes(),
             joined.answers_inquiries()};
  // A run that was resumed from an older checkpoint goes back; else this is where it stands.
  over_round_ = joined.committed_round();
  Push(std::move(joined));
}

void Mailbox::PostLost() {
  std::lock_guard lock(mu_);
  uplink_.channel = nullptr;
  DropTasks();
  Changed();
}

void Mailbox::PostTask(v1::Task task) {
  std::lock_guard lock(mu_);
  DropTasks();
  newest_task_ = KeyOf(task.spec());
  if (task.spec().kind() == v1::TRAIN && task.spec().round() <= over_round_) over_round_ = 0;
  Push(std::move(task));
}

void Mailbox::PostOutcome(v1::Outcome outcome) {
  std::lock_guard lock(mu_);
  // An answer may be to a question of before a run was resumed from an older checkpoint.
  if (!outcome.answer()) over_round_ = std::max<uint64_t>(over_round_, outcome.round());
  Push(std::move(outcome));
}

void Mailbox::PostGrant(uint64_t round) {
  std::lock_guard lock(mu_);
  granted_round_ = round;
  Changed();
}

void Mailbox::PostTrouble(std::string endpoint) {
  std::lock_guard lock(mu_);
  std::erase_if(events_, [&](const Event& event) {
    const auto* earlier = std::get_if<Trouble>(&event.what);
    return earlier != nullptr && earlier->endpoint == endpoint;
  });
  Push(Trouble{std::move(endpoint)});
}

void Mailbox::PostEnd(absl::Status status) {
  std::lock_guard lock(mu_);
  ending_ = true;
  DropTasks();
  Push(End{std::move(status)});
}

void Mailbox::PostShutdown() {
  std::lock_guard lock(mu_);
  ending_ = true;
  shutdown_ = true;
  Changed();
}

void Mailbox::Poke() {
  std::lock_guard lock(mu_);
  Changed();
}

void Mailbox::StreamOpened() {
  std::lock_guard lock(mu_);
  ++open_streams_;
}

void Mailbox::Retire(std::shared_ptr<const void> remains) {
  std::lock_guard lock(mu_);
  remains_.push_back(std::move(remains));
  --open_streams_;
  Changed();
}

Event Mailbox::Next() {
  std::vector<std::shared_ptr<const void>> remains;
  std::unique_lock lock(mu_);
  while (!shutdown_ && events_.empty()) {
    changed_.wait(lock, [this] { return shutdown_ || !events_.empty() || !remains_.empty(); });
    remains.swap(remains_);
    lock.unlock();
    remains.clear();
    lock.lock();
  }
  if (shutdown_) return {0, {}, End{absl::CancelledError("the client was shut down")}};
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Mailbox::Wait(absl::Duration at_most, const std::function<bool()>& condition) {
  const auto give_up = std::chrono::steady_clock::now() +
                       absl::ToChronoNanoseconds(std::min(at_most, absl::Hours(24 * 365)));
  while (true) {
    uint64_t seen = 0;
    std::vector<std::shared_ptr<const void>> remains;
    {
      std::lock_guard lock(mu_);
      seen = changes_;
      remains.swap(remains_);
    }
    remains.clear();
    if (condition()) return;
    std::unique_lock lock(mu_);
    if (!changed_.wait_until(lock, give_up, [&] { return changes_ != seen; })) return;
  }
}

void Mailbox::Clear() {
  std::vector<std::shared_ptr<const void>> remains;  // freed last, without the lock
  Uplink uplink;
  std::lock_guard lock(mu_);
  remains.swap(remains_);
  uplink = std::exchange(uplink_, {});
}

std::optional<TaskKey> Mailbox::TakeTaskBut(uint64_t round) {
  std::lock_guard lock(mu_);
  std::optional<TaskKey> out;
  std::erase_if(events_, [&](const Event& event) {
    const auto* task = std::get_if<v1::Task>(&event.what);
    if (task == nullptr) return false;
    const TaskKey key = KeyOf(task->spec());
    if (key.kind == v1::TRAIN && key.round == round) return false;
    out = key;
    return true;
  });
  return out;
}

std::optional<v1::Outcome> Mailbox::TakeOutcome(uint64_t round) {
  std::lock_guard lock(mu_);
  std::optional<v1::Outcome> out;
  std::erase_if(events_, [&](const Event& event) {
    const auto* outcome = std::get_if<v1::Outcome>(&event.what);
    if (outcome == nullptr || outcome->round() != round || out.has_value()) return false;
    if (!outcome->ask()) out = *outcome;
    return true;
  });
  return out;
}

uint64_t Mailbox::last_sequence() const {
  std::lock_guard lock(mu_);
  return sequence_;
}

Uplink Mailbox::uplink() const {
  std::lock_guard lock(mu_);
  return uplink_;
}

bool Mailbox::streams_open() const {
  std::lock_guard lock(mu_);
  return open_streams_ > 0;
}

bool Mailbox::ending() const {
  std::lock_guard lock(mu_);
  return ending_;
}

bool Mailbox::Superseded(const TaskKey& key) const {
  std::lock_guard lock(mu_);
  return ending_ || newest_task_ != key;
}

bool Mailbox::Over(const TaskKey& key) const {
  std::lock_guard lock(mu_);
  return ending_ || newest_task_ != key || (key.kind == v1::TRAIN && over_round_ >= key.round);
}

bool Mailbox::Lost(uint64_t generation) const {
  std::lock_guard lock(mu_);
  return uplink_.channel == nullptr || uplink_.generation != generation;
}

bool Mailbox::HasTask(uint64_t round) const {
  std::lock_guard lock(mu_);
  return std::any_of(events_.begin(), events_.end(), [&](const Event& event) {
    const auto* task = std::get_if<v1::Task>(&event.what);
    return task != nullptr && task->spec().kind() == v1::TRAIN && task->spec().round() == round;
  });
}

Presence Mailbox::presence() const {
  std::lock_guard lock(mu_);
  return presence_;
}

void Mailbox::ExpectGrant() {
  std::lock_guard lock(mu_);
  granted_round_ = 0;
}

bool Mailbox::Granted(uint64_t round) const {
  std::lock_guard lock(mu_);
  return granted_round_ == round;
}

void Mailbox::SetWork(uint64_t round, std::string phase) {
  std::lock_guard lock(mu_);
  presence_.round = round;
  presence_.phase = std::move(phase);
}

void Mailbox::SetHeld(std::string sha256) {
  std::lock_guard lock(mu_);
  presence_.held_sha256 = std::move(sha256);
}

void Mailbox::SetCommittedRound(uint64_t round) {
  std::lock_guard lock(mu_);
  presence_.committed_round = round;
}

}  // namespace tributary::client::internal
