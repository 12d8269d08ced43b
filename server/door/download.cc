// One download: header, the bytes of the model or of the steps to it in place, trailer.
#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "server/door/reactors.h"
#include "server/downlink.h"

namespace tributary::server::door {
namespace {
constexpr size_t kDataBytes = size_t{1} << 20;
}

DownloadReactor* DownloadReactor::Start(DoorState* door, grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request) {
  v1::DownloadRequest wanted;
  grpc::ByteBuffer copy = *request;  // shares the slices
  auto slices = MessageSlices::From(&copy);
  bool parsed = false;
  if (slices.ok()) {
    std::string text((*slices)->bytes().size(), '\0');
    ByteCursor((*slices)->bytes()).Read(text.data(), text.size());
    parsed = wanted.ParseFromString(text);
  }
  auto model = door->shelf->Current();
  const bool there =
      parsed && model != nullptr && (wanted.sha256().empty() || wanted.sha256() == model->sha256);
  auto reactor = std::shared_ptr<DownloadReactor>(
      new DownloadReactor(door, context, there ? model : nullptr, wanted));
  reactor->self_ = reactor;
  if (!there) {
    reactor->End(parsed
                     ? grpc::Status(grpc::StatusCode::NOT_FOUND,
                                    "that model is not the current one; wait for the next task")
                     : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not a DownloadRequest"));
    HandOver(reactor.get());  // nothing begins before gRPC has been given it
    return reactor.get();
  }
  door->watch.Add(reactor);
  v1::DownloadResponse head;
  *head.mutable_header() = reactor->header_;
  reactor->message_ = ToByteBuffer(head);
  HandOver(&reactor->message_);
  reactor->StartWrite(&reactor->message_);
  return reactor.get();
}

DownloadReactor::DownloadReactor(DoorState* door, grpc::CallbackServerContext* context,
                                 std::shared_ptr<const ModelVersion> model,
                                 const v1::DownloadRequest& wanted)
    : door_(door), context_(context), model_(std::move(model)), id_(wanted.id()) {
  if (model_ == nullptr) return;
  // What was never published, or is too old, is no step's base: the whole model it is.
  const auto steps = StepsFrom(*model_, wanted.held_sha256());
  header_.set_version(model_->version);
  header_.set_sha256(model_->sha256);
  header_.set_layout_hash(model_->layout->hash());
  if (steps.empty()) {
    header_.set_bytes(model_->bytes.size());
    data_.emplace_back(model_->bytes);
    return;
  }
  header_.set_bytes(ChainBytes(steps));
  *header_.mutable_chain() = ChainMessage(steps, /*names=*/false);
  for (const auto& step : steps) data_.emplace_back(step->bytes);
}

void DownloadReactor::OnWriteDone(bool ok) {
  const Reaction in_order(&message_, this);
  last_progress_ = absl::ToInt64Nanoseconds(MonotonicNow());
  if (!ok) {
    End(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
    return;
  }
  Next();
}

// The current model lies here anyway. An old one has no other use than this: whoever takes nothing
// of it, download after download, would keep one for each round.
void DownloadReactor::CutIfSilent(absl::Duration now, const Patience& patience) {
  if (now - absl::Nanoseconds(last_progress_.load()) <= patience.progress) return;
  if (door_->shelf->Current() == model_) return;
  {
    std::lock_guard lock(mu_);
    if (ended_) return;
    ++cutting_;
  }
  context_->TryCancel();  // ends the write that hangs
  grpc::Status status;
  {
    std::lock_guard lock(mu_);
    if (--cutting_ > 0 || !end_.has_value()) return;
    ended_ = true;
    status = *std::exchange(end_, std::nullopt);
  }
  HandOver(this);
  Finish(status);
}

void DownloadReactor::End(const grpc::Status& status) {
  {
    std::lock_guard lock(mu_);
    if (cutting_ > 0) {
      end_ = status;
      return;
    }
    ended_ = true;
  }
  HandOver(this);
  Finish(status);
}

void DownloadReactor::OnDone() {
  TakeOver(this);
  door_->watch.Remove(this);
  HandOver(door_);
  // The last thing: this may destroy the reactor.
  const std::shared_ptr<DownloadReactor> self = std::move(self_);
}

void DownloadReactor::Next() {
  PiecedBytes message;
  while (next_ < data_.size() && message.size() < kDataBytes) {
    ByteSpan& left = data_[next_];
    const ByteSpan piece = left.first(std::min(left.size(), kDataBytes - message.size()));
    message.Append(piece);
    left = left.subspan(piece.size());
    if (left.empty()) ++next_;
  }
  if (message.size() > 0) {
    // A whole model's is known; it is much the longer to compute.
    if (header_.chain().steps_size() > 0) {
      for (const ByteSpan piece : message.pieces()) crc32c_ = ExtendCrc32c(crc32c_, piece);
    }
    message_ = DataMessage(message, model_);
    door_->counters.download_bytes += message.size();
    HandOver(&message_);
    StartWrite(&message_);
    return;
  }
  if (stage_ == Stage::kData) {
    stage_ = Stage::kFinish;
    const bool whole = header_.chain().steps_size() == 0;
    v1::DownloadResponse tail;
    tail.mutable_trailer()->set_bytes(header_.bytes());
    tail.mutable_trailer()->set_crc32c(whole ? model_->crc32c : crc32c_);
    message_ = ToByteBuffer(tail);
    HandOver(&message_);
    StartWrite(&message_);
    return;
  }
  door_->counters.downloads += 1;
  door_->counters.saved_bytes += model_->bytes.size() - header_.bytes();
  const absl::Duration took = MonotonicNow() - started_;
  door_->counters.download_nanos += absl::ToInt64Nanoseconds(took);
  door_->handler->OnDownloaded(id_, took);
  End(grpc::Status::OK);
}

}  // namespace tributary::server::door
