// Private to client/trainer: the clients of one process, one or many, from data to exit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/trainer/config.h"
#include "client/trainer/internal/paced_trainer.h"
#include "client/trainer/trainer.h"

namespace tributary::client::trainer {

// Not thread-safe.
struct FleetOptions {
  bool simulate = false;    // all of [data] clients in this process,
  uint32_t part_first = 0;  // or of them those from here,
  uint32_t part_count = 0;  // so many; 0: to the last
  Pace pace = {};
};

class Fleet {
 public:
  // Loads the data, cuts it, makes the clients: the one of the config, or, with `simulate`, all of
  // its [data] clients, named `<id>-000`, `<id>-001`, ... SIGINT and SIGTERM are caught
  // from here on, and ignored once the fleet is destroyed; one fleet a process.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(const ClientConfig& config,
                                                       const FleetOptions& options);
  ~Fleet();

  // Runs every client to its end. SIGINT or SIGTERM ends them politely, a second one at once. OK:
  // all runs finished, or a signal asked for the end; else the first failure, all being logged.
  absl::Status Run();

 private:
  struct Member {
    std::string id;
    std::unique_ptr<Trainer> trainer;
    std::unique_ptr<Client> client;
    absl::Status result;
  };

  Fleet() = default;
  absl::Status AddMembers(const ClientConfig& config, const FleetOptions& options);
  absl::Status AddMember(const ClientConfig& config, const FleetOptions& fleet, uint32_t index,
                         const std::shared_ptr<NetworkPool>& pool, TorchTrainer::Data data);
  absl::Status MakeTls(const ClientConfig& config);
  // Waits until all have ended; true where a signal asked for it.
  bool Watch();
  void RunMember(Member* member) const;

  std::shared_ptr<const TlsSettings> tls_;  // one for all: they share connections
  std::vector<Member> members_;
  int signals_[2] = {-1, -1};  // a pipe: the numbers of the signals caught
  int finished_ = -1;          // an eventfd: counts the members that have ended
};

}  // namespace tributary::client::trainer
