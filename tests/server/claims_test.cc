// What a node says to claims: to those of the aggregators below, and of its parent's answers.
#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "server/collector.h"
#include "server/tier_links.h"
#include "tests/server/collector_fixture.h"
#include "tests/server/held.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kMostBytes = (size_t{2} << 20) - 100;  // the session's own message is around it

// A node in the middle of round 1 with a rack, "rack", below it.
class ClaimsTest : public testing::Test {
 protected:
  ~ClaimsTest() override {
    tier_.reset();
    loop_.Stop();
    thread_.join();
  }
  void Start(bool has_parent) {
    Collector::Callbacks callbacks{.members_changed = [] {}, .closed = [](CollectedRound) {}};
    if (has_parent)
      callbacks.claim = [this](const v1::Claims& claims) { asked_.push_back(claims); };
    collector_ = std::make_unique<Collector>(&loop_, LimitsConfig(), callbacks);
    TransportConfig config;
    config.listen = "127.0.0.1:0";
    auto tier = TierLinks::Start(config, "node", collector_.get());
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
    collector_->AttachTier(tier_.get());
    thread_ = std::thread([this] { loop_.Run(); });
    OnLoop([this] { collector_->Open("run", TestLayout()); });
    rack_ = Join("rack", v1::AGGREGATOR);
    Begin();
  }
  void Begin() {
    OnLoop([this] {
      v1::RoundSpec spec = RoundForAll(1, *TestLayout(), grid_);
      spec.set_deadline_ms(600'000);
      ASSERT_TRUE(
          collector_->Begin(spec, grid_, 1, absl::Seconds(5), ZeroModel(TestLayout())).ok());
    });
  }
  std::shared_ptr<HeldSession> Join(const std::string& id, v1::Role role) {
    auto session = std::make_shared<HeldSession>(id, role, kEpoch, ZeroModel(TestLayout())->sha256);
    collector_->OnJoin(session);
    OnLoop([] {});
    return session;
  }
  // The rack claims these.
  void Claim(const std::vector<std::string>& ids) { Claim(rack_, ids); }
  void Claim(const std::shared_ptr<HeldSession>& rack, const std::vector<std::string>& ids) {
    v1::SessionRequest request;
    request.mutable_claims()->set_round(1);
    request.mutable_claims()->mutable_clients()->Assign(ids.begin(), ids.end());
    collector_->OnMessage(rack, request);
    OnLoop([] {});
  }
  // The parent's word.
  void Answer(const v1::ClaimsAnswer& answer) {
    OnLoop([&] { collector_->ClaimsAnswered(answer); });
  }
  template <typename Work>
  void OnLoop(const Work& work) {
    RunOn(loop_, work);
  }

  RealClock clock_;
  EventLoop loop_{&clock_};
  aggregation::Grid grid_ = *aggregation::ProveGrid({});
  std::unique_ptr<Collector> collector_;
  std::unique_ptr<TierLinks> tier_;
  std::shared_ptr<HeldSession> rack_;
  std::vector<v1::Claims> asked_;  // of the parent
  std::thread thread_;
};

TEST_F(ClaimsTest, BeyondTheBoundsAreAnsweredAsRefused) {
  Start(false);
  const std::string endless(aggregation::kMostIdBytes + 1, 'x');
  Claim({endless, "c"});
  ASSERT_THAT(rack_->claims(), SizeIs(2));
  EXPECT_THAT(rack_->claims()[0].refused(), ElementsAre(endless));
  EXPECT_THAT(rack_->claims()[1].granted(), ElementsAre("c"));
}

TEST_F(ClaimsTest, OfARackBelowAreAnsweredInOneMessageOnceTheParentHasAnswered) {
  Start(true);
  std::vector<std::string> ids;
  for (int i = 0; i < 300; ++i) ids.push_back(absl::StrCat("c", i));
  Claim(ids);
  ASSERT_THAT(asked_, SizeIs(1));
  EXPECT_THAT(asked_[0].clients(), SizeIs(300));
  EXPECT_THAT(rack_->claims(), IsEmpty());
  v1::ClaimsAnswer answer;
  answer.set_round(1);
  for (int i = 2; i < 300; ++i) answer.add_granted(ids[i]);
  answer.add_taken("c0");
  answer.add_refused("c1");
  Answer(answer);
  // More messages than a session may have unread would end it.
  ASSERT_THAT(rack_->claims(), SizeIs(1));
  EXPECT_THAT(rack_->claims()[0].granted(), SizeIs(298));
  EXPECT_THAT(rack_->claims()[0].taken(), ElementsAre("c0"));
  EXPECT_THAT(rack_->claims()[0].refused(), ElementsAre("c1"));
}

// It has moved on from the rack by which it was claimed: what the parent has said still holds.
TEST_F(ClaimsTest, OfWhoIsKnownToBeCountedAreAnsweredSoToTheNextRackToo) {
  Start(true);
  Claim({"c"});
  v1::ClaimsAnswer answer;
  answer.set_round(1);
  answer.add_taken("c");
  Answer(answer);
  const auto next = Join("next rack", v1::AGGREGATOR);
  Claim(next, {"c"});
  EXPECT_THAT(next->claims(), IsEmpty()) << "the first may still count it, as far as is known here";
  collector_->OnSessionEnd(rack_);
  OnLoop([] {});
  ASSERT_THAT(next->claims(), SizeIs(1));
  EXPECT_THAT(next->claims()[0].taken(), ElementsAre("c"));
  EXPECT_THAT(asked_, SizeIs(1)) << "and the parent is not asked once more";
}

// A session's message holds 2 MiB; ids of this length fill it with fewer than 10,000.
TEST_F(ClaimsTest, OfMoreClientsThanAMessageHoldsGoUpAndDownInSeveral) {
  Start(true);
  std::vector<std::string> ids;
  for (int i = 0; i < 30'000; ++i) {
    ids.push_back(absl::StrCat(i, "-"));
    ids.back().resize(aggregation::kMostIdBytes, 'x');
  }
  Claim(ids);
  // What the parent is asked for, in messages that it takes.
  const auto asked = [this] {
    std::set<std::string> all;
    for (const v1::Claims& claims : asked_) {
      EXPECT_LE(claims.ByteSizeLong(), kMostBytes);
      EXPECT_EQ(claims.round(), 1u);
      all.insert(claims.clients().begin(), claims.clients().end());
    }
    return all;
  };
  const std::set<std::string> all(ids.begin(), ids.end());
  EXPECT_THAT(asked_, SizeIs(4));
  EXPECT_EQ(asked(), all);
  // After a new session with it, once more.
  asked_.clear();
  OnLoop([this] { collector_->ClaimAgain(); });
  EXPECT_THAT(asked_, SizeIs(4));
  EXPECT_EQ(asked(), all);
  v1::ClaimsAnswer answer;
  answer.set_round(1);
  answer.mutable_granted()->Assign(ids.begin(), ids.end());
  Answer(answer);
  ASSERT_THAT(rack_->claims(), SizeIs(4));
  std::set<std::string> granted;
  for (const v1::ClaimsAnswer& told : rack_->claims()) {
    EXPECT_LE(told.ByteSizeLong(), kMostBytes);
    granted.insert(told.granted().begin(), told.granted().end());
  }
  EXPECT_EQ(granted, all);
}

TEST_F(ClaimsTest, ThatTheParentRefusesEndTheWaitOfTheClientsUpdate) {
  Start(true);
  const auto client = Join("late comer", v1::CLIENT);
  ASSERT_THAT(asked_, SizeIs(1));
  EXPECT_THAT(asked_[0].clients(), ElementsAre("late comer"));
  v1::UploadHeader header;
  header.set_run("run");
  header.set_round(1);
  header.set_id("late comer");
  header.set_epoch(kEpoch);
  header.set_layout_hash(TestLayout()->hash());
  header.set_weight(1);
  header.set_encoded_bytes(1000);
  const auto upload = std::make_shared<HeldUpload>(header);
  collector_->OnUploadStart(upload);
  OnLoop([&] { EXPECT_FALSE(upload->answer.has_value()) << "its claim is not answered"; });
  v1::ClaimsAnswer answer;
  answer.set_round(1);
  answer.add_refused("late comer");
  Answer(answer);
  ASSERT_TRUE(upload->answer.has_value());
  EXPECT_EQ(upload->answer->status(), v1::UploadResponse::REJECTED);
  EXPECT_EQ(upload->answer->reason(), "unclaimed");
  EXPECT_FALSE(upload->admitted());
}

}  // namespace
}  // namespace tributary::server
