// What clients are told of how long to wait: in their tasks, and where a former life of theirs is
// in the way.
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "client/client.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

// Its update is ready at once.
class QuickTrainer final : public client::Trainer {
 public:
  absl::StatusOr<client::TrainResult> Train(const client::TrainTask&,
                                            const std::function<bool()>&) override {
    client::TrainResult result;
    result.weight = 10;
    result.encoded = segments_;
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const client::TrainTask&) override {
    return std::vector<v1::Metric>();
  }

 private:
  const std::shared_ptr<const Segments> segments_ = std::make_shared<const Segments>(EncodeTest(1));
};

class PatienceTest : public NodeTest {};

TEST_F(PatienceTest, ATaskSaysHowMuchOfTheRoundIsLeft) {
  TestNode node(Config("[straggler]\ndeadline = \"fixed\"\ndeadline_s = 100\n", 1, 1));
  TestNode rack(absl::StrFormat(
      "[node]\nname = \"rack\"\nlisten = \"127.0.0.1:0\"\nparent = \"%s\"\n[transport]\nlisten = "
      "\"127.0.0.1:0\"\n",
      node.endpoint()));
  RawClient a(node.endpoint(), "a");
  const absl::Time before = absl::Now();
  const uint64_t first = a.AwaitTask().spec().deadline_ms();
  EXPECT_LE(first, 100'000u);
  EXPECT_GT(first, 90'000u);  // a slow machine takes something
  absl::SleepFor(absl::Milliseconds(50));
  // Who comes later is told what is left; behind a rack, less the time that forwarding takes.
  RawClient b(node.endpoint(), "b");
  const uint64_t second = b.AwaitTask().spec().deadline_ms();
  EXPECT_LE(second, first - 50);
  RawClient c(rack.endpoint(), "c");
  const uint64_t third = c.AwaitTask().spec().deadline_ms();
  const auto gone = static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Now() - before));
  EXPECT_LT(third, first);
  EXPECT_GE(third + gone + 60'000, first);
}

// Epochs are times of the system's clock. Between two lives of this client it was set back.
TEST_F(PatienceTest, ALaterLifeWithAnEarlierEpochIsTakenOnceTheFormerOneIsGone) {
  TestNode node(Config("[limits]\nsession_timeout_s = 1\n[straggler]\nrejoin_grace_s = 0.2\n",
                       /*rounds=*/2, 1));
  auto former = std::make_unique<RawClient>(node.endpoint(), "a", /*epoch=*/1'000);
  former->AwaitTask();
  RawClient refused(node.endpoint(), "a", /*epoch=*/1);
  const auto answer = refused.Await([](const auto& m) { return m.has_refused(); });
  ASSERT_TRUE(answer.has_value());
  EXPECT_GT(answer->refused().retry_after_ms(), 0u) << "not for good";
  QuickTrainer trainer;
  client::ClientOptions options;
  options.endpoints = {node.endpoint()};
  options.id = "a";
  options.epoch = 1;
  options.wants_model = false;
  const auto client = *client::Client::Create(options, &trainer);
  std::thread thread([&] { EXPECT_EQ(client->Run(), absl::OkStatus()); });
  former.reset();  // round 1 ends without it
  EXPECT_TRUE(node.Round(1).committed);
  thread.join();
  EXPECT_EQ(client->stats().included, 1u);
}

}  // namespace
}  // namespace tributary::server
