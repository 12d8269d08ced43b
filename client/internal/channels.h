// gRPC channels to aggregators, with the settings that long-lived sessions and large updates need.
#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/tls.h"
#include "grpcpp/channel.h"

namespace tributary::client::internal {

// `own`: a connection of its own; else channels to one endpoint share one connection in this
// process. `tls` may be null: none.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& endpoint, bool own,
                                           absl::Duration connect_timeout, const TlsSettings* tls);

}  // namespace tributary::client::internal
