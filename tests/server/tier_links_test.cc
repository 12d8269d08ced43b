// The parent's side of links: which place a child is told and takes, and which life of a child
// counts. Over every transport that this machine has.
#include "server/tier_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "aggregation/layout.h"
#include "base/deadline.h"
#include "server/fabrics.h"
#include "server/tier_stream.h"
#include "tests/server/lent_fabric.h"
#include "tests/transport/harness.h"
#include "transport/rdma/memlock.h"

namespace tributary::server {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

TEST(LinkPlaces, ChildIsToldThePortOrWhatIsAdvertised) {
  auto told = PlacesToTell("tcp", "0.0.0.0:7071", "");
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].address, ":7071");
  EXPECT_EQ(PlacesToTell("tcp", "[::]:7071", "")[0].address, ":7071");
  EXPECT_EQ(PlacesToTell("tcp", "0.0.0.0:7071", "agg.example:99")[0].address, "agg.example:99");
  EXPECT_EQ(PlacesToTell("shm", "@tributary-1", "agg.example:99")[0].address, "@tributary-1");
}

TEST(LinkPlaces, AdvertisedHostServesTheOtherPortsOfAutoToo) {
  const std::string bound = "auto;roce,200,,0.0.0.0:9000;tcp,100,,0.0.0.0:7071";
  const auto told = PlacesToTell("auto", bound, "agg.example:99");
  EXPECT_EQ(told[0].address, "auto;roce,200,,agg.example:9000;tcp,100,,agg.example:99");
}

TEST(LinkPlaces, AutoIsOfferedAsAWholeAndByEachOfItsTransports) {
  const std::string bound = "auto;shm,300,boot=x,@t;tcp,100,,0.0.0.0:7071";
  const auto told = PlacesToTell("auto", bound, "");
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0].transport, "auto");
  EXPECT_EQ(told[0].address, "auto;shm,300,boot=x,@t;tcp,100,,:7071");
  EXPECT_EQ(PlaceToTake("auto", told, "10.0.0.9"), "auto;shm,300,boot=x,@t;tcp,100,,10.0.0.9:7071");
  EXPECT_EQ(PlaceToTake("tcp", told, "10.0.0.9"), "10.0.0.9:7071");
  EXPECT_EQ(PlaceToTake("shm", told, "10.0.0.9"), "@t");
}

TEST(LinkPlaces, AutoChildTakesAParentsSingleTransport) {
  EXPECT_EQ(PlaceToTake("auto", PlacesToTell("tcp", "0.0.0.0:7071", ""), "10.0.0.9"),
            "auto;tcp,0,,10.0.0.9:7071");
}

TEST(LinkPlaces, NothingIsTakenWhereTheKindIsNotOffered) {
  EXPECT_EQ(PlaceToTake("shm", PlacesToTell("tcp", "0.0.0.0:7071", ""), "10.0.0.9"), "");
  EXPECT_EQ(PlaceToTake("auto", {}, "10.0.0.9"), "");
}

// Takes no partial sums: these tests are about models going down. One that is not refused waits for
// ever for the answer.
class NoPartials final : public TierHandler {
 public:
  void OnPartialStart(std::shared_ptr<IncomingPartial> partial) override {
    if (refuse) return partial->Refuse("none is taken here");
    started.Notify();
  }
  void OnPartialComplete(std::shared_ptr<IncomingPartial>) override {}
  void OnPartialBroken(std::shared_ptr<IncomingPartial>, absl::Status) override {
    if (refuse) return;
    broken.Notify();
    may_end.WaitForNotification();
  }
  void OnPartialBad(const std::string&, uint64_t, std::shared_ptr<IncomingPartial>,
                    absl::Status) override {}

  bool refuse = true;  // set before the first link; where false, for one partial sum:
  absl::Notification started, broken;
  absl::Notification may_end;  // lets OnPartialBroken return
};

std::shared_ptr<const ModelVersion> Model(uint64_t version) {
  auto layout = aggregation::ModelLayout::Create(
      {{"w", {3}, aggregation::DType::kF32, aggregation::Policy::kMean}});
  return ModelVersion::Make(version, *layout,
                            std::vector<uint8_t>(12, static_cast<uint8_t>(version)));
}

