// The collector against sessions and uploads that tests hold in their hands: what comes late or
// twice.
#include "server/collector.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

class HeldSession final : public Session {
 public:
  explicit HeldSession(const std::string& id) {
    join_.set_id(id);
    join_.set_role(v1::CLIENT);
    join_.set_epoch(kEpoch);
    join_.set_examples(10);
  }
  const v1::Join& join() const override { return join_; }
  std::string peer() const override { return "test"; }
  absl::Duration last_heard() const override { return RealClock().Monotonic(); }
  void Send(std::shared_ptr<const v1::SessionResponse>) override {}
  void Finish() override {}
  void Cancel() override {}

 private:
  v1::Join join_;
};

// Touched on the loop, or while the loop waits for the test.
class HeldUpload final : public Upload {
 public:
  explicit HeldUpload(v1::UploadHeader header) : header_(std::move(header)) {}
  const v1::UploadHeader& header() const override { return header_; }
  std::string peer() const override { return "test"; }
  absl::Duration last_progress() const override { return RealClock().Monotonic(); }
  void Admit(std::unique_ptr<aggregation::UpdateAssembler> assembler) override {
    assembler_ = std::move(assembler);
  }
  void Reply(const v1::UploadResponse& response) override {
    if (answer.has_value()) return;
    answer = response;
    answered.set_value();
  }
  // The whole update, as the door would hand it over.
  std::shared_ptr<const aggregation::EncodedUpdate> Fill(const Segments& segments) {
    for (const auto& segment : segments) {
      const auto owned = std::make_shared<const std::vector<uint8_t>>(segment);
      EXPECT_TRUE(assembler_->Add(PiecedBytes(*owned), owned)) << assembler_->refusal().message;
    }
    const v1::UploadTrailer trailer = RawClient::Trailer(segments);
    return assembler_->Finish(trailer.encoded_bytes(), trailer.crc32c());
  }

  std::optional<v1::UploadResponse> answer;
  std::promise<void> answered;

 private:
  v1::UploadHeader header_;
  std::unique_ptr<aggregation::UpdateAssembler> assembler_;
};

class CollectorTest : public testing::Test {
 protected:
  CollectorTest() {
    collector_ = std::make_unique<Collector>(
        &loop_, Limits(),
        Collector::Callbacks{.members_changed = [] {},
                             .closed = [this](CollectedRound round) { closed_ = round; }});
    thread_ = std::thread([this] { loop_.Run(); });
    OnLoop([this] { collector_->Open("run", TestLayout()); });
    for (const char* id : {"a", "b"}) {
      sessions_.push_back(std::make_shared<HeldSession>(id));
      collector_->OnJoin(sessions_.back());
    }
  }
  ~CollectorTest() override {
    loop_.Stop();
    thread_.join();
  }
  static LimitsConfig Limits() {
    LimitsConfig limits;
    limits.fold_workers = 1;
    return limits;
  }
  // Runs it on the loop, after all that was posted before, and waits for its end.
  template <typename Work>
  void OnLoop(const Work& work) {
    std::promise<void> done;
    loop_.Post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  void BeginRound(uint64_t round) {
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
      std::vector<uint8_t> bytes(TestLayout()->model_bytes());
      ASSERT_TRUE(collector_
                      ->Begin(spec_, grid_, 1, absl::Seconds(5),
                              ModelVersion::Make(0, TestLayout(), std::move(bytes)))
                      .ok());
    });
  }
  // An upload that is admitted and then says nothing more.
  std::shared_ptr<HeldUpload> Offer(const std::string& id, const Segments& segments) {
    v1::UploadHeader header;
    header.set_run("run");
    header.set_round(spec_.round());
    header.set_id(id);
    header.set_epoch(kEpoch);
    header.set_layout_hash(TestLayout()->hash());
    header.set_weight(10);
    header.set_encoded_bytes(RawClient::Trailer(segments).encoded_bytes());
    auto upload = std::make_shared<HeldUpload>(header);
    collector_->OnUploadStart(upload);
    OnLoop([] {});
    return upload;
  }
  // Ends the round by force, as a rack does whose parent has begun it again.
  void GiveUpRound() {
    OnLoop([&] {
      collector_->CloseNow();
      ASSERT_TRUE(closed_.has_value());
      collector_->Finish(false, false, "given up");
      closed_.reset();
    });
  }

  RealClock clock_;
  EventLoop loop_{&clock_};
  aggregation::Grid grid_ = *aggregation::ProveGrid({});
  v1::RoundSpec spec_;
  std::optional<CollectedRound> closed_;
  std::vector<std::shared_ptr<HeldSession>> sessions_;
  std::unique_ptr<Collector> collector_;
  std::thread thread_;
};

// Tickets are counted anew in each round: the late one and the other's are the same number.
TEST_F(CollectorTest, AnUploadOfARoundGivenUpDoesNotCountAsAnothersInTheRetry) {
  const Segments segments_a = EncodeTest(1), segments_b = EncodeTest(2);
  BeginRound(1);
  const auto late = Offer("a", segments_a);
  const auto late_update = late->Fill(segments_a);
  GiveUpRound();
  EXPECT_EQ(late->answer->status(), v1::UploadResponse::STALE);
  BeginRound(1);
  const auto honest = Offer("b", segments_b);
  ASSERT_EQ(honest->ticket, late->ticket) << "what the test is about";

  collector_->OnUploadComplete(late, late_update);  // was under way while the round was retried
  OnLoop([&] { EXPECT_FALSE(honest->answer.has_value()) << "nothing of b's has come yet"; });
  collector_->OnUploadComplete(honest, honest->Fill(segments_b));
  honest->answered.get_future().wait();
  EXPECT_EQ(honest->answer->status(), v1::UploadResponse::ACCEPTED);
  OnLoop([&] {
    collector_->CloseNow();
    ASSERT_TRUE(closed_.has_value());
    EXPECT_EQ(closed_->result.contributors, std::vector<std::string>{"b"});
    const TestDeltas deltas(2);
    for (uint64_t i = 0; i < 1000; ++i) {
      const double expected = 10 * std::ldexp(double{deltas.Value(0, i)}, grid_.fraction_bits);
      ASSERT_EQ(static_cast<double>(collector_->sum()->sums()[i]), expected) << i;
    }
    collector_->Finish(true, true, "");
  });
}

TEST_F(CollectorTest, AnUploadOfARoundGivenUpThatBreaksDoesNotBreakAnothersInTheRetry) {
  const Segments segments = EncodeTest(2);
  BeginRound(1);
  const auto late = Offer("a", EncodeTest(1));
  GiveUpRound();
  BeginRound(1);
  const auto honest = Offer("b", segments);
  ASSERT_EQ(honest->ticket, late->ticket) << "what the test is about";
  collector_->OnUploadFailed(late, {"bound", "of the round before"});
  collector_->OnUploadComplete(honest, honest->Fill(segments));
  honest->answered.get_future().wait();
  EXPECT_EQ(honest->answer->status(), v1::UploadResponse::ACCEPTED);
  OnLoop([&] {
    collector_->CloseNow();
    collector_->Finish(true, true, "");
  });
}

}  // namespace
}  // namespace tributary::server
