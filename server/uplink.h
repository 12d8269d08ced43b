// The child's side towards its parent: a session for control, a link for bulk, both kept up by
// themselves.
//
// Threads: four of its own. Handler methods are called from them and must not block; the others are
// called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aggregation/accumulator.h"
#include "base/tls.h"
#include "server/config.h"
#include "server/model_version.h"
#include "transport/link.h"
#include "tributary/v1/client_service.pb.h"
#include "tributary/v1/tier_service.pb.h"

namespace tributary::server {

class UplinkHandler {
 public:
  virtual ~UplinkHandler() = default;
  virtual void OnParentJoined(v1::Joined joined) = 0;  // again after each reconnection
  virtual void OnParentTask(v1::Task task) = 0;
  virtual void OnParentOutcome(v1::Outcome outcome) = 0;
  virtual void OnParentStop(v1::Stop stop) = 0;          // not for GOING_AWAY: that is reconnected
  virtual void OnParentGoingAway() {}                    // told before it is
  virtual void OnParentRefused(std::string reason) = 0;  // for good
  virtual void OnParentCollect(uint64_t /*round*/) {}    // the sum is wanted
  virtual void OnParentClaims(v1::ClaimsAnswer answer) = 0;
  virtual void OnParentVerdicts(v1::Verdicts verdicts) = 0;
  virtual void OnModel(std::shared_ptr<const ModelVersion> model) = 0;
  // The parent has all of a partial sum, or refuses it, or the last try failed.
  virtual void OnForwarded(uint64_t round, absl::Status status, double seconds) = 0;
  // The sum of a Forward that was given up while it ran is not read any more; as Abandon named it.
  virtual void OnReleased(uint64_t forward) = 0;
};

// What [tls] says of the way to the parent: nothing without a parent_ca.
std::optional<TlsClientOptions> TlsToParent(const TlsConfig& tls);

class Uplink {
 public:
  struct Options {
    std::string id;
    uint64_t epoch = 0;
    std::vector<std::string> parents;  // "host:port", in order of preference
    TransportConfig transport;
    std::optional<TlsClientOptions> tls = std::nullopt;  // of the sessions; links have none
  };
  // Links go over `fabric`, of the kind of options.transport.
  static std::unique_ptr<Uplink> Start(const Options& options,
                                       std::unique_ptr<transport::Fabric> fabric,
                                       UplinkHandler* handler);
  virtual ~Uplink() = default;  // leaves; joins all threads

  virtual void SetCensus(uint64_t clients,
                         uint64_t examples) = 0;  // told to the parent at once when it changed
  // Asynchronous runs: so many clients' updates are in the sum for `round`; told at once.
  virtual void SetBuffered(uint64_t round, uint64_t clients) = 0;
  virtual std::string transport() = 0;  // of the link to the parent, or the last one; "" before it
  // Segments that this side has sent again on links to the parent, ended ones too.
  virtual uint64_t retransmits() = 0;
  virtual void SetHeld(const std::string& sha256) = 0;  // the model held, for the next Join
  // These wait for nobody: a parent that does not read them loses the session.
  virtual void SendReport(const v1::Report& report) = 0;
  virtual void SendClaims(const v1::Claims& claims) = 0;
  virtual void SendInquiry(const v1::Inquiry& inquiry) = 0;
  // Streams the sum up, once the link is there; an earlier Forward is given up. `sum` must not
  // change until OnForwarded, or as Abandon says. header.packed_bytes is filled in here.
  virtual void Forward(v1::PartialSumHeader header, const aggregation::ExactAccumulator* sum) = 0;
  // Gives up the Forward that waits or runs; OnForwarded does not come for it. Does not block. 0:
  // no sum is being read. Else the number of the one that still reads: OnReleased names it soon.
  virtual uint64_t Abandon() = 0;
};

}  // namespace tributary::server
