// The raw ceiling of ingest: a bare gRPC ByteBuffer stream from the same senders into a sink that
// drops the bytes. It plays just enough of an aggregator for the senders to send.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "bench/commands.h"
#include "models/builtin.h"
#include "tributary/v1/client_service.grpc.pb.h"

namespace tributary::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

class SinkSession;

// All sessions and the round they are in.
class Hub {
 public:
  Hub(const SinkOptions& options, std::shared_ptr<const aggregation::ModelLayout> layout)
      : options_(options), layout_(std::move(layout)) {}
  v1::SessionResponse Welcome() const {
    v1::SessionResponse response;
    v1::Joined* joined = response.mutable_joined();
    joined->set_run("sink");
    *joined->mutable_layout() = layout_->ToProto();
    joined->set_layout_hash(layout_->hash());
    joined->set_heartbeat_ms(10000);
    return response;
  }
  void Joined(SinkSession* session);
  void Left(SinkSession* session);
  void FirstByte() {
    std::lock_guard lock(mu_);
    if (in_round_) return;
    in_round_ = true;
    start_ = SteadyClock::now();
  }
  void Uploaded(uint64_t bytes);
  void Wait() {
    std::unique_lock lock(mu_);
    done_.wait(lock, [this] { return round_ >= options_.rounds; });
  }

 private:
  v1::SessionResponse Task() const {
    v1::SessionResponse response;
    v1::RoundSpec* spec = response.mutable_task()->mutable_spec();
    spec->set_run("sink");
    spec->set_round(round_ + 1);
    spec->set_kind(v1::TRAIN);
    spec->set_codec(options_.codec);
    spec->set_layout_hash(layout_->hash());
    spec->set_base_sha256(std::string(32, static_cast<char>(round_ + 1)));
    spec->set_deadline_ms(3600000);
    spec->set_quorum(1);
    spec->set_cohort_fraction(1);
    spec->set_max_client_weight(1 << 20);
    spec->mutable_grid()->set_fraction_bits(30);
    spec->mutable_grid()->set_bound(4096);
    spec->mutable_grid()->set_max_weight(1 << 20);
    return response;
  }
  void Broadcast(const v1::SessionResponse& response, bool last);

  const SinkOptions options_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  std::mutex mu_;
  std::condition_variable done_;
  std::vector<SinkSession*> sessions_;
  uint32_t round_ = 0;
  uint32_t uploads_ = 0;
  uint64_t bytes_ = 0;
  bool in_round_ = false;
  SteadyClock::time_point start_;
};

class SinkSession final : public grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse> {
 public:
  explicit SinkSession(Hub* hub) : hub_(hub) { StartRead(&request_); }
  void OnReadDone(bool ok) override {
    if (!ok) {
      End();
      return;
    }
    if (request_.has_join()) {
      Send(hub_->Welcome(), false);
      hub_->Joined(this);
    }
    StartRead(&request_);
  }
  void Send(const v1::SessionResponse& response, bool last) {
    const v1::SessionResponse* first = nullptr;
    {
      std::lock_guard lock(mu_);
      if (ended_) return;
      queue_.push_back(response);
      ending_ = ending_ || last;
      if (writing_) return;
      writing_ = true;
      first = &queue_.front();
    }
    StartWrite(first);
  }
  void OnWriteDone(bool) override {
    const v1::SessionResponse* next = nullptr;
    bool end = false;
    {
      std::lock_guard lock(mu_);
      queue_.pop_front();
      if (!queue_.empty()) next = &queue_.front();
      writing_ = next != nullptr;
      end = next == nullptr && ending_ && !ended_;
      ended_ = ended_ || end;
    }
    if (next != nullptr) StartWrite(next);
    if (end) Finish(grpc::Status::OK);
  }
  void OnDone() override {
    hub_->Left(this);
    delete this;
  }

