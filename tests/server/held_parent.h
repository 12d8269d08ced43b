// An uplink's parent in the test's hands: it welcomes one child, and its links are the test's.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aggregation/layout.h"
#include "base/deadline.h"
#include "base/hand_over.h"
#include "server/uplink.h"
#include "transport/tcp.h"
#include "tributary/v1/client_service.grpc.pb.h"

namespace tributary::server {

class HeldParent final : public v1::Aggregator::Service {
 public:
  // A test that waits longer has found a hang.
  static constexpr absl::Duration kLimit = absl::Seconds(60);

  explicit HeldParent(std::shared_ptr<const aggregation::ModelLayout> layout,
                      uint32_t slots = transport::LinkOptions().slots)
      : layout_(std::move(layout)) {
    transport::LinkOptions options;
    options.name = "parent";
    options.slots = slots;
    listener_ = *transport::MakeTcpFabric()->Listen("127.0.0.1:0", options);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~HeldParent() override {
    server_->Shutdown(std::chrono::system_clock::now());
    TakeOver(this);  // the sessions' threads have ended with theirs
  }

  // Holds the session open until the child ends it.
  grpc::Status Session(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) override {
    v1::SessionRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    {
      std::lock_guard lock(mu_);
      helds_.push_back(request.join().held_sha256());
      changed_.notify_all();
    }
    v1::SessionResponse response;
    v1::Joined* joined = response.mutable_joined();
    joined->set_run("r");
    *joined->mutable_layout() = layout_->ToProto();
    joined->set_layout_hash(layout_->hash());
    joined->set_heartbeat_ms(1000);
    v1::LinkEndpoint* link = joined->add_links();
    link->set_transport("tcp");
    link->set_address(listener_->address());
    stream->Write(response);
    do {
      std::unique_lock lock(mu_);
      changed_.wait_for(lock, absl::ToChronoSeconds(kLimit), [this] { return reading_; });
      if (request.has_heartbeat()) census_ = request.heartbeat().clients();
      if (request.has_report()) {
        reports_.push_back(request.report());
        census_at_report_.push_back(census_);
      }
      changed_.notify_all();
    } while (stream->Read(&request));
    HandOver(this);
    return grpc::Status::OK;
  }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }
  // The next link of the child; null where none comes.
  std::unique_ptr<transport::Link> Accept() {
    auto link = listener_->Accept(Deadline::After(kLimit));
    EXPECT_TRUE(link.ok()) << link.status();
    return link.ok() ? *std::move(link) : nullptr;
  }
  // Whether what the child says on its session is read, once it has joined.
  void Read(bool reading) {
    std::lock_guard lock(mu_);
    reading_ = reading;
    changed_.notify_all();
  }
  // Waits for so many.
  std::vector<v1::Report> reports(size_t count) {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, absl::ToChronoSeconds(kLimit),
                      [&] { return reports_.size() >= count; });
    return reports_;
  }
  // How many clients the child had told of, at each report.
  std::vector<uint64_t> census_at_reports() {
    std::lock_guard lock(mu_);
    return census_at_report_;
  }
  // What the child held at each of its joins; waits for so many.
  std::vector<std::string> helds(size_t count = 0) {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, absl::ToChronoSeconds(kLimit), [&] { return helds_.size() >= count; });
    return helds_;
  }

 private:
  const std::shared_ptr<const aggregation::ModelLayout> layout_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::mutex mu_;
  std::condition_variable changed_;
  bool reading_ = true;  // guarded by mu_, as all below
  std::vector<v1::Report> reports_;
  uint64_t census_ = 0;
  std::vector<uint64_t> census_at_report_;
  std::vector<std::string> helds_;
};

// Cares for nothing that its parent says: a test takes up what it is about.
class DeafChild : public UplinkHandler {
 public:
  void OnParentJoined(v1::Joined) override {}
  void OnParentTask(v1::Task) override {}
  void OnParentOutcome(v1::Outcome) override {}
  void OnParentStop(v1::Stop) override {}
  void OnParentRefused(std::string) override {}
  void OnParentClaims(v1::ClaimsAnswer) override {}
  void OnParentVerdicts(v1::Verdicts) override {}
  void OnModel(std::shared_ptr<const ModelVersion>) override {}
  void OnForwarded(uint64_t, absl::Status, double) override {}
  void OnReleased(uint64_t) override {}
};

}  // namespace tributary::server
