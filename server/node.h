// A running aggregator: root or rack by its config. `tributary serve` is this and little more.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config.h"
#include "server/round_report.h"

namespace tributary::server {

class Node {
 public:
  struct Options {
    Config config;
    std::function<void(const RoundReport&)>
        on_round;  // after each finished round; on the node's thread
    // The moment after something of a round was done, for whoever wants to see a node die there:
    // "announce", "download", "train_wait", "hold" (an update waits, unread, for its round),
    // "upload", "fold", "forward", "close", "apply", "commit", "publish". Some come once a member.
    // On any of the node's threads.
    std::function<void(uint64_t round, const char* phase)> on_phase = nullptr;
  };
  // Opens ports, checkpoints and links: what fails here is a mistake in the config or the machine.
  static absl::StatusOr<std::unique_ptr<Node>> Create(Options options);
  virtual ~Node() = default;
  // Until the run is over: OK when it finished or Shutdown drained it, ABORTED when the run failed.
  virtual absl::Status Run() = 0;
  // From any thread: finish what can be finished within the grace time, then end. Asked twice: at
  // once.
  virtual void Shutdown() = 0;
  virtual int port() const = 0;  // of the front door
};

// The two kinds, made by Create.
absl::StatusOr<std::unique_ptr<Node>> CreateRoot(Node::Options options);
absl::StatusOr<std::unique_ptr<Node>> CreateRack(Node::Options options);

}  // namespace tributary::server