class TierLinksOver : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    config_.kind = GetParam();
    config_.listen = "127.0.0.1:0";
    auto links =
        config_.kind == "roce" ? OverFakeVerbs() : TierLinks::Start(config_, "root", &handler_);
    ASSERT_TRUE(links.ok()) << links.status();
    links_ = *std::move(links);
  }
  // `held`: the SHA-256 of the model that the child says it has.
  std::unique_ptr<transport::Link> Connect(uint64_t epoch, const std::string& held = "") {
    v1::TierHello hello;
    hello.set_id("rack");
    hello.set_epoch(epoch);
    hello.set_held_sha256(held);
    transport::LinkOptions options;
    options.name = "rack";
    options.hello = hello.SerializeAsString();
    const std::string place = PlaceToTake(GetParam(), links_->places(), "127.0.0.1");
    if (verbs_ == nullptr) {
      auto choice = MakeFabrics(config_, /*is_root=*/true);
      EXPECT_TRUE(choice.ok());
      fabric_ = std::move(choice->to_children.fabric);
    }
    auto link = (verbs_ == nullptr ? *fabric_ : verbs_->client()).Connect(place, options);
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }
  // A machine that runs tests has no RDMA device.
  absl::StatusOr<std::unique_ptr<TierLinks>> OverFakeVerbs() {
    verbs_ = transport::MakeRoceHarness();
    return TierLinks::StartOver({std::make_unique<LentFabric>(&verbs_->server()), config_.listen},
                                config_, "root", &handler_);
  }
  void SendModel(uint64_t epoch, uint64_t version = 1) {
    links_->SendModel("rack", epoch, Model(version));
  }
  // The version of the model that comes next, its bytes read.
  static uint64_t NextModel(transport::Link& link) {
    StreamReader reader;
    v1::ModelStreamHeader header;
    while (true) {
      const auto chunk = link.Receive(Soon());
      EXPECT_TRUE(chunk.ok()) << chunk.status();
      if (!chunk.ok()) return 0;
      const auto got = reader.Feed(*chunk);
      EXPECT_TRUE(got.ok()) << got.status();
      if (!got.ok() || *got == StreamReader::Got::kData) return header.version();
      EXPECT_TRUE(header.ParseFromString(reader.header()));
    }
  }

  NoPartials handler_;
  TransportConfig config_;
  std::unique_ptr<transport::Harness> verbs_;  // roce's
  std::unique_ptr<transport::Fabric> fabric_;  // the child's, of other kinds
  std::unique_ptr<TierLinks> links_;
};

TEST_P(TierLinksOver, NewerLifeReplacesTheOldLinkAtOnce) {
  links_->Expect("rack", 1);
  auto old = Connect(1);
  SendModel(1);
  ASSERT_TRUE(old->Receive(Soon()).ok());  // it is known by now
  links_->Expect("rack", 2);
  auto fresh = Connect(2);
  absl::Status ended;
  while (ended.ok()) ended = old->Receive(Soon()).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("a newer link replaces this one"));
  SendModel(2);
  EXPECT_TRUE(fresh->Receive(Soon()).ok());
  EXPECT_EQ(links_->used(), GetParam() == "auto" ? "shm" : GetParam());
}

TEST_P(TierLinksOver, LateHelloOfAnEarlierLifeChangesNothing) {
  links_->Expect("rack", 5);
  auto current = Connect(5);
  SendModel(5);
  ASSERT_TRUE(current->Receive(Soon()).ok());
  auto late = Connect(4);
  const absl::Status dropped = late->Receive(Soon()).status();
  EXPECT_EQ(dropped.code(), absl::StatusCode::kUnavailable) << dropped;
  EXPECT_TRUE(current->status().ok());
  SendModel(5);
  bool header = false;
  while (!header) {
    const auto chunk = current->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    header = chunk->tag().index == 0;
  }
}

TEST_P(TierLinksOver, AModelWhoseLinkBreaksOnItsWayGoesOverTheNext) {
  links_->Expect("rack", 1);
  auto broken = Connect(1);
  SendModel(1);
  broken->Cancel("the test cuts it");  // nothing of the model was read
  auto next = Connect(1);
  EXPECT_EQ(NextModel(*next), 1u);
}

TEST_P(TierLinksOver, AModelThatTheChildHoldsIsNotSentOverTheNextLink) {
  links_->Expect("rack", 1);
  auto broken = Connect(1);
  SendModel(1, 1);
  EXPECT_EQ(NextModel(*broken), 1u);
  broken->Cancel("the test cuts it");
  auto next = Connect(1, Model(1)->sha256);
  SendModel(1, 2);
  EXPECT_EQ(NextModel(*next), 2u);
}