 private:
  void End() {
    {
      std::lock_guard lock(mu_);
      ending_ = true;
      if (writing_ || ended_) return;
      ended_ = true;
    }
    Finish(grpc::Status::OK);
  }
  Hub* hub_;
  v1::SessionRequest request_;
  std::mutex mu_;
  std::deque<v1::SessionResponse> queue_;
  bool writing_ = false, ending_ = false, ended_ = false;
};

class SinkUpload final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  SinkUpload(Hub* hub, grpc::ByteBuffer* response) : hub_(hub), response_(response) {
    StartRead(&message_);
  }
  void OnReadDone(bool ok) override {
    if (ok) {
      if (bytes_ == 0) hub_->FirstByte();
      bytes_ += message_.Length();
      message_.Clear();
      StartRead(&message_);
      return;
    }
    v1::UploadResponse answer;
    answer.set_status(v1::UploadResponse::ACCEPTED);
    const grpc::Slice slice(answer.SerializeAsString());
    *response_ = grpc::ByteBuffer(&slice, 1);
    Hub* hub = hub_;
    const uint64_t bytes = bytes_;
    Finish(grpc::Status::OK);
    hub->Uploaded(bytes);
  }
  void OnDone() override { delete this; }

 private:
  Hub* hub_;
  grpc::ByteBuffer* response_;
  grpc::ByteBuffer message_;
  uint64_t bytes_ = 0;
};

class Service final : public v1::Aggregator::WithCallbackMethod_Session<
                          v1::Aggregator::WithRawCallbackMethod_Upload<v1::Aggregator::Service>> {
 public:
  explicit Service(Hub* hub) : hub_(hub) {}
  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* Session(
      grpc::CallbackServerContext*) override {
    return new SinkSession(hub_);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* Upload(grpc::CallbackServerContext*,
                                                    grpc::ByteBuffer* response) override {
    return new SinkUpload(hub_, response);
  }

 private:
  Hub* hub_;
};

void Hub::Joined(SinkSession* session) {
  v1::SessionResponse task;
  {
    std::lock_guard lock(mu_);
    sessions_.push_back(session);
    if (sessions_.size() < options_.clients) return;
    task = Task();
  }
  Broadcast(task, false);
}

void Hub::Left(SinkSession* session) {
  std::lock_guard lock(mu_);
  std::erase(sessions_, session);
}

// Under the lock: a session that has left is deleted.
void Hub::Broadcast(const v1::SessionResponse& response, bool last) {
  std::lock_guard lock(mu_);
  for (SinkSession* session : sessions_) session->Send(response, last);
}

void Hub::Uploaded(uint64_t bytes) {
  v1::SessionResponse next;
  bool over = false;
  {
    std::lock_guard lock(mu_);
    bytes_ += bytes;
    if (++uploads_ < options_.clients) return;
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - start_).count();
    ++round_;
    std::printf("{\"round\": %u, \"bytes\": %llu, \"seconds\": %.6f}\n", round_,
                static_cast<unsigned long long>(bytes_), seconds);
    std::fflush(stdout);
    uploads_ = 0;
    bytes_ = 0;
    in_round_ = false;
    over = round_ >= options_.rounds;
    if (over) {
      next.mutable_stop()->set_kind(v1::Stop::FINISHED);
    } else {
      next = Task();
    }
  }
  Broadcast(next, over);
  if (over) done_.notify_all();
}

}  // namespace

int Sink(const SinkOptions& options) {
  auto layout = models::BuiltinLayout(options.model);
  if (!layout.ok()) {
    std::fprintf(stderr, "%s\n", Text(layout.status()).c_str());
    return 1;
  }
  Hub hub(options, *layout);
  Service service(&hub);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(absl::StrCat("127.0.0.1:", options.port),
                           grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(4 << 20);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 1 << 20);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  if (!options.default_windows) {  // as at the front door
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 128 << 10);
  }
  auto server = builder.BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "cannot listen on port %d\n", options.port);
    return 1;
  }
  hub.Wait();
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  server->Wait();
  return 0;
}

}  // namespace tributary::bench
