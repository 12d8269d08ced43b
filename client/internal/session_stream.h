// One Session call: messages up are queued and written one by one, messages down are handed on.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "tributary/v1/client_service.grpc.pb.h"

namespace tributary::client::internal {

class SessionStream;

// Called from gRPC's threads: messages one at a time, in order, then OnStreamEnd once, last of all.
class SessionHandler {
 public:
  virtual ~SessionHandler() = default;
  virtual void OnStreamMessage(const SessionStream* stream, v1::SessionResponse message) = 0;
  // `stream` is given back: it holds a channel, so it must not be freed on this thread.
  virtual void OnStreamEnd(std::shared_ptr<SessionStream> stream, const absl::Status& why) = 0;
};

// Keeps itself and its handler alive until OnStreamEnd. Send, Finish and Cancel from
// any thread, at any time; they do not block.
class SessionStream final
    : public grpc::ClientBidiReactor<v1::SessionRequest, v1::SessionResponse> {
 public:
  static std::shared_ptr<SessionStream> Open(std::shared_ptr<grpc::Channel> channel,
                                             v1::SessionRequest join,
                                             std::shared_ptr<SessionHandler> handler);
  // Starts the call. The handler may be called before this returns.
  void Start();
  void Send(v1::SessionRequest message);
  bool idle() const;  // all that was sent has left
  void Finish();      // no more messages up, after those queued; the aggregator then ends the call
  void Cancel();

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  SessionStream(std::shared_ptr<grpc::Channel> channel, std::shared_ptr<SessionHandler> handler);
  void Step();  // begins the next write, if none is under way

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Aggregator::Stub> stub_;
  grpc::ClientContext context_;
  v1::SessionResponse response_;  // of the read under way

  mutable std::mutex mu_;  // guards everything below
  std::shared_ptr<SessionHandler> handler_;
  std::shared_ptr<SessionStream> self_;
  std::deque<v1::SessionRequest> queue_;  // the front one is being written while writing_
  bool writing_ = false;
  bool open_ = false;    // writes may be started: the hold is in place
  bool broken_ = false;  // a write has failed: the call is ending
  bool want_finish_ = false;
  bool finishing_ = false;  // WritesDone has been started
};

}  // namespace tributary::client::internal
