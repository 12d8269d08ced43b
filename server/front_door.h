// The gRPC front door: sessions, uploads and downloads, turned into calls on a handler. It knows
// the wire, not the rounds.
//
// Threads: handler methods are called from gRPC's threads and must not block; Session and Upload
// methods may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "aggregation/update.h"
#include "server/config.h"
#include "server/model_version.h"
#include "tributary/v1/client_service.pb.h"

namespace tributary::server {

// One open control stream. `id`, `role` and `epoch` are those of its Join.
class Session {
 public:
  virtual ~Session() = default;
  virtual const v1::Join& join() const = 0;
  virtual std::string peer() const = 0;           // "ipv4:10.0.0.7:51234"
  virtual absl::Duration last_heard() const = 0;  // monotonic
  // Queues a message. A peer that lets more than 64 pile up is cut off.
  virtual void Send(std::shared_ptr<const v1::SessionResponse> message) = 0;
  // Ends the stream after what is queued.
  virtual void Finish() = 0;
  virtual void Cancel() = 0;  // at once
  // The handler is through with one of its messages: what it has not come to yet is bounded, and a
  // peer that says more is not read meanwhile.
  virtual void Handled() {}
  // The handler's own mark: set when a newer session took over.
  std::atomic<bool> superseded{false};
};

// One upload under way. The stream is not read on until Admit: gRPC's flow control holds the
// client.
class Upload {
 public:
  virtual ~Upload() = default;
  virtual const v1::UploadHeader& header() const = 0;
  virtual std::string peer() const = 0;
  virtual absl::Duration last_progress() const = 0;  // monotonic
  // Go on: segments are handed to the assembler as they come.
  virtual void Admit(std::unique_ptr<aggregation::UpdateAssembler> assembler) = 0;
  // Ends the call with this answer; the first call wins, later ones do nothing.
  virtual void Reply(const v1::UploadResponse& response) = 0;
  // The handler's own: the round machine's ticket, and what it reserved of the memory budget.
  uint64_t ticket = 0;
  uint64_t reserved_bytes = 0;
};

class FrontDoorHandler {
 public:
  virtual ~FrontDoorHandler() = default;
  virtual void OnJoin(std::shared_ptr<Session> session) = 0;
  // To be followed by session->Handled(), at once or later.
  virtual void OnMessage(std::shared_ptr<Session> session, v1::SessionRequest message) = 0;
  virtual void OnSessionEnd(std::shared_ptr<Session> session) = 0;
  virtual void OnUploadStart(std::shared_ptr<Upload> upload) = 0;
  // Whole and valid.
  virtual void OnUploadComplete(std::shared_ptr<Upload> upload,
                                std::shared_ptr<const aggregation::EncodedUpdate> update) = 0;
  // A model, whole, by who says that it is this client; nobody has checked that.
  virtual void OnDownloaded(const std::string& /*id*/, absl::Duration /*took*/) {}
  // Its content is refused (answer it), or, with an empty reason, it broke off (nobody to answer).
  virtual void OnUploadFailed(std::shared_ptr<Upload> upload, aggregation::Refusal refusal) = 0;
};

// Bytes that went over the door, for rounds.jsonl.
struct DoorCounters {
  std::atomic<uint64_t> upload_bytes{0};    // segments' bytes taken in
  std::atomic<uint64_t> download_bytes{0};  // model bytes sent
  std::atomic<uint64_t> saved_bytes{0};     // that whole models would have had more
  std::atomic<uint64_t> downloads{0};
  std::atomic<int64_t> download_nanos{0};  // summed over downloads
};

// To be called before anything of gRPC is used in this process, so that connections are read in the
// way whose memory is bounded. Does nothing the second time.
void PrepareGrpc();

class FrontDoor {
 public:
  struct Options {
    std::string listen;  // "host:port"; port 0 for any
    uint32_t max_sessions = 20000;
    // Of each upload, taken in before it is asked for.
    uint64_t stream_window_bytes = LimitsConfig().stream_window_bytes;
    TlsConfig tls = {};  // cert, key and client_ca of it; none: no TLS
  };
  // Starts listening at once. UNAVAILABLE names the address (a port in use).
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Start(const Options& options,
                                                          FrontDoorHandler* handler,
                                                          const ModelShelf* shelf);
  virtual ~FrontDoor() = default;
  virtual int port() const = 0;
  virtual const DoorCounters& counters() const = 0;
  // Ends what peers have let hang, to be called now and then: sessions that have not joined within
  // `session`, or have not taken their last word; uploads without a header, likewise; downloads of
  // models that are not the current one any more, of which nothing was taken for `progress`.
  virtual void CutSilent(absl::Duration session, absl::Duration progress) const = 0;
  // Refuses new calls, gives open ones until the deadline, then cancels them. Blocks. The handler
  // must answer OnSessionEnd etc. until it returns.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace tributary::server
