// Segments that links sent again: counted over all links of a node, ended ones too, and told by the
// round.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/node_base.h"
#include "server/tier_links.h"
#include "tests/server/held_parent.h"
#include "tests/server/node_fixture.h"
#include "transport/tcp.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

Deadline Soon() { return Deadline::After(kPatience); }

// A link that says so many segments were sent again.
class LossyLink final : public transport::Link {
 public:
  LossyLink(std::unique_ptr<transport::Link> inner, uint64_t retransmits)
      : inner_(std::move(inner)), retransmits_(retransmits) {}
  absl::StatusOr<transport::Chunk> Borrow(Deadline deadline) override {
    return inner_->Borrow(deadline);
  }
  absl::Status Send(transport::Chunk chunk) override { return inner_->Send(std::move(chunk)); }
  absl::StatusOr<transport::Chunk> Receive(Deadline deadline) override {
    return inner_->Receive(deadline);
  }
  absl::Status Close(Deadline deadline) override { return inner_->Close(deadline); }
  void Cancel(const std::string& why) override { inner_->Cancel(why); }
  absl::Status status() const override { return inner_->status(); }
  size_t chunk_bytes() const override { return inner_->chunk_bytes(); }
  std::string peer() const override { return inner_->peer(); }
  std::string hello() const override { return inner_->hello(); }
  std::string_view transport() const override { return inner_->transport(); }
  transport::LinkStats stats() const override {
    transport::LinkStats stats = inner_->stats();
    stats.retransmits = retransmits_;
    return stats;
  }

 private:
  const std::unique_ptr<transport::Link> inner_;
  const uint64_t retransmits_;
};

// tcp whose links say 1, 10, 100, ... in the order in which they were made.
class LossyFabric final : public transport::Fabric {
 public:
  std::string_view name() const override { return "tcp"; }
  absl::StatusOr<std::unique_ptr<transport::Listener>> Listen(
      const std::string& address, const transport::LinkOptions& options) override {
    auto listener = tcp_->Listen(address, options);
    if (!listener.ok()) return listener.status();
    return std::make_unique<LossyListener>(*std::move(listener), this);
  }
  absl::StatusOr<std::unique_ptr<transport::Link>> Connect(
      const std::string& address, const transport::LinkOptions& options) override {
    return Wrap(tcp_->Connect(address, options));
  }

 private:
  class LossyListener final : public transport::Listener {
   public:
    LossyListener(std::unique_ptr<transport::Listener> inner, LossyFabric* fabric)
        : inner_(std::move(inner)), fabric_(fabric) {}
    absl::StatusOr<std::unique_ptr<transport::Link>> Accept(Deadline deadline) override {
      return fabric_->Wrap(inner_->Accept(deadline));
    }
    std::string address() const override { return inner_->address(); }
    void Cancel() override { inner_->Cancel(); }
    uint64_t refused() const override { return inner_->refused(); }

   private:
    const std::unique_ptr<transport::Listener> inner_;
    LossyFabric* const fabric_;
  };
  absl::StatusOr<std::unique_ptr<transport::Link>> Wrap(
      absl::StatusOr<std::unique_ptr<transport::Link>> link) {
    if (!link.ok()) return link;
    const uint64_t retransmits = next_;
    next_ *= 10;
    return std::make_unique<LossyLink>(*std::move(link), retransmits);
  }

  const std::unique_ptr<transport::Fabric> tcp_ = transport::MakeTcpFabric();
  uint64_t next_ = 1;  // links are made one after another here
};

class NoPartials final : public TierHandler {
 public:
  void OnPartialStart(std::shared_ptr<IncomingPartial>) override {}
  void OnPartialComplete(std::shared_ptr<IncomingPartial>) override {}
  void OnPartialBroken(std::shared_ptr<IncomingPartial>, absl::Status) override {}
  void OnPartialBad(const std::string&, uint64_t, std::shared_ptr<IncomingPartial>,
                    absl::Status) override {}
};

std::unique_ptr<transport::Link> ConnectTo(const TierLinks& parent, const std::string& id,
                                           uint64_t epoch) {
  v1::TierHello hello;
  hello.set_id(id);
  hello.set_epoch(epoch);
  transport::LinkOptions options;
  options.name = id;
  options.hello = hello.SerializeAsString();
  const std::string place = PlaceToTake("tcp", parent.places(), "127.0.0.1");
  auto link = transport::MakeTcpFabric()->Connect(place, options);
  EXPECT_TRUE(link.ok()) << link.status();
  return *std::move(link);
}

