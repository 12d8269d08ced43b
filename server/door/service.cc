// The gRPC server: the service with raw Upload and Download, health, reflection, channel arguments.
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <cstdlib>

#include "base/status.h"
#include "server/door/reactors.h"
#include "tributary/v1/client_service.grpc.pb.h"

namespace tributary::server {
namespace door {
namespace {

// What a connection reads at once, and so what it holds while it is idle. Twice as much saves a
// sixteenth of the CPU for each byte of an update, and costs half a MB for each upload that waits.
constexpr int kReadChunkBytes = 128 << 10;

// gRPC 1.51 has a way of reading (its experiment "tcp_read_chunks") that does not know
// kReadChunkBytes: a connection that once carried an update keeps a read buffer of 1 MiB or so for
// good, which is memory that grows with the clients. Experiments are only chosen by this variable,
// read when gRPC starts; a user's own choice stands. Releases without it only log its name.
void ChooseReads() {
  static const int once = setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", /*overwrite=*/0);
  (void)once;
}

absl::Duration RealMonotonic() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

std::shared_ptr<grpc::ServerCredentials> CredentialsOf(const TlsConfig& tls) {
  if (tls.cert_pem.empty()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      tls.client_ca_pem.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls.client_ca_pem;
  options.pem_key_cert_pairs.push_back({.private_key = tls.key_pem, .cert_chain = tls.cert_pem});
  return grpc::SslServerCredentials(options);
}

using Base =
    v1::Aggregator::WithCallbackMethod_Session<v1::Aggregator::WithRawCallbackMethod_Upload<
        v1::Aggregator::WithRawCallbackMethod_Download<v1::Aggregator::Service>>>;

class Service final : public Base {
 public:
  explicit Service(DoorState* state) : state_(state) {}
  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* Session(
      grpc::CallbackServerContext* context) override {
    TakeOver(this);
    return SessionReactor::Start(state_, context);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response) override {
    TakeOver(this);
    return UploadReactor::Start(state_, context, response);
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Download(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override {
    TakeOver(this);
    return DownloadReactor::Start(state_, context, request);
  }

 private:
  DoorState* state_;
};

class GrpcFrontDoor final : public FrontDoor {
 public:
  GrpcFrontDoor(const Options& options, FrontDoorHandler* handler, const ModelShelf* shelf)
      : service_(&state_) {
    state_.handler = handler;
    state_.shelf = shelf;
    state_.max_sessions = options.max_sessions;
  }
  ~GrpcFrontDoor() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(const std::string& address, uint64_t window_bytes, const TlsConfig& tls) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, CredentialsOf(tls), &port_);
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(2 << 20);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT,
                               0);  // a port in use is an error, not a share
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES,
                               0);  // NATs need pings; they cost little
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
    // Left to itself, gRPC widens each stream's window to the path's bandwidth-delay product: tens
    // of MB for every upload that waits for its turn. A message that is being read widens its
    // stream's window by its own length, so a narrow one costs no rate on a fast network.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
                               static_cast<int>(window_bytes));
    builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kReadChunkBytes);
    HandOver(&service_);  // gRPC's threads may be there already, for another server of this process
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", address,
                       ": the port is in use or the address is not this host's; "
                       "change [node] listen or stop what uses it",
                       tls.cert_pem.empty() ? ""
                                            : ". Or gRPC does not take the certificate of [tls], "
                                              "then it has said why"));
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  const DoorCounters& counters() const override { return state_.counters; }
  void CutSilent(absl::Duration session, absl::Duration progress) const override {
    state_.watch.CutSilent(MonotonicNow(), {session, progress});
  }
  void Shutdown(absl::Duration grace) override {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(grace));
    server_->Wait();
    TakeOver(&state_);  // each call has handed it over when it was done
    server_.reset();
  }

 private:
  DoorState state_;
  Service service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace

absl::Duration MonotonicNow() { return RealMonotonic(); }

}  // namespace door

void PrepareGrpc() { door::ChooseReads(); }

absl::StatusOr<std::unique_ptr<FrontDoor>> FrontDoor::Start(const Options& options,
                                                            FrontDoorHandler* handler,
                                                            const ModelShelf* shelf) {
  auto out = std::make_unique<door::GrpcFrontDoor>(options, handler, shelf);
  RETURN_IF_ERROR(out->Listen(options.listen, options.stream_window_bytes, options.tls));
  return std::unique_ptr<FrontDoor>(std::move(out));
}

}  // namespace tributary::server
