// Session, heartbeat and link threads of a child aggregator; forwarding is the Forwarder's.
#include "server/uplink.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/philox.h"
#include "base/status.h"
#include "base/tls_probe.h"
#include "server/fabrics.h"
#include "server/forwarder.h"
#include "server/model_stream.h"
#include "server/tier_stream.h"
#include "tributary/v1/client_service.grpc.pb.h"

namespace tributary::server {
namespace {

constexpr absl::Duration kBackoffMin = absl::Milliseconds(100);
// Aggregators are few: a parent that comes back is found within 400 ms.
constexpr absl::Duration kBackoffMax = absl::Milliseconds(250);
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

constexpr absl::Duration kProbeLimit = absl::Seconds(3);

// Bytes that a parent leaves unread: then it is as good as gone. The claims of half a million
// clients with the longest ids are as much.
constexpr size_t kMostUnread = size_t{64} << 20;
// What a message takes beside its text.
constexpr size_t kMessageCost = 256;
constexpr absl::Duration kGoodbye = absl::Seconds(1);  // for the last words to be read

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(
    const std::optional<TlsClientOptions>& tls) {
  if (!tls.has_value()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = tls->ca_pem,
                               .pem_private_key = tls->key_pem,
                               .pem_cert_chain = tls->cert_pem});
}

std::string HostOf(const std::string& endpoint) { return endpoint.substr(0, endpoint.rfind(':')); }

class GrpcUplink final : public Uplink {
 public:
  GrpcUplink(const Options& options, std::unique_ptr<transport::Fabric> fabric,
             UplinkHandler* handler)
      : options_(options),
        fabric_(std::move(fabric)),
        handler_(handler),
        jitter_(SeededHash(options.epoch, "uplink", options.id)),
        forwarder_(absl::Seconds(options.transport.progress_timeout_s),
                   {.forwarded =
                        [handler](uint64_t round, absl::Status status, double seconds) {
                          handler->OnForwarded(round, std::move(status), seconds);
                        },
                    .released = [handler](uint64_t forward) { handler->OnReleased(forward); }}) {
    session_thread_ = std::thread([this] { SessionLoop(); });
    writer_thread_ = std::thread([this] { WriterLoop(); });
    link_thread_ = std::thread([this] { LinkLoop(); });
  }

  ~GrpcUplink() override {
    v1::SessionRequest leave;
    leave.mutable_leave()->set_reason("shutting down");
    Put(std::move(leave));
    {
      std::unique_lock lock(mu_);
      wake_.wait_for(lock, absl::ToChronoNanoseconds(kGoodbye),
                     [this] { return stream_ == nullptr || (unread_.empty() && !writing_); });
      stopping_ = true;
      if (context_ != nullptr) context_->TryCancel();
      if (link_ != nullptr) link_->Cancel("shutting down");
    }
    wake_.notify_all();
    for (auto* thread : {&session_thread_, &writer_thread_, &link_thread_}) thread->join();
  }

  void SetCensus(uint64_t clients, uint64_t examples) override {
    {
      std::lock_guard lock(mu_);
      if (clients == clients_ && examples == examples_) return;
      clients_ = clients;
      examples_ = examples;
      PutHeartbeat();
    }
    wake_.notify_all();
  }

  void SetBuffered(uint64_t round, uint64_t clients) override {
    {
      std::lock_guard lock(mu_);
      buffering_round_ = round;
      buffered_ = clients;
      PutHeartbeat();
    }
    wake_.notify_all();
  }

  std::string transport() override {
    std::lock_guard lock(mu_);
    return transport_;
  }

  uint64_t retransmits() override {
    std::lock_guard lock(mu_);
    return past_retransmits_ + (link_ == nullptr ? 0 : link_->stats().retransmits);
  }

  void SetHeld(const std::string& sha256) override {
    std::lock_guard lock(mu_);
    held_ = sha256;
  }

  void SendReport(const v1::Report& report) override {
    v1::SessionRequest request;
    *request.mutable_report() = report;
    Put(std::move(request));
  }

  void SendClaims(const v1::Claims& claims) override {
    v1::SessionRequest request;
    *request.mutable_claims() = claims;
    Put(std::move(request));
  }

  void SendInquiry(const v1::Inquiry& inquiry) override {
    v1::SessionRequest request;
    *request.mutable_inquiry() = inquiry;
    Put(std::move(request));
  }

  void Forward(v1::PartialSumHeader header, const aggregation::ExactAccumulator* sum) override {
    forwarder_.Forward(std::move(header), sum);
  }
  uint64_t Abandon() override { return forwarder_.Abandon(); }

 private:
  using Stream = grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>;

  bool stopping() {
    std::lock_guard lock(mu_);
    return stopping_;
  }

