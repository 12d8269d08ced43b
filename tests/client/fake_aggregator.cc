// The scripted aggregator.
#include "tests/client/fake_aggregator.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksum.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

namespace tributary::client::testing {
namespace {

ByteSpan Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

FakeAggregator::FakeAggregator(int port, const std::function<void(FakeAggregator&)>& setup,
                               std::shared_ptr<grpc::ServerCredentials> credentials) {
  if (setup) setup(*this);
  if (credentials == nullptr) credentials = grpc::InsecureServerCredentials();
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), credentials, &port_);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

std::string FakeAggregator::endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

void FakeAggregator::Kill() {
  if (server_ == nullptr) return;
  {
    std::lock_guard lock(mu_);
    dead_ = true;
    changed_.notify_all();
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  server_ = nullptr;
}

void FakeAggregator::SetModel(std::string bytes, uint64_t version) {
  std::lock_guard lock(mu_);
  model_ = std::move(bytes);
  model_version_ = version;
}

void FakeAggregator::SetSteps(v1::DeltaChain chain, std::string deltas) {
  std::lock_guard lock(mu_);
  chain_ = std::move(chain);
  deltas_ = std::move(deltas);
}

void FakeAggregator::SetJoined(v1::Joined joined) {
  std::lock_guard lock(mu_);
  joined_ = std::move(joined);
}

void FakeAggregator::SetOpenTask(v1::Task task) {
  std::lock_guard lock(mu_);
  open_task_ = std::make_unique<v1::Task>(std::move(task));
}

void FakeAggregator::ClearOpenTask() {
  std::lock_guard lock(mu_);
  open_task_ = nullptr;
}

void FakeAggregator::AnswerJoinsWith(v1::SessionResponse response) {
  std::lock_guard lock(mu_);
  join_answers_.push_back(std::move(response));
}

void FakeAggregator::ScriptUpload(UploadScript script) {
  std::lock_guard lock(mu_);
  upload_scripts_.push_back(std::move(script));
}

void FakeAggregator::ScriptDownload(DownloadScript script) {
  std::lock_guard lock(mu_);
  download_scripts_.push_back(script);
}

bool FakeAggregator::Wait(const std::function<bool()>& condition) {
  std::unique_lock lock(mu_);
  return changed_.wait_for(lock, std::chrono::minutes(1), condition);
}

void FakeAggregator::Send(const v1::SessionResponse& message) {
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, std::chrono::minutes(1), [&] { return stream_ != nullptr || dead_; });
  if (stream_ != nullptr) stream_->Write(message);
}

void FakeAggregator::SendTask(const v1::Task& task) {
  v1::SessionResponse message;
  *message.mutable_task() = task;
  Send(message);
}

void FakeAggregator::SendOutcome(uint64_t round, bool included, const std::string& reason) {
  v1::SessionResponse message;
  message.mutable_outcome()->set_round(round);
  message.mutable_outcome()->set_committed(true);
  message.mutable_outcome()->set_included(included);
  message.mutable_outcome()->set_reason(reason);
  Send(message);
}

void FakeAggregator::SendGrant(uint64_t round) {
  v1::SessionResponse message;
  message.mutable_grant()->set_round(round);
  Send(message);
}

void FakeAggregator::SendStop(v1::Stop::Kind kind, uint64_t retry_after_ms) {
  v1::SessionResponse message;
  message.mutable_stop()->set_kind(kind);
  message.mutable_stop()->set_retry_after_ms(retry_after_ms);
  Send(message);
}

void FakeAggregator::DropSession() {
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, std::chrono::minutes(1), [&] { return stream_ != nullptr; });
  if (context_ != nullptr) context_->TryCancel();
}

