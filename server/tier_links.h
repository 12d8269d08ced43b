// The parent's side of the fabric: accepts children's links, sends models down, receives partial
// sums.
//
// Threads: one to accept, one to end links, two a link. Handler methods are called from the link's
// threads; SendModel and Decide from any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config.h"
#include "server/downlink.h"
#include "server/fabrics.h"
#include "server/model_version.h"
#include "transport/link.h"
#include "tributary/v1/tier_service.pb.h"

namespace tributary::server {

class PartialFold;

// One partial sum on its way in. Its answers may come from any thread, also when its link is gone.
class IncomingPartial {
 public:
  virtual ~IncomingPartial() = default;
  virtual const v1::PartialSumHeader& header() const = 0;
  // The answer to OnPartialStart: its chunks go into `fold`, after those that are there already. Or
  // one of the next two.
  virtual void Admit(std::shared_ptr<PartialFold> fold) = 0;
  // It does not count (any more), and the child is told why; what still comes is drained.
  virtual void Refuse(const std::string& why) = 0;
  // It is whole and counts.
  virtual void Taken() = 0;
  uint64_t ticket = 0;  // the handler's own
};

// Calls about one child come in order, over all its links.
class TierHandler {
 public:
  virtual ~TierHandler() = default;
  // The receiver waits for the answer, and the child with it.
  virtual void OnPartialStart(std::shared_ptr<IncomingPartial> partial) = 0;
  // All its chunks are in its fold, and their digest is right.
  virtual void OnPartialComplete(std::shared_ptr<IncomingPartial> partial) = 0;
  // Its link broke, or it was left off (why names the peer): it may be gone on with.
  virtual void OnPartialBroken(std::shared_ptr<IncomingPartial> partial, absl::Status why) = 0;
  // What this child sent is not valid, and nothing that it has begun may count. `partial` is null
  // where it was not even a header.
  virtual void OnPartialBad(const std::string& id, uint64_t epoch,
                            std::shared_ptr<IncomingPartial> partial, absl::Status why) = 0;
  // The child has all of a model.
  virtual void OnModelSent(const std::string& /*id*/, absl::Duration /*took*/) {}
};

class TierLinks {
 public:
  // As a root's.
  static absl::StatusOr<std::unique_ptr<TierLinks>> Start(const TransportConfig& config,
                                                          const std::string& node_name,
                                                          TierHandler* handler);
  // The same over this fabric.
  static absl::StatusOr<std::unique_ptr<TierLinks>> StartOver(FabricChoice choice,
                                                              const TransportConfig& config,
                                                              const std::string& node_name,
                                                              TierHandler* handler);
  virtual ~TierLinks() = default;                            // cancels all links, joins all threads
  virtual std::string kind() const = 0;                      // as configured
  virtual const std::vector<LinkPlace>& places() const = 0;  // what children are told
  // The transports of the children's links, "shm" or "shm+tcp"; of the last one where all have
  // ended; empty before the first.
  virtual std::string used() const = 0;
  // The child has a session, of this epoch: its links are taken until Drop, all others are dropped.
  virtual void Expect(const std::string& id, uint64_t epoch) = 0;
  // Sends the model to the child of this epoch as soon as its link is up, as steps where some lead
  // to it from what the child holds; a newer model replaces one not yet begun. Where the link
  // breaks, it is sent over the next one, unless the child says there that it holds it.
  // Nothing for a child that is not expected.
  virtual void SendModel(const std::string& id, uint64_t epoch,
                         std::shared_ptr<const ModelVersion> model) = 0;
  // Forgets the child and cuts its link.
  virtual void Drop(const std::string& id, uint64_t epoch) = 0;
  virtual transport::LinkStats stats() const = 0;  // over all links, ended ones too
  virtual SentBytes models_sent() const = 0;       // likewise
};

}  // namespace tributary::server
