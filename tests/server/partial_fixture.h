// A parent's collector with its links over a fabric of choice, and child aggregators that send it
// partial sums and stop, vanish, return or lie when the test says so. No gRPC: sessions are held by
// hand.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/collector.h"
#include "server/forwarder.h"
#include "server/tier_links.h"
#include "server/tier_stream.h"
#include "tests/aggregation/testing.h"
#include "tests/server/held.h"
#include "tests/server/lent_fabric.h"
#include "tests/transport/harness.h"
#include "transport/faults.h"
#include "transport/shm.h"
#include "transport/sim.h"
#include "transport/tcp.h"

namespace tributary::server {

inline constexpr absl::Duration kLimit = absl::Seconds(60);  // who waits longer has found a hang

// Looks again every millisecond, for what has no bell.
template <typename Condition>
bool AwaitTrue(const Condition& condition) {
  const absl::Time limit = absl::Now() + kLimit;
  while (!condition()) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// The two ends of links of one kind; roce's are over fake verbs, whose account is checked at the
// end.
class FabricPair {
 public:
  explicit FabricPair(const std::string& kind) : kind_(kind) {
    if (kind == "roce") harness_ = transport::MakeRoceHarness();
    parent_ = kind == "roce" ? std::make_unique<LentFabric>(&harness_->server()) : Make();
    child_ = kind == "roce" ? std::make_unique<LentFabric>(&harness_->client()) : Make();
  }
  std::unique_ptr<transport::Fabric> TakeParent() { return std::move(parent_); }
  transport::Fabric& child() { return *child_; }
  std::string listen() const {
    return kind_ == "shm" ? "@" : kind_ == "sim" ? "parent" : "127.0.0.1:0";
  }

 private:
  std::unique_ptr<transport::Fabric> Make() {
    if (kind_ == "tcp") return transport::MakeTcpFabric();
    if (kind_ == "shm") return transport::MakeShmFabric();
    return transport::MakeSimFabric(network_, network_.AddNode());
  }
  const std::string kind_;
  transport::SimNetwork network_;
  std::unique_ptr<transport::Harness> harness_;
  std::unique_ptr<transport::Fabric> parent_, child_;
};

inline constexpr uint32_t kSlots = 4;  // of links, on both sides

// One client's update, and what it adds to the sum: from the same floats by another way.
struct Contribution {
  std::string id;
  int64_t weight = 1;
  aggregation::testing::GivenDeltas deltas;

  Contribution(const aggregation::ModelLayout& layout, std::string client, int64_t w, uint64_t seed)
      : id(std::move(client)),
        weight(w),
        deltas(aggregation::testing::RandomDeltas(layout, seed)) {}
};

// Each block of 512 floats turned around, of all tensors: other values that pack to the same
// lengths where each tensor begins with a block.
inline Contribution Turned(Contribution client) {
  constexpr auto kBlock = static_cast<ptrdiff_t>(aggregation::kBlockElements);
  for (std::vector<float>& x : client.deltas.floats) {
    for (auto at = x.begin(); x.end() - at >= kBlock; at += kBlock) std::reverse(at, at + kBlock);
  }
  return client;
}

// What a rack has summed up of its clients.
struct RackSum {
  std::unique_ptr<aggregation::ExactAccumulator> sum;
  uint64_t weight = 0;
  std::vector<std::string> contributors;  // ascending

  RackSum(const aggregation::testing::LayoutPtr& layout, const aggregation::Grid& grid,
          std::vector<Contribution> clients)
      : sum(aggregation::testing::MakeAccumulator(layout, grid)) {
    for (Contribution& client : clients) {
      const auto update = aggregation::testing::Assemble(
          layout, grid,
          aggregation::testing::Record(*layout, {"fp32"}, client.id, client.weight, client.deltas));
      aggregation::testing::FoldAll(sum.get(), {update});
      weight += static_cast<uint64_t>(client.weight);
      contributors.push_back(client.id);
    }
    std::sort(contributors.begin(), contributors.end());
  }
  // Of the first chunks.
  uint64_t PackedBytes(uint64_t chunks) const {
    std::vector<uint8_t> room(aggregation::kMaxPackedChunkBytes);
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < chunks; ++i) bytes += sum->PackChunk(i, room.data());
    return bytes;
  }
};

// Float tensors with policy mean, added up in plain integers.
inline std::vector<int64_t> PlainSum(const aggregation::ModelLayout& layout, int fraction_bits,
                                     const std::vector<Contribution>& clients) {
  std::vector<int64_t> out(layout.elements(), 0);
  for (const Contribution& client : clients) {
    uint64_t at = 0;
    for (const auto& tensor : client.deltas.floats) {
      for (const float x : tensor)
        out[at++] += client.weight * std::llrint(std::ldexp(double{x}, fraction_bits));
    }
  }
  return out;
}

// A parent in the middle of round 1.
class ParentNode {
 public:
  ParentNode(aggregation::testing::LayoutPtr layout, const aggregation::Grid& grid,
             FabricPair* fabrics, const LimitsConfig& limits,
             double progress_timeout_s = TransportConfig().progress_timeout_s)
      : layout_(std::move(layout)), grid_(grid) {
    collector_ = std::make_unique<Collector>(
        &loop_, limits,
        Collector::Callbacks{.members_changed = [] {},
                             .closed = [this](CollectedRound round) { closed_.set_value(round); }});
    TransportConfig config;
    config.slots = kSlots;
    config.progress_timeout_s = progress_timeout_s;
    auto tier = TierLinks::StartOver({fabrics->TakeParent(), fabrics->listen()}, config, "parent",
                                     collector_.get());
    EXPECT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    collector_->AttachTier(tier_.get());
    thread_ = std::thread([this] { loop_.Run(); });
    OnLoop([this] { collector_->Open("run", layout_); });
  }
  ~ParentNode() {
    tier_.reset();
    loop_.Stop();
    thread_.join();
  }
  template <typename Work>
  void OnLoop(const Work& work) {
    RunOn(loop_, work);
  }
  void Join(const std::string& id, uint64_t epoch) {
    sessions_[id] = std::make_shared<HeldSession>(id, v1::AGGREGATOR, epoch);
    collector_->OnJoin(sessions_[id]);
    OnLoop([] {});  // a child makes its link when it has been welcomed
  }
  void Leave(const std::string& id) { collector_->OnSessionEnd(sessions_[id]); }
  void Begin(absl::Duration rejoin_grace = absl::Seconds(30)) {
    OnLoop([&] {
      const v1::RoundSpec spec = RoundForAll(1, *layout_, grid_);
      ASSERT_TRUE(collector_->Begin(spec, grid_, 1, rejoin_grace, ZeroModel(layout_)).ok());
    });
  }
  std::string address() const {
    const std::string& told = tier_->places().front().address;
    return told.starts_with(':') ? "127.0.0.1" + told : told;
  }
  uint64_t Uncounted(const std::string& id) {
    uint64_t chunks = 0;
    OnLoop([&] { chunks = collector_->UncountedChunks(id); });
    return chunks;
  }
  std::vector<int64_t> Sums() {
    std::vector<int64_t> out;
    OnLoop([&] {
      collector_->pool()->Wait();
      out.assign(collector_->sum()->sums().begin(), collector_->sum()->sums().end());
    });
    return out;
  }
  CollectedRound Closed() {
    auto closed = closed_.get_future();
    const bool there = closed.wait_for(absl::ToChronoSeconds(kLimit)) == std::future_status::ready;
    EXPECT_TRUE(there) << "the round does not close";
    return there ? closed.get() : CollectedRound();
  }
  void CloseNow() {
    loop_.Post([this] { collector_->CloseNow(); });
  }
  transport::LinkStats stats() const { return tier_->stats(); }