std::vector<v1::Join> FakeAggregator::joins() {
  std::lock_guard lock(mu_);
  return joins_;
}
std::vector<ReceivedUpload> FakeAggregator::uploads() {
  std::lock_guard lock(mu_);
  return uploads_;
}
std::vector<v1::Report> FakeAggregator::reports() {
  std::lock_guard lock(mu_);
  return reports_;
}
std::vector<v1::Offer> FakeAggregator::offers() {
  std::lock_guard lock(mu_);
  return offers_;
}
std::vector<v1::Heartbeat> FakeAggregator::heartbeats() {
  std::lock_guard lock(mu_);
  return heartbeats_;
}
void FakeAggregator::ScriptFate(uint64_t round, bool included) {
  std::lock_guard lock(mu_);
  fates_[round] = included;
}
void FakeAggregator::AnswerInquiries(bool answer) {
  std::lock_guard lock(mu_);
  answers_inquiries_ = answer;
}
bool FakeAggregator::WaitForInquiries(size_t n) {
  return Wait([&] { return inquiries_.size() >= n; });
}
std::vector<uint64_t> FakeAggregator::inquiries() {
  std::lock_guard lock(mu_);
  return inquiries_;
}
std::vector<std::string> FakeAggregator::leaves() {
  std::lock_guard lock(mu_);
  return leaves_;
}
int FakeAggregator::downloads() {
  std::lock_guard lock(mu_);
  return downloads_;
}
std::vector<std::string> FakeAggregator::helds() {
  std::lock_guard lock(mu_);
  return helds_;
}
bool FakeAggregator::WaitForJoins(size_t n) {
  return Wait([&] { return joins_.size() >= n; });
}
bool FakeAggregator::WaitForUploads(size_t n) {
  return Wait([&] { return uploads_.size() >= n; });
}
bool FakeAggregator::WaitForReports(size_t n) {
  return Wait([&] { return reports_.size() >= n; });
}
bool FakeAggregator::WaitForOffers(size_t n) {
  return Wait([&] { return offers_.size() >= n; });
}
bool FakeAggregator::WaitForLeaves(size_t n) {
  return Wait([&] { return leaves_.size() >= n; });
}
bool FakeAggregator::WaitForHeartbeats(size_t n, const std::string& phase) {
  return Wait([&] { return CountHeartbeats(phase) >= n; });
}

bool FakeAggregator::WaitForNoSession() {
  return Wait([&] { return stream_ == nullptr; });
}
std::set<std::string> FakeAggregator::peers() {
  std::lock_guard lock(mu_);
  return peers_;
}

size_t FakeAggregator::CountHeartbeats(const std::string& phase) const {
  return static_cast<size_t>(
      std::count_if(heartbeats_.begin(), heartbeats_.end(),
                    [&](const auto& beat) { return beat.phase() == phase; }));
}

void FakeAggregator::Take(const v1::SessionRequest& request) {
  if (request.has_heartbeat()) heartbeats_.push_back(request.heartbeat());
  if (request.has_report()) reports_.push_back(request.report());
  if (request.has_offer()) offers_.push_back(request.offer());
  if (request.has_leave()) leaves_.push_back(request.leave().reason());
  if (request.has_inquiry()) {
    const uint64_t round = request.inquiry().round();
    inquiries_.push_back(round);
    v1::SessionResponse answer;
    v1::Outcome* const outcome = answer.mutable_outcome();
    outcome->set_round(round);
    const auto fate = fates_.find(round);
    outcome->set_answer(true);
    outcome->set_unknown(fate == fates_.end());
    outcome->set_committed(fate != fates_.end() && fate->second);
    outcome->set_included(outcome->committed());
    if (outcome->unknown()) outcome->set_reason("missed, and nobody knows");
    if (stream_ != nullptr && answers_inquiries_) stream_->Write(answer);
  }
  changed_.notify_all();
}

grpc::Status FakeAggregator::Session(grpc::ServerContext* context, SessionStream* stream) {
  v1::SessionRequest request;
  if (!stream->Read(&request) || !request.has_join()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "the first message must be Join"};
  }
  {
    std::lock_guard lock(mu_);
    joins_.push_back(request.join());
    peers_.insert(context->peer());
    if (!join_answers_.empty()) {
      stream->Write(join_answers_.front());
      join_answers_.pop_front();
      changed_.notify_all();
      return grpc::Status::OK;
    }
    v1::SessionResponse response;
    *response.mutable_joined() = joined_;
    stream->Write(response);
    if (open_task_ != nullptr) {
      v1::SessionResponse task;
      *task.mutable_task() = *open_task_;
      stream->Write(task);
    }
    stream_ = stream;
    context_ = context;
    changed_.notify_all();
  }
  while (stream->Read(&request)) {
    std::lock_guard lock(mu_);
    Take(request);
  }
  std::lock_guard lock(mu_);
  if (stream_ == stream) {
    stream_ = nullptr;
    context_ = nullptr;
  }
  changed_.notify_all();
  return grpc::Status::OK;
}

