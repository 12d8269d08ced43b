// What `auto` promises: the same choice on both sides, the reasons, and links over what was chosen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/transport/harness.h"
#include "tests/transport/log_capture.h"
#include "tests/transport/silent_listener.h"
#include "transport/auto.h"
#include "transport/tcp.h"

namespace tributary::transport {
namespace {

using ::testing::HasSubstr;

constexpr char kHere[] = "boot=aaaa net=net:[1] user=0";
constexpr char kElsewhere[] = "boot=bbbb net=net:[1] user=0";

Deadline Soon() { return Deadline::After(absl::Seconds(30)); }

absl::Status Fits(const std::string& kind, const std::string& ours, const std::string& theirs) {
  return kind == "shm" ? SameHost(ours, theirs) : absl::OkStatus();
}

std::vector<AutoOffer> Side(const std::string& host, int roce_preference = -1) {
  std::vector<AutoOffer> out = {{.kind = "tcp", .preference = 100, .self = "", .address = "h:1"},
                                {.kind = "shm", .preference = 300, .self = host, .address = "@x"}};
  if (roce_preference >= 0) {
    out.push_back({.kind = "roce", .preference = roce_preference, .self = "", .address = "h:2"});
  }
  return out;
}

TEST(AutoRanking, SharedMemoryFirstOnOneHostAndTheNetworkBetweenHosts) {
  auto here = RankOffers(Side(kHere, 200), Side(kHere, 200), Fits);
  ASSERT_EQ(here.size(), 3u);
  EXPECT_EQ(here[0].kind, "shm");
  EXPECT_EQ(here[1].kind, "roce");
  EXPECT_EQ(here[2].kind, "tcp");
  auto apart = RankOffers(Side(kHere, 200), Side(kElsewhere, 200), Fits);
  EXPECT_EQ(apart[0].kind, "roce");
  EXPECT_EQ(apart[1].kind, "tcp");
  EXPECT_EQ(apart[2].kind, "shm");
  EXPECT_THAT(std::string(apart[2].fits.message()), HasSubstr("another machine"));
}

TEST(AutoRanking, BothSidesComeToTheSameOrder) {
  const std::vector<std::vector<AutoOffer>> sides = {
      Side(kHere), Side(kElsewhere), Side(kHere, 0), Side(kHere, 200), Side(kElsewhere, 900), {}};
  for (const auto& a : sides) {
    for (const auto& b : sides) {
      const auto one = RankOffers(a, b, Fits);
      const auto other = RankOffers(b, a, Fits);
      ASSERT_EQ(one.size(), other.size());
      for (size_t i = 0; i < one.size(); ++i) {
        EXPECT_EQ(one[i].kind, other[i].kind);
        EXPECT_EQ(one[i].fits.ok(), other[i].fits.ok());
      }
    }
  }
}

TEST(AutoRanking, KindOfOneSideAloneIsLeftOutWithTheReason) {
  const auto ranked = RankOffers(Side(kHere, 200), Side(kElsewhere), Fits);
  EXPECT_EQ(ranked[0].kind, "tcp");
  for (const AutoVerdict& verdict : ranked) {
    if (verdict.kind != "roce") continue;
    EXPECT_THAT(std::string(verdict.fits.message()), HasSubstr("the peer does not offer it"));
  }
}

TEST(AutoHost, NamesWhatDiffers) {
  EXPECT_TRUE(SameHost(kHere, kHere).ok());
  EXPECT_THAT(std::string(SameHost(kHere, "boot=aaaa net=net:[2] user=0").message()),
              HasSubstr("network namespace"));
  EXPECT_THAT(std::string(SameHost(kHere, "boot=aaaa net=net:[1] user=7").message()),
              HasSubstr("another user"));
  EXPECT_FALSE(SameHost(kHere, "").ok());
  EXPECT_FALSE(SameHost("", "").ok());
}

TEST(AutoHost, IdentityIsTheKernelsBootIdAndNetworkNamespace) {
  const auto self = HostIdentity();
  ASSERT_TRUE(self.ok()) << self.status();
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  EXPECT_THAT(*self, HasSubstr("boot=" + boot));
  EXPECT_THAT(*self, HasSubstr(std::filesystem::read_symlink("/proc/self/ns/net").string()));
  EXPECT_EQ(HostIdentity("/nowhere").status().code(), absl::StatusCode::kUnavailable);
}

TEST(AutoAddress, SurvivesItsTextForm) {
  const std::vector<AutoOffer> offers = {
      {.kind = "shm", .preference = 300, .self = "a=b c;d,e%", .address = "@n\x01\xff"},
      {.kind = "tcp", .preference = 0, .self = "", .address = "[::1]:7"}};
  const std::string text = EncodeOffers(offers);
  EXPECT_EQ(text, "auto;shm,300,a=b%20c%3bd%2ce%25,@n%01%ff;tcp,0,,[::1]:7");
  const auto back = DecodeOffers(text);
  ASSERT_TRUE(back.ok()) << back.status();
  ASSERT_EQ(back->size(), 2u);
  EXPECT_EQ((*back)[0].self, offers[0].self);
  EXPECT_EQ((*back)[0].address, offers[0].address);
  EXPECT_EQ((*back)[1].kind, "tcp");
  EXPECT_EQ(MapAddresses(text, [](const std::string& a) { return a + "!"; }),
            "auto;shm,300,a=b%20c%3bd%2ce%25,@n%01%ff!;tcp,0,,[::1]:7!");
  EXPECT_EQ(MapAddresses("h:1", [](const std::string& a) { return a + "!"; }), "h:1!");
}

TEST(AutoAddress, NonsenseIsRefusedInWords) {
  for (const char* bad :
       {"", "10.0.0.1:7", "auto;tcp", "auto;tcp,1,x", "auto;tcp,1001,,h:1", "auto;,1,,h:1",
        "auto;tcp,1,,%4", "auto;tcp,1,,%zz", "auto;tcp,-1,,h:1"}) {
    EXPECT_EQ(DecodeOffers(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  std::string many = "auto;";
  for (int i = 0; i < 17; ++i) many += "k,1,,a;";
  EXPECT_EQ(DecodeOffers(many).status().code(), absl::StatusCode::kInvalidArgument);
}

std::vector<AutoCandidate> Candidates(bool shm_reachable) {
  std::vector<AutoCandidate> out;
  out.push_back(ShmCandidate());
  if (!shm_reachable) out.back().self = kElsewhere;
  out.push_back(TcpCandidate("127.0.0.1:0"));
  return out;
}

void ExpectLinkOver(Fabric& server, Fabric& client, const std::string& transport) {
  auto listener = server.Listen("", SmallOptions("server"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto connected = client.Connect((*listener)->address(), SmallOptions("client"));
  ASSERT_TRUE(connected.ok()) << connected.status();
  auto accepted = (*listener)->Accept(Soon());
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ((*connected)->transport(), transport);
  EXPECT_EQ((*accepted)->transport(), transport);
  auto chunk = (*connected)->Borrow(Soon());
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  chunk->data()[0] = 42;
  chunk->set_size(1);
  ASSERT_TRUE((*connected)->Send(std::move(*chunk)).ok());
  auto got = (*accepted)->Receive(Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->data()[0], 42);
}

TEST(AutoFabric, TakesSharedMemoryOnOneHostAndTcpOtherwise) {
  auto here = MakeAutoFabric(Candidates(true));
  auto elsewhere = MakeAutoFabric(Candidates(false));
  const auto said = [](Fabric& server, Fabric& client, const std::string& transport) {
    const LogCapture log;
    ExpectLinkOver(server, client, transport);
    return log.text();
  };
  EXPECT_THAT(said(*here, *here, "shm"), AllOf(HasSubstr("auto: link over shm to @"),
                                               HasSubstr("(tcp: fits too, ranks lower)")));
  for (const auto& [server, client] :
       {std::pair(here.get(), elsewhere.get()), std::pair(elsewhere.get(), here.get())}) {
    EXPECT_THAT(said(*server, *client, "tcp"),
                AllOf(HasSubstr("auto: link over tcp to 127.0.0.1:"),
                      HasSubstr("(shm: another machine (boot ids differ))")));
  }
}

TEST(AutoFabric, GoesOnToTheNextWhereTheBestDoesNotAnswer) {
  auto server = MakeAutoFabric(Candidates(true));
  auto listener = server->Listen("", SmallOptions("server"));
  ASSERT_TRUE(listener.ok());
  auto offers = DecodeOffers((*listener)->address());
  ASSERT_TRUE(offers.ok());
  ASSERT_EQ((*offers)[0].kind, "shm");
  (*offers)[0].address = "@tributary-test-nobody-listens-here";
  auto client = MakeAutoFabric(Candidates(true));
  auto link = client->Connect(EncodeOffers(*offers), SmallOptions("client"));
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ((*link)->transport(), "tcp");
}

TEST(AutoFabric, OneThatNeverAnswersLeavesTimeForTheNext) {
  const SilentListener silent;
  auto server = MakeAutoFabric(Candidates(true));
  auto listener = server->Listen("", SmallOptions("server"));
  ASSERT_TRUE(listener.ok());
  auto offers = DecodeOffers((*listener)->address());
  ASSERT_TRUE(offers.ok());
  ASSERT_EQ((*offers)[0].kind, "shm");
  (*offers)[0].address = silent.address();
  LinkOptions options = SmallOptions("client");
  options.connect_timeout = absl::Seconds(2);
  const Deadline within = Deadline::After(options.connect_timeout);
  auto link = MakeAutoFabric(Candidates(true))->Connect(EncodeOffers(*offers), options);
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_EQ((*link)->transport(), "tcp");
  EXPECT_FALSE(within.Expired());
}

TEST(AutoFabric, SaysEveryReasonWhereNothingReachesThePeer) {
  std::vector<AutoCandidate> only_shm;
  only_shm.push_back(ShmCandidate());
  auto client = MakeAutoFabric(std::move(only_shm));
  const std::string address =
      EncodeOffers({{.kind = "shm", .preference = 300, .self = kElsewhere, .address = "@x"},
                    {.kind = "tcp", .preference = 100, .self = "", .address = "127.0.0.1:1"}});
  const absl::Status status = client->Connect(address, SmallOptions("client")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("shm: another machine"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tcp: this side does not offer it"));
}

TEST(AutoFabric, CandidateThatCannotListenIsLeftOut) {
  auto taken = MakeTcpFabric()->Listen("127.0.0.1:0", SmallOptions("first"));
  ASSERT_TRUE(taken.ok());
  std::vector<AutoCandidate> candidates;
  candidates.push_back(ShmCandidate());
  candidates.push_back(TcpCandidate((*taken)->address()));
  auto listener = MakeAutoFabric(std::move(candidates))->Listen("", SmallOptions("second"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  const auto offers = DecodeOffers((*listener)->address());
  ASSERT_TRUE(offers.ok());
  ASSERT_EQ(offers->size(), 1u);
  EXPECT_EQ((*offers)[0].kind, "shm");
  std::vector<AutoCandidate> only_tcp;
  only_tcp.push_back(TcpCandidate((*taken)->address()));
  const auto none = MakeAutoFabric(std::move(only_tcp))->Listen("", SmallOptions("third"));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no transport can listen"));
}

}  // namespace
}  // namespace tributary::transport
