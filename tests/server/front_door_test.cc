// The front door against clients that do not play along, with the test in the handler's place.
#include "server/front_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "server/door/framing.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

using ::testing::HasSubstr;

// Keeps what it is told.
class HeldHandler final : public FrontDoorHandler {
 public:
  void OnJoin(std::shared_ptr<Session> session) override { Keep(&joined, std::move(session)); }
  void OnMessage(std::shared_ptr<Session> session, v1::SessionRequest) override {
    Keep(&spoke, std::move(session));
  }
  void OnSessionEnd(std::shared_ptr<Session> session) override { Keep(&ended, std::move(session)); }
  void OnUploadStart(std::shared_ptr<Upload> upload) override { Keep(&started, std::move(upload)); }
  void OnUploadComplete(std::shared_ptr<Upload> upload,
                        std::shared_ptr<const aggregation::EncodedUpdate>) override {
    Keep(&whole, std::move(upload));
  }
  void OnUploadFailed(std::shared_ptr<Upload> upload, aggregation::Refusal) override {
    Keep(&failed, std::move(upload));
  }
  // The n-th, from 0.
  template <typename T>
  T Await(const std::vector<T>& list, size_t n) {
    std::unique_lock lock(mu_);
    const bool there =
        changed_.wait_for(lock, absl::ToChronoSeconds(kPatience), [&] { return list.size() > n; });
    EXPECT_TRUE(there) << "the handler is not told";
    return there ? list[n] : T();
  }
  template <typename T>
  size_t Count(const std::vector<T>& list) {
    std::lock_guard lock(mu_);
    return list.size();
  }

  std::vector<std::shared_ptr<Session>> joined, spoke, ended;   // guarded by mu_: see Await
  std::vector<std::shared_ptr<Upload>> started, whole, failed;  // likewise

 private:
  template <typename T>
  void Keep(std::vector<T>* list, T one) {
    std::lock_guard lock(mu_);
    list->push_back(std::move(one));
    changed_.notify_all();
  }
  std::mutex mu_;
  std::condition_variable changed_;
};

class FrontDoorTest : public testing::Test {
 protected:
  FrontDoorTest() { Start({.listen = "127.0.0.1:0"}); }
  void Start(const FrontDoor::Options& options) {
    door_.reset();
    auto door = FrontDoor::Start(options, &handler_, &shelf_);
    EXPECT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    // What a client does not read is to wait at the aggregator, not in a window that widens.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub_ = v1::Aggregator::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", door_->port()), grpc::InsecureChannelCredentials(), arguments));
  }
  static v1::SessionRequest JoinOf(const std::string& id) {
    v1::SessionRequest request;
    request.mutable_join()->set_protocol(1);
    request.mutable_join()->set_id(id);
    request.mutable_join()->set_role(v1::CLIENT);
    return request;
  }
  // How a session that begins like this ends, where the aggregator ends it.
  grpc::Status EndOfSession(const v1::SessionRequest& first) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
    auto stream = stub_->Session(&context);
    stream->Write(first);
    v1::SessionResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }
  static std::unique_ptr<aggregation::UpdateAssembler> Assembler(uint64_t bytes) {
    return std::make_unique<aggregation::UpdateAssembler>(TestLayout(), *aggregation::ProveGrid({}),
                                                          "a", 1, bytes);
  }

  HeldHandler handler_;
  ModelShelf shelf_;
  std::unique_ptr<FrontDoor> door_;
  std::unique_ptr<v1::Aggregator::Stub> stub_;
};

// It keeps its place in the line, of which the door knows nothing.
TEST_F(FrontDoorTest, AnUploadGivenUpWhileItWaitsIsToldOfWhenItsTurnComes) {
  grpc::ClientContext context;
  v1::UploadResponse response;
  auto writer = stub_->Upload(&context, &response);
  v1::UploadRequest request;
  request.mutable_header()->set_id("a");
  ASSERT_TRUE(writer->Write(request));
  const std::shared_ptr<Upload> upload = handler_.Await(handler_.started, 0);
  ASSERT_NE(upload, nullptr);
  context.TryCancel();
  (void)writer->Finish();
  door_->Shutdown(absl::ZeroDuration());  // when it returns, gRPC is through with the call
  upload->Admit(Assembler(100));
  EXPECT_EQ(handler_.Await(handler_.failed, 0), upload);
}

