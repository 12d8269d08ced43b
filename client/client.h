// The client SDK: joins an aggregator, waits for tasks, downloads the model, uploads updates, and
// says how each ended. No LibTorch in it. gRPC is inside; one Client is one federated client.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "aggregation/layout.h"
#include "client/tls.h"
#include "tributary/v1/model.pb.h"

namespace grpc {
class Channel;
}

namespace tributary::client {

struct ClientOptions {
  std::vector<std::string>
      endpoints;          // "host:port", in order of preference; tried round again with backoff
  std::string id;         // 1..256 bytes, unique in the run
  std::string run;        // "": whatever is served
  uint64_t examples = 1;  // the weight it expects to send
  uint64_t epoch = 0;     // 0: the time of construction in microseconds
  absl::Duration connect_timeout = absl::Seconds(5);
  absl::Duration backoff_min = absl::Milliseconds(100);  // doubles, with jitter, up to
  absl::Duration backoff_max = absl::Seconds(5);
  absl::Duration give_up_after =
      absl::Minutes(10);         // without any connection: Run returns UNAVAILABLE
  uint32_t upload_attempts = 8;  // of one update, damaged or broken off
  bool wants_model = true;  // false: tasks come with a null base; for senders of prepared updates
  // Where the aggregator asks for it, an update is offered first, and sent when granted; false:
  // never, as clients of earlier releases.
  bool offer_updates = true;
  bool own_connection = true;  // false: clients in one process with one endpoint share a connection
  std::string software = "tributary-client";
  // Where error-feedback residuals and the trainer's memory are kept between two lives of this
  // client; "": nowhere.
  std::string state_directory = {};
  // TLS with every endpoint, each checked against the CA given there; null: with none. An endpoint
  // that does otherwise (no TLS, another CA, another name, a certificate wanted) fails as one that
  // does not answer, and the next is tried; Trainer::OnNotice says which it was, and the mend.
  std::shared_ptr<const TlsSettings> tls = nullptr;
};

// The base model of a task, alive as long as someone holds it.
using ModelBytes = std::shared_ptr<const std::vector<uint8_t>>;

struct TrainTask {
  v1::RoundSpec spec;
  std::shared_ptr<const aggregation::ModelLayout> layout;
  ModelBytes base;  // layout->model_bytes()
  // What TrainResult::memory_steps of the rounds that counted have left of each tensor, or empty:
  // nothing yet, which is zeros. Valid during Train.
  std::vector<std::span<const float>> memory = {};
  std::chrono::steady_clock::time_point received = {};  // when the task came
};

// What training yields. The deltas are encoded by the SDK with the round's codec.
struct TrainResult {
  // In examples, above 0. A fraction only where the run takes fractional weights; it is then
  // rounded, here and once, to 1/65,536.
  double weight = 1;
  // Tensor i's delta: floats for float tensors, int64 for others; empty for SKIP tensors. Moved in.
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<int64_t>> ints;
  // Or, for benches: the finished segments, shared between clients; used instead of the deltas when
  // set.
  std::shared_ptr<const std::vector<std::vector<uint8_t>>> encoded;
  std::vector<v1::Metric> metrics;
  // By tensor, or empty. Not 0, for float tensors: the client's memory of that tensor becomes what
  // it was plus so many times the delta as aggregators decode it, once the round's outcome says
  // that the update counted; else it stays. So a lossy codec does not part the memory from what the
  // server makes of it. It is kept with the residuals of error feedback, and survives with them.
  std::vector<float> memory_steps = {};
};

struct RoundOutcome {
  uint64_t round = 0;
  bool committed = false;
  bool included = false;
  std::string reason;
};

// The user's part. Calls come from Run's thread, one at a time.
class Trainer {
 public:
  virtual ~Trainer() = default;
  // Deltas against task.base. An error declines the round, with its message. `cancelled` turns true
  // when the round is over or the session lost for good; a long training may look at it and stop.
  virtual absl::StatusOr<TrainResult> Train(const TrainTask& task,
                                            const std::function<bool()>& cancelled) = 0;
  // Metrics of the base model on this client's own test data; empty: none.
  virtual absl::StatusOr<std::vector<v1::Metric>> Evaluate(const TrainTask& task) = 0;
  // The round is over: error-feedback residuals of `round` are committed (included) or rolled back
  // by the SDK before this.
  virtual void OnOutcome(const RoundOutcome&) {}
  // Something that went on without the user's doing and belongs in a log: residuals that were
  // dropped, say, or an aggregator that wants TLS where ClientOptions::tls is null.
  virtual void OnNotice(const std::string&) {}
};

struct ClientStats {
  uint64_t rounds_trained = 0;
  uint64_t accepted = 0;
  uint64_t included = 0;
  uint64_t reconnects = 0;
  uint64_t uploaded_bytes = 0;
  uint64_t downloaded_bytes = 0;
};

class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options, Trainer* trainer);
  virtual ~Client() = default;
  // Takes part until the run is FINISHED (OK), FAILED (ABORTED), this client is SUPERSEDED
  // (ALREADY_EXISTS), refused for good (FAILED_PRECONDITION), nothing answers for give_up_after
  // (UNAVAILABLE), or Shutdown (CANCELLED). An update whose upload was cut, or whose aggregator
  // died before the outcome, is sent again, as it was.
  virtual absl::Status Run() = 0;
  virtual void Shutdown() = 0;  // from any thread; leaves politely
  virtual ClientStats stats() const = 0;
};

}  // namespace tributary::client