  // Waits, but not beyond a stop, nor, with its link, beyond a new session's word on where links
  // go; the wait doubles at each failure in a row.
  void Backoff(absl::Duration* wait, bool link = false) {
    std::unique_lock lock(mu_);
    const absl::Duration jittered = *wait * (0.5 + jitter_.NextDouble());
    const uint64_t joins = joins_;
    const bool woken = wake_.wait_for(lock, absl::ToChronoNanoseconds(jittered),
                                      [&] { return stopping_ || (link && joins_ != joins); });
    *wait = woken ? kBackoffMin : std::min(*wait * 2, kBackoffMax);
  }

  // ---- The session

  void SessionLoop() {
    absl::Duration wait = kBackoffMin;
    size_t next = 0;
    while (!stopping()) {
      const std::string parent = options_.parents[next % options_.parents.size()];
      bool joined = false;
      const absl::Status status = HoldSession(parent, &joined);
      if (joined) wait = kBackoffMin;
      {
        std::lock_guard lock(mu_);
        link_wanted_.reset();
        if (link_ != nullptr) link_->Cancel("the parent's session has ended");
        if (done_) return;
      }
      if (stopping()) return;
      spdlog::warn("parent {}: {}; trying again", parent, Text(status));
      if (joined) suspicion_.Dispel(parent);
      if (!joined) ExplainFailure(parent, status);
      ++next;
      Backoff(&wait);
    }
  }

  // Where it is TLS that keeps the two apart: gRPC's own words do not say how.
  void ExplainFailure(const std::string& parent, const absl::Status& status) {
    if (!suspicion_.Raised(parent, Text(status), RealClock().Monotonic())) return;
    const std::string why =
        ExplainTls(parent, options_.tls.has_value() ? &*options_.tls : nullptr, kProbeLimit);
    if (!why.empty()) spdlog::error("parent {}: {}", parent, why);
  }

