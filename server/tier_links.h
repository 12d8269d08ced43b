// The parent's side of the fabric: accepts children's links, sends models down, receives partial
// sums.
//
// Threads: one to accept, two a link. Handler methods are called from the link's threads; SendModel
// and Decide from any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "aggregation/fold_pool.h"
#include "server/config.h"
#include "server/downlink.h"
#include "server/fabrics.h"
#include "server/model_version.h"
#include "transport/link.h"
#include "tributary/v1/tier_service.pb.h"

namespace tributary::server {

// One partial sum on its way in.
class IncomingPartial {
 public:
  virtual ~IncomingPartial() = default;
  virtual const v1::PartialSumHeader& header() const = 0;
  // The answer to OnPartialStart: take it in, or drain and drop it. `sum` (for checking chunks)
  // must outlive the receipt.
  virtual void Decide(bool admit, const aggregation::ExactAccumulator* sum) = 0;
  uint64_t ticket = 0;  // the handler's own
  uint64_t reserved_bytes = 0;
};

class TierHandler {
 public:
  virtual ~TierHandler() = default;
  // The receiver waits for Decide: the child is held back by its credits.
  virtual void OnPartialStart(std::shared_ptr<IncomingPartial> partial) = 0;
  virtual void OnPartialComplete(std::shared_ptr<IncomingPartial> partial,
                                 std::shared_ptr<const aggregation::PackedPartial> packed) = 0;
  // The link broke or a chunk was bad (why names the peer).
  virtual void OnPartialBroken(std::shared_ptr<IncomingPartial> partial, absl::Status why) = 0;
};

class TierLinks {
 public:
  static absl::StatusOr<std::unique_ptr<TierLinks>> Start(const TransportConfig& config,
                                                          const std::string& node_name,
                                                          TierHandler* handler);
  virtual ~TierLinks() = default;                            // cancels all links, joins all threads
  virtual std::string kind() const = 0;                      // as configured
  virtual const std::vector<LinkPlace>& places() const = 0;  // what children are told
  // The transports of the children's links, "shm" or "shm+tcp"; of the last one where all have
  // ended; empty before the first.
  virtual std::string used() const = 0;
  // Sends the model to the child of this epoch as soon as its link is up, as steps where some lead
  // to it from what the child holds; a newer model replaces one not yet begun.
  virtual void SendModel(const std::string& id, uint64_t epoch,
                         std::shared_ptr<const ModelVersion> model) = 0;
  // Forgets the child and cuts its link.
  virtual void Drop(const std::string& id, uint64_t epoch) = 0;
  virtual transport::LinkStats stats() const = 0;  // over all links, ended ones too
  virtual SentBytes models_sent() const = 0;       // likewise
};

}  // namespace tributary::server
