// The reactor of a download: bytes go from gRPC's slices straight into the model.
#include "client/internal/download_call.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "aggregation/model_delta.h"
#include "base/checksum.h"
#include "base/hand_over.h"
#include "base/status.h"
#include "client/internal/framing.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"

namespace tributary::client::internal {
namespace {

constexpr char kMethod[] = "/tributary.v1.Aggregator/Download";

// What has come, checked as it comes but for the SHA-256.
class ModelReceipt {
 public:
  explicit ModelReceipt(const DownloadTarget& target) : target_(target) {}

  absl::Status Take(const DownloadMessage& message) {
    if (message.header.has_value()) RETURN_IF_ERROR(TakeHeader(*message.header));
    if (message.data.size() > 0) RETURN_IF_ERROR(TakeData(message.data));
    if (message.trailer.has_value()) RETURN_IF_ERROR(TakeTrailer(*message.trailer));
    return absl::OkStatus();
  }
  bool complete() const { return trailer_seen_; }
  Downloaded Release() && { return {std::move(bytes_), std::move(chain_)}; }

 private:
  absl::Status TakeHeader(const v1::ModelHeader& header) {
    if (header_seen_) return absl::DataLossError("the model has a second header");
    header_seen_ = true;
    if (header.sha256() != target_.request.sha256()) {
      return absl::DataLossError("the aggregator sends another model than was asked for");
    }
    if (header.layout_hash() != target_.layout->hash()) {
      return absl::DataLossError("the model has another layout than the run");
    }
    if (header.chain().steps_size() > 0) {
      RETURN_IF_ERROR(CheckChain(header));
      chain_ = header.chain();
    } else if (header.bytes() != target_.layout->model_bytes()) {
      return absl::DataLossError(absl::StrCat("the model has ", header.bytes(),
                                              " bytes, by the layout it has ",
                                              target_.layout->model_bytes()));
    }
    expected_ = header.bytes();
    bytes_.reserve(expected_);
    return absl::OkStatus();
  }
  absl::Status CheckChain(const v1::ModelHeader& header) const {
    if (target_.request.held_sha256().empty() ||
        header.chain().base_sha256() != target_.request.held_sha256()) {
      return absl::DataLossError("the aggregator sends steps from a model that is not held");
    }
    if (aggregation::ChainFits(*target_.layout, header.chain(), header.bytes())) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat(
        "the ", header.chain().steps_size(), " steps to the model have not the ", header.bytes(),
        " bytes that are announced, or no fewer than its ", target_.layout->model_bytes()));
  }
  absl::Status TakeData(const PiecedBytes& data) {
    if (!header_seen_ || trailer_seen_) return absl::DataLossError("model data out of order");
    if (data.size() > expected_ - bytes_.size()) {
      return absl::DataLossError(absl::StrCat("the model goes on after its ", expected_, " bytes"));
    }
    for (const ByteSpan piece : data.pieces()) {
      crc32c_ = ExtendCrc32c(crc32c_, piece);
      bytes_.insert(bytes_.end(), piece.begin(), piece.end());
    }
    return absl::OkStatus();
  }
  absl::Status TakeTrailer(const v1::ModelTrailer& trailer) {
    if (!header_seen_ || trailer_seen_) return absl::DataLossError("a model trailer out of order");
    trailer_seen_ = true;
    if (trailer.bytes() != bytes_.size() || bytes_.size() != expected_) {
      return absl::DataLossError(absl::StrCat("of the model's ", expected_, " bytes, ",
                                              bytes_.size(), " came, and its trailer says ",
                                              trailer.bytes()));
    }
    if (trailer.crc32c() != crc32c_) {
      return absl::DataLossError("the model's CRC32C is wrong: it was damaged on the way");
    }
    return absl::OkStatus();
  }

