// Grants as clients see them: a collector with sessions and uploads in the test's hands, then a
// node with many clients over sockets.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "client/client.h"
#include "tests/server/collector_fixture.h"

namespace tributary::server {
namespace {

const Segments& TheSegments() {
  static const Segments segments = EncodeTest(1);
  return segments;
}
uint64_t TheBytes() { return RawClient::Trailer(TheSegments()).encoded_bytes(); }

class GrantsTest : public CollectorFixture {
 protected:
  // Memory for two updates at a time.
  GrantsTest() { StartWith(2 * TheBytes() + 1000, 60); }
  void StartWith(uint64_t inflight_bytes, double grant_timeout_s) {
    LimitsConfig limits;
    limits.fold_workers = 1;
    limits.inflight_bytes = inflight_bytes;
    limits.grant_timeout_s = grant_timeout_s;
    Start(limits);
    for (const char* id : {"a", "b", "c", "d"}) Join(id);
  }
  void Offer(const std::string& id, uint64_t bytes = 0) {
    v1::SessionRequest request;
    request.mutable_offer()->set_round(spec_.round());
    request.mutable_offer()->set_encoded_bytes(bytes == 0 ? TheBytes() : bytes);
    collector_->OnMessage(sessions_[id], request);
    OnLoop([] {});
  }
  std::shared_ptr<HeldUpload> Upload(const std::string& id, uint64_t round = 0) {
    return CollectorFixture::Upload(id, TheSegments(), round);
  }
  void Complete(const std::shared_ptr<HeldUpload>& upload) {
    CollectorFixture::Complete(upload, TheSegments());
  }
  bool IsGranted(const std::string& id) { return !sessions_[id]->grants().empty(); }
};

TEST_F(GrantsTest, ClientsAreToldWhatIsToBeOffered) {
  EXPECT_EQ(sessions_["a"]->offer_above_bytes, LimitsConfig().stream_window_bytes);
}

TEST_F(GrantsTest, AsManyAreGrantedAsMemoryIsThereForInTheOrderOfTheirOffers) {
  BeginRound(1);
  for (const char* id : {"c", "a", "d", "b"}) Offer(id);
  EXPECT_TRUE(IsGranted("c"));
  EXPECT_TRUE(IsGranted("a"));
  EXPECT_FALSE(IsGranted("d"));
  const auto upload = Upload("a");
  EXPECT_TRUE(upload->admitted()) << "its memory was kept for it";
  EXPECT_FALSE(IsGranted("d")) << "a has it still";
  Complete(upload);
  EXPECT_TRUE(IsGranted("d"));
  EXPECT_FALSE(IsGranted("b"));
  Complete(Upload("c"));
  Complete(Upload("d"));
  Complete(Upload("b"));
  const CollectedRound round = CloseRound();
  EXPECT_EQ(round.result.clients, 4u);
  EXPECT_EQ(round.wait.offers, 4u);
  EXPECT_EQ(round.wait.unused_grants, 0u);
  for (const char* id : {"a", "b", "c", "d"}) {
    EXPECT_EQ(sessions_[id]->grants(), std::vector<uint64_t>{1}) << id;
  }
}

TEST_F(GrantsTest, OneThatDoesNotOfferIsServedInItsTurn) {
  BeginRound(1);
  Offer("a");
  Offer("b");
  const auto old = Upload("c");
  Offer("d");
  EXPECT_FALSE(old->admitted());
  Complete(Upload("a"));
  EXPECT_TRUE(old->admitted());
  EXPECT_FALSE(IsGranted("d"));
  Complete(old);
  EXPECT_TRUE(IsGranted("d"));
}

// More than the pacer lets pass at a time: gRPC has the beginning of each that is left in line, and
// that is taken off the memory for two, in this round and in the next.
TEST_F(GrantsTest, ThoseThatWaitUnaskedLeaveLessMemoryToTheOthers) {
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) Join(ids.emplace_back(absl::StrCat("u", i)));
  for (const uint64_t round : {1, 2}) {
    SCOPED_TRACE(round);
    BeginRound(round);
    std::vector<std::shared_ptr<HeldUpload>> uploads;
    for (const std::string& id : ids) uploads.push_back(Upload(id));
    const auto admitted = [&] {
      return std::ranges::count_if(uploads, [](const auto& one) { return one->admitted(); });
    };
    // Before others are seen in line there is room for two; in the next round they are foreseen.
    EXPECT_EQ(admitted(), round == 1 ? 2 : 1);
    Complete(uploads[0]);
    EXPECT_EQ(admitted(), 2);
    for (size_t i = 1; i < uploads.size(); ++i) {
      Complete(uploads[i]);
      EXPECT_EQ(admitted(), std::min<ptrdiff_t>(i + 2, 20)) << "one at a time";
    }
    EXPECT_EQ(CloseRound().result.clients, 20u);
  }
  // Nobody waited in line: the round after has the memory for two again.
  for (const uint64_t round : {3, 4}) {
    BeginRound(round);
    const auto one = Upload("a"), other = Upload("b");
    EXPECT_EQ(other->admitted(), round == 4);
    Complete(one);
    Complete(other);
    EXPECT_EQ(CloseRound().result.clients, 2u);
  }
}

TEST_F(GrantsTest, WhoSendsBeforeItIsGrantedKeepsItsPlaceInTheLine) {
  BeginRound(1);
  for (const char* id : {"a", "b", "c", "d"}) Offer(id);
  const auto hasty = Upload("c");
  EXPECT_FALSE(hasty->admitted());
  Complete(Upload("b"));
  EXPECT_TRUE(hasty->admitted());
  EXPECT_FALSE(IsGranted("d"));
}

TEST_F(GrantsTest, AnotherSizeThanOfferedIsAnotherUpdateAtTheEndOfTheLine) {
  BeginRound(1);
  Offer("a", TheBytes() - 1);
  Offer("b");
  Offer("c");
  const auto other = Upload("a");
  EXPECT_TRUE(IsGranted("c")) << "what was kept for a is free";
  EXPECT_FALSE(other->admitted());
}

TEST_F(GrantsTest, AGrantOfOneWhoseSessionEndsGoesToTheNext) {
  BeginRound(1);
  for (const char* id : {"a", "b", "c", "d"}) Offer(id);
  collector_->OnSessionEnd(sessions_["d"]);  // was waiting: nothing changes for the others
  collector_->OnSessionEnd(sessions_["a"]);
  OnLoop([] {});
  EXPECT_TRUE(IsGranted("c"));
  Join("d");
  Offer("d");
  EXPECT_FALSE(IsGranted("d"));
  Complete(Upload("b"));
  EXPECT_TRUE(IsGranted("d"));
}

TEST_F(GrantsTest, ANewLifeOfAClientOffersAnew) {
  BeginRound(1);
  for (const char* id : {"a", "b", "c"}) Offer(id);
  Join("a", kEpoch + 1);
  EXPECT_TRUE(IsGranted("c"));
  EXPECT_FALSE(IsGranted("a"));
}

TEST_F(GrantsTest, AGrantThatIsNotUsedIsTakenBackAndItsClientStillServed) {
  StartWith(TheBytes() + 1000, 0.1);
  BeginRound(1);
  Offer("a");
  Offer("b");
  ASSERT_TRUE(sessions_["b"]->AwaitGrant(kPatience));
  const auto late = Upload("a");
  Complete(Upload("b"));  // in time or not: it is served either way
  Complete(late);
  const CollectedRound round = CloseRound();
  EXPECT_EQ(round.result.clients, 2u);
  EXPECT_GE(round.wait.unused_grants, 1u);
}

TEST_F(GrantsTest, AnUploadThatBreaksOffGivesItsPlaceToTheNext) {
  BeginRound(1);
  for (const char* id : {"a", "b", "c"}) Offer(id);
  const auto broken = Upload("a");
  collector_->OnUploadFailed(broken, {});
  OnLoop([] {});
  EXPECT_TRUE(IsGranted("c"));
  EXPECT_EQ(broken->answer->status(), v1::UploadResponse::RETRY);
}

// The upload of an attempt before took the place of the offer that was made since.
TEST_F(GrantsTest, WhoseOfferWasTakenByAnUploadThatBrokeOffIsToldToSend) {
  BeginRound(1);
  for (const char* id : {"a", "b", "c"}) Offer(id);
  const auto ghost = Upload("c");
  EXPECT_FALSE(IsGranted("c"));
  collector_->OnUploadFailed(ghost, {});
  OnLoop([] {});
  EXPECT_TRUE(IsGranted("c")) << "else it would wait for ever";
}

TEST_F(GrantsTest, AnOfferThatIsNoUsIsGrantedAndItsUploadToldWhy) {
  Offer("a");  // no round is open
  EXPECT_TRUE(IsGranted("a"));
  EXPECT_EQ(Upload("a", 1)->answer->status(), v1::UploadResponse::STALE);
  BeginRound(1);
  Offer("b", uint64_t{1} << 60);
  EXPECT_TRUE(IsGranted("b"));
}

TEST_F(GrantsTest, WhenTheRoundClosesTheMemoryOfGrantsIsFreeForTheNext) {
  BeginRound(1);
  for (const char* id : {"a", "b", "c"}) Offer(id);
  CloseRound();
  FinishRound();
  EXPECT_FALSE(IsGranted("c")) << "its outcome tells it";
  BeginRound(2);
  Offer("c");
  Offer("d");
  EXPECT_TRUE(IsGranted("c"));
  EXPECT_TRUE(IsGranted("d"));
}

TEST_F(GrantsTest, AnOfferThatMayBeCarriedWaitsForTheNextRound) {
  // Late in its first round it would be dropped: it may have been counted elsewhere.
  BeginRound(1, "carry");
  for (const char* id : {"a", "b", "c", "d"}) Complete(Upload(id));
  CloseRound();
  FinishRound();
  BeginRound(2, "carry");
  for (const char* id : {"a", "b", "c"}) Offer(id);
  EXPECT_FALSE(IsGranted("c"));
  Complete(Upload("a"));
  CloseRound();
  FinishRound();  // b, c and d are late
  const size_t before = sessions_["c"]->grants().size();
  BeginRound(3, "carry");
  EXPECT_EQ(sessions_["c"]->grants().size(), before + 1) << "offered again on its behalf";
  const auto carried = Upload("c", 2);
  Complete(carried);
  EXPECT_EQ(CloseRound().result.carried, 1u);
}

// An earlier life's, or a stranger's.
TEST_F(GrantsTest, AnUploadOfAnotherEpochLeavesTheOfferInItsPlace) {
  BeginRound(1);
  for (const char* id : {"a", "b", "c"}) Offer(id);
  EXPECT_FALSE(IsGranted("c"));
  v1::UploadHeader header;
  header.set_run("run");
  header.set_round(1);
  header.set_id("c");
  header.set_epoch(kEpoch + 1);
  const auto stranger = std::make_shared<HeldUpload>(header);
  collector_->OnUploadStart(stranger);
  OnLoop([] {});
  EXPECT_EQ(stranger->answer->reason(), "session");
  EXPECT_FALSE(IsGranted("c")) << "its turn has not come";
  Complete(Upload("a"));
  EXPECT_TRUE(IsGranted("c"));
}

// ---- At a rack, whose late updates may be in its second sum

class SupplementTest : public GrantsTest {
 protected:
  SupplementTest() {
    claim_ = [this](const v1::Claims& claims) { claimed_.push_back(claims); };
    StartWith(2 * TheBytes() + 1000, 60);
  }
  // Round 1 with a in, and closed; b, c and d had offered, and there is memory for two of them.
  CollectedRound CloseWithThreeLate() {
    BeginRound(1, "supplement");
    Complete(Upload("a"));
    for (const char* id : {"b", "c", "d"}) Offer(id);
    EXPECT_FALSE(IsGranted("d"));
    return CloseRound();
  }
  void GrantClaims(const std::vector<std::string>& ids) {
    v1::ClaimsAnswer answer;
    answer.set_round(1);
    answer.mutable_granted()->Assign(ids.begin(), ids.end());
    OnLoop([&] { collector_->ClaimsAnswered(answer); });
  }