grpc::Status FakeAggregator::Download(grpc::ServerContext*, const v1::DownloadRequest* request,
                                      grpc::ServerWriter<v1::DownloadResponse>* writer) {
  DownloadScript script;
  std::string model, deltas;
  uint64_t version = 0;
  v1::ModelHeader header;
  {
    std::lock_guard lock(mu_);
    ++downloads_;
    helds_.push_back(request->held_sha256());
    changed_.notify_all();
    if (!download_scripts_.empty()) {
      script = download_scripts_.front();
      download_scripts_.pop_front();
    }
    model = model_;
    version = model_version_;
    deltas = deltas_;
    if (chain_.steps_size() > 0 && request->held_sha256() == chain_.base_sha256()) {
      *header.mutable_chain() = chain_;
    }
    header.set_layout_hash(joined_.layout_hash());
  }
  if (request->sha256() != Sha256Of(Bytes(model)) || script.fault == DownloadScript::kNotFound) {
    return {grpc::StatusCode::NOT_FOUND, "not the current model"};
  }
  if (header.chain().steps_size() > 0) model = deltas;
  header.set_version(version);
  header.set_sha256(request->sha256());
  header.set_bytes(model.size());
  v1::DownloadResponse first;
  *first.mutable_header() = header;
  writer->Write(first);
  uint32_t crc = Crc32c(Bytes(model));
  if (script.fault == DownloadScript::kBadCrc) crc ^= 1;
  if (script.fault == DownloadScript::kBadBytes) {
    model[model.size() / 2] ^= 1;
    crc = Crc32c(Bytes(model));  // so that only the SHA-256 can tell
  }
  if (script.fault == DownloadScript::kTooLong) model += "x";
  constexpr size_t kChunk = 1 << 20;
  for (size_t at = 0; at < model.size(); at += kChunk) {
    v1::DownloadResponse chunk;
    chunk.set_data(model.substr(at, kChunk));
    writer->Write(chunk);
    if (script.fault == DownloadScript::kCutOff) {
      return {grpc::StatusCode::UNAVAILABLE, "cut off"};
    }
  }
  v1::DownloadResponse last;
  last.mutable_trailer()->set_bytes(model.size());
  last.mutable_trailer()->set_crc32c(crc);
  writer->Write(last);
  return grpc::Status::OK;
}

grpc::Status FakeAggregator::Upload(grpc::ServerContext*,
                                    grpc::ServerReader<v1::UploadRequest>* reader,
                                    v1::UploadResponse* response) {
  UploadScript script;
  {
    std::lock_guard lock(mu_);
    if (!upload_scripts_.empty()) {
      script = upload_scripts_.front();
      upload_scripts_.pop_front();
    }
  }
  ReceivedUpload upload;
  v1::UploadRequest request;
  bool broken = script.break_after_messages == 0;
  while (!broken && reader->Read(&request)) {
    ++upload.messages;
    if (request.has_header()) upload.header = request.header();
    upload.segments += request.segments();
    upload.message_segment_bytes.push_back(request.segments().size());
    if (request.has_trailer()) {
      upload.trailer = request.trailer();
      upload.whole = true;
    }
    broken = static_cast<int>(upload.messages) == script.break_after_messages;
  }
  if (script.before_answer) script.before_answer();
  std::lock_guard lock(mu_);
  uploads_.push_back(std::move(upload));
  changed_.notify_all();
  if (broken) return {grpc::StatusCode::UNAVAILABLE, "broken off by the test"};
  response->set_status(script.answer);
  response->set_reason(script.reason);
  response->set_retry_after_ms(script.retry_after_ms);
  return grpc::Status::OK;
}

}  // namespace tributary::client::testing
