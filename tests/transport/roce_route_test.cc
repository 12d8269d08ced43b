// Where a RoCE link gets its device, port and GID from: the route, as the connection manager knows
// it; the config before it; the control socket's address where nobody can be asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "tests/transport/fake_cm.h"
#include "tests/transport/roce_fixture.h"
#include "transport/roce/route.h"

namespace tributary::transport {
namespace {

using roce::FakeCm;

// Both ends of a link ask from threads of their own, which may outlive a test's fixture; the fake
// is for one at a time.
class LockedCm final : public roce::CmApi {
 public:
  FakeCm& fake() { return cm_; }
  // What is open while nobody asks.
  int Live() {
    const std::lock_guard lock(lock_);
    return static_cast<int>(cm_.live);
  }
  rdma_event_channel* CreateEventChannel() override {
    lock_.lock();
    rdma_event_channel* channel = cm_.CreateEventChannel();
    if (channel == nullptr) lock_.unlock();
    return channel;
  }
  void DestroyEventChannel(rdma_event_channel* channel) override {
    cm_.DestroyEventChannel(channel);
    lock_.unlock();
  }
  int CreateId(rdma_event_channel* channel, rdma_cm_id** id) override {
    return cm_.CreateId(channel, id);
  }
  int DestroyId(rdma_cm_id* id) override { return cm_.DestroyId(id); }
  int ResolveAddr(rdma_cm_id* id, sockaddr* source, sockaddr* destination, int ms) override {
    return cm_.ResolveAddr(id, source, destination, ms);
  }
  int GetCmEvent(rdma_event_channel* channel, rdma_cm_event** event) override {
    return cm_.GetCmEvent(channel, event);
  }
  int AckCmEvent(rdma_cm_event* event) override { return cm_.AckCmEvent(event); }

 private:
  FakeCm cm_;
  std::mutex lock_;  // from a channel's creation to its end
};

class RoceRoute : public Roce {
 protected:
  RoceRoute() {
    libraries_.cm = locked_;
    // An address beside those of the control socket, 127.0.0.1 (index 1) and ::1.
    ibv_gid_entry other = verbs_->gids[1];
    other.gid_index = 5;
    const rdma::Gid gid = *rdma::ParseGid("10.9.9.9");
    std::memcpy(other.gid.raw, gid.data(), gid.size());
    verbs_->gids.push_back(other);
    cm_.gid = gid;
  }
  ~RoceRoute() override { EXPECT_EQ(locked_->Live(), 0); }
  // Makes a link, sends over it, and gives the line that says what it uses.
  std::string LinkLine(const RoceOptions& options = SmallArena()) {
    const LogCapture log;
    EXPECT_EQ(Open(options), absl::OkStatus());
    EXPECT_EQ(Link(), absl::OkStatus());
    EXPECT_EQ(SendOne(4, 1000), absl::OkStatus());
    ExpectOne(4, 1000);
    const std::string text = log.text();
    const size_t at = text.find("link over RoCE");
    EXPECT_NE(at, std::string::npos) << text;
    return text.substr(at, text.find('\n', at) - at);
  }

  const std::shared_ptr<LockedCm> locked_ = std::make_shared<LockedCm>();
  FakeCm& cm_ = locked_->fake();
};

TEST_F(RoceRoute, TheKernelsRoutePicksTheGidAndTheLogSaysSo) {
  const std::string line = LinkLine();
  EXPECT_THAT(line, HasSubstr("GID 10.9.9.9 (index 5; by the route to the peer (librdmacm)"));
  EXPECT_THAT(line, HasSubstr("to 10.9.9.9"));
  ASSERT_EQ(cm_.asked.size(), 2u);  // both sides asked, for the other's address
  EXPECT_EQ(rdma::GidText(rdma::GidOfAddress(reinterpret_cast<sockaddr&>(cm_.asked[0]))),
            "127.0.0.1");
}

TEST_F(RoceRoute, TheConfigsIndexGoesBeforeTheRoute) {
  RoceOptions options = SmallArena();
  options.gid_index = 2;
  EXPECT_THAT(LinkLine(options), HasSubstr("GID ::1 (index 2; by the route to the peer"));
}

TEST_F(RoceRoute, TheConfigsPortGoesBeforeTheRoute) {
  cm_.port = 2;
  RoceOptions options = SmallArena();
  options.port = 1;
  EXPECT_THAT(LinkLine(options),
              HasSubstr("GID 127.0.0.1 (index 1; by the control socket's address, since not by "
                        "route (the route goes by port 2, and port = 1)"));
}

TEST_F(RoceRoute, WithoutTheLibraryTheSocketsAddressPicksAndTheLogSaysWhy) {
  libraries_.cm = absl::FailedPreconditionError("librdmacm.so.1: cannot open");
  EXPECT_THAT(LinkLine(), HasSubstr("GID 127.0.0.1 (index 1; by the control socket's address, "
                                    "since not by route (librdmacm.so.1: cannot open)"));
}

TEST_F(RoceRoute, WithoutTheKernelsModuleTheSocketsAddressPicksAndTheLogSaysWhy) {
  cm_.channel_errno = ENOENT;
  EXPECT_THAT(LinkLine(), HasSubstr("since not by route (the kernel's connection manager cannot "
                                    "be had (modprobe rdma_ucm): No such file"));
}

TEST_F(RoceRoute, ARouteWithoutAnRdmaDeviceLeavesTheChoiceToTheSocketsAddress) {
  cm_.event_status = -ENODEV;
  EXPECT_THAT(LinkLine(), HasSubstr("no RDMA device is on the route to the peer: No such device"));
}

TEST_F(RoceRoute, ADeviceThatIsNotOpenedHereIsNamed) {
  cm_.device = "mlx5_9";
  EXPECT_THAT(LinkLine(), HasSubstr("\"mlx5_9\" is not among the devices"));
}

TEST_F(RoceRoute, WhereNeitherFindsAGidBothReasonsAreSaid) {
  cm_.call_errno = ENETUNREACH;
  verbs_->gids.erase(verbs_->gids.begin() + 1);
  const absl::Status status = Link();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_THAT(Words(status), HasSubstr("Network is unreachable"));
  EXPECT_THAT(Words(status), HasSubstr("no RDMA device has the address 127.0.0.1"));
}

TEST(AskRoute, SilenceEndsAtTheDeadlineAndAMappedAddressIsAskedForAsIpv4) {
  FakeCm cm;
  cm.silent = true;
  tcp::SocketAddress peer;
  auto* mapped = reinterpret_cast<sockaddr_in6*>(&peer.storage);
  mapped->sin6_family = AF_INET6;
  const rdma::Gid address = *rdma::ParseGid("10.1.2.3");
  std::memcpy(&mapped->sin6_addr, address.data(), address.size());
  const auto route = roce::AskRoute(cm, peer, Deadline::After(absl::Milliseconds(20)));
  EXPECT_EQ(route.status().code(), absl::StatusCode::kUnavailable) << route.status();
  EXPECT_THAT(Words(route.status()), HasSubstr("in time"));
  ASSERT_EQ(cm.asked.size(), 1u);
  EXPECT_EQ(cm.asked[0].ss_family, AF_INET);
  EXPECT_EQ(rdma::GidOfAddress(reinterpret_cast<sockaddr&>(cm.asked[0])), address);
  EXPECT_EQ(cm.live, 0);
}

}  // namespace
}  // namespace tributary::transport
