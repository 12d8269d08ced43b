// Where gRPC's threads leave what happened for Run's thread, which waits here and nowhere else.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tributary/v1/client_service.pb.h"

namespace grpc {
class Channel;
}

namespace tributary::client::internal {

// A session that is up: what uploads and downloads need. Generations count sessions, from 1.
struct Uplink {
  std::shared_ptr<grpc::Channel> channel;  // null: no session now
  uint64_t generation = 0;
  uint64_t offer_above_bytes = 0;  // larger updates are to be offered; 0: none
  bool answers_inquiries = false;
};

// What identifies a task: a second one with the same key is the same task, sent again.
struct TaskKey {
  uint64_t round = 0;
  v1::TaskKind kind = v1::TASK_KIND_UNSPECIFIED;
  std::string base_sha256;
  bool operator==(const TaskKey&) const = default;
};
TaskKey KeyOf(const v1::RoundSpec& spec);

// An endpoint failed in a way that may be TLS's doing.
struct Trouble {
  std::string endpoint;
};
struct End {
  absl::Status status;  // what Run returns
};
struct Event {
  uint64_t sequence = 0;  // in order of arrival, from 1
  std::chrono::steady_clock::time_point came = {};
  std::variant<v1::Joined, v1::Task, v1::Outcome, Trouble, End> what;
};

// What the connection says of this client to aggregators, in Join and Heartbeat.
struct Presence {
  std::string held_sha256;
  uint64_t committed_round = 0;
  uint64_t round = 0;
  std::string phase = "idle";
};

// Thread-safe. Holds at most one task (a newer one replaces it: an aggregator runs one round at a
// time) and one trouble an endpoint, so what a long training lets pile up is small.
class Mailbox {
 public:
  // --- Left by gRPC's threads.
  void PostJoined(v1::Joined joined, std::shared_ptr<grpc::Channel> channel);
  void PostLost();  // the session is gone; its task will come again in the next one
  void PostTask(v1::Task task);
  void PostOutcome(v1::Outcome outcome);
  void PostGrant(uint64_t round);
  void PostTrouble(std::string endpoint);
  void PostEnd(absl::Status status);  // after what is queued
  void PostShutdown();                // before what is queued
  void Poke();                        // something that a Wait's condition looks at has changed
  // A session call began; it ends with Retire, which takes what is left of it. What holds a channel
  // must not be freed on gRPC's callback threads: gRPC 1.51 joins those threads where its last
  // channel goes, and one that joins itself crashes. So the remains lie here until Run's thread,
  // in Next, Wait or Clear, frees them.
  void StreamOpened();
  void Retire(std::shared_ptr<const void> remains);

  // --- For Run's thread.
  Event Next();  // waits
  // Waits until `condition` is true or the duration has passed. `condition` is called without any
  // lock held, again after each Post and Poke.
  void Wait(absl::Duration at_most, const std::function<bool()>& condition);
  uint64_t last_sequence() const;
  // The task that waits, taken out, unless it is to train in this round.
  std::optional<TaskKey> TakeTaskBut(uint64_t round);
  // The queued outcome of this round, taken out; requests to ask for it are thrown away.
  std::optional<v1::Outcome> TakeOutcome(uint64_t round);
  void Clear();  // frees everything that holds a channel; after the last Retire

  // --- From any thread.
  Uplink uplink() const;
  bool streams_open() const;
  bool ending() const;                        // a PostEnd or PostShutdown has been
  bool Superseded(const TaskKey& key) const;  // ending, or another task has come
  bool Over(const TaskKey& key) const;        // that, or the round's outcome is known
  bool Lost(uint64_t generation) const;       // that session is no longer up
  bool HasTask(uint64_t round) const;         // a task to train in that round waits
  Presence presence() const;
  // An offer is about to be made: grants of earlier ones do not count.
  void ExpectGrant();
  bool Granted(uint64_t round) const;  // since ExpectGrant
  void SetWork(uint64_t round, std::string phase);
  void SetHeld(std::string sha256);
  void SetCommittedRound(uint64_t round);

 private:
  void Push(decltype(Event::what) what);  // mu_ held
  void DropTasks();                       // mu_ held
  void Changed();                         // mu_ held

  mutable std::mutex mu_;  // guards everything below
  std::condition_variable changed_;
  std::deque<Event> events_;
  uint64_t sequence_ = 0;
  uint64_t changes_ = 0;
  Uplink uplink_;
  uint64_t generations_ = 0;
  uint64_t open_streams_ = 0;
  std::vector<std::shared_ptr<const void>> remains_;
  bool ending_ = false;
  bool shutdown_ = false;
  TaskKey newest_task_;
  uint64_t over_round_ = 0;     // the newest round whose outcome is known
  uint64_t granted_round_ = 0;  // 0: none
  Presence presence_;
};

}  // namespace tributary::client::internal