 private:
  const aggregation::testing::LayoutPtr layout_;
  const aggregation::Grid grid_;
  RealClock clock_;
  EventLoop loop_{&clock_};
  std::promise<CollectedRound> closed_;
  std::map<std::string, std::shared_ptr<HeldSession>> sessions_;
  std::unique_ptr<Collector> collector_;
  std::unique_ptr<TierLinks> tier_;
  std::thread thread_;
};

// A link of a child, its receiving side read by a thread that hands out the parent's answers.
class ChildEnd {
 public:
  // Below `stall_after` chunks it is an honest link; then it sends nothing more.
  ChildEnd(FabricPair* fabrics, const std::string& address, const std::string& id, uint64_t epoch,
           std::optional<uint64_t> stall_after, std::function<void(v1::PartialSumAnswer)> answers)
      : answers_(std::move(answers)) {
    v1::TierHello hello;
    hello.set_run("run");
    hello.set_id(id);
    hello.set_epoch(epoch);
    transport::LinkOptions options;
    options.name = id;
    options.slots = kSlots;
    options.hello = hello.SerializeAsString();
    auto made = fabrics->child().Connect(address, options);
    EXPECT_TRUE(made.ok()) << made.status();
    transport::Faults faults;
    faults.stall_after = stall_after;
    link_ = transport::MakeFaultyLink(*std::move(made), faults);
    receiver_ = std::thread([this] { Receive(); });
  }
  ~ChildEnd() { Cut("the test ends"); }
  // At once, as when its process dies.
  void Cut(const std::string& why = "the test cuts it") {
    link_->Cancel(why);
    if (receiver_.joinable()) receiver_.join();
  }
  // Until the parent ends it; what it then says.
  std::string AwaitEnd() {
    if (receiver_.joinable()) receiver_.join();
    return std::string(end_.message());
  }
  const std::shared_ptr<transport::Link>& link() const { return link_; }

