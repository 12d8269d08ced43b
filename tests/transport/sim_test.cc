// What the simulated network promises: its arithmetic, incast, determinism, virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/transport/harness.h"
#include "transport/sim.h"
#include "transport/sim_core.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

// Remembers when what arrived.
class Arrivals : public SimHandler {
 public:
  explicit Arrivals(const SimCore& core) : core_(core) {}
  void OnSimEvent(uint64_t a, uint64_t b) override {
    what.push_back(a * 1000 + b);
    last = core_.now();
  }
  std::vector<uint64_t> what;
  absl::Duration last;

 private:
  const SimCore& core_;
};

SimNodeOptions GigabytePerSecond() {
  SimNodeOptions node;
  node.up_bytes_per_s = node.down_bytes_per_s = 1e9;  // 1 ns a byte
  node.latency = absl::Microseconds(10);
  return node;
}

TEST(SimCore, EventsFireInOrderOfTimeThenOfMaking) {
  SimCore core{SimOptions()};
  Arrivals got(core);
  core.After(absl::Microseconds(2), &got, 3, 0);
  core.After(absl::Microseconds(1), &got, 1, 0);
  core.After(absl::Microseconds(1), &got, 2, 0);
  core.After(absl::Microseconds(-5), &got, 0, 0);
  core.Run();
  EXPECT_EQ(got.what, (std::vector<uint64_t>{0, 1000, 2000, 3000}));
  EXPECT_EQ(core.now(), absl::Microseconds(2));
}

TEST(SimCore, OneSegmentTakesTwoServicesAndTwoLatencies) {
  SimOptions options;
  options.flow_control = SimFlowControl::kTcp;
  SimCore core(options);
  const SimNode a = core.AddNode(GigabytePerSecond());
  const SimNode b = core.AddNode(GigabytePerSecond());
  Arrivals got(core);
  core.Send(core.OpenFlow(a, b), 1000, &got, 1, 0);
  core.Run();
  // 1,000 bytes at 1 ns each up and down, and 10 us twice; the acknowledgement comes 20 us later.
  EXPECT_EQ(got.last, absl::Nanoseconds(1000 + 10'000 + 1000 + 10'000));
  EXPECT_EQ(core.now(), got.last + absl::Microseconds(20));
}

TEST(SimCore, CreditCostsOneRequestAndOneGrant) {
  SimCore core{SimOptions()};
  const SimNode a = core.AddNode(GigabytePerSecond());
  const SimNode b = core.AddNode(GigabytePerSecond());
  Arrivals got(core);
  core.Send(core.OpenFlow(a, b), 1000, &got, 1, 0);
  core.Run();
  EXPECT_EQ(got.last, absl::Nanoseconds(20'000 + 20'000 + 1000 + 10'000 + 1000 + 10'000));
}

TEST(SimCore, LongMessageMovesAtTheRateOfTheSlowerSide) {
  for (SimFlowControl control : {SimFlowControl::kTcp, SimFlowControl::kCredit}) {
    SimOptions options;
    options.flow_control = control;
    SimCore core(options);
    const SimNode a = core.AddNode(GigabytePerSecond());
    SimNodeOptions slow = GigabytePerSecond();
    slow.down_bytes_per_s = 0.5e9;
    slow.switch_buffer_bytes = 64 << 20;
    const SimNode b = core.AddNode(slow);
    Arrivals got(core);
    const SimFlow flow = core.OpenFlow(a, b);
    for (uint64_t i = 0; i < 50; ++i) core.Send(flow, 1'000'000, &got, i, 0);
    core.Run();
    ASSERT_EQ(got.what.size(), 50u);
    for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(got.what[i], i * 1000);
    const double seconds = absl::ToDoubleSeconds(got.last);
    EXPECT_GT(seconds, 0.1);
    EXPECT_LT(seconds, 0.102);
    EXPECT_EQ(core.stats().overflowed, 0u);
  }
}

// 32 senders of 256 KiB each into a port with a buffer of 512 KiB, at one instant.
SimCore RunIncast(SimFlowControl control, uint64_t seed, double loss, absl::Duration* took) {
  SimOptions options;
  options.flow_control = control;
  options.seed = seed;
  SimCore core(options);
  SimNodeOptions receiver = GigabytePerSecond();
  receiver.loss = loss;
  const SimNode to = core.AddNode(receiver);
  Arrivals got(core);
  for (int i = 0; i < 32; ++i) {
    core.Send(core.OpenFlow(core.AddNode(GigabytePerSecond()), to), 256 << 10, &got, 1, 0);
  }
  core.Run();
  EXPECT_EQ(got.what.size(), 32u);
  *took = got.last;
  return core;
}

