// Accepting children's links; a receiving and a sending thread for each.
#include "server/tier_links.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "server/fabrics.h"
#include "server/model_stream.h"
#include "server/tier_stream.h"

namespace tributary::server {
namespace {

class Incoming final : public IncomingPartial {
 public:
  explicit Incoming(v1::PartialSumHeader header) : header_(std::move(header)) {}
  const v1::PartialSumHeader& header() const override { return header_; }
  void Decide(bool admit, const aggregation::ExactAccumulator* sum) override {
    {
      std::lock_guard lock(mu_);
      decided_ = true;
      sum_ = admit ? sum : nullptr;
    }
    decision_.notify_all();
  }
  // Null: dropped. Blocks; Cancel (through Decide) ends it.
  const aggregation::ExactAccumulator* Await() {
    std::unique_lock lock(mu_);
    decision_.wait(lock, [this] { return decided_; });
    return sum_;
  }
  const aggregation::ExactAccumulator* Current() {
    std::lock_guard lock(mu_);
    return sum_;
  }

 private:
  v1::PartialSumHeader header_;
  std::mutex mu_;
  std::condition_variable decision_;
  bool decided_ = false;                                // guarded by mu_
  const aggregation::ExactAccumulator* sum_ = nullptr;  // guarded by mu_
};

struct ModelCounters {
  std::atomic<uint64_t> sent{0};
  std::atomic<uint64_t> saved{0};
};

// One child's link.
class ChildLink {
 public:
  ChildLink(std::unique_ptr<transport::Link> link, v1::TierHello hello, TierHandler* handler,
            absl::Duration patience, ModelCounters* counters)
      : link_(std::move(link)),
        hello_(std::move(hello)),
        handler_(handler),
        patience_(patience),
        counters_(counters) {
    receiver_ = std::thread([this] { Receive(); });
    sender_ = std::thread([this] { SendModels(); });
  }
  ~ChildLink() {
    Cancel("this node has dropped the link");
    receiver_.join();
    sender_.join();
  }
  const v1::TierHello& hello() const { return hello_; }
  bool over() const { return over_.load(); }
  std::string transport() const { return std::string(link_->transport()); }
  transport::LinkStats stats() const { return link_->stats(); }

  void SendModel(std::shared_ptr<const ModelVersion> model) {
    {
      std::lock_guard lock(mu_);
      model_ = std::move(model);
    }
    wake_.notify_all();
  }
  void Cancel(const std::string& why) {
    std::shared_ptr<Incoming> waiting;
    {
      std::lock_guard lock(mu_);
      cancelled_ = true;
      waiting = waiting_;
    }
    wake_.notify_all();
    link_->Cancel(why);
    if (waiting != nullptr) waiting->Decide(false, nullptr);
  }

 private:
  void Receive() {
    const absl::Status why = ReceiveUntilError();
    spdlog::info("link of \"{}\" ended: {}", hello_.id(), Text(why));
    if (incoming_ != nullptr) handler_->OnPartialBroken(incoming_, why);
    Cancel("the receiver has ended");
    over_ = true;
  }

  absl::Status ReceiveUntilError() {
    StreamReader reader;
    while (true) {
      ASSIGN_OR_RETURN(transport::Chunk chunk, link_->Receive(absl::InfiniteFuture()));
      ASSIGN_OR_RETURN(const StreamReader::Got got, reader.Feed(chunk));
      if (got == StreamReader::Got::kHeader) {
        chunk = transport::Chunk();  // its credit goes back before we wait for a decision
        RETURN_IF_ERROR(Start(reader));
      } else if (got == StreamReader::Got::kData && incoming_ != nullptr) {
        RETURN_IF_ERROR(Take(reader, chunk));
      }
    }
  }

  absl::Status Start(const StreamReader& reader) {
    if (incoming_ != nullptr) {
      handler_->OnPartialBroken(incoming_, absl::AbortedError("the child began another stream"));
      incoming_ = nullptr;
    }
    v1::PartialSumHeader header;
    if (!header.ParseFromString(reader.header()) || header.id() != hello_.id() ||
        header.epoch() != hello_.epoch() || header.chunks() != reader.total()) {
      return absl::InvalidArgumentError(
          absl::StrCat("link of \"", hello_.id(),
                       "\": the stream's header is not a PartialSumHeader of this child"));
    }
    auto incoming = std::make_shared<Incoming>(std::move(header));
    {
      std::lock_guard lock(mu_);
      if (cancelled_) return absl::CancelledError("the link was cancelled");
      waiting_ = incoming;
    }
    handler_->OnPartialStart(incoming);
    const bool admitted = incoming->Await() != nullptr;
    {
      std::lock_guard lock(mu_);
      waiting_ = nullptr;
    }
    if (!admitted) return absl::OkStatus();  // its data is drained
    incoming_ = incoming;
    packed_ = std::make_shared<aggregation::PackedPartial>();
    packed_->first_id =
        incoming->header().contributors().empty() ? "" : incoming->header().contributors(0);
    packed_->chunks.resize(reader.total());
    bytes_left_ = incoming->header().packed_bytes();
    if (reader.total() == 0) Complete();
    return absl::OkStatus();
  }