TEST_P(TierLinksOver, AModelOfAnEarlierLifeIsNotSentToTheNext) {
  links_->Expect("rack", 1);
  auto broken = Connect(1);
  SendModel(1, 1);
  EXPECT_EQ(NextModel(*broken), 1u);
  links_->Expect("rack", 2);
  auto next = Connect(2);
  SendModel(2, 2);
  EXPECT_EQ(NextModel(*next), 2u);
}

// As whoever has seen its name might send, or a mistake: an epoch beyond all others.
TEST_P(TierLinksOver, ALinkWithoutASessionIsDroppedAndKeepsNobodyOut) {
  auto stranger = Connect(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(stranger->Receive(Soon()).status().code(), absl::StatusCode::kUnavailable);
  links_->Expect("rack", 1);
  auto link = Connect(1);
  auto again = Connect(std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(again->Receive(Soon()).status().code(), absl::StatusCode::kUnavailable);
  SendModel(1);
  EXPECT_EQ(NextModel(*link), 1u);
}

TEST_P(TierLinksOver, AfterItsSessionTheLinksOfAChildAreDropped) {
  links_->Expect("rack", 1);
  auto link = Connect(1);
  SendModel(1);
  EXPECT_EQ(NextModel(*link), 1u);
  links_->Drop("rack", 1);
  absl::Status ended;
  while (ended.ok()) ended = link->Receive(Soon()).status();
  auto late = Connect(1);
  EXPECT_EQ(late->Receive(Soon()).status().code(), absl::StatusCode::kUnavailable);
}

// The old link's last word is late, and meanwhile the session ends: the new link is nobody's.
TEST_P(TierLinksOver, ALinkWhoseSessionEndsWhileItIsTakenInIsDropped) {
  handler_.refuse = false;
  links_->Expect("rack", 1);
  auto old = Connect(1);
  v1::PartialSumHeader header;
  header.set_id("rack");
  header.set_epoch(1);
  ASSERT_TRUE(SendStreamHeader(*old, PartialStreamId(0), header.SerializeAsString(), 1,
                               {absl::Seconds(30), [] { return false; }})
                  .ok());
  ASSERT_TRUE(handler_.started.WaitForNotificationWithTimeout(absl::Seconds(30)));
  auto fresh = Connect(1);
  ASSERT_TRUE(handler_.broken.WaitForNotificationWithTimeout(absl::Seconds(30)));
  links_->Drop("rack", 1);
  handler_.may_end.Notify();
  const absl::Status ended = fresh->Receive(Soon()).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
}

// One dead child must not keep itself out: its next link is made of the memory of the last.
TEST(TierLinksArena, AChildWhoseLinkEndedComesBackWhereTheArenaHoldsOneLinkOnly) {
  NoPartials handler;
  TransportConfig config;
  config.kind = "roce";
  const auto verbs = transport::MakeRoceHarness(
      transport::rdma::LinkArenaBytes(config.slots, transport::LinkOptions().chunk_bytes));
  auto links = TierLinks::StartOver({std::make_unique<LentFabric>(&verbs->server()), "127.0.0.1:0"},
                                    config, "root", &handler);
  ASSERT_TRUE(links.ok()) << links.status();
  (*links)->Expect("rack", 1);
  v1::TierHello hello;
  hello.set_id("rack");
  hello.set_epoch(1);
  transport::LinkOptions options;
  options.name = "rack";
  options.hello = hello.SerializeAsString();
  const std::string place = PlaceToTake("roce", (*links)->places(), "127.0.0.1");
  for (int life = 0; life < 3; ++life) {
    // As a rack tries: the parent may not have noticed the end yet.
    const Deadline deadline = Soon();
    auto link = verbs->client().Connect(place, options);
    while (!link.ok() && !deadline.Expired()) link = verbs->client().Connect(place, options);
    ASSERT_TRUE(link.ok()) << "life " << life << ": " << link.status();
    (*links)->SendModel("rack", 1, Model(static_cast<uint64_t>(life) + 1));
    ASSERT_TRUE((*link)->Receive(Soon()).ok());  // it is taken in
    (*link)->Cancel("the test cuts it");
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TierLinksOver, ::testing::ValuesIn(TransportKinds()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tributary::server
