// Grants as clients see them: a collector with sessions and uploads in the test's hands, then a
// node with many clients over sockets.
#include <gtest/gtest.h>

#include <future>
#include <set>
#include <thread>

#include "client/client.h"
#include "server/collector.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

// Keeps what is sent down it. Touched on the loop, or while the loop waits for the test.
class HeardSession final : public Session {
 public:
  explicit HeardSession(const std::string& id, uint64_t epoch = kEpoch) {
    join_.set_id(id);
    join_.set_role(v1::CLIENT);
    join_.set_epoch(epoch);
    join_.set_examples(10);
  }
  const v1::Join& join() const override { return join_; }
  std::string peer() const override { return "test"; }
  absl::Duration last_heard() const override { return RealClock().Monotonic(); }
  void Send(std::shared_ptr<const v1::SessionResponse> message) override {
    std::lock_guard lock(mu_);
    if (message->has_joined()) offer_above_bytes = message->joined().offer_above_bytes();
    if (message->has_grant()) grants_.push_back(message->grant().round());
    changed_.notify_all();
  }
  void Finish() override {}
  void Cancel() override {}
  std::vector<uint64_t> grants() {
    std::lock_guard lock(mu_);
    return grants_;
  }
  bool AwaitGrant() {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, absl::ToChronoSeconds(kPatience),
                             [&] { return !grants_.empty(); });
  }
  uint64_t offer_above_bytes = 0;

 private:
  v1::Join join_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<uint64_t> grants_;
};

class HeardUpload final : public Upload {
 public:
  explicit HeardUpload(v1::UploadHeader header) : header_(std::move(header)) {}
  const v1::UploadHeader& header() const override { return header_; }
  std::string peer() const override { return "test"; }
  absl::Duration last_progress() const override { return RealClock().Monotonic(); }
  void Admit(std::unique_ptr<aggregation::UpdateAssembler> assembler) override {
    this->assembler = std::move(assembler);
  }
  void Reply(const v1::UploadResponse& response) override {
    if (answer.has_value()) return;
    answer = response;
    answered.set_value();
  }
  bool admitted() const { return assembler != nullptr; }

  std::unique_ptr<aggregation::UpdateAssembler> assembler;
  std::optional<v1::UploadResponse> answer;
  std::promise<void> answered;

 private:
  v1::UploadHeader header_;
};

const Segments& TheSegments() {
  static const Segments segments = EncodeTest(1);
  return segments;
}
uint64_t TheBytes() { return RawClient::Trailer(TheSegments()).encoded_bytes(); }

