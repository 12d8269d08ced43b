// The reactor of an upload.
#include "client/internal/upload_call.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "base/hand_over.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"

namespace tributary::client::internal {
namespace {

constexpr char kMethod[] = "/tributary.v1.Aggregator/Upload";

// The caller's, who waits for done() and frees it: never on gRPC's threads (see Mailbox::Retire).
class UploadReactor final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  UploadReactor(const std::shared_ptr<grpc::Channel>& channel, const v1::UploadHeader& header,
                const EncodedDelta& delta, std::shared_ptr<Mailbox> mailbox)
      : stub_(channel), messages_(header, delta), mailbox_(std::move(mailbox)) {}

  void Start() {
    {
      std::lock_guard lock(mu_);
      stub_.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
      HandOver(&answer_);
      StartRead(&answer_);
      WriteNext();
    }
    HandOver(this);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  bool done() const { return done_.load(std::memory_order_acquire); }
  UploadAttempt Take() {
    std::lock_guard lock(mu_);
    return {std::move(response_), messages_.segment_bytes()};
  }

  void OnWriteDone(bool ok) override {
    const Reaction in_order(&message_, this);
    std::lock_guard lock(mu_);
    if (ok && !messages_.done()) WriteNext();  // not ok: the answer, or the error, comes by itself
  }
  void OnReadDone(bool ok) override {
    const Reaction in_order(&answer_, this);
    std::lock_guard lock(mu_);
    if (!ok) return;
    v1::UploadResponse response;
    const absl::Status parsed = ParseMessage(answer_, &response);
    if (parsed.ok()) {
      response_ = std::move(response);
    } else {
      response_ = parsed;
    }
  }
  void OnDone(const grpc::Status& status) override {
    TakeOver(this);
    const std::shared_ptr<Mailbox> mailbox = mailbox_;
    {
      std::lock_guard lock(mu_);
      if (!status.ok()) {
        response_ = absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                 status.error_message());
      }
    }
    done_.store(true, std::memory_order_release);  // from here on this object may be gone
    mailbox->Poke();
  }

 private:
  void WriteNext() {
    message_ = messages_.Next();
    HandOver(&message_);
    if (messages_.done()) {
      StartWriteLast(&message_, grpc::WriteOptions());
    } else {
      StartWrite(&message_);
    }
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  mutable std::mutex mu_;  // orders gRPC's threads and the caller
  UploadMessages messages_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
  const std::shared_ptr<Mailbox> mailbox_;
  absl::StatusOr<v1::UploadResponse> response_ =
      absl::UnavailableError("the aggregator ended an upload without an answer");
  std::atomic<bool> done_{false};
};

}  // namespace

UploadAttempt Upload(const std::shared_ptr<grpc::Channel>& channel, const v1::UploadHeader& header,
                     const EncodedDelta& delta, const std::shared_ptr<Mailbox>& mailbox,
                     const std::function<bool()>& interrupted) {
  UploadReactor reactor(channel, header, delta, mailbox);
  reactor.Start();
  mailbox->Wait(absl::InfiniteDuration(), [&] { return reactor.done() || interrupted(); });
  if (!reactor.done()) {
    reactor.Cancel();
    mailbox->Wait(absl::InfiniteDuration(), [&] { return reactor.done(); });
  }
  return reactor.Take();
}

}  // namespace tributary::client::internal
