// A collector on a loop of its own, with sessions and uploads in the test's hands.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/collector.h"
#include "tests/server/held.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {

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
  bool admitted() const { return assembler_ != nullptr; }
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

class CollectorFixture : public testing::Test {
 protected:
  ~CollectorFixture() override { Stop(); }
  // With its run open, and nobody in it. In place of the one there was.
  void Start(const LimitsConfig& limits) {
    Stop();
    loop_ = std::make_unique<EventLoop>(&clock_);
    collector_ = std::make_unique<Collector>(
        loop_.get(), limits,
        Collector::Callbacks{.members_changed = [] {},
                             .closed = [this](CollectedRound round) { closed_ = round; },
                             .claim = claim_,
                             .inquire = inquire_});
    thread_ = std::thread([this] { loop_->Run(); });
    OnLoop([this] { collector_->Open("run", TestLayout()); });
  }
  void Stop() {
    if (!thread_.joinable()) return;
    loop_->Stop();
    thread_.join();
    collector_.reset();
  }
  template <typename Work>
  void OnLoop(const Work& work) {
    RunOn(*loop_, work);
  }
  void Join(const std::string& id, uint64_t epoch = kEpoch) {
    sessions_[id] = std::make_shared<HeldSession>(id, v1::CLIENT, epoch);
    collector_->OnJoin(sessions_[id]);
    OnLoop([] {});
  }
  void BeginRound(uint64_t round, const std::string& late = "drop") {
    spec_ = RoundForAll(round, *TestLayout(), grid_);
    spec_.mutable_stragglers()->set_late(late);
    spec_.mutable_stragglers()->set_max_staleness(4);
    OnLoop([&] {
      ASSERT_TRUE(
          collector_->Begin(spec_, grid_, 1, absl::Seconds(5), ZeroModel(TestLayout())).ok());
    });
  }
  // An upload that says nothing after its header. Of the last round that began, unless told.
  std::shared_ptr<HeldUpload> Upload(const std::string& id, const Segments& segments,
                                     uint64_t round = 0,
                                     const std::vector<v1::Metric>& metrics = {}) {
    v1::UploadHeader header;
    header.set_run("run");
    header.set_round(round == 0 ? spec_.round() : round);
    header.set_id(id);
    header.set_epoch(sessions_[id]->join().epoch());
    header.set_layout_hash(TestLayout()->hash());
    header.set_weight(10);
    header.set_encoded_bytes(RawClient::Trailer(segments).encoded_bytes());
    header.mutable_metrics()->Assign(metrics.begin(), metrics.end());
    auto upload = std::make_shared<HeldUpload>(header);
    collector_->OnUploadStart(upload);
    OnLoop([] {});
    return upload;
  }
  // All of it comes, and is folded.
  void Complete(const std::shared_ptr<HeldUpload>& upload, const Segments& segments) {
    ASSERT_TRUE(upload->admitted());
    collector_->OnUploadComplete(upload, upload->Fill(segments));
    upload->answered.get_future().wait();
    EXPECT_EQ(upload->answer->status(), v1::UploadResponse::ACCEPTED);
    OnLoop([] {});
  }
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
  void FinishRound(bool committed = true, const std::string& why_not = "") {
    OnLoop([&] {
      collector_->Finish({.committed = committed, .included = committed, .why_not = why_not});
    });
  }

  RealClock clock_;
  std::unique_ptr<EventLoop> loop_;
  aggregation::Grid grid_ = *aggregation::ProveGrid({});
  v1::RoundSpec spec_;
  std::optional<CollectedRound> closed_;
  std::function<void(const v1::Claims&)> claim_;  // to the parent, where there is one; before Start
  std::function<void(const v1::Inquiry&)> inquire_;  // likewise
  std::map<std::string, std::shared_ptr<HeldSession>> sessions_;
  std::unique_ptr<Collector> collector_;
  std::thread thread_;
};

}  // namespace tributary::server
