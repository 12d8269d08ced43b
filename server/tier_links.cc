// Accepting children's links, and keeping the one that counts of each child.
#include "server/tier_links.h"

#include <spdlog/spdlog.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "server/fabrics.h"
#include "server/tier_child.h"

namespace tributary::server {
namespace {

class FabricTierLinks final : public TierLinks {
 public:
  FabricTierLinks(TierHandler* handler, absl::Duration patience)
      : handler_(handler), patience_(patience) {}
  ~FabricTierLinks() override {
    if (listener_ != nullptr) listener_->Cancel();
    {
      std::lock_guard lock(mu_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (acceptor_.joinable()) acceptor_.join();
    if (undertaker_.joinable()) undertaker_.join();
    links_.clear();
    ended_.clear();
  }

  absl::Status Listen(FabricChoice choice, const TransportConfig& config,
                      const std::string& node_name) {
    fabric_ = std::move(choice.fabric);
    transport::LinkOptions options = LinkOptionsOf(config);
    options.name = node_name;
    ASSIGN_OR_RETURN(listener_, fabric_->Listen(choice.listen, options));
    places_ = PlacesToTell(config.kind, listener_->address(), config.advertise);
    undertaker_ = std::thread([this] { Bury(); });
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

  void Expect(const std::string& id, uint64_t epoch) override {
    std::lock_guard lock(mu_);
    known_[id] = {epoch, nullptr};
  }

  void SendModel(const std::string& id, uint64_t epoch,
                 std::shared_ptr<const ModelVersion> model) override {
    std::lock_guard lock(mu_);
    const auto known = known_.find(id);
    if (known == known_.end() || known->second.epoch != epoch) return;
    known->second.model = model;
    const auto link = links_.find(id);
    if (link != links_.end() && link->second->hello().epoch() == epoch) {
      link->second->SendModel(std::move(model));
    }
  }

  void Drop(const std::string& id, uint64_t epoch) override {
    std::lock_guard lock(mu_);
    if (const auto it = known_.find(id); it != known_.end() && it->second.epoch == epoch)
      known_.erase(it);
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
  using Links = std::map<std::string, std::unique_ptr<TierChild>>;

  static void Add(const transport::LinkStats& from, transport::LinkStats* to) {
    to->bytes_sent += from.bytes_sent;
    to->bytes_received += from.bytes_received;
    to->chunks_sent += from.chunks_sent;
    to->chunks_received += from.chunks_received;
    to->retransmits += from.retransmits;
  }
  // mu_ is held. Joining the link's threads is left to the undertaker.
  void Retire(Links::iterator it) {
    Add(it->second->stats(), &past_);
    ended_.push_back(std::move(it->second));
    links_.erase(it);
    ++retired_;
    changed_.notify_all();
  }

  // Destroys links that have ended, at once: of what they hold, memory of an RDMA arena, the
  // child's next link is made, before it comes to Accept.
  void Bury() {
    std::unique_lock lock(mu_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || some_over_ || !ended_.empty(); });
      if (stopping_) return;
      some_over_ = false;
      for (auto it = links_.begin(); it != links_.end();) {
        const auto at = it++;
        if (at->second->over()) Retire(at);
      }
      std::vector<std::unique_ptr<TierChild>> ended;
      ended.swap(ended_);
      lock.unlock();
      const size_t count = ended.size();
      ended.clear();
      lock.lock();
      buried_ += count;
      changed_.notify_all();
    }
  }

  void Accept() {
    while (true) {
      auto link = listener_->Accept(Deadline::Infinite());
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

  // mu_ is held.
  bool Expected(const v1::TierHello& hello) const {
    const auto known = known_.find(hello.id());
    if (known != known_.end() && known->second.epoch == hello.epoch()) return true;
    // Two threads for whoever knocks, or a made-up later life in a child's place: neither.
    spdlog::warn("a link of \"{}\" without a session of epoch {} is dropped",
                 absl::Utf8SafeCHexEscape(hello.id().substr(0, 200)), hello.epoch());
    return false;
  }

  void Adopt(std::unique_ptr<transport::Link> link, v1::TierHello hello) {
    std::unique_lock lock(mu_);
    if (!Expected(hello)) return;
    if (const auto old = links_.find(hello.id()); old != links_.end()) {
      old->second->Cancel("a newer link replaces this one");
      Retire(old);
    }
    // The old one's threads have said their last word before the new one says its first: what came
    // of a partial sum over the one is known when it is offered again over the other.
    changed_.wait(lock, [this, all = retired_] { return stopping_ || buried_ >= all; });
    if (stopping_ || !Expected(hello)) return;  // its session may have ended meanwhile
    const std::string id = hello.id();
    spdlog::info("link from \"{}\" over {}", id, link->transport());
    last_used_ = std::string(link->transport());
    const std::string held = hello.held_sha256();
    auto& slot = links_[id];
    slot = std::make_unique<TierChild>(std::move(link), std::move(hello), handler_, patience_,
                                       &counters_, [this] { SomeOver(); });
    // Also one that an earlier link was to bring: nobody knows how far it came.
    const auto& model = known_[id].model;
    if (model != nullptr && model->sha256 != held) slot->SendModel(model);
  }
  void SomeOver() {
    {
      std::lock_guard lock(mu_);
      some_over_ = true;
    }
    changed_.notify_all();
  }

  TierHandler* handler_;
  const absl::Duration patience_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<transport::Listener> listener_;
  std::vector<LinkPlace> places_;
  std::thread acceptor_, undertaker_;
  ModelCounters counters_;
  mutable std::mutex mu_;
  std::condition_variable changed_;                // what Bury and Adopt wait for
  bool stopping_ = false;                          // guarded by mu_
  Links links_;                                    // guarded by mu_
  bool some_over_ = false;                         // of links_; guarded by mu_
  std::vector<std::unique_ptr<TierChild>> ended_;  // guarded by mu_
  uint64_t retired_ = 0, buried_ = 0;              // that went into ended_, and are gone; likewise
  // The children that have a session.
  struct Known {
    uint64_t epoch = 0;
    std::shared_ptr<const ModelVersion> model;  // the last one for it
  };
  std::map<std::string, Known> known_;  // guarded by mu_
  transport::LinkStats past_;           // guarded by mu_
  std::string last_used_;               // guarded by mu_
};

}  // namespace

absl::StatusOr<std::unique_ptr<TierLinks>> TierLinks::Start(const TransportConfig& config,
                                                            const std::string& node_name,
                                                            TierHandler* handler) {
  ASSIGN_OR_RETURN(NodeFabrics fabrics, MakeFabrics(config, /*is_root=*/true));
  return StartOver(std::move(fabrics.to_children), config, node_name, handler);
}

absl::StatusOr<std::unique_ptr<TierLinks>> TierLinks::StartOver(FabricChoice choice,
                                                                const TransportConfig& config,
                                                                const std::string& node_name,
                                                                TierHandler* handler) {
  auto out = std::make_unique<FabricTierLinks>(handler, absl::Seconds(config.progress_timeout_s));
  RETURN_IF_ERROR(out->Listen(std::move(choice), config, node_name));
  return std::unique_ptr<TierLinks>(std::move(out));
}

}  // namespace tributary::server
