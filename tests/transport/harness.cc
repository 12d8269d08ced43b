// The fabrics that the conformance tests run against.
#include "tests/transport/harness.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "tests/transport/fake_verbs.h"
#include "transport/auto.h"
#include "transport/faults.h"
#include "transport/roce/node.h"
#include "transport/shm.h"
#include "transport/sim.h"
#include "transport/tcp.h"

namespace tributary::transport {
namespace {

class TcpHarness final : public Harness {
 public:
  explicit TcpHarness(bool decorated) : fabric_(MakeTcpFabric()) {
    if (decorated) fabric_ = MakeFaultyFabric(std::move(fabric_), Faults());
    // Bound and never listening: a port that stays free of listeners while this lives.
    bound_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (bind(bound_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        getsockname(bound_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      std::abort();
    }
    nobody_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~TcpHarness() override { close(bound_); }
  Fabric& server() override { return *fabric_; }
  Fabric& client() override { return *fabric_; }
  std::string listen_address() const override { return "127.0.0.1:0"; }
  std::string nobody() const override { return nobody_; }
  Deadline In(absl::Duration wait) const override { return Deadline::After(wait); }
  std::string transport() const override { return "tcp"; }

 private:
  std::unique_ptr<Fabric> fabric_;
  int bound_ = -1;
  std::string nobody_;
};

class ShmHarness final : public Harness {
 public:
  Fabric& server() override { return *fabric_; }
  Fabric& client() override { return *fabric_; }
  std::string listen_address() const override { return "@"; }
  std::string nobody() const override { return "@tributary-test-nobody-listens-here"; }
  Deadline In(absl::Duration wait) const override { return Deadline::After(wait); }
  std::string transport() const override { return "shm"; }

 private:
  const std::unique_ptr<Fabric> fabric_ = MakeShmFabric();
};

// What is found here is shared memory.
class AutoHarness final : public Harness {
 public:
  AutoHarness() : fabric_(MakeAutoFabric(Candidates())) {}
  Fabric& server() override { return *fabric_; }
  Fabric& client() override { return *fabric_; }
  std::string listen_address() const override { return ""; }
  std::string nobody() const override {
    return EncodeOffers({{.kind = "tcp", .preference = 1, .self = "", .address = tcp_.nobody()}});
  }
  Deadline In(absl::Duration wait) const override { return Deadline::After(wait); }
  std::string transport() const override { return "shm"; }

 private:
  static std::vector<AutoCandidate> Candidates() {
    std::vector<AutoCandidate> out;
    out.push_back(ShmCandidate());
    out.push_back(TcpCandidate("127.0.0.1:0"));
    return out;
  }
  const TcpHarness tcp_{false};
  const std::unique_ptr<Fabric> fabric_;
};

roce::Libraries LibrariesOf(std::shared_ptr<roce::VerbsApi> verbs) {
  roce::Libraries libraries;
  libraries.verbs = std::move(verbs);
  return libraries;
}

class RoceHarness final : public Harness {
 public:
  explicit RoceHarness(size_t arena_bytes)
      : verbs_(std::make_shared<roce::FakeVerbs>()), tcp_(false) {
    RoceOptions options;
    options.arena_bytes = arena_bytes;
    for (auto* fabric : {&server_, &client_}) {
      auto made = roce::MakeFabricOver(LibrariesOf(verbs_), options, {.bytes = 0, .exempt = true});
      if (!made.ok()) std::abort();
      *fabric = std::move(*made);
    }
  }
  // Whatever a test did: nothing that was posted stays with the device, no queue was too short.
  ~RoceHarness() override {
    server_.reset();
    client_.reset();
    EXPECT_EQ(verbs_->live_objects(), 0u);
    EXPECT_EQ(verbs_->unaccounted(), 0u);
    EXPECT_EQ(verbs_->unacknowledged(), 0u);
    EXPECT_EQ(verbs_->receiver_not_ready(), 0u);
    EXPECT_EQ(verbs_->overflows(), 0u);
  }
  Fabric& server() override { return *server_; }
  Fabric& client() override { return *client_; }
  std::string listen_address() const override { return tcp_.listen_address(); }
  std::string nobody() const override { return tcp_.nobody(); }
  Deadline In(absl::Duration wait) const override { return Deadline::After(wait); }
  std::string transport() const override { return "roce"; }
  size_t live_objects() const override { return verbs_->live_objects(); }

 private:
  std::shared_ptr<roce::FakeVerbs> verbs_;
  TcpHarness tcp_;  // for its addresses
  std::unique_ptr<Fabric> server_;
  std::unique_ptr<Fabric> client_;
};

class SimTestThread final : public TestThread {
 public:
  explicit SimTestThread(std::unique_ptr<SimNetwork::Thread> thread) : thread_(std::move(thread)) {}
  void Join() override { thread_->Join(); }

 private:
  std::unique_ptr<SimNetwork::Thread> thread_;
};

class SimHarness final : public Harness {
 public:
  SimHarness()
      : main_(network_),
        server_(MakeSimFabric(network_, network_.AddNode())),
        client_(MakeSimFabric(network_, network_.AddNode())) {}
  Fabric& server() override { return *server_; }
  Fabric& client() override { return *client_; }
  std::string listen_address() const override { return ""; }
  std::string nobody() const override { return "no such listener"; }
  Deadline In(absl::Duration wait) const override { return network_.In(wait); }
  std::unique_ptr<TestThread> Spawn(std::function<void()> body) override {
    return std::make_unique<SimTestThread>(network_.Spawn(std::move(body)));
  }
  std::string transport() const override { return "sim"; }

 private:
  SimNetwork network_;
  SimNetwork::Participant main_;
  std::unique_ptr<Fabric> server_;
  std::unique_ptr<Fabric> client_;
};

}  // namespace

std::unique_ptr<Harness> MakeTcpHarness() { return std::make_unique<TcpHarness>(false); }
std::unique_ptr<Harness> MakeDecoratedTcpHarness() { return std::make_unique<TcpHarness>(true); }
std::unique_ptr<Harness> MakeShmHarness() { return std::make_unique<ShmHarness>(); }
std::unique_ptr<Harness> MakeAutoHarness() { return std::make_unique<AutoHarness>(); }
std::unique_ptr<Harness> MakeRoceHarness(size_t arena_bytes) {
  return std::make_unique<RoceHarness>(arena_bytes);
}
std::unique_ptr<Harness> MakeSimHarness() { return std::make_unique<SimHarness>(); }

std::vector<std::string> FabricsUnderTest() {
  return {"tcp", "shm", "auto", "roce", "sim", "decorated"};
}

std::unique_ptr<Harness> MakeHarness(const std::string& name) {
  if (name == "tcp") return MakeTcpHarness();
  if (name == "decorated") return MakeDecoratedTcpHarness();
  if (name == "shm") return MakeShmHarness();
  if (name == "auto") return MakeAutoHarness();
  if (name == "roce") return MakeRoceHarness();
  return MakeSimHarness();
}

}  // namespace tributary::transport