TEST(SimCore, IncastCostsTcpItsTimeoutsAndCreditNothing) {
  absl::Duration tcp, credit;
  const SimCore dropped = RunIncast(SimFlowControl::kTcp, 1, 0, &tcp);
  const SimCore paced = RunIncast(SimFlowControl::kCredit, 1, 0, &credit);
  EXPECT_GT(dropped.stats().overflowed, 0u);
  EXPECT_EQ(dropped.stats().retransmits, dropped.stats().overflowed);
  EXPECT_GE(tcp, absl::Milliseconds(200));  // one RTO at least
  EXPECT_EQ(paced.stats().overflowed, 0u);
  EXPECT_EQ(paced.stats().retransmits, 0u);
  // 8 MiB at 1 GB/s is 8.39 ms; request, grant and the last latencies add under 0.2 ms.
  EXPECT_GT(credit, absl::Microseconds(8388));
  EXPECT_LT(credit, absl::Microseconds(8600));
}

TEST(SimCore, LostSegmentsAreSentAgainUntilAllHasArrived) {
  for (SimFlowControl control : {SimFlowControl::kTcp, SimFlowControl::kCredit}) {
    absl::Duration took;
    const SimCore core = RunIncast(control, 3, 0.2, &took);
    EXPECT_GT(core.stats().lost, 0u);
    EXPECT_EQ(core.stats().retransmits, core.stats().lost + core.stats().overflowed);
  }
}

TEST(SimCore, SameSeedSameTraceOtherSeedOther) {
  absl::Duration took;
  const uint64_t one = RunIncast(SimFlowControl::kTcp, 5, 0.05, &took).trace();
  EXPECT_EQ(RunIncast(SimFlowControl::kTcp, 5, 0.05, &took).trace(), one);
  EXPECT_NE(RunIncast(SimFlowControl::kTcp, 6, 0.05, &took).trace(), one);
}

TEST(SimCore, ClosedFlowCallsNobodyAndGivesItsGrantsBack) {
  SimCore core{SimOptions()};
  const SimNode a = core.AddNode(GigabytePerSecond());
  const SimNode b = core.AddNode(GigabytePerSecond());
  Arrivals got(core);
  for (int i = 0; i < 20; ++i) {
    const SimFlow flow = core.OpenFlow(a, b);
    core.Send(flow, 4 << 20, &got, 1, 0);
    for (int step = 0; step < 7 * i; ++step) core.Step();
    core.CloseFlow(flow);
  }
  core.Run();
  const size_t before = got.what.size();
  const absl::Duration start = core.now();
  core.Send(core.OpenFlow(a, b), 4 << 20, &got, 2, 0);
  core.Run();
  ASSERT_EQ(got.what.size(), before + 1);
  EXPECT_LT(got.last - start, absl::Milliseconds(5));  // 4.19 ms at the full rate
}

