// The conformance suite with one end of every link here and the other on a second host.
// usage: rdma_vm_conformance SERVER SERVER_IP [gtest options]; SERVER runs `rdma_vm_peer serve
// SERVER`.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/rdma_vm/remote.h"
#include "tests/transport/harness.h"

namespace tributary::transport {
namespace {

std::string server;
std::string server_ip;

// One fabric for all tests: opening a device registers its arena.
Fabric& ClientFabric(const std::string& transport) {
  static auto* fabrics = new std::map<std::string, std::unique_ptr<Fabric>>;
  std::unique_ptr<Fabric>& fabric = (*fabrics)[transport];
  if (fabric == nullptr) {
    auto made = MakeFabricNamed(transport);
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", std::string(made.status().message()).c_str());
      std::exit(1);
    }
    fabric = std::move(*made);
  }
  return *fabric;
}

class TwoHosts final : public Harness {
 public:
  explicit TwoHosts(const std::string& transport)
      : transport_(transport), server_(MakeRemoteFabric(tributary::transport::server, transport)) {}
  Fabric& server() override { return *server_; }
  Fabric& client() override { return ClientFabric(transport_); }
  std::string listen_address() const override { return absl::StrCat(server_ip, ":0"); }
  std::string nobody() const override { return absl::StrCat(server_ip, ":9"); }
  Deadline In(absl::Duration wait) const override { return Deadline::After(wait); }
  std::string transport() const override { return transport_; }

 private:
  const std::string transport_;
  std::unique_ptr<Fabric> server_;
};

}  // namespace

std::vector<std::string> FabricsUnderTest() { return {"roce", "tcp"}; }
std::unique_ptr<Harness> MakeHarness(const std::string& name) {
  return std::make_unique<TwoHosts>(name);
}

}  // namespace tributary::transport

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: rdma_vm_conformance SERVER SERVER_IP [gtest options]\n");
    return 2;
  }
  tributary::transport::server = argv[1];
  tributary::transport::server_ip = argv[2];
  return RUN_ALL_TESTS();
}