 private:
  void Receive() {
    StreamReader reader;
    while (true) {
      auto chunk = link_->Receive(Deadline::Infinite());
      if (!chunk.ok()) {
        end_ = chunk.status();
        return;
      }
      const auto got = reader.Feed(*chunk);
      ASSERT_TRUE(got.ok()) << got.status();
      if (*got != StreamReader::Got::kHeader || !IsPartialStream(reader.stream())) continue;
      v1::PartialSumAnswer answer;
      ASSERT_TRUE(answer.ParseFromString(reader.header()));
      *chunk = transport::Chunk();
      answers_(std::move(answer));
    }
  }
  const std::function<void(v1::PartialSumAnswer)> answers_;
  std::shared_ptr<transport::Link> link_;
  absl::Status end_;
  std::thread receiver_;
};

// One life of a child aggregator.
class ChildLife {
 public:
  ChildLife(FabricPair* fabrics, ParentNode* parent, const std::string& id, uint64_t epoch)
      : fabrics_(fabrics),
        parent_(parent),
        id_(id),
        epoch_(epoch),
        forwarder_(absl::Seconds(50),
                   {.forwarded = [this](uint64_t, absl::Status status,
                                        double) { forwarded_.set_value(std::move(status)); },
                    .released = [](uint64_t) {}}) {}
  ~ChildLife() { Cut(); }
  void Connect(std::optional<uint64_t> stall_after = std::nullopt) {
    end_ = std::make_unique<ChildEnd>(
        fabrics_, parent_->address(), id_, epoch_, stall_after,
        [this](v1::PartialSumAnswer answer) { forwarder_.Answer(std::move(answer)); });
    forwarder_.UseLink(end_->link());
  }
  void Cut() {
    if (end_ == nullptr) return;
    end_->Cut();
    forwarder_.UseLink(nullptr);
    end_ = nullptr;
  }
  // Once the parent has ended the link, and what it said.
  std::string AwaitEnd() { return end_->AwaitEnd(); }
  void Forward(const RackSum& rack) {
    v1::PartialSumHeader header;
    header.set_run("run");
    header.set_round(1);
    header.set_id(id_);
    header.set_epoch(epoch_);
    header.set_layout_hash(rack.sum->layout().hash());
    header.set_weight(rack.weight);
    for (const std::string& id : rack.contributors) header.add_contributors(id);
    header.set_chunks(rack.sum->chunk_count());
    forwarder_.Forward(std::move(header), rack.sum.get());
  }
  // How the Forward ended.
  absl::Status Forwarded() {
    auto forwarded = forwarded_.get_future();
    if (forwarded.wait_for(absl::ToChronoSeconds(kLimit)) != std::future_status::ready)
      return absl::DeadlineExceededError("the forward does not end");
    return forwarded.get();
  }

 private:
  FabricPair* fabrics_;
  ParentNode* parent_;
  const std::string id_;
  const uint64_t epoch_;
  std::promise<absl::Status> forwarded_;
  std::unique_ptr<ChildEnd> end_;
  Forwarder forwarder_;
};

}  // namespace tributary::server