  absl::Status Take(const StreamReader& reader, const transport::Chunk& chunk) {
    const aggregation::ExactAccumulator* sum = incoming_->Current();
    if (sum == nullptr) {  // the round has closed meanwhile
      incoming_ = nullptr;
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(sum->ValidateChunk(reader.data_index(), chunk.bytes()));
    if (chunk.size() > bytes_left_) {
      return absl::InvalidArgumentError(
          absl::StrCat("the partial sum of \"", hello_.id(), "\" is longer than its header says"));
    }
    bytes_left_ -= chunk.size();
    packed_->chunks[reader.data_index()].assign(chunk.bytes().begin(), chunk.bytes().end());
    if (reader.data_index() + 1 == reader.total()) Complete();
    return absl::OkStatus();
  }

  void Complete() {
    handler_->OnPartialComplete(std::move(incoming_), std::move(packed_));
    incoming_ = nullptr;
    packed_ = nullptr;
  }

  void SendModels() {
    // What steps can be taken from: the child's own word, then what this link has brought it.
    std::string held = hello_.takes_steps() ? hello_.held_sha256() : "";
    while (true) {
      std::shared_ptr<const ModelVersion> model;
      {
        std::unique_lock lock(mu_);
        wake_.wait(lock, [this] { return cancelled_ || model_ != nullptr; });
        if (cancelled_) return;
        model = std::move(model_);
        model_ = nullptr;
      }
      // Before it is sent: its sum may be back before this thread runs again.
      const SentBytes bytes = BytesToSend(*model, held);
      counters_->sent += bytes.sent;
      counters_->saved += bytes.saved;
      const absl::Status status = SendModelStream(*link_, *model, held, patience_, [this] {
        std::lock_guard lock(mu_);
        return cancelled_;
      });
      if (!status.ok()) {
        spdlog::warn("model {} to \"{}\": {}", model->version, hello_.id(), Text(status));
        Cancel("the model could not be sent");
        return;
      }
      if (hello_.takes_steps()) held = model->sha256;
    }
  }

  std::unique_ptr<transport::Link> link_;
  const v1::TierHello hello_;
  TierHandler* handler_;
  const absl::Duration patience_;
  ModelCounters* const counters_;
  // The receiving thread's own.
  std::shared_ptr<Incoming> incoming_;
  std::shared_ptr<aggregation::PackedPartial> packed_;
  uint64_t bytes_left_ = 0;

  std::mutex mu_;
  std::condition_variable wake_;
  bool cancelled_ = false;                     // guarded by mu_
  std::shared_ptr<const ModelVersion> model_;  // guarded by mu_
  std::shared_ptr<Incoming> waiting_;          // guarded by mu_
  std::atomic<bool> over_{false};
  std::thread receiver_, sender_;
};

class FabricTierLinks final : public TierLinks {
 public:
  FabricTierLinks(TierHandler* handler, absl::Duration patience)
      : handler_(handler), patience_(patience) {}
  ~FabricTierLinks() override {
    if (listener_ != nullptr) listener_->Cancel();
    if (acceptor_.joinable()) acceptor_.join();
    links_.clear();
    ended_.clear();
  }

  absl::Status Listen(const TransportConfig& config, const std::string& node_name) {
    ASSIGN_OR_RETURN(FabricChoice choice, MakeFabric(config));
    fabric_ = std::move(choice.fabric);
    transport::LinkOptions options;
    options.name = node_name;
    options.slots = config.slots;
    options.lanes = config.lanes;
    options.heartbeat = absl::Seconds(config.heartbeat_s);
    options.progress_timeout = absl::Seconds(config.progress_timeout_s);
    ASSIGN_OR_RETURN(listener_, fabric_->Listen(choice.listen, options));
    places_ = PlacesToTell(config.kind, listener_->address(), config.advertise);
    acceptor_ = std::thread([this] { Accept(); });
    return absl::OkStatus();
  }

  std::string kind() const override { return std::string(fabric_->name()); }
  const std::vector<LinkPlace>& places() const override { return places_; }
  std::string used() const override {
    std::lock_guard lock(mu_);
    std::set<std::string> kinds;
    for (const auto& [id, link] : links_) kinds.insert(link->transport());
    return kinds.empty() ? last_used_ : absl::StrJoin(kinds, "+");
  }

