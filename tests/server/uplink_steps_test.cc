// A rack whose steps came out wrong: it forgets its model and joins anew, so that its parent sends
// the whole one.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/model_stream.h"
#include "server/uplink.h"
#include "transport/tcp.h"
#include "tributary/v1/client_service.grpc.pb.h"

namespace tributary::server {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

std::shared_ptr<const aggregation::ModelLayout> Layout() {
  static const auto* layout =
      new std::shared_ptr<const aggregation::ModelLayout>(*aggregation::ModelLayout::Create(
          {{"w", {8, 512}, aggregation::DType::kF32, aggregation::Policy::kMean}}));
  return *layout;
}

// Every element 1 + version / 64.
std::shared_ptr<const ModelVersion> Exact(uint64_t version) {
  const std::vector<float> x(4096, 1 + static_cast<float>(version) / 64);
  std::vector<uint8_t> bytes(4096 * 4);
  std::memcpy(bytes.data(), x.data(), bytes.size());
  return ModelVersion::Make(version, Layout(), std::move(bytes));
}

class Parent final : public v1::Aggregator::Service {
 public:
  Parent() {
    transport::LinkOptions options;
    options.name = "parent";
    listener_ = *transport::MakeTcpFabric()->Listen("127.0.0.1:0", options);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Parent() override { server_->Shutdown(std::chrono::system_clock::now()); }
  grpc::Status Session(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>* stream) override {
    v1::SessionRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    {
      std::lock_guard lock(mu_);
      helds_.push_back(request.join().held_sha256());
    }
    v1::SessionResponse response;
    v1::Joined* joined = response.mutable_joined();
    joined->set_run("r");
    *joined->mutable_layout() = Layout()->ToProto();
    joined->set_layout_hash(Layout()->hash());
    joined->set_heartbeat_ms(1000);
    joined->add_links()->set_transport("tcp");
    joined->mutable_links(0)->set_address(listener_->address());
    stream->Write(response);
    while (stream->Read(&request)) {
    }
    return grpc::Status::OK;
  }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }
  std::unique_ptr<transport::Link> Accept(v1::TierHello* hello) {
    auto link = listener_->Accept(absl::Now() + kPatience);
    EXPECT_TRUE(link.ok()) << link.status();
    EXPECT_TRUE(hello->ParseFromString((*link)->hello()));
    return *std::move(link);
  }
  std::vector<std::string> helds() {
    std::lock_guard lock(mu_);
    return helds_;
  }

 private:
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::mutex mu_;
  std::vector<std::string> helds_;
};

class Child final : public UplinkHandler {
 public:
  void OnParentJoined(v1::Joined) override {}
  void OnParentTask(v1::Task) override {}
  void OnParentOutcome(v1::Outcome) override {}
  void OnParentStop(v1::Stop) override {}
  void OnParentRefused(std::string) override {}
  void OnModel(std::shared_ptr<const ModelVersion> model) override {
    std::lock_guard lock(mu_);
    models_.push_back(std::move(model));
    changed_.notify_all();
  }
  void OnForwarded(uint64_t, absl::Status, double) override {}
  void OnReleased(uint64_t) override {}
  // The n-th model that came, from 0.
  std::shared_ptr<const ModelVersion> Model(size_t n) {
    std::unique_lock lock(mu_);
    const bool there = changed_.wait_for(lock, absl::ToChronoSeconds(kPatience),
                                         [&] { return models_.size() > n; });
    EXPECT_TRUE(there) << "model " << n << " never came";
    return there ? models_[n] : nullptr;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<const ModelVersion>> models_;
};

TEST(UplinkStepsTest, StepsThatLeadElsewhereMakeTheRackJoinAnewHoldingNothing) {
  Parent parent;
  Child child;
  const auto uplink = Uplink::Start(
      {.id = "rack", .epoch = 1, .parents = {parent.endpoint()}, .transport = {}}, &child);
  const auto publisher = *Publisher::Create({.downlink = "int8"}, 5);
  const auto zero = Exact(0), one = publisher->Publish(Exact(1), *zero),
             two = publisher->Publish(Exact(2), *one);
  ASSERT_EQ(two->steps.size(), 2u);
  const auto send = [](transport::Link& link, const ModelVersion& model, const std::string& held) {
    const absl::Status status = SendModelStream(link, model, held, kPatience, [] { return false; });
    EXPECT_TRUE(status.ok()) << status;
  };

  v1::TierHello hello;
  auto link = parent.Accept(&hello);
  EXPECT_TRUE(hello.takes_steps());
  EXPECT_EQ(hello.held_sha256(), "");
  send(*link, *zero, "");
  ASSERT_NE(child.Model(0), nullptr);
  uplink->SetHeld(zero->sha256);  // as the rack does
  send(*link, *one, zero->sha256);
  EXPECT_EQ(child.Model(1)->sha256, one->sha256);
  uplink->SetHeld(one->sha256);

  // A link that is cut is made again, and the next step is taken from what it holds.
  link->Cancel("the test cuts it");
  link = parent.Accept(&hello);
  EXPECT_EQ(hello.held_sha256(), one->sha256);

  ModelVersion damaged = *two;
  auto step = std::make_shared<ModelStep>(*two->steps.back());
  step->bytes[50] ^= 1;
  damaged.steps = {step};
  const size_t joins = parent.helds().size();
  send(*link, damaged, one->sha256);
  link = parent.Accept(&hello);
  while (hello.held_sha256() != "") link = parent.Accept(&hello);
  send(*link, *two, hello.held_sha256());
  EXPECT_EQ(child.Model(2)->sha256, two->sha256);
  ASSERT_GT(parent.helds().size(), joins) << "it has joined anew";
  EXPECT_EQ(parent.helds().back(), "");
}

}  // namespace
}  // namespace tributary::server
