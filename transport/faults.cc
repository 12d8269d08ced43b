// The fault decorators.
#include "transport/faults.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/status.h"

namespace tributary::transport {
namespace {

using Clock = std::chrono::steady_clock;

class FaultyLink final : public Link {
 public:
  FaultyLink(std::unique_ptr<Link> inner, const Faults& faults)
      : faults_(faults), inner_(std::move(inner)) {}

  absl::StatusOr<Chunk> Borrow(Deadline deadline) override {
    if (faults_.cut_after.has_value() && sent_ >= *faults_.cut_after) {
      Cancel(absl::StrCat("fault injection: cut after ", *faults_.cut_after, " chunks"));
    }
    if (faults_.stall_after.has_value() && sent_ >= *faults_.stall_after) {
      RETURN_IF_ERROR(Pause(Clock::time_point::max(), deadline));
    }
    if (faults_.delay > absl::ZeroDuration()) {
      RETURN_IF_ERROR(Pause(Clock::now() + absl::ToChronoNanoseconds(faults_.delay), deadline));
    }
    RETURN_IF_ERROR(Pause(SlotInRate(), deadline));
    return inner_->Borrow(deadline);
  }

  absl::Status Send(Chunk chunk) override {
    ChunkRecord record{.sent = true, .sequence = 0, .bytes = chunk.size(), .tag = chunk.tag()};
    RETURN_IF_ERROR(inner_->Send(std::move(chunk)));
    record.sequence = sent_++;
    Spend(record.bytes);
    if (faults_.record) faults_.record(record);
    return absl::OkStatus();
  }

  absl::StatusOr<Chunk> Receive(Deadline deadline) override {
    absl::StatusOr<Chunk> chunk = inner_->Receive(deadline);
    if (chunk.ok() && faults_.record) {
      faults_.record(
          {.sent = false, .sequence = received_++, .bytes = chunk->size(), .tag = chunk->tag()});
    }
    return chunk;
  }

  absl::Status Close(Deadline deadline) override { return inner_->Close(deadline); }
  void Cancel(const std::string& why) override {
    inner_->Cancel(why);
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }
  absl::Status status() const override { return inner_->status(); }
  size_t chunk_bytes() const override { return inner_->chunk_bytes(); }
  std::string peer() const override { return inner_->peer(); }
  std::string hello() const override { return inner_->hello(); }
  std::string_view transport() const override { return inner_->transport(); }
  LinkStats stats() const override { return inner_->stats(); }

 private:
  // Waits until `at`. A failure from the peer's side rings no bell here, so it is looked for now
  // and then.
  absl::Status Pause(Clock::time_point at, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    while (Clock::now() < at) {
      RETURN_IF_ERROR(inner_->status());
      if (deadline.Expired()) {
        return absl::DeadlineExceededError(
            absl::StrCat("peer \"", inner_->peer(),
                         "\": fault injection held the chunk back until the deadline"));
      }
      Clock::time_point wake = std::min(at, Clock::now() + std::chrono::milliseconds(20));
      if (!deadline.infinite()) wake = std::min(wake, deadline.at());
      changed_.wait_until(lock, wake);
    }
    return absl::OkStatus();
  }

  Clock::time_point SlotInRate() {
    std::lock_guard lock(mutex_);
    return free_at_;
  }
  void Spend(size_t bytes) {
    if (faults_.bytes_per_s <= 0) return;
    std::lock_guard lock(mutex_);
    const std::chrono::duration<double> time(static_cast<double>(bytes) / faults_.bytes_per_s);
    free_at_ = std::max(free_at_, Clock::now()) + std::chrono::ceil<std::chrono::nanoseconds>(time);
  }

  const Faults faults_;
  std::atomic<uint64_t> sent_ = 0;
  std::atomic<uint64_t> received_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point free_at_{};
  const std::unique_ptr<Link> inner_;
};

LinkOptions WithDamage(const LinkOptions& options, const Faults& faults) {
  LinkOptions result = options;
  if (!faults.corrupt_chunk.has_value()) return result;
  result.damage = [next = options.damage, chunk = *faults.corrupt_chunk,
                   byte = faults.corrupt_byte](uint64_t sequence, uint8_t* payload, size_t bytes) {
    if (next) next(sequence, payload, bytes);
    if (sequence == chunk && byte < bytes) payload[byte] ^= 0x10;
  };
  return result;
}

class FaultyListener final : public Listener {
 public:
  FaultyListener(std::unique_ptr<Listener> inner, const Faults& faults)
      : inner_(std::move(inner)), faults_(faults) {}
  absl::StatusOr<std::unique_ptr<Link>> Accept(Deadline deadline) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Link> link, inner_->Accept(deadline));
    return MakeFaultyLink(std::move(link), faults_);
  }
  std::string address() const override { return inner_->address(); }
  void Cancel() override { inner_->Cancel(); }
  uint64_t refused() const override { return inner_->refused(); }

 private:
  const std::unique_ptr<Listener> inner_;
  const Faults faults_;
};

class FaultyFabric final : public Fabric {
 public:
  FaultyFabric(std::unique_ptr<Fabric> inner, const Faults& faults)
      : inner_(std::move(inner)), faults_(faults) {}
  std::string_view name() const override { return inner_->name(); }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   const LinkOptions& options) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                     inner_->Listen(address, WithDamage(options, faults_)));
    return std::make_unique<FaultyListener>(std::move(listener), faults_);
  }
  absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string& address,
                                                const LinkOptions& options) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Link> link,
                     inner_->Connect(address, WithDamage(options, faults_)));
    return MakeFaultyLink(std::move(link), faults_);
  }

 private:
  const std::unique_ptr<Fabric> inner_;
  const Faults faults_;
};

}  // namespace

std::unique_ptr<Fabric> MakeFaultyFabric(std::unique_ptr<Fabric> inner, const Faults& faults) {
  return std::make_unique<FaultyFabric>(std::move(inner), faults);
}

std::unique_ptr<Link> MakeFaultyLink(std::unique_ptr<Link> inner, const Faults& faults) {
  return std::make_unique<FaultyLink>(std::move(inner), faults);
}

}  // namespace tributary::transport
