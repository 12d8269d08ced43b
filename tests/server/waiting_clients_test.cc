// Clients that are through long before their round is.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "client/client.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

// Trains for so long, and remembers what it was told.
class TakesItsTime final : public client::Trainer {
 public:
  explicit TakesItsTime(absl::Duration time) : time_(time) {}
  absl::StatusOr<client::TrainResult> Train(const client::TrainTask& task,
                                            const std::function<bool()>& cancelled) override {
    deadline_ms = task.spec.deadline_ms();
    const RealClock clock;
    const absl::Duration end = clock.Monotonic() + time_;
    while (clock.Monotonic() < end && !cancelled()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    client::TrainResult result;
    result.encoded = std::make_shared<const Segments>(EncodeTest(1));
    return result;
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const client::TrainTask&) override {
    return std::vector<v1::Metric>();
  }
  std::atomic<uint64_t> deadline_ms{0};

 private:
  const absl::Duration time_;
};

class WaitingClients : public NodeTest {};

// The aggregator ends silent sessions after a second, and the client has no more patience itself.
TEST_F(WaitingClients, AreToldHowLongTheRoundMayLastAndNeverTimeOutFirst) {
  TestNode node(Config("[limits]\nsession_timeout_s = 1\n[straggler]\ndeadline_s = 300\n", 1, 2));
  TakesItsTime at_once(absl::ZeroDuration()), slow(absl::Seconds(3.5));
  const auto make = [&](const std::string& id, client::Trainer* trainer) {
    client::ClientOptions options;
    options.endpoints = {node.endpoint()};
    options.id = id;
    options.wants_model = false;
    options.connect_timeout = options.give_up_after = absl::Seconds(1);
    return *client::Client::Create(options, trainer);
  };
  const auto fast = make("fast", &at_once), other = make("slow", &slow);
  std::thread threads[] = {std::thread([&] { EXPECT_EQ(fast->Run(), absl::OkStatus()); }),
                           std::thread([&] { EXPECT_EQ(other->Run(), absl::OkStatus()); })};
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed) << report.why_not;
  EXPECT_GE(report.collected.seconds, 3.5);
  EXPECT_EQ(report.collected.result.clients, 2u);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fast->stats().reconnects, 0u);
  EXPECT_EQ(fast->stats().included, 1u);
  EXPECT_GT(at_once.deadline_ms, 250'000u);
  EXPECT_LE(at_once.deadline_ms, 300'000u);
}

}  // namespace
}  // namespace tributary::server
