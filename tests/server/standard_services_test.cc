// The standard gRPC services beside ours, asked as any tool asks them: by bytes of the published
// protos (grpc.health.v1, grpc.reflection.v1alpha), not by code of ours.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>

#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

// Calls a method, unary or streaming, with one message and returns the first that comes back.
absl::StatusOr<std::string> Ask(const std::string& endpoint, const std::string& method,
                                const std::string& request) {
  auto channel = grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
  grpc::CompletionQueue queue;
  const auto next = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  grpc::Slice slice(request);
  grpc::Status status;
  grpc::ByteBuffer answer;
  call->StartCall(nullptr);
  bool fine = next();
  if (fine) {
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    fine = next();
  }
  if (fine) {
    call->WritesDone(nullptr);
    fine = next();
  }
  if (fine) {
    call->Read(&answer, nullptr);
    fine = next();
  }
  call->Finish(&status, nullptr);
  next();
  queue.Shutdown();
  if (!fine) return absl::UnavailableError(status.error_message());
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!answer.Dump(&slices).ok()) return absl::InternalError("an answer without bytes");
  for (const grpc::Slice& s : slices)
    bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
  return bytes;
}

constexpr char kRoot[] =
    "[node]\nname = \"services\"\nlisten = \"127.0.0.1:0\"\n[run]\nname = \"services\"\nrounds = "
    "1\nmodel = \"logreg\"\n[checkpoint]\ndirectory = \"%s\"\n";

TEST(StandardServices, HealthSaysServing) {
  TempDir dir;
  TestNode node(absl::StrFormat(kRoot, dir / "checkpoints"));
  // HealthCheckRequest{service: ""} is empty; HealthCheckResponse{status: SERVING = 1}.
  const auto answer = Ask(node.endpoint(), "/grpc.health.v1.Health/Check", "");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, std::string("\x08\x01", 2));
}

TEST(StandardServices, ReflectionNamesTheAggregator) {
  TempDir dir;
  TestNode node(absl::StrFormat(kRoot, dir / "checkpoints"));
  // ServerReflectionRequest{list_services: "*"}, field 7.
  const auto answer =
      Ask(node.endpoint(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
          std::string("\x3a\x01*", 3));
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(*answer, testing::HasSubstr("tributary.v1.Aggregator"));
  EXPECT_THAT(*answer, testing::HasSubstr("grpc.health.v1.Health"));
}

}  // namespace
}  // namespace tributary::server