  const DownloadTarget& target_;
  uint64_t expected_ = 0;  // as announced, and checked
  v1::DeltaChain chain_;
  std::vector<uint8_t> bytes_;
  uint32_t crc32c_ = 0;
  bool header_seen_ = false;
  bool trailer_seen_ = false;
};

// The caller's, who waits for done() and frees it: never on gRPC's threads (see Mailbox::Retire).
// `target` and `received_bytes` outlive it.
class DownloadReactor final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  DownloadReactor(const std::shared_ptr<grpc::Channel>& channel, const DownloadTarget& target,
                  std::shared_ptr<Mailbox> mailbox, std::atomic<uint64_t>* received_bytes)
      : stub_(channel),
        request_(SerializeMessage(target.request)),
        receipt_(target),
        mailbox_(std::move(mailbox)),
        received_bytes_(received_bytes) {}

  void Start() {
    {
      std::lock_guard lock(mu_);
      stub_.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
      StartWriteLast(&request_, grpc::WriteOptions());
      HandOver(&message_);
      StartRead(&message_);
    }
    HandOver(this);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  bool done() const { return done_.load(std::memory_order_acquire); }
  absl::StatusOr<Downloaded> Take() {
    std::lock_guard lock(mu_);
    RETURN_IF_ERROR(status_);
    return std::move(receipt_).Release();
  }

  void OnReadDone(bool ok) override {
    const Reaction in_order(&message_, this);
    std::lock_guard lock(mu_);
    if (!ok) return;
    if (status_.ok()) status_ = TakeMessage();
    message_.Clear();
    if (!status_.ok()) context_.TryCancel();  // the read below then ends
    HandOver(&message_);
    StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    TakeOver(this);
    const std::shared_ptr<Mailbox> mailbox = mailbox_;
    {
      std::lock_guard lock(mu_);
      if (status_.ok() && !status.ok()) {
        status_ = absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                               status.error_message());
      }
      if (status_.ok() && !receipt_.complete()) {
        status_ = absl::DataLossError("the model ended before its trailer");
      }
    }
    done_.store(true, std::memory_order_release);  // from here on this object may be gone
    mailbox->Poke();
  }

 private:
  absl::Status TakeMessage() {
    ASSIGN_OR_RETURN(const DownloadMessage message, ParseDownloadMessage(message_));
    received_bytes_->fetch_add(message.data.size(), std::memory_order_relaxed);
    return receipt_.Take(message);
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  mutable std::mutex mu_;  // orders gRPC's threads and the caller
  grpc::ByteBuffer request_;
  grpc::ByteBuffer message_;
  ModelReceipt receipt_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::atomic<uint64_t>* const received_bytes_;
  absl::Status status_;
  std::atomic<bool> done_{false};
};

}  // namespace

absl::StatusOr<Downloaded> Download(const std::shared_ptr<grpc::Channel>& channel,
                                    const DownloadTarget& target,
                                    const std::shared_ptr<Mailbox>& mailbox,
                                    const std::function<bool()>& interrupted,
                                    std::atomic<uint64_t>* received_bytes) {
  DownloadReactor reactor(channel, target, mailbox, received_bytes);
  reactor.Start();
  mailbox->Wait(absl::InfiniteDuration(), [&] { return reactor.done() || interrupted(); });
  if (!reactor.done()) {
    reactor.Cancel();
    mailbox->Wait(absl::InfiniteDuration(), [&] { return reactor.done(); });
  }
  ASSIGN_OR_RETURN(Downloaded got, reactor.Take());
  if (got.chain.steps_size() > 0) return got;
  // Here, not where the bytes come: gRPC's few threads serve every client of the process.
  if (const std::string sha256 = Sha256Of(got.bytes); sha256 != target.request.sha256()) {
    return absl::DataLossError(absl::StrCat("the model's SHA-256 is ",
                                            absl::BytesToHexString(sha256), ", the task says ",
                                            absl::BytesToHexString(target.request.sha256())));
  }
  return got;
}

}  // namespace tributary::client::internal
