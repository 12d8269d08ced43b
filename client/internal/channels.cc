// Channel settings.
#include "client/internal/channels.h"

#include <algorithm>

#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace tributary::client::internal {

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& endpoint, bool own,
                                           absl::Duration connect_timeout, const TlsSettings* tls) {
  const int connect_ms = static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(connect_timeout), 20, 600'000));
  grpc::ChannelArguments args;
  // The contract allows 2 MiB a message; the margin is for whoever measures with its envelope.
  args.SetMaxReceiveMessageSize(4 << 20);
  args.SetMaxSendMessageSize(4 << 20);
  // A NAT forgets a quiet connection after minutes and a training may be longer; the aggregator
  // permits 10 s.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  // Retries are ours (an update must be offered whole); gRPC's would keep copies of what was sent.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // The backoff is ours too: gRPC's own must not refuse an attempt that the rotation thinks due.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, connect_ms);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, std::max(connect_ms, 20));
  // What is set outside (proxy variables, DNS service records) does not steer the connection.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  if (own) args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (tls == nullptr)
    return grpc::CreateCustomChannel(endpoint, grpc::InsecureChannelCredentials(), args);
  const std::string& name = tls->options().server_name;
  if (!name.empty()) args.SetSslTargetNameOverride(name);
  return grpc::CreateCustomChannel(endpoint, tls->credentials(), args);
}

}  // namespace tributary::client::internal
