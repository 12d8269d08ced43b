// Keeps a session with one of the endpoints: joins, sends heartbeats, reconnects, gives up. Runs on
// gRPC's threads, so it goes on while Run's thread trains.
//
//   Waiting --due--> Connecting --Joined--> Up --lost, GOING_AWAY, MoveOn--> Waiting
//                    Connecting --failed, Refused with a time--> Waiting
//   any --Stop, Refused for good, nothing answers--> Closed (the mailbox gets the end)
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "absl/time/time.h"
#include "base/tls_probe.h"
#include "client/client.h"
#include "client/internal/endpoint_rotation.h"
#include "client/internal/mailbox.h"
#include "client/internal/session_stream.h"
#include "grpcpp/alarm.h"

namespace tributary::client::internal {

// Thread-safe. What comes is left in the mailbox.
class Connection final : public SessionHandler, public std::enable_shared_from_this<Connection> {
 public:
  static std::shared_ptr<Connection> Create(const ClientOptions& options,
                                            std::shared_ptr<Mailbox> mailbox);
  void Start();
  // Dropped where no session is up: whoever is asked anew answers anew.
  void Send(v1::SessionRequest message);
  // Leaves the present aggregator, not to come back before `retry_after`.
  void MoveOn(absl::Duration retry_after);
  // Says goodbye (`leave`, where not empty) and ends. Waits for the goodbye to arrive, a second at
  // most, and for gRPC to be done with this client. Not from gRPC's threads.
  void Close(const std::string& leave);

  void OnStreamMessage(const SessionStream* stream, v1::SessionResponse message) override;
  void OnStreamEnd(std::shared_ptr<SessionStream> stream, const absl::Status& why) override;

 private:
  enum class State { kWaiting, kConnecting, kUp, kClosed };
  Connection(const ClientOptions& options, std::shared_ptr<Mailbox> mailbox);

  void Connect();
  void OnDue(uint64_t attempt);
  void OnConnectTimeout(uint64_t attempt);
  void Beat(uint64_t attempt);
  absl::Status Reconnect(bool was_up, const absl::Status& why);             // not OK: the end
  void SetTimer(absl::Duration after, void (Connection::*then)(uint64_t));  // mu_ held
  void Joined(const SessionStream* stream, v1::Joined joined);
  void Refused(const SessionStream* stream, const v1::Refused& refused);
  void Stopped(const SessionStream* stream, const v1::Stop& stop);
  void End(absl::Status status);  // closes and tells the mailbox
  bool Current(const SessionStream* stream) const;
  v1::SessionRequest JoinRequest() const;
  const std::string& endpoint() const { return options_.endpoints[rotation_.current()]; }

  const ClientOptions options_;
  const std::shared_ptr<Mailbox> mailbox_;

  mutable std::mutex
      mu_;  // guards everything below; not held while a stream or the mailbox is called
  State state_ = State::kWaiting;
  EndpointRotation rotation_;
  PhiloxStream spread_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<SessionStream> stream_;
  std::unique_ptr<grpc::Alarm> timer_;
  uint64_t attempt_ = 0;        // counts connection attempts; an old timer knows itself by it
  absl::Duration last_answer_;  // monotonic
  absl::Duration retry_after_;  // what the aggregator that sends us away asked for
  absl::Duration heartbeat_;
  TlsSuspicion suspicion_;
  bool stream_joined_ = false;
  bool closed_ = false;  // Close has been called
};

}  // namespace tributary::client::internal
