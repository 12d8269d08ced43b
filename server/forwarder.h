// Sends partial sums up, over whatever link there is: one at a time, again where a link broke, from
// the first chunk on that the parent lacks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "aggregation/accumulator.h"
#include "server/tier_stream.h"
#include "transport/link.h"
#include "tributary/v1/tier_service.pb.h"

namespace tributary::server {

// Threads: one of its own, which calls `Events`; all methods from any.
class Forwarder {
 public:
  struct Events {
    // The parent has all of it, or refuses it (INVALID_ARGUMENT), or the last try failed.
    std::function<void(uint64_t round, absl::Status status, double seconds)> forwarded;
    std::function<void(uint64_t forward)> released;  // see Abandon
  };
  // `patience`: how long a chunk may wait for credit.
  Forwarder(absl::Duration patience, Events events);
  ~Forwarder();  // gives up what runs

  // The link to the parent from now on; null: there is none.
  void UseLink(std::shared_ptr<transport::Link> link);
  // What came down that link.
  void Answer(v1::PartialSumAnswer answer);
  // An earlier one is given up. `sum` must not change until `forwarded`, or as Abandon says.
  void Forward(v1::PartialSumHeader header, const aggregation::ExactAccumulator* sum);
  // Gives up the Forward that waits or runs; `forwarded` does not come for it. Does not block. 0:
  // no sum is being read. Else the number of the one that still reads: `released` names it soon.
  uint64_t Abandon();

 private:
  struct Job {
    uint64_t number = 0;  // from 1
    v1::PartialSumHeader header;
    const aggregation::ExactAccumulator* sum = nullptr;
  };

  void Run();
  void GiveUp();  // mu_ is held
  absl::Status Send(const std::shared_ptr<transport::Link>& link, Job* job);
  // The parent's next word on the attempt that runs: an error where it is a refusal, or where there
  // is none to come.
  absl::StatusOr<v1::PartialSumAnswer> NextAnswer(const std::shared_ptr<transport::Link>& link,
                                                  const Job& job);
  absl::Status Ended(const Job& job) const;  // mu_ is held: not OK where it is not to go on

  const absl::Duration patience_;
  const Events events_;
  std::mutex mu_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mu_, as all below
  std::shared_ptr<transport::Link> link_;
  std::optional<Job> job_;  // waits for the link, or for the one that runs
  uint64_t last_job_ = 0;
  uint64_t given_up_ = 0;  // this one and all before
  uint64_t running_job_ = 0;
  std::shared_ptr<transport::Link> running_link_;
  bool listening_ = false;  // the one that runs waits for an answer, not for credit
  uint64_t attempt_ = 0;    // of the one that runs, or the last
  std::optional<v1::PartialSumAnswer> answer_;  // to that attempt, not yet heard
  std::optional<std::string> refused_;          // that attempt
  std::thread thread_;
};

}  // namespace tributary::server
