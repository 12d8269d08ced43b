// The pacer in virtual time, over models of what lies before it: an ingress of some capacity,
// senders with rates of their own, a switch that loses its goodput where too many send at once.
#include "server/grant_pacer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tributary::server {
namespace {

constexpr absl::Duration kNever = absl::InfiniteDuration();

absl::Duration Ms(int64_t ms) { return absl::Milliseconds(ms); }

// Fluid flows: every millisecond those who send share what the network gives so many.
class Network {
 public:
  std::function<double(int)> capacity;     // bytes a second that it carries of so many flows
  std::function<double(int)> sender_rate;  // of sender i, at most
  absl::Duration answer = Ms(2);           // from the grant to the first byte
  absl::Duration memory_wait = Ms(0);

  struct Outcome {
    double seconds = 0;
    int most_at_once = 0;
    std::vector<int> order;  // of the ends
    int last_limit = 0;
  };

  Outcome Run(GrantPacer& pacer, int senders, uint64_t bytes,
              absl::Duration patience = absl::Hours(10)) {
    std::map<uint64_t, int> who;
    for (int i = 0; i < senders; ++i) who[pacer.Ask(bytes)] = i;
    struct Flow {
      absl::Duration starts;
      double left = 0;
      bool started = false;
    };
    std::map<uint64_t, Flow> flows;
    Outcome out;
    double received = 0;
    absl::Duration now;
    for (; static_cast<int>(out.order.size()) < senders && now < patience; now += Ms(1)) {
      for (const uint64_t key : pacer.Expire(now)) flows.erase(key);
      if (const auto next = pacer.NextTimer(); next.has_value() && *next <= now) {
        pacer.Observe(now, static_cast<uint64_t>(received));
      }
      for (const uint64_t key : pacer.Take(now, kNever)) {
        pacer.Sent(key, now);
        flows[key] = {.starts = now + answer, .left = static_cast<double>(bytes)};
      }
      int active = 0;
      for (auto& [key, flow] : flows) {
        if (flow.starts > now) continue;
        if (!std::exchange(flow.started, true)) pacer.Started(key, now);
        ++active;
      }
      out.most_at_once = std::max(out.most_at_once, active);
      if (active == 0) continue;
      const double share = capacity(active) / active * 1e-3;
      for (auto it = flows.begin(); it != flows.end();) {
        if (!it->second.started) {
          ++it;
          continue;
        }
        const double got = std::min({share, sender_rate(who[it->first]) * 1e-3, it->second.left});
        received += got;
        it->second.left -= got;
        if (it->second.left > 0.5) {
          ++it;
          continue;
        }
        pacer.Whole(it->first, now);
        out.order.push_back(who[it->first]);
        it = flows.erase(it);
      }
    }
    out.seconds = absl::ToDoubleSeconds(now);
    out.last_limit = static_cast<int>(pacer.limit());
    return out;
  }
};

TEST(GrantPacer, GrantsInTheOrderOfAskingUpToItsLimitAndTheNextWhenOneIsThrough) {
  GrantPacer pacer({.first = 2});
  const uint64_t a = pacer.Ask(10), b = pacer.Ask(10), c = pacer.Ask(10), d = pacer.Ask(10);
  EXPECT_EQ(pacer.Take(Ms(0), kNever), (std::vector<uint64_t>{a, b}));
  EXPECT_EQ(pacer.Take(Ms(0), kNever), (std::vector<uint64_t>{}));
  pacer.Sent(a, Ms(0));
  pacer.Started(a, Ms(1));
  pacer.Whole(a, Ms(2));
  EXPECT_EQ(pacer.Take(Ms(2), kNever), (std::vector<uint64_t>{c}));
  pacer.Gone(b);  // its session has ended
  EXPECT_EQ(pacer.Take(Ms(2), kNever), (std::vector<uint64_t>{d}));
  EXPECT_EQ(pacer.waiting(), 0u);
  EXPECT_EQ(pacer.outstanding(), 2u);
}

TEST(GrantPacer, OneThatLeavesTheLineIsNotGranted) {
  GrantPacer pacer({.first = 1});
  const uint64_t a = pacer.Ask(10), b = pacer.Ask(10), c = pacer.Ask(10);
  EXPECT_EQ(pacer.Take(Ms(0), kNever), (std::vector<uint64_t>{a}));
  pacer.Gone(b);
  pacer.Gone(a);
  EXPECT_EQ(pacer.Take(Ms(0), kNever), (std::vector<uint64_t>{c}));
}

TEST(GrantPacer, AGrantThatIsNotUsedInTimeIsTakenBackOneThatIsUsedIsNot) {
  GrantPacer pacer({.first = 2, .start_within = absl::Seconds(5)});
  const uint64_t dead = pacer.Ask(10), slow = pacer.Ask(10), next = pacer.Ask(10);
  ASSERT_EQ(pacer.Take(Ms(0), kNever).size(), 2u);
  pacer.Sent(dead, Ms(100));  // its time runs from the word, not from its place
  pacer.Sent(slow, Ms(100));
  pacer.Started(slow, Ms(4000));
  EXPECT_EQ(pacer.Expire(Ms(5099)), (std::vector<uint64_t>{}));
  EXPECT_EQ(pacer.Expire(Ms(5100)), (std::vector<uint64_t>{dead}));
  EXPECT_EQ(pacer.Take(Ms(5100), kNever), (std::vector<uint64_t>{next}));
  EXPECT_EQ(pacer.Expire(Ms(60'000)), (std::vector<uint64_t>{}));
}

TEST(GrantPacer, EveryGrantHasATimerUntilItIsUsed) {
  GrantPacer pacer({.first = 2, .start_within = absl::Seconds(5)});
  EXPECT_EQ(pacer.NextTimer(), std::nullopt);
  const uint64_t a = pacer.Ask(10);
  ASSERT_EQ(pacer.Take(Ms(7), kNever).size(), 1u);
  pacer.Sent(a, Ms(7));
  EXPECT_EQ(pacer.NextTimer(), Ms(5007));
  pacer.Started(a, Ms(8));
  EXPECT_EQ(pacer.NextTimer(), std::nullopt);
}

TEST(GrantPacer, NobodyIsGrantedWhoCouldNotBeInByTheCutOff) {
  GrantPacer pacer({.first = 1});
  const uint64_t a = pacer.Ask(1000);
  ASSERT_EQ(pacer.Take(Ms(0), Ms(60'000)), (std::vector<uint64_t>{a}));  // nothing is known yet
  pacer.Sent(a, Ms(0));
  pacer.Started(a, Ms(1));
  pacer.Whole(a, Ms(1000));  // a byte a millisecond
  const uint64_t large = pacer.Ask(2000), small = pacer.Ask(10);
  EXPECT_EQ(pacer.Take(Ms(58'001), Ms(60'000)), (std::vector<uint64_t>{}));
  EXPECT_EQ(pacer.Take(Ms(58'000), Ms(60'000)), (std::vector<uint64_t>{large}));
  pacer.Gone(large);
  EXPECT_EQ(pacer.Take(Ms(60'000), Ms(60'000)), (std::vector<uint64_t>{}));
  EXPECT_EQ(pacer.Take(Ms(60'000), kNever), (std::vector<uint64_t>{small}));
}

TEST(GrantPacer, KeysThatAreGoneMeanNothing) {
  GrantPacer pacer({.first = 1});
  const uint64_t a = pacer.Ask(10);
  ASSERT_EQ(pacer.Take(Ms(0), kNever).size(), 1u);
  pacer.Gone(a);
  pacer.Gone(a);
  pacer.Sent(a, Ms(1));
  pacer.Started(a, Ms(1));
  pacer.Whole(a, Ms(1));
  EXPECT_EQ(pacer.outstanding(), 0u);
  EXPECT_EQ(pacer.NextTimer(), std::nullopt);
}

// 1,000 senders that could each fill the ingress by themselves.
TEST(GrantPacer, FastSendersAreLetInByTheFewAndTheIngressIsFull) {
  Network network;
  network.capacity = [](int) { return 1e9; };
  network.sender_rate = [](int) { return 1e9; };
  GrantPacer pacer({});
  const auto out = network.Run(pacer, 1000, 8 << 20);
  const double ideal = 1000.0 * (8 << 20) / 1e9;
  EXPECT_LT(out.seconds, ideal / 0.95);
  EXPECT_LE(out.most_at_once, 64);
  EXPECT_LE(out.last_limit, 16);
}

// 1,000 senders behind lines of 10 Mbit/s each, before an ingress of 10 Gbit/s: as many as fill it.
TEST(GrantPacer, SlowSendersGetTheCompanyThatFillsTheIngress) {
  Network network;
  network.capacity = [](int) { return 1.25e9; };
  network.sender_rate = [](int) { return 1.25e6; };
  GrantPacer pacer({});
  const auto out = network.Run(pacer, 1000, 16 << 20);
  const double alone = (16 << 20) / 1.25e6;  // 13.4 s: all at once would take as long as one
  EXPECT_GT(out.most_at_once, 400);
  EXPECT_LT(out.seconds, 3 * alone);
}

// TCP incast: beyond 48 flows the switch's buffers overflow, and what it carries falls to a tenth.
TEST(GrantPacer, WhereTooManyAtOnceCollapseTheSwitchItStaysBelow) {
  Network network;
  network.capacity = [](int flows) { return flows <= 48 ? 1.25e9 : 1.25e8; };
  network.sender_rate = [](int) { return 1.25e9; };
  GrantPacer all({.first = 1000});
  const double ideal = 1000.0 * (4 << 20) / 1.25e9;
  EXPECT_GT(network.Run(all, 1000, 4 << 20).seconds, 5 * ideal) << "what the test is about";
  GrantPacer pacer({});
  const auto out = network.Run(pacer, 1000, 4 << 20);
  EXPECT_LT(out.seconds, ideal / 0.9);
}

// The same with senders that need 40 to fill it: it must go as far as there, and not beyond.
TEST(GrantPacer, ItFindsThePlaceBetweenTooFewAndTooMany) {
  Network network;
  network.capacity = [](int flows) { return flows <= 80 ? 1.25e9 : 1.25e8; };
  network.sender_rate = [](int) { return 1.25e9 / 40; };
  GrantPacer pacer({});
  const auto out = network.Run(pacer, 4000, 4 << 20);
  const double ideal = 4000.0 * (4 << 20) / 1.25e9;
  EXPECT_LT(out.seconds, ideal / 0.8);
}

// The fast are ready first. When only the slow are left, few at once would waste the ingress.
TEST(GrantPacer, WhenTheRestAreSlowMoreAreLetIn) {
  Network network;
  network.capacity = [](int) { return 1e9; };
  network.sender_rate = [](int i) { return i < 500 ? 1e9 : 2e6; };
  GrantPacer pacer({});
  const auto out = network.Run(pacer, 1000, 8 << 20);
  const double fast = 500.0 * (8 << 20) / 1e9;
  const double slow = (8 << 20) / 2e6;  // 4.2 s each; 32 at once would take 66 s
  EXPECT_GT(out.most_at_once, 200);
  EXPECT_LT(out.seconds, fast + 4 * slow);
}

// All of the first that are granted have died.
TEST(GrantPacer, TheDeadHoldTheLivingUpForTheTimeOfAGrantAtMost) {
  Network network;
  network.capacity = [](int) { return 1e9; };
  network.sender_rate = [](int) { return 1e9; };
  GrantPacer pacer({.first = 16, .start_within = absl::Seconds(5)});
  std::vector<uint64_t> dead;
  for (int i = 0; i < 16; ++i) dead.push_back(pacer.Ask(8 << 20));
  const auto granted = pacer.Take(Ms(0), kNever);
  ASSERT_EQ(granted, dead);
  for (const uint64_t key : granted) pacer.Sent(key, Ms(0));
  const auto out = network.Run(pacer, 100, 8 << 20);
  EXPECT_LT(out.seconds, 5 + 100.0 * (8 << 20) / 1e9 / 0.9);
}

TEST(GrantPacer, WithoutAByteComingInItStopsAtTheBlindLimit) {
  GrantPacer pacer({.first = 16, .most_blind = 64});
  for (int i = 0; i < 500; ++i) pacer.Ask(1 << 20);
  for (int ms = 0; ms < 60'000; ++ms) {
    for (const uint64_t key : pacer.Take(Ms(ms), kNever)) {
      pacer.Sent(key, Ms(ms));
      pacer.Started(key, Ms(ms));  // and then they say nothing
    }
    pacer.Observe(Ms(ms), 0);
  }
  EXPECT_EQ(pacer.outstanding(), 64u);
}

TEST(GrantPacer, WhereMemoryIsShortTheLimitIsLeftAlone) {
  GrantPacer pacer({.first = 4});
  for (int i = 0; i < 100; ++i) pacer.Ask(1 << 20);
  uint64_t received = 0;
  std::vector<uint64_t> sending;
  for (int ms = 0; ms < 20'000; ++ms) {
    for (const uint64_t key : pacer.Take(Ms(ms), kNever)) {
      // Only two have their memory at a time.
      if (sending.size() >= 2) continue;
      pacer.Sent(key, Ms(ms));
      pacer.Started(key, Ms(ms));
      sending.push_back(key);
    }
    received += 1 << 20;
    pacer.Observe(Ms(ms), received);
  }
  EXPECT_EQ(pacer.limit(), 4u);
}

}  // namespace
}  // namespace tributary::server
