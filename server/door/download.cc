// One download: header, the model's bytes in place, trailer.
#include <algorithm>

#include "server/door/reactors.h"

namespace tributary::server::door {
namespace {
constexpr size_t kDataBytes = size_t{1} << 20;
}

DownloadReactor* DownloadReactor::Start(DoorState* door, const grpc::ByteBuffer* request) {
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
  if (!parsed || model == nullptr ||
      (!wanted.sha256().empty() && wanted.sha256() != model->sha256)) {
    auto* reactor = new DownloadReactor(door, nullptr);
    reactor->Finish(
        parsed ? grpc::Status(grpc::StatusCode::NOT_FOUND,
                              "that model is not the current one; wait for the next task")
               : grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "not a DownloadRequest"));
    return reactor;
  }
  auto* reactor = new DownloadReactor(door, model);
  v1::DownloadResponse head;
  head.mutable_header()->set_version(model->version);
  head.mutable_header()->set_sha256(model->sha256);
  head.mutable_header()->set_bytes(model->bytes.size());
  head.mutable_header()->set_layout_hash(model->layout->hash());
  reactor->message_ = ToByteBuffer(head);
  reactor->StartWrite(&reactor->message_);
  return reactor;
}

DownloadReactor::DownloadReactor(DoorState* door, std::shared_ptr<const ModelVersion> model)
    : door_(door), model_(std::move(model)) {}

void DownloadReactor::OnWriteDone(bool ok) {
  if (!ok) {
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
    return;
  }
  Next();
}

void DownloadReactor::Next() {
  if (stage_ == Stage::kData && at_ < model_->bytes.size()) {
    const size_t n = std::min(kDataBytes, model_->bytes.size() - at_);
    message_ = DataMessage(ByteSpan(model_->bytes).subspan(at_, n), model_);
    at_ += n;
    door_->counters.download_bytes += n;
    StartWrite(&message_);
    return;
  }
  if (stage_ == Stage::kData) {
    stage_ = Stage::kFinish;
    v1::DownloadResponse tail;
    tail.mutable_trailer()->set_bytes(model_->bytes.size());
    tail.mutable_trailer()->set_crc32c(model_->crc32c);
    message_ = ToByteBuffer(tail);
    StartWrite(&message_);
    return;
  }
  door_->counters.downloads += 1;
  door_->counters.download_nanos += absl::ToInt64Nanoseconds(MonotonicNow() - started_);
  door_->handler->OnDownloaded();
  Finish(grpc::Status::OK);
}

}  // namespace tributary::server::door
