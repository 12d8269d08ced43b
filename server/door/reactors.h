// The reactors behind the front door. Each keeps itself alive until gRPC is done with it.
//
// gRPC may run a callback inside the call that starts an operation, so none is started under a
// lock, and Finish is only called when no operation of ours is being started (`busy_`): OnDone
// cannot overtake us.
//
// Each start hands over (base/hand_over.h) with the address of what it is about: the message that
// is read or written; the queue, for a session's writes; the reactor, for the end.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/hand_over.h"
#include "server/door/framing.h"
#include "server/door/watch.h"
#include "server/front_door.h"

namespace tributary::server::door {

absl::Duration MonotonicNow();

struct DoorState {
  FrontDoorHandler* handler;
  const ModelShelf* shelf;
  DoorCounters counters;
  std::atomic<uint32_t> sessions{0};
  uint32_t max_sessions;
  Watch watch;
};

class SessionReactor final
    : public grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>,
      public Session,
      public Watched {
 public:
  static SessionReactor* Start(DoorState* door, grpc::CallbackServerContext* context);

  const v1::Join& join() const override { return join_; }
  std::string peer() const override { return peer_; }
  absl::Duration last_heard() const override { return absl::Nanoseconds(last_heard_.load()); }
  void Send(std::shared_ptr<const v1::SessionResponse> message) override;
  void Finish() override { FinishWith(grpc::Status::OK); }
  void Cancel() override;
  void Handled() override;
  void CutIfSilent(absl::Duration now, const Patience& patience) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  SessionReactor(DoorState* door, grpc::CallbackServerContext* context);
  void FinishWith(const grpc::Status& status);
  void Step();    // starts the next write, or the finish, whichever is due
  void ReadOn();  // unless too much is unhandled
  absl::Status CheckJoin() const;

  DoorState* door_;
  grpc::CallbackServerContext* context_;
  std::string peer_;
  v1::Join join_;
  v1::SessionRequest request_;
  std::atomic<int64_t> last_heard_;
  std::atomic<bool> joined_ = false;  // set by a read callback
  std::shared_ptr<SessionReactor> self_;

  std::mutex mu_;
  std::deque<std::shared_ptr<const v1::SessionResponse>>
      queue_;                    // guarded by mu_; the front is being written
  int busy_ = 0;                 // guarded by mu_
  bool writing_ = false;         // guarded by mu_
  bool want_finish_ = false;     // guarded by mu_
  bool finished_ = false;        // guarded by mu_
  grpc::Status status_;          // guarded by mu_
  absl::Duration finish_asked_;  // guarded by mu_
  int unhandled_ = 0;            // guarded by mu_: messages that the handler still has
  bool read_waits_ = false;      // guarded by mu_: for some of them
};

// Where its client gives it up while it waits to be admitted, gRPC is through with it before the
// handler is: it hands itself over by shared_from_this, which self_ no longer is then.
class UploadReactor final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                            public Upload,
                            public Watched,
                            public std::enable_shared_from_this<UploadReactor> {
 public:
  static UploadReactor* Start(DoorState* door, grpc::CallbackServerContext* context,
                              grpc::ByteBuffer* response);

  const v1::UploadHeader& header() const override { return header_; }
  std::string peer() const override { return peer_; }
  absl::Duration last_progress() const override { return absl::Nanoseconds(last_progress_.load()); }
  void Admit(std::unique_ptr<aggregation::UpdateAssembler> assembler) override;
  void Reply(const v1::UploadResponse& response) override;
  void CutIfSilent(absl::Duration now, const Patience& patience) override;  // for its header

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  UploadReactor(DoorState* door, grpc::CallbackServerContext* context, grpc::ByteBuffer* response);
  void TakeMessage();  // parses message_ and acts on it
  void TakeContent();  // segments and trailer of parsed_
  void Fail(aggregation::Refusal refusal);
  void ReadOn();

  DoorState* door_;
  grpc::ByteBuffer* response_;
  std::string peer_;
  v1::UploadHeader header_;
  bool started_ =
      false;  // read side only, as are the next ones: one read callback or Admit at a time
  bool complete_ = false;
  grpc::ByteBuffer message_;
  std::shared_ptr<const MessageSlices> slices_;
  UploadMessage parsed_;
  std::unique_ptr<aggregation::UpdateAssembler> assembler_;
  std::atomic<int64_t> last_progress_;
  std::shared_ptr<UploadReactor> self_;

  std::mutex mu_;
  int busy_ = 0;               // guarded by mu_
  bool replied_ = false;       // guarded by mu_
  bool finished_ = false;      // guarded by mu_
  v1::UploadResponse answer_;  // guarded by mu_
  void FinishIfDue();
};

class DownloadReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public Watched {
 public:
  static DownloadReactor* Start(DoorState* door, grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request);
  void CutIfSilent(absl::Duration now, const Patience& patience) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  // The model's own bytes, or those of the steps from what the client holds.
  DownloadReactor(DoorState* door, grpc::CallbackServerContext* context,
                  std::shared_ptr<const ModelVersion> model, const v1::DownloadRequest& wanted);
  void Next();
  void End(const grpc::Status& status);
  DoorState* door_;
  grpc::CallbackServerContext* context_;
  std::shared_ptr<const ModelVersion> model_;  // keeps the data alive
  std::string id_;                             // of the client, as it says
  std::vector<ByteSpan> data_;                 // what is left to send
  size_t next_ = 0;                            // of data_
  v1::ModelHeader header_;
  uint32_t crc32c_ = 0;  // of what was sent
  grpc::ByteBuffer message_;
  enum class Stage { kData, kFinish } stage_ = Stage::kData;
  absl::Duration started_ = MonotonicNow();
  std::atomic<int64_t> last_progress_{absl::ToInt64Nanoseconds(started_)};
  std::shared_ptr<DownloadReactor> self_;
  std::mutex mu_;
  bool ended_ = false;               // guarded by mu_: context_ may be gone
  int cutting_ = 0;                  // guarded by mu_: the end waits for it
  std::optional<grpc::Status> end_;  // guarded by mu_: that waits
};

}  // namespace tributary::server::door
