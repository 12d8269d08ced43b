// One child's link at its parent: takes partial sums in, sends models and answers down.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/model_version.h"
#include "server/partial_fold.h"
#include "server/tier_links.h"
#include "server/tier_stream.h"
#include "transport/link.h"
#include "tributary/v1/tier_service.pb.h"

namespace tributary::server {

// What waits to go down a link. Shared with the partial sums that came over it: they may be
// answered when it is gone.
class TierOutbox {
 public:
  void Put(std::shared_ptr<const ModelVersion> model);  // replaces one that waits
  void Put(v1::PartialSumAnswer answer);
  void Close();  // wakes Next
  struct Item {
    std::shared_ptr<const ModelVersion> model;  // one of the two
    std::optional<v1::PartialSumAnswer> answer;
  };
  // Blocks; answers first. Nullopt once closed, or where the child lets too many answers pile up.
  std::optional<Item> Next();

 private:
  std::mutex mu_;
  std::condition_variable wake_;
  bool closed_ = false;  // guarded by mu_, as all below
  std::deque<v1::PartialSumAnswer> answers_;
  std::shared_ptr<const ModelVersion> model_;
};

// Model bytes that went down all links, and what steps in place of models have saved.
struct ModelCounters {
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> saved{0};
};

// Threads: two of its own. Destroying it cancels the link and joins them; by then the handler has
// been told of everything that came over it.
class TierChild {
 public:
  // `ended` is called once over() is true, from a thread of its own: not a place to destroy it.
  TierChild(std::unique_ptr<transport::Link> link, v1::TierHello hello, TierHandler* handler,
            absl::Duration patience, ModelCounters* counters, std::function<void()> ended);
  ~TierChild();

  const v1::TierHello& hello() const { return hello_; }
  bool over() const { return over_.load(); }
  std::string transport() const { return std::string(link_->transport()); }
  transport::LinkStats stats() const { return link_->stats(); }
  void SendModel(std::shared_ptr<const ModelVersion> model) { outbox_->Put(std::move(model)); }
  void Cancel(const std::string& why);

 private:
  class Incoming;

  void Receive();
  absl::Status ReceiveUntilError();
  absl::StatusOr<transport::Chunk> Next();
  absl::Status Start();
  void Take(const transport::Chunk& chunk);
  absl::Status TakeData(const transport::Chunk& chunk);
  // The stream is senseless, or its content is not valid: what came of it does not count.
  void Bad(const absl::Status& why);
  void SendDown();
  absl::Status SendModelNow(const ModelVersion& model);

  const std::unique_ptr<transport::Link> link_;
  const v1::TierHello hello_;
  TierHandler* const handler_;
  const absl::Duration patience_;
  ModelCounters* const counters_;
  const std::function<void()> ended_;
  const std::shared_ptr<TierOutbox> outbox_ = std::make_shared<TierOutbox>();
  // The receiving thread's own.
  StreamReader reader_;
  std::shared_ptr<Incoming> incoming_;  // whose data is taken
  bool data_began_ = false;
  // The sending thread's own: what steps can be taken from, the child's own word, then what this
  // link has brought it. "": models go down whole.
  std::string held_sha256_;

  std::mutex mu_;
  bool cancelled_ = false;             // guarded by mu_
  std::shared_ptr<Incoming> waiting_;  // guarded by mu_
  std::atomic<bool> over_{false};
  std::thread receiver_, sender_;
};

}  // namespace tributary::server
