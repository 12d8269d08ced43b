// One federated client: Run's loop over what comes in the mailbox.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "client/client.h"
#include "client/internal/connection.h"
#include "client/internal/framing.h"
#include "client/internal/mailbox.h"
#include "client/internal/residuals.h"
#include "compression/policy.h"

namespace tributary::client::internal {

// The seam by which tests put in a codec that needs error feedback.
using CodecFactory = std::function<absl::StatusOr<std::shared_ptr<const compression::CodecPolicy>>(
    std::string_view)>;

class Participant final : public Client {
 public:
  Participant(ClientOptions options, Trainer* trainer, CodecFactory codecs);
  ~Participant() override;

  absl::Status Run() override;
  void Shutdown() override;
  ClientStats stats() const override;

 private:
  // A TRAIN round that this client has an update in, from the encoding to the outcome.
  struct OpenRound {
    TaskKey key;
    v1::UploadHeader header;
    EncodedDelta delta;  // segments null: there is no update to send (any more)
    uint32_t attempts = 0;
    bool accepted = false;  // by some aggregator, once
    uint64_t covered = 0;   // tasks that came up to this one are answered by what was accepted
    std::string note;       // why it will not count, where that is known before the outcome
  };

  absl::Status Loop();
  absl::Status Handle(const v1::Joined& joined);  // not OK: the end
  void Handle(const v1::Outcome& outcome);
  void Handle(Event task);
  void Handle(const Trouble& trouble);
  void Settle(const v1::Outcome& outcome);
  // The round of the update whose outcome is not known, of this life or an earlier one; 0: none.
  uint64_t PendingRound() const;
  // Asks the aggregator what became of that update, and settles it. False: the session ended first
  // (it is asked again in the next), the client does, the update's task has come again, or `task`
  // was declined, as are others that come while it waits for long.
  bool Inquire(const TaskKey* task = nullptr);
  void SaveResiduals();

  // --- Tasks.
  std::string WhyNotMine(const v1::RoundSpec& spec) const;  // "": it is
  void Train(const TrainTask& task, const TaskKey& key);
  void Evaluate(const TrainTask& task, const TaskKey& key);
  absl::StatusOr<EncodedDelta> EncodeResult(const TrainTask& task, TrainResult result);
  void Report(v1::Report report, const TaskKey& key);
  void Decline(const TaskKey& key, const std::string& why);

  // --- Models (participant_model.cc).
  absl::StatusOr<ModelBytes> FetchModel(v1::Task* task, const TaskKey& key);
  absl::StatusOr<ModelBytes> DownloadModel(const TaskKey& key, bool asynchronous);
  // Takes the steps from the model held to the task's base. Not OK (the trainer is told why): they
  // do not lead there, and no model is held any more.
  absl::Status Advance(const v1::DeltaChain& chain, ByteSpan deltas, const TaskKey& key);
  void Keep(std::vector<uint8_t> bytes, const std::string& sha256);
  void DropModel();

  // --- Uploads (participant_upload.cc).
  enum class Next { kDone, kAgain, kLeft };
  void SendUpdate();  // the open round's; until it is in, refused, given up, or the session is lost
  // Until the aggregator says so, where it wants to. False: interrupted, or the round is over.
  bool AwaitGrant(const Uplink& uplink, const std::function<bool()>& interrupted);
  Next Judge(const absl::StatusOr<v1::UploadResponse>& answer, absl::Duration* wait);
  Next Retry(const std::string& why, uint64_t retry_after_ms, absl::Duration* wait);
  void Drop(
      const std::string& why);  // the open round's update, which stays to wait for the outcome

  // Waits for `wait`, less where `interrupted` turns true.
  void Pause(absl::Duration wait, const std::function<bool()>& interrupted);
  absl::Duration Backoff(uint32_t failures);

  const ClientOptions options_;
  Trainer* const trainer_;
  const CodecFactory codecs_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<Connection> connection_;
  std::atomic<bool> ran_{false};

  // Run's thread only.
  PhiloxStream random_;
  std::string run_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  ModelBytes model_;
  std::string model_sha256_;
  int bad_chains_ = 0;  // steps in a row that did not lead to the base model
  std::string codec_spec_;
  std::shared_ptr<const compression::CodecPolicy> codec_;
  std::weak_ptr<const Segments>
      last_encoded_;         // a bench's: its checksum need not be taken each round
  EncodedDelta last_delta_;  // of it, without the segments
  ResidualStore residuals_;
  std::optional<OpenRound> open_;
  uint64_t settled_round_ = 0;  // the last round whose outcome was told to the trainer

  struct Counters {
    std::atomic<uint64_t> rounds_trained{0}, accepted{0}, included{0}, joins{0}, uploaded_bytes{0},
        downloaded_bytes{0};
  };
  Counters counters_;
};

}  // namespace tributary::client::internal