  absl::Status HoldSession(const std::string& parent, bool* joined) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5000);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    // gRPC's name for how long an attempt to connect may take. The channel is not waited for: the
    // stream fails when the attempt does, and a stop can cancel it meanwhile.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                     static_cast<int>(absl::ToInt64Milliseconds(kConnectTimeout)));
    if (options_.tls.has_value() && !options_.tls->server_name.empty())
      arguments.SetSslTargetNameOverride(options_.tls->server_name);
    auto channel = grpc::CreateCustomChannel(parent, CredentialsOf(options_.tls), arguments);
    auto stub = v1::Aggregator::NewStub(channel);
    grpc::ClientContext context;
    std::shared_ptr<Stream> stream;
    {
      std::lock_guard lock(mu_);
      if (stopping_) return absl::CancelledError("stopping");
      context_ = &context;
    }
    stream = std::shared_ptr<Stream>(stub->Session(&context));
    v1::SessionRequest request;
    FillJoin(request.mutable_join());
    if (stream->Write(request)) {
      {
        std::lock_guard lock(mu_);
        stream_ = stream;
      }
      v1::SessionResponse response;
      while (stream->Read(&response)) {
        if (response.has_joined()) *joined = true;
        Take(parent, &response);
      }
    }
    {
      std::unique_lock lock(mu_);
      EndStream();
      // The stream has ended, so a write on it does too; but not where it was a message that did
      // not read.
      const auto written = [this] { return !writing_; };
      if (!wake_.wait_for(lock, absl::ToChronoNanoseconds(kGoodbye), written)) {
        context.TryCancel();
        wake_.wait(lock, written);
      }
    }
    const grpc::Status status = stream->Finish();
    std::lock_guard lock(mu_);
    context_ = nullptr;
    return absl::UnavailableError(status.ok() ? "the session ended" : status.error_message());
  }

  void FillJoin(v1::Join* join) {
    std::lock_guard lock(mu_);
    join->set_protocol(1);
    join->set_id(options_.id);
    join->set_role(v1::AGGREGATOR);
    join->set_epoch(options_.epoch);
    join->set_clients(clients_);
    join->set_examples(examples_);
    join->set_held_sha256(held_);
    join->set_software("tributary");
  }

  void Take(const std::string& parent, v1::SessionResponse* response) {
    if (response->has_joined()) {
      const v1::Joined& joined = response->joined();
      auto layout = aggregation::ModelLayout::FromProto(joined.layout());
      {
        std::lock_guard lock(mu_);
        heartbeat_every_ = absl::Milliseconds(std::max<uint64_t>(joined.heartbeat_ms(), 100));
        PutHeartbeat();
        run_ = joined.run();
        ++joins_;
        if (layout.ok()) layout_ = *layout;
        std::vector<LinkPlace> places;
        for (const auto& link : joined.links())
          places.push_back({link.transport(), link.address()});
        const std::string place = PlaceToTake(options_.transport.kind, places, HostOf(parent));
        if (!place.empty()) {
          link_wanted_ = place;
        } else {
          spdlog::error("parent {} offers no link over {}; set the same [transport] kind on both",
                        parent, options_.transport.kind);
        }
      }
      wake_.notify_all();
      handler_->OnParentJoined(std::move(*response->mutable_joined()));
    } else if (response->has_task()) {
      handler_->OnParentTask(std::move(*response->mutable_task()));
    } else if (response->has_outcome()) {
      handler_->OnParentOutcome(std::move(*response->mutable_outcome()));
    } else if (response->has_collect()) {
      handler_->OnParentCollect(response->collect().round());
    } else if (response->has_claims()) {
      handler_->OnParentClaims(std::move(*response->mutable_claims()));
    } else if (response->has_verdicts()) {
      handler_->OnParentVerdicts(std::move(*response->mutable_verdicts()));
    } else if (response->has_refused()) {
      if (response->refused().retry_after_ms() == 0) {
        Done();
        handler_->OnParentRefused(response->refused().reason());
      }
    } else if (response->has_stop() && response->stop().kind() == v1::Stop::GOING_AWAY) {
      handler_->OnParentGoingAway();
    } else if (response->has_stop()) {
      Done();
      handler_->OnParentStop(std::move(*response->mutable_stop()));
    }
  }

  void Done() {
    std::lock_guard lock(mu_);
    done_ = true;
  }

  // mu_ held. What was not written is for a session that is over: whoever said it says it anew.
  void EndStream() {
    stream_ = nullptr;
    unread_.clear();
    unread_bytes_ = 0;
    wake_.notify_all();
  }

  static size_t CostOf(const v1::SessionRequest& request) {
    return request.ByteSizeLong() + kMessageCost;
  }

  void Queue(v1::SessionRequest request) {  // mu_ held
    unread_bytes_ += CostOf(request);
    unread_.push_back(std::move(request));
  }

  void Put(v1::SessionRequest request) {
    {
      std::lock_guard lock(mu_);
      if (stream_ == nullptr) return;
      Queue(std::move(request));
      if (unread_bytes_ > kMostUnread) {
        spdlog::error(
            "the parent reads nothing: {} messages of {} bytes wait for it; its session "
            "is ended",
            unread_.size(), unread_bytes_);
        context_->TryCancel();
        EndStream();
      }
    }
    wake_.notify_all();
  }

  v1::SessionRequest Heartbeat() {  // mu_ held
    v1::SessionRequest request;
    request.mutable_heartbeat()->set_clients(clients_);
    request.mutable_heartbeat()->set_examples(examples_);
    request.mutable_heartbeat()->set_round(buffering_round_);
    request.mutable_heartbeat()->set_buffered(buffered_);
    return request;
  }

  // mu_ held. In its place behind what was said before: who claims a client says so before it
  // counts it among its own. Of several in a row the last is enough.
  void PutHeartbeat() {
    if (stream_ == nullptr) return;
    if (!unread_.empty() && unread_.back().has_heartbeat()) {
      unread_bytes_ -= CostOf(unread_.back());
      unread_.pop_back();
    }
    Queue(Heartbeat());
  }

  // The only one that writes, after the Join: it may wait for the parent as long as that takes.
  void WriterLoop() {
    std::unique_lock lock(mu_);
    while (true) {
      wake_.wait_for(lock, absl::ToChronoNanoseconds(heartbeat_every_),
                     [this] { return stopping_ || !unread_.empty(); });
      if (stopping_) return;
      v1::SessionRequest request;
      if (unread_.empty()) {
        request = Heartbeat();
      } else {
        unread_bytes_ -= CostOf(unread_.front());
        request = std::move(unread_.front());
        unread_.pop_front();
      }
      std::shared_ptr<Stream> stream = stream_;
      if (stream == nullptr) continue;
      writing_ = true;
      lock.unlock();
      // A failed write is not an error of its own: the reading side sees the stream end.
      stream->Write(request);
      lock.lock();
      stream = nullptr;  // it must not outlive the session's context
      writing_ = false;
      wake_.notify_all();
    }
  }

  // ---- The link

  void LinkLoop() {
    absl::Duration wait = kBackoffMin;
    while (true) {
      std::string address;
      std::shared_ptr<const aggregation::ModelLayout> layout;
      v1::TierHello hello;
      {
        std::unique_lock lock(mu_);
        wake_.wait(
            lock, [this] { return stopping_ || (link_wanted_.has_value() && layout_ != nullptr); });
        if (stopping_) return;
        address = *link_wanted_;
        layout = layout_;
        hello.set_run(run_);
      }
      hello.set_id(options_.id);
      hello.set_epoch(options_.epoch);
      hello.set_takes_steps(true);
      hello.set_held_sha256(models_.held_sha256());
      transport::LinkOptions link_options = LinkOptionsOf(options_.transport);
      link_options.name = options_.id;
      link_options.hello = hello.SerializeAsString();
      link_options.connect_timeout = kConnectTimeout;  // a stop waits for it
      auto link = fabric_->Connect(address, link_options);
      absl::Status status = link.status();
      if (link.ok()) {
        wait = kBackoffMin;
        std::shared_ptr<transport::Link> shared = *std::move(link);
        {
          std::lock_guard lock(mu_);
          if (stopping_) return;
          link_ = shared;
          transport_ = std::string(shared->transport());
        }
        spdlog::info("link to \"{}\" over {}", shared->peer(), shared->transport());
        forwarder_.UseLink(shared);
        status = ReceiveModels(*shared, layout);
        forwarder_.UseLink(nullptr);
        const transport::LinkStats stats = shared->stats();
        if (const std::string path = transport::PathText(stats); !path.empty())
          spdlog::info("link to \"{}\" over {} has ended: {}", shared->peer(), shared->transport(),
                       path);
        std::lock_guard lock(mu_);
        past_retransmits_ += stats.retransmits;
        link_ = nullptr;
        // Forward may still send on it: make it fail at once rather than wait.
        shared->Cancel(absl::StrCat("the link has ended: ", Text(status)));
        // A model that came out wrong: who joins anew, holding none, is sent it whole.
        if (absl::IsDataLoss(status) && models_.held_sha256().empty()) {
          held_.clear();
          link_wanted_.reset();
          if (context_ != nullptr) context_->TryCancel();
        }
      }
      if (stopping()) return;
      spdlog::warn("link to {}: {}; trying again", address, Text(status));
      Backoff(&wait, true);
    }
  }

  absl::Status ReceiveModels(transport::Link& link,
                             const std::shared_ptr<const aggregation::ModelLayout>& layout) {
    const absl::Duration patience = absl::Seconds(options_.transport.progress_timeout_s);
    StreamReader reader;
    while (true) {
      ASSIGN_OR_RETURN(transport::Chunk chunk, ReceiveNext(link, reader, patience));
      ASSIGN_OR_RETURN(const StreamReader::Got got, reader.Feed(chunk));
      if (got == StreamReader::Got::kHeader && IsPartialStream(reader.stream())) {
        v1::PartialSumAnswer answer;
        if (!answer.ParseFromString(reader.header()) || reader.total() != 0)
          return absl::InvalidArgumentError("the parent's answer to a partial sum does not read");
        forwarder_.Answer(std::move(answer));
        continue;
      }
      ASSIGN_OR_RETURN(std::shared_ptr<const ModelVersion> model,
                       models_.Take(layout, reader, got, std::move(chunk)));
      if (model != nullptr) handler_->OnModel(std::move(model));
    }
  }

  const Options options_;
  const std::unique_ptr<transport::Fabric> fabric_;
  UplinkHandler* handler_;
  TlsSuspicion suspicion_;  // the session thread's own
  ModelReceiver models_;    // the link thread's own
  std::mutex mu_;
  std::condition_variable wake_;
  PhiloxStream jitter_;  // guarded by mu_, as all below
  bool stopping_ = false;
  bool done_ = false;  // the parent's word is final: no more sessions
  uint64_t clients_ = 0;
  uint64_t examples_ = 0;
  uint64_t buffering_round_ = 0;
  uint64_t buffered_ = 0;
  std::string held_, run_;
  uint64_t joins_ = 0;
  absl::Duration heartbeat_every_ = absl::Seconds(5);
  grpc::ClientContext* context_ = nullptr;
  std::shared_ptr<Stream> stream_;
  std::deque<v1::SessionRequest> unread_;  // for stream_
  size_t unread_bytes_ = 0;                // of unread_
  bool writing_ = false;                   // on the last stream_
  std::optional<std::string> link_wanted_;
  std::shared_ptr<const aggregation::ModelLayout> layout_;
  std::shared_ptr<transport::Link> link_;
  std::string transport_;  // of the last link
  uint64_t past_retransmits_ = 0;
  Forwarder forwarder_;
  std::thread session_thread_, writer_thread_, link_thread_;
};

}  // namespace

std::optional<TlsClientOptions> TlsToParent(const TlsConfig& tls) {
  if (tls.parent_ca_pem.empty()) return std::nullopt;
  return TlsClientOptions{.ca_pem = tls.parent_ca_pem,
                          .cert_pem = tls.cert_pem,
                          .key_pem = tls.key_pem,
                          .server_name = tls.parent_server_name};
}

std::unique_ptr<Uplink> Uplink::Start(const Options& options,
                                      std::unique_ptr<transport::Fabric> fabric,
                                      UplinkHandler* handler) {
  return std::make_unique<GrpcUplink>(options, std::move(fabric), handler);
}

}  // namespace tributary::server