// Small ones are whole with their first message.
TEST_F(FrontDoorTest, AWholeUploadGivenUpWhileItWaitsIsHandedOverWhenItsTurnComes) {
  grpc::ClientContext context;
  v1::UploadResponse response;
  auto writer = stub_->Upload(&context, &response);
  const Segments segments = EncodeTest(1);
  const v1::UploadTrailer trailer = RawClient::Trailer(segments);
  v1::UploadRequest request;
  request.mutable_header()->set_id("a");
  for (const auto& segment : segments) {
    request.mutable_segments()->append(segment.begin(), segment.end());
  }
  *request.mutable_trailer() = trailer;
  ASSERT_TRUE(writer->Write(request));
  const std::shared_ptr<Upload> upload = handler_.Await(handler_.started, 0);
  ASSERT_NE(upload, nullptr);
  context.TryCancel();
  (void)writer->Finish();
  door_->Shutdown(absl::ZeroDuration());
  upload->Admit(Assembler(trailer.encoded_bytes()));
  EXPECT_EQ(handler_.Await(handler_.whole, 0), upload);
}

// It is kept for as long as its session.
TEST_F(FrontDoorTest, AJoinOfManyBytesIsRefused) {
  for (const auto field :
       {&v1::Join::mutable_run, &v1::Join::mutable_software, &v1::Join::mutable_held_sha256}) {
    v1::SessionRequest request = JoinOf("a");
    *(request.mutable_join()->*field)() = std::string(100'000, 'x');
    const grpc::Status status = EndOfSession(request);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("bytes"));
  }
  EXPECT_EQ(handler_.Count(handler_.joined), 0u);
}

// How the call ends while the door is told, again and again, to cut what is silent: each of the
// test's calls may not have reached it the first time.
template <typename Call>
grpc::Status EndWhileCut(const FrontDoor& door, Call& call) {
  std::future<grpc::Status> end = std::async(std::launch::async, [&call] { return call.Finish(); });
  const Deadline limit = Deadline::After(kPatience);
  while (end.wait_for(std::chrono::milliseconds(2)) != std::future_status::ready &&
         !limit.Expired()) {
    door.CutSilent(absl::ZeroDuration(), absl::ZeroDuration());
  }
  return end.get();
}

TEST_F(FrontDoorTest, ASessionThatDoesNotJoinIsEndedAndOneThatDoesIsNot) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
  auto silent = stub_->Session(&context);
  const grpc::Status end = EndWhileCut(*door_, *silent);
  EXPECT_EQ(end.error_message(), "no Join came");
  grpc::ClientContext next_context;
  auto next = stub_->Session(&next_context);
  next->Write(JoinOf("a"));
  EXPECT_NE(handler_.Await(handler_.joined, 0), nullptr);
  door_->CutSilent(absl::ZeroDuration(), absl::ZeroDuration());  // it has: the handler's to judge
  EXPECT_EQ(handler_.Count(handler_.ended), 0u);
  next_context.TryCancel();
  (void)next->Finish();
}

TEST_F(FrontDoorTest, AnUploadWithoutAHeaderIsEnded) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
  v1::UploadResponse response;
  auto writer = stub_->Upload(&context, &response);
  EXPECT_TRUE(EndWhileCut(*door_, *writer).ok());
  EXPECT_EQ(response.status(), v1::UploadResponse::RETRY);
  EXPECT_THAT(response.message(), HasSubstr("no header"));
  EXPECT_EQ(handler_.Count(handler_.failed), 0u);
}

// More than a window holds.
std::shared_ptr<const ModelVersion> LargeModel(uint8_t fill) {
  const auto layout = *aggregation::ModelLayout::Create(
      {{"w", {16 << 20}, aggregation::DType::kU8, aggregation::Policy::kMean}});
  return ModelVersion::Make(fill, layout, std::vector<uint8_t>(layout->model_bytes(), fill));
}

TEST_F(FrontDoorTest, AnOldModelThatNobodyTakesIsNotKeptForItsDownload) {
  std::weak_ptr<const ModelVersion> old;
  {
    const auto model = LargeModel(1);
    old = model;
    shelf_.Put(model);
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kPatience));
  auto reader = stub_->Download(&context, v1::DownloadRequest());
  v1::DownloadResponse first;
  ASSERT_TRUE(reader->Read(&first));                             // and no more
  door_->CutSilent(absl::ZeroDuration(), absl::ZeroDuration());  // it is the current one
  EXPECT_FALSE(old.expired());
  shelf_.Put(LargeModel(2));
  const Deadline limit = Deadline::After(kPatience);
  while (!old.expired() && !limit.Expired()) {
    door_->CutSilent(absl::ZeroDuration(), absl::ZeroDuration());
    std::this_thread::yield();
  }
  EXPECT_TRUE(old.expired());
  context.TryCancel();
  (void)reader->Finish();
}

TEST_F(FrontDoorTest, AFloodOfMessagesIsReadAsFastAsItIsHandled) {
  constexpr size_t kMessages = 1000, kMost = 16;
  grpc::ClientContext context;
  auto stream = stub_->Session(&context);
  stream->Write(JoinOf("a"));
  v1::SessionRequest request;
  request.mutable_leave()->set_reason("so it says");
  for (size_t i = 0; i < kMessages; ++i) ASSERT_TRUE(stream->Write(request));
  for (size_t i = 0; i < kMessages; ++i) {
    const std::shared_ptr<Session> session = handler_.Await(handler_.spoke, i);
    ASSERT_NE(session, nullptr) << i;
    ASSERT_LE(handler_.Count(handler_.spoke) - i, kMost);
    session->Handled();
  }
  context.TryCancel();
  (void)stream->Finish();
  EXPECT_NE(handler_.Await(handler_.ended, 0), nullptr);
}