  std::vector<v1::Claims> claimed_;
};

TEST_F(SupplementTest, AnOfferThatIsLateForTheFirstSumWaitsForTheSecond) {
  EXPECT_EQ(CloseWithThreeLate().result.contributors, std::vector<std::string>{"a"});
  ASSERT_FALSE(claimed_.empty());
  EXPECT_TRUE(claimed_.back().late());
  EXPECT_EQ(claimed_.back().clients_size(), 3);
  EXPECT_FALSE(IsGranted("d")) << "until its claim is, it has no place";
  GrantClaims({"b", "c", "d"});
  EXPECT_EQ(sessions_["b"]->grants().size(), 2u) << "offered again on its behalf";
  EXPECT_FALSE(IsGranted("d")) << "there is memory for two";
  Complete(Upload("c"));
  EXPECT_TRUE(IsGranted("d"));
  Complete(Upload("d"));
  Complete(Upload("b"));
  OnLoop([this] { collector_->CollectSecond(); });
  EXPECT_EQ(CloseRound().result.contributors, (std::vector<std::string>{"b", "c", "d"}));
  FinishRound();
}

// Where there was none, they know from the outcome, and would not use a grant.
TEST_F(SupplementTest, AnOfferThatWaitedForASecondSumHasNoPlaceInTheNextRound) {
  CloseWithThreeLate();
  FinishRound();
  BeginRound(2, "supplement");
  Offer("d");
  Offer("a");
  EXPECT_TRUE(IsGranted("d"));
  EXPECT_TRUE(IsGranted("a"));
}

// ---- Over sockets

class TestTrainer final : public client::Trainer {
 public:
  explicit TestTrainer(std::shared_ptr<const Segments> segments) : segments_(std::move(segments)) {}
  absl::StatusOr<client::TrainResult> Train(const client::TrainTask&,
                                            const std::function<bool()>&) override {
    client::TrainResult result;
    result.weight = 1;
    result.encoded = segments_;
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const client::TrainTask&) override {
    return std::vector<v1::Metric>();
  }