class GrantsTest : public testing::Test {
 protected:
  // Memory for two updates at a time.
  GrantsTest() {
    LimitsConfig limits;
    limits.fold_workers = 1;
    limits.inflight_bytes = 2 * TheBytes() + 1000;
    limits.grant_timeout_s = 60;
    Start(limits);
  }
  void Start(const LimitsConfig& limits) {
    Stop();
    loop_ = std::make_unique<EventLoop>(&clock_);
    collector_ = std::make_unique<Collector>(
        loop_.get(), limits,
        Collector::Callbacks{.members_changed = [] {},
                             .closed = [this](CollectedRound round) { closed_ = round; }});
    thread_ = std::thread([this] { loop_->Run(); });
    OnLoop([this] { collector_->Open("run", TestLayout()); });
    for (const char* id : {"a", "b", "c", "d"}) Join(id);
  }
  void Stop() {
    if (!thread_.joinable()) return;
    loop_->Stop();
    thread_.join();
    collector_.reset();
  }
  ~GrantsTest() override { Stop(); }
  template <typename Work>
  void OnLoop(const Work& work) {
    std::promise<void> done;
    loop_->Post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  void Join(const std::string& id, uint64_t epoch = kEpoch) {
    sessions_[id] = std::make_shared<HeardSession>(id, epoch);
    collector_->OnJoin(sessions_[id]);
    OnLoop([] {});
  }
  void BeginRound(uint64_t round, const std::string& late = "drop") {
    OnLoop([&] {
      spec_.set_run("run");
      spec_.set_round(round);
      spec_.set_kind(v1::TRAIN);
      spec_.set_layout_hash(TestLayout()->hash());
      *spec_.mutable_grid() = grid_.ToProto();
      spec_.set_codec("fp32");
      spec_.set_cohort_fraction(1);
      spec_.set_quorum(1);
      spec_.set_deadline_ms(60'000);
      spec_.set_max_client_weight(1000);
      spec_.mutable_stragglers()->set_late(late);
      spec_.mutable_stragglers()->set_max_staleness(4);
      std::vector<uint8_t> bytes(TestLayout()->model_bytes());
      ASSERT_TRUE(collector_
                      ->Begin(spec_, grid_, 1, absl::Seconds(5),
                              ModelVersion::Make(0, TestLayout(), std::move(bytes)))
                      .ok());
    });
  }
  void Offer(const std::string& id, uint64_t bytes = 0) {
    v1::SessionRequest request;
    request.mutable_offer()->set_round(spec_.round());
    request.mutable_offer()->set_encoded_bytes(bytes == 0 ? TheBytes() : bytes);
    collector_->OnMessage(sessions_[id], request);
    OnLoop([] {});
  }
  std::shared_ptr<HeardUpload> Upload(const std::string& id, uint64_t round = 0) {
    v1::UploadHeader header;
    header.set_run("run");
    header.set_round(round == 0 ? spec_.round() : round);
    header.set_id(id);
    header.set_epoch(sessions_[id]->join().epoch());
    header.set_layout_hash(TestLayout()->hash());
    header.set_weight(10);
    header.set_encoded_bytes(TheBytes());
    auto upload = std::make_shared<HeardUpload>(header);
    collector_->OnUploadStart(upload);
    OnLoop([] {});
    return upload;
  }
  // All of it comes, and is folded.
  void Complete(const std::shared_ptr<HeardUpload>& upload) {
    ASSERT_TRUE(upload->admitted());
    for (const auto& segment : TheSegments()) {
      const auto owned = std::make_shared<const std::vector<uint8_t>>(segment);
      ASSERT_TRUE(upload->assembler->Add(PiecedBytes(*owned), owned));
    }
    const v1::UploadTrailer trailer = RawClient::Trailer(TheSegments());
    collector_->OnUploadComplete(
        upload, upload->assembler->Finish(trailer.encoded_bytes(), trailer.crc32c()));
    upload->answered.get_future().wait();
    EXPECT_EQ(upload->answer->status(), v1::UploadResponse::ACCEPTED);
    OnLoop([] {});
  }
  bool IsGranted(const std::string& id) { return !sessions_[id]->grants().empty(); }
  // Closes it by force, unless it has closed.
  CollectedRound CloseRound() {
    CollectedRound out;
    OnLoop([&] {
      collector_->CloseNow();
      ASSERT_TRUE(closed_.has_value());
      out = *closed_;
      closed_.reset();
    });
    return out;
  }
  void FinishRound() {
    OnLoop([&] { collector_->Finish(true, true, ""); });
  }

  RealClock clock_;
  std::unique_ptr<EventLoop> loop_;
  aggregation::Grid grid_ = *aggregation::ProveGrid({});
  v1::RoundSpec spec_;
  std::optional<CollectedRound> closed_;
  std::map<std::string, std::shared_ptr<HeardSession>> sessions_;
  std::unique_ptr<Collector> collector_;
  std::thread thread_;
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
  LimitsConfig limits;
  limits.fold_workers = 1;
  limits.inflight_bytes = TheBytes() + 1000;
  limits.grant_timeout_s = 0.1;
  Start(limits);
  BeginRound(1);
  Offer("a");
  Offer("b");
  ASSERT_TRUE(sessions_["b"]->AwaitGrant());
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