  void SendModel(const std::string& id, uint64_t epoch,
                 std::shared_ptr<const ModelVersion> model) override {
    std::lock_guard lock(mu_);
    const auto link = links_.find(id);
    if (link != links_.end() && link->second->hello().epoch() == epoch && !link->second->over()) {
      link->second->SendModel(std::move(model));
    } else {
      wanted_[id] = {epoch, std::move(model)};
    }
  }

  void Drop(const std::string& id, uint64_t epoch) override {
    std::lock_guard lock(mu_);
    if (const auto it = wanted_.find(id); it != wanted_.end() && it->second.first == epoch)
      wanted_.erase(it);
    const auto it = links_.find(id);
    if (it == links_.end() || it->second->hello().epoch() != epoch) return;
    it->second->Cancel("the child's session has ended");
    Retire(it);
  }

  transport::LinkStats stats() const override {
    std::lock_guard lock(mu_);
    transport::LinkStats total = past_;
    for (const auto& [id, link] : links_) Add(link->stats(), &total);
    return total;
  }
  SentBytes models_sent() const override { return {counters_.sent, counters_.saved}; }

 private:
  using Links = std::map<std::string, std::unique_ptr<ChildLink>>;

  static void Add(const transport::LinkStats& from, transport::LinkStats* to) {
    to->bytes_sent += from.bytes_sent;
    to->bytes_received += from.bytes_received;
    to->chunks_sent += from.chunks_sent;
    to->chunks_received += from.chunks_received;
    to->retransmits += from.retransmits;
  }
  // mu_ is held. Joining the link's threads is left to the accept thread and the destructor.
  void Retire(Links::iterator it) {
    Add(it->second->stats(), &past_);
    ended_.push_back(std::move(it->second));
    links_.erase(it);
  }

  void Accept() {
    while (true) {
      auto link = listener_->Accept(absl::InfiniteFuture());
      if (!link.ok()) {
        if (!absl::IsCancelled(link.status()))
          spdlog::error("link listener: {}", Text(link.status()));
        return;
      }
      v1::TierHello hello;
      if (!hello.ParseFromString((*link)->hello()) || hello.id().empty()) {
        spdlog::warn("a link from \"{}\" says no TierHello; dropped", (*link)->peer());
        continue;
      }
      Adopt(*std::move(link), std::move(hello));
    }
  }

  void Adopt(std::unique_ptr<transport::Link> link, v1::TierHello hello) {
    std::vector<std::unique_ptr<ChildLink>> ended;
    {
      std::lock_guard lock(mu_);
      const auto old = links_.find(hello.id());
      if (old != links_.end()) {
        if (old->second->hello().epoch() > hello.epoch()) {
          spdlog::warn("a late link of an earlier life of \"{}\" is dropped", hello.id());
          return;
        }
        old->second->Cancel("a newer link replaces this one");
        Retire(old);
      }
      const std::string id = hello.id();
      spdlog::info("link from \"{}\" over {}", id, link->transport());
      last_used_ = std::string(link->transport());
      const uint64_t epoch = hello.epoch();
      auto& slot = links_[id];
      slot = std::make_unique<ChildLink>(std::move(link), std::move(hello), handler_, patience_,
                                         &counters_);
      if (const auto it = wanted_.find(id); it != wanted_.end()) {
        if (it->second.first == epoch) slot->SendModel(std::move(it->second.second));
        wanted_.erase(it);
      }
      ended.swap(ended_);
    }
  }

  TierHandler* handler_;
  const absl::Duration patience_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<transport::Listener> listener_;
  std::vector<LinkPlace> places_;
  std::thread acceptor_;
  ModelCounters counters_;
  mutable std::mutex mu_;
  Links links_;                                    // guarded by mu_
  std::vector<std::unique_ptr<ChildLink>> ended_;  // guarded by mu_
  std::map<std::string, std::pair<uint64_t, std::shared_ptr<const ModelVersion>>>
      wanted_;                 // guarded by mu_
  transport::LinkStats past_;  // guarded by mu_
  std::string last_used_;      // guarded by mu_
};

}  // namespace

absl::StatusOr<std::unique_ptr<TierLinks>> TierLinks::Start(const TransportConfig& config,
                                                            const std::string& node_name,
                                                            TierHandler* handler) {
  auto out = std::make_unique<FabricTierLinks>(handler, absl::Seconds(config.progress_timeout_s));
  RETURN_IF_ERROR(out->Listen(config, node_name));
  return std::unique_ptr<TierLinks>(std::move(out));
}

}  // namespace tributary::server