// The handler may be gone for good by then.
TEST_F(FrontDoorTest, ASessionThatIsNotReadEndsWithTheDoor) {
  grpc::ClientContext context;
  auto stream = stub_->Session(&context);
  stream->Write(JoinOf("a"));
  v1::SessionRequest request;
  request.mutable_leave()->set_reason("so it says");
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(stream->Write(request));
  ASSERT_NE(handler_.Await(handler_.spoke, 15), nullptr);
  door_->Shutdown(absl::ZeroDuration());
  EXPECT_NE(handler_.Await(handler_.ended, 0), nullptr);
}

// Where the piece's bytes are in the slice; nullopt where they are not in it.
std::optional<size_t> PlaceIn(std::string_view slice, ByteSpan piece) {
  const auto begin = reinterpret_cast<uintptr_t>(slice.data());
  const auto at = reinterpret_cast<uintptr_t>(piece.data());
  if (at < begin || at + piece.size() > begin + slice.size()) return std::nullopt;
  return at - begin;
}

// All of gRPC's slices are of this test's memory: what lies there was copied by nobody.
TEST(UploadFraming, PayloadsAreReadWhereTheSlicesLie) {
  const Segments segments = EncodeTest(1);
  v1::UploadRequest request;
  request.mutable_header()->set_id("a");
  for (const auto& segment : segments) {
    request.mutable_segments()->append(segment.begin(), segment.end());
  }
  const v1::UploadTrailer trailer = RawClient::Trailer(segments);
  *request.mutable_trailer() = trailer;
  const std::string text = request.SerializeAsString();
  // Cut within the header, within an element, and within the trailer. Each part has memory of its
  // own: gRPC joins what is contiguous.
  std::vector<std::string> cut;
  size_t from = 0;
  for (const size_t end :
       {size_t{3}, size_t{10'001}, size_t{100'000}, text.size() - 2, text.size()}) {
    cut.push_back(text.substr(from, end - from));
    from = end;
  }
  std::vector<grpc::Slice> slices;
  for (const std::string& part : cut) {
    slices.emplace_back(part.data(), part.size(), grpc::Slice::STATIC_SLICE);
  }
  grpc::ByteBuffer buffer(slices.data(), slices.size());
  const auto message = door::MessageSlices::From(&buffer);
  ASSERT_TRUE(message.ok()) << message.status();
  const std::vector<ByteSpan>& pieces = (*message)->bytes().pieces();
  ASSERT_EQ(pieces.size(), cut.size());
  for (size_t i = 0; i < cut.size(); ++i) {
    EXPECT_EQ(PlaceIn(cut[i], pieces[i]), 0u) << i;
    EXPECT_EQ(pieces[i].size(), cut[i].size()) << i;
  }
  const auto parsed = door::ParseUploadMessage((*message)->bytes());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->segments.size(), trailer.encoded_bytes());
  ASSERT_EQ(parsed->segments.pieces().size(), 3u);  // of all slices but the first and the last
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(PlaceIn(cut[i + 1], parsed->segments.pieces()[i]).has_value()) << i;
  }
  // And so do they until they are folded.
  aggregation::UpdateAssembler assembler(TestLayout(), *aggregation::ProveGrid({}), "a", 1,
                                         trailer.encoded_bytes());
  ASSERT_TRUE(assembler.Add(parsed->segments, *message)) << assembler.refusal().message;
  const auto update = assembler.Finish(trailer.encoded_bytes(), trailer.crc32c());
  ASSERT_NE(update, nullptr) << assembler.refusal().message;
  ASSERT_EQ(update->segments().size(), segments.size());
  for (const auto& segment : update->segments()) {
    for (const ByteSpan piece : segment.payload.pieces()) {
      EXPECT_TRUE(std::any_of(cut.begin(), cut.end(), [piece](const std::string& part) {
        return PlaceIn(part, piece).has_value();
      })) << segment.tensor;
    }
  }
}

// Each would cost more memory here than it has bytes.
TEST(UploadFraming, AMessageHasEachFieldOnce) {
  const auto parse = [](std::string_view bytes) {
    return door::ParseUploadMessage(
        PiecedBytes({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  };
  EXPECT_TRUE(parse({"\x0a\x00\x12\x01y\x1a\x00", 7}).ok());
  EXPECT_EQ(parse({"\x12\x01x\x12\x01y", 6}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parse({"\x0a\x00\x0a\x00", 4}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(parse({"\x1a\x00\x1a\x00", 4}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary::server