TEST(SimCore, HundredThousandSendersAreCheap) {
  SimCore core{SimOptions()};
  const SimNode to = core.AddNode(GigabytePerSecond());
  Arrivals got(core);
  for (uint64_t i = 0; i < 100'000; ++i) {
    core.Send(core.OpenFlow(core.AddNode(GigabytePerSecond()), to), 10'000, &got, i, 0);
  }
  core.Run();
  EXPECT_EQ(got.what.size(), 100'000u);
  EXPECT_EQ(core.stats().overflowed, 0u);
  EXPECT_LT(core.stats().events, 500'000u);
}

// --- with threads ---

TEST(SimNetwork, SleepersCostNoRealTimeAndWakeInOrder) {
  SimNetwork network;
  SimNetwork::Participant main(network);
  std::string order;
  auto late = network.Spawn([&] {
    network.Sleep(absl::Hours(48));
    order += "late ";
  });
  auto early = network.Spawn([&] {
    network.Sleep(absl::Hours(24));
    order += "early ";
  });
  late->Join();
  early->Join();
  EXPECT_EQ(order, "early late ");
  EXPECT_EQ(network.now(), absl::Hours(48));
}

// Eight clients send to one server through links, with losses; what the server saw and the trace.
std::string RunFanIn(uint64_t seed) {
  SimOptions options;
  options.seed = seed;
  SimNetwork network(options);
  SimNetwork::Participant main(network);
  SimNodeOptions lossy;
  lossy.loss = 0.05;
  auto server = MakeSimFabric(network, network.AddNode(lossy));
  LinkOptions link_options = SmallOptions("server");
  auto listener = server->Listen("root", link_options);
  std::vector<std::unique_ptr<SimNetwork::Thread>> threads;
  for (int i = 0; i < 8; ++i) {
    threads.push_back(network.Spawn([&network, i] {
      auto fabric = MakeSimFabric(network, network.AddNode());
      auto link = fabric->Connect("root", SmallOptions(absl::StrCat("client ", i)));
      ASSERT_TRUE(link.ok()) << link.status();
      for (uint64_t n = 0; n < 20; ++n) {
        auto chunk = (*link)->Borrow(network.In(absl::Minutes(10)));
        ASSERT_TRUE(chunk.ok()) << chunk.status();
        chunk->set_size(40'000);
        chunk->tag().index = n;
        ASSERT_TRUE((*link)->Send(std::move(*chunk)).ok());
      }
      EXPECT_EQ((*link)->Close(network.In(absl::Minutes(10))), absl::OkStatus());
    }));
  }
  std::string seen;
  for (int i = 0; i < 8; ++i) {
    std::shared_ptr<Link> link = *(*listener)->Accept(network.In(absl::Minutes(1)));
    threads.push_back(network.Spawn([&network, &seen, link] {
      while (true) {
        auto chunk = link->Receive(network.In(absl::Minutes(10)));
        if (!chunk.ok()) {
          EXPECT_TRUE(absl::IsOutOfRange(chunk.status())) << chunk.status();
          return;
        }
        absl::StrAppend(&seen, link->peer(), "#", chunk->tag().index, "@",
                        absl::FormatDuration(network.now()), " ");
      }
    }));
  }
  for (auto& thread : threads) thread->Join();
  return absl::StrCat(seen, network.trace());
}

TEST(SimNetwork, ThreadsWithTheSameSeedLeaveTheSameTrace) {
  const std::string first = RunFanIn(11);
  EXPECT_THAT(first, HasSubstr("client 7#19@"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(RunFanIn(11) == first);
  EXPECT_TRUE(RunFanIn(12) != first);
}

TEST(SimNetwork, KilledMachineIsNoticedWhenItsHeartbeatsAreMissed) {
  SimNetwork network;
  SimNetwork::Participant main(network);
  const SimNode here = network.AddNode();
  const SimNode there = network.AddNode();
  auto server = MakeSimFabric(network, here);
  LinkOptions options = SmallOptions("server");
  options.heartbeat = absl::Seconds(2);
  options.heartbeats_missed = 3;
  auto listener = server->Listen("", options);
  auto client =
      MakeSimFabric(network, there)->Connect((*listener)->address(), SmallOptions("rack"));
  auto link = (*listener)->Accept(network.In(absl::Seconds(1)));
  ASSERT_TRUE(client.ok() && link.ok());
  const absl::Duration killed = network.now();
  network.Kill(there);
  EXPECT_EQ((*client)->status().code(), absl::StatusCode::kCancelled);
  const absl::Status status = (*link)->Receive(Deadline::Infinite()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("peer \"rack\""));
  EXPECT_EQ(network.now() - killed, absl::Seconds(6));
}

TEST(SimNetwork, ThreadsThatDidNotRegisterMayUseLinksToo) {
  SimNetwork network;
  auto fabric = MakeSimFabric(network, network.AddNode());
  auto listener = fabric->Listen("", SmallOptions("server"));
  auto client = fabric->Connect((*listener)->address(), SmallOptions("client"));
  ASSERT_TRUE(client.ok()) << client.status();
  auto server = (*listener)->Accept(Deadline::After(absl::Seconds(30)));
  ASSERT_TRUE(server.ok()) << server.status();
  std::thread sender([&] {
    for (uint64_t i = 0; i < 200; ++i) {
      auto chunk = (*client)->Borrow(Deadline::After(absl::Seconds(30)));
      ASSERT_TRUE(chunk.ok()) << chunk.status();
      chunk->tag().index = i;
      ASSERT_TRUE((*client)->Send(std::move(*chunk)).ok());
    }
    EXPECT_EQ((*client)->Close(Deadline::After(absl::Seconds(30))), absl::OkStatus());
  });
  for (uint64_t i = 0; i < 200; ++i) {
    auto chunk = (*server)->Receive(Deadline::After(absl::Seconds(30)));
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_EQ(chunk->tag().index, i);
  }
  EXPECT_TRUE(absl::IsOutOfRange((*server)->Receive(Deadline::After(absl::Seconds(30))).status()));
  sender.join();
}

TEST(SimNetwork, OutsideWaitLetsTheOthersGoOn) {
  SimNetwork network;
  SimNetwork::Participant main(network);
  std::atomic<bool> done = false;
  auto sleeper = network.Spawn([&] {
    network.Sleep(absl::Hours(1));
    done = true;
    done.notify_all();
  });
  {
    SimNetwork::OutsideWait outside(network);
    done.wait(false);
  }
  sleeper->Join();
  EXPECT_EQ(network.now(), absl::Hours(1));
}

}  // namespace
}  // namespace tributary::transport