TEST(LinkRetransmits, AParentCountsThoseOfAllItsChildrensLinks) {
  NoPartials handler;
  TransportConfig config;
  config.kind = "tcp";
  auto links = TierLinks::StartOver({std::make_unique<LossyFabric>(), "127.0.0.1:0"}, config,
                                    "root", &handler);
  ASSERT_TRUE(links.ok()) << links.status();
  EXPECT_EQ((*links)->stats().retransmits, 0u);
  const auto model =
      ModelVersion::Make(1, TestLayout(), std::vector<uint8_t>(TestLayout()->model_bytes()));
  uint64_t sum = 0, next = 1;
  // The third is a later life of the first, whose link ends.
  for (const auto& [id, epoch] : {std::pair("a", 1u), std::pair("b", 1u), std::pair("a", 2u)}) {
    (*links)->Expect(id, epoch);
    const auto link = ConnectTo(**links, id, epoch);
    (*links)->SendModel(id, epoch, model);
    ASSERT_TRUE(link->Receive(Soon()).ok());  // it is taken in
    sum += std::exchange(next, next * 10);
    EXPECT_EQ((*links)->stats().retransmits, sum);
  }
  (*links)->Drop("b", 1);
  EXPECT_EQ((*links)->stats().retransmits, 111u);
}

TEST(LinkRetransmits, AChildCountsThoseOfItsLinksToTheParent) {
  HeldParent parent(TestLayout());
  DeafChild child;
  const auto uplink =
      Uplink::Start({.id = "rack", .epoch = 1, .parents = {parent.endpoint()}, .transport = {}},
                    std::make_unique<LossyFabric>(), &child);
  EXPECT_EQ(uplink->retransmits(), 0u);
  for (const uint64_t sum : {1u, 11u, 111u}) {
    auto link = parent.Accept();
    ASSERT_NE(link, nullptr);
    const Deadline limit = Soon();
    while (uplink->retransmits() < sum && !limit.Expired()) std::this_thread::yield();
    EXPECT_EQ(uplink->retransmits(), sum);
    link->Cancel("the test cuts it");  // it comes again
  }
}

// The side towards children, with figures of the test's.
class ToldTier final : public TierLinks {
 public:
  std::string kind() const override { return "tcp"; }
  const std::vector<LinkPlace>& places() const override { return places_; }
  std::string used() const override { return "tcp"; }
  void Expect(const std::string&, uint64_t) override {}
  void SendModel(const std::string&, uint64_t, std::shared_ptr<const ModelVersion>) override {}
  void Drop(const std::string&, uint64_t) override {}
  transport::LinkStats stats() const override { return told; }
  SentBytes models_sent() const override { return {}; }

  transport::LinkStats told;

 private:
  std::vector<LinkPlace> places_;
};

// A node that only reports.
class Reporter final : public NodeBase {
 public:
  explicit Reporter(Options options) : NodeBase(std::move(options)) {
    rounds_file_ = *RoundsFile::Open(options_.config.metrics.rounds_file);
    auto tier = std::make_unique<ToldTier>();
    told_ = &tier->told;
    tier_ = std::move(tier);
  }
  // `sent_again`: since the node's start.
  void Round(uint64_t round, uint64_t sent_again) {
    told_->retransmits = sent_again;
    RoundReport report;
    report.round = round;
    Publish(std::move(report));
  }

 private:
  void Begin() override {}
  void MembersChanged() override {}
  void RoundClosed(CollectedRound) override {}
  void ShutdownAsked() override {}

  transport::LinkStats* told_ = nullptr;
};

TEST(LinkRetransmits, EachLineOfTheRoundsFileHasItsOwn) {
  const TempDir dir;
  Node::Options options;
  options.config.metrics.rounds_file = dir / "rounds.jsonl";
  Reporter node(std::move(options));
  node.Round(1, 0);
  node.Round(2, 7);
  node.Round(3, 7);
  node.Round(4, 12);
  std::vector<std::pair<int, int>> lines;
  std::ifstream file(dir / "rounds.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    lines.emplace_back(json["round"], json["link_retransmits"]);
  }
  EXPECT_THAT(lines, ElementsAre(Pair(1, 0), Pair(2, 7), Pair(3, 0), Pair(4, 5)));
}

}  // namespace
}  // namespace tributary::server