 private:
  std::shared_ptr<const Segments> segments_;
};

class GrantsNodeTest : public NodeTest {};

// All ready at once, memory for four; every seventh is of an earlier release and does not offer.
TEST_F(GrantsNodeTest, ManyClientsAtOnceWithMemoryForFourAreAllInOnceAndTheSumIsRight) {
  constexpr uint32_t kClients = 200;
  TestNode node(Config(absl::StrFormat("[limits]\ninflight_bytes = %d\n", 4 * TheBytes() + 1000),
                       /*rounds=*/2, /*minimum=*/kClients));
  const auto shared = std::make_shared<const Segments>(TheSegments());
  TestTrainer trainer(shared);
  std::vector<std::unique_ptr<client::Client>> clients;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kClients; ++i) {
    client::ClientOptions options;
    options.endpoints = {node.endpoint()};
    options.id = absl::StrCat("client-", i);
    options.wants_model = false;
    options.offer_updates = i % 7 != 0;
    clients.push_back(*client::Client::Create(options, &trainer));
  }
  for (auto& client : clients) {
    threads.emplace_back([&client] { EXPECT_EQ(client->Run(), absl::OkStatus()); });
  }
  uint64_t offering = 0;
  for (uint32_t i = 0; i < kClients; ++i) offering += i % 7 != 0 ? 1 : 0;
  for (const size_t round : {0, 1}) {
    const RoundReport report = node.Round(round);
    EXPECT_TRUE(report.committed) << report.why_not;
    EXPECT_EQ(report.collected.result.clients, kClients);
    EXPECT_EQ(report.collected.result.weight, kClients);
    EXPECT_GE(report.collected.wait.offers, offering);  // more: a broken upload is offered again
    EXPECT_EQ(report.collected.bytes.from_clients, kClients * TheBytes());
  }
  for (std::thread& thread : threads) thread.join();
  // Everybody's delta is the same: so is the mean, and the model has moved by it once in round 1.
  const std::vector<uint8_t> model = Model();
  ASSERT_EQ(model.size(), TestLayout()->model_bytes());
  const TestDeltas deltas(1);
  const auto* floats = reinterpret_cast<const float*>(model.data());
  for (uint64_t i = 0; i < 300 * 131; ++i) {
    ASSERT_EQ(floats[i], static_cast<float>(i % 64) / 8 + deltas.Value(0, i)) << i;
  }
}

}  // namespace
}  // namespace tributary::server
