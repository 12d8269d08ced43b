// The object behind a Link of any backend: it lives until the Link is gone and the last lease with
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "transport/link.h"

namespace tributary::transport::internal {

// Counted by hand, since leases hold a plain pointer: one for the Link, one for each chunk lent.
class LinkCore : public ChunkOwner {
 public:
  virtual absl::StatusOr<Chunk> Borrow(Deadline deadline) = 0;
  virtual absl::Status Send(Chunk chunk) = 0;
  virtual absl::StatusOr<Chunk> Receive(Deadline deadline) = 0;
  virtual absl::Status Close(Deadline deadline) = 0;
  virtual void Cancel(const std::string& why) = 0;
  virtual absl::Status status() const = 0;
  virtual size_t chunk_bytes() const = 0;
  virtual std::string peer() const = 0;
  virtual std::string hello() const = 0;
  virtual std::string_view transport() const = 0;
  virtual LinkStats stats() const = 0;
  // The Link is being destroyed: cancels, and returns when no thread of the backend runs any more.
  virtual void Shutdown() = 0;

  void Ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  std::atomic<int64_t> references_{1};
};

// The Link that owns the first reference.
class CoreLink final : public Link {
 public:
  explicit CoreLink(LinkCore* core) : core_(core) {}
  ~CoreLink() override {
    core_->Shutdown();
    core_->Unref();
  }
  absl::StatusOr<Chunk> Borrow(Deadline deadline) override { return core_->Borrow(deadline); }
  absl::Status Send(Chunk chunk) override { return core_->Send(std::move(chunk)); }
  absl::StatusOr<Chunk> Receive(Deadline deadline) override { return core_->Receive(deadline); }
  absl::Status Close(Deadline deadline) override { return core_->Close(deadline); }
  void Cancel(const std::string& why) override { core_->Cancel(why); }
  absl::Status status() const override { return core_->status(); }
  size_t chunk_bytes() const override { return core_->chunk_bytes(); }
  std::string peer() const override { return core_->peer(); }
  std::string hello() const override { return core_->hello(); }
  std::string_view transport() const override { return core_->transport(); }
  LinkStats stats() const override { return core_->stats(); }

 private:
  LinkCore* const core_;
};

}  // namespace tributary::transport::internal
