// The SDK's parts alone: the rotation of endpoints, error feedback, framing.
#include <optional>

#include "client/internal/encode.h"
#include "client/internal/endpoint_rotation.h"
#include "client/internal/framing.h"
#include "client/internal/participant.h"
#include "client/internal/residuals.h"
#include "tests/aggregation/testing.h"
#include "tests/client/sdk_fixture.h"

namespace tributary::client::testing {
namespace {

using internal::EndpointRotation;
using internal::JitteredBackoff;
using internal::Kept;
using internal::ResidualStore;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kMin = absl::Milliseconds(100);
constexpr absl::Duration kMax = absl::Seconds(5);

TEST(BackoffTest, DoublesUpToItsMaximumWithJitterBelow) {
  PhiloxStream random(1);
  const double full_ms[] = {100, 200, 400, 800, 1600, 3200, 5000, 5000};
  for (uint32_t failures = 1; failures <= 8; ++failures) {
    for (int i = 0; i < 100; ++i) {
      const double ms = absl::ToDoubleMilliseconds(JitteredBackoff(kMin, kMax, failures, &random));
      EXPECT_GE(ms, full_ms[failures - 1] / 2);
      EXPECT_LT(ms, full_ms[failures - 1]);
    }
  }
  EXPECT_LT(JitteredBackoff(kMin, kMax, 4'000'000'000u, &random), kMax);
}

TEST(EndpointRotationTest, AFreshEndpointIsTriedNextAlmostAtOnce) {
  EndpointRotation rotation(3, kMin, kMax, 7);
  const absl::Duration now = absl::Seconds(1000);
  EXPECT_LE(rotation.Next(now, absl::ZeroDuration()), now + kMin / 2);
  EXPECT_EQ(rotation.current(), 1u);
  EXPECT_LE(rotation.Next(now, absl::ZeroDuration()), now + kMin / 2);
  EXPECT_EQ(rotation.current(), 2u);
}

TEST(EndpointRotationTest, WhenAllHaveFailedItWaitsForTheEarliest) {
  EndpointRotation rotation(2, kMin, kMax, 7);
  const absl::Duration now = absl::Seconds(1000);
  rotation.Next(now, absl::Seconds(60));  // endpoint 0 sends us away for a minute
  ASSERT_EQ(rotation.current(), 1u);
  const absl::Duration due = rotation.Next(now, absl::ZeroDuration());
  EXPECT_EQ(rotation.current(), 1u);  // its backoff ends long before the minute
  EXPECT_GE(due, now + kMin / 2);
  EXPECT_LT(due, now + kMin);
}

TEST(EndpointRotationTest, RetryAfterIsKeptWithOneEndpoint) {
  EndpointRotation rotation(1, kMin, kMax, 7);
  EXPECT_EQ(rotation.Next(absl::Seconds(1000), absl::Seconds(60)), absl::Seconds(1060));
  EXPECT_EQ(rotation.current(), 0u);
}

TEST(EndpointRotationTest, SuccessForgetsTheFailures) {
  EndpointRotation rotation(1, kMin, kMax, 7);
  absl::Duration now = absl::Seconds(1000);
  for (int i = 0; i < 10; ++i) now = rotation.Next(now, absl::ZeroDuration());
  rotation.Succeeded();
  EXPECT_LT(rotation.Next(now, absl::ZeroDuration()), now + kMin);
}

TEST(ResidualStoreTest, WhatIsCommittedIsAddedAndWhatIsPendingIsNot) {
  ResidualStore store;
  store.Begin(1, 1);
  store.Pending(0, 2, Kept::kMomentum)[1] = 0.5f;
  std::vector<float> delta = {1, 1};
  store.AddTo(0, delta, 1, Kept::kMomentum);
  EXPECT_THAT(delta, ElementsAre(1, 1));
  store.Commit(1);
  store.AddTo(0, delta, 1, Kept::kMomentum);
  EXPECT_THAT(delta, ElementsAre(1, 1.5f));
}

TEST(ResidualStoreTest, RollbackKeepsWhatWasCommittedBefore) {
  ResidualStore store;
  store.Begin(1, 1);
  store.Pending(0, 1, Kept::kMomentum)[0] = 0.5f;
  store.Commit(1);
  store.Begin(2, 1);
  store.Pending(0, 1, Kept::kMomentum)[0] = 8;
  store.Commit(1);  // of another round: nothing
  store.Rollback(2);
  store.Commit(2);  // there is nothing pending any more
  std::vector<float> delta = {1};
  store.AddTo(0, delta, 1, Kept::kMomentum);
  EXPECT_THAT(delta, ElementsAre(1.5f));
}

// Sends the whole part of each element; the rest is what error feedback is about.
class WholeCodec final : public compression::Codec {
 public:
  WholeCodec() {
    capabilities_.id = compression::CodecId::kFp32;
    capabilities_.name = "whole";
    capabilities_.needs_error_feedback = true;
  }
  const compression::Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override { return 0; }
  uint64_t EncodedBytes(uint64_t n) const override { return 4 * n; }
  absl::Status Encode(std::span<const float> x, const compression::EncodeContext&,
                      std::vector<uint8_t>* out) const override {
    for (const float v : x) {
      const float whole = std::trunc(v);
      const auto* bytes = reinterpret_cast<const uint8_t*>(&whole);
      out->insert(out->end(), bytes, bytes + 4);
    }
    return absl::OkStatus();
  }
  absl::Status Validate(const PiecedBytes&, uint64_t, double) const override {
    return absl::OkStatus();
  }
  void Fold(const PiecedBytes&, uint64_t, uint64_t, const compression::GridFold&,
            int64_t*) const override {}
  void Decode(const PiecedBytes&, std::span<float>) const override {}

 private:
  compression::Capabilities capabilities_;
};

class ErrorFeedbackTest : public SdkTest {
 protected:
  ErrorFeedbackTest() : SdkTest(1) {
    trainer_.train = [](const TrainTask& task, const auto&) {
      TrainResult result;
      result.floats = {{task.spec.round() == 1 ? 1.75f : 0.5f}, {}, {}};
      result.ints = {{}, {0}, {}};
      return result;
    };
  }
  RunningClient StartWithWholeCodec() {
    return RunningClient(std::make_unique<internal::Participant>(
        Options({server_.endpoint()}), &trainer_, [](std::string_view) {
          return absl::StatusOr<std::shared_ptr<const compression::CodecPolicy>>(
              compression::CodecPolicy::Uniform(std::make_shared<WholeCodec>()));
        }));
  }
  // The one float of the update: it follows the 32 bytes of the first segment's header.
  static float Sent(const ReceivedUpload& upload) {
    float value = 0;
    std::memcpy(&value, upload.segments.data() + 32, 4);
    return value;
  }
  // 1.75 sends 1 and leaves 0.75; round 2 trains 0.5.
  float SecondAfter(bool included) {
    RunningClient client = StartWithWholeCodec();
    server_.SendTask(Task(1));
    EXPECT_TRUE(server_.WaitForUploads(1));
    EXPECT_EQ(Sent(server_.uploads()[0]), 1.0f);
    server_.SendOutcome(1, included);
    server_.SendTask(Task(2));
    EXPECT_TRUE(server_.WaitForUploads(2));
    return Sent(server_.uploads()[1]);
  }
};

TEST_F(ErrorFeedbackTest, TheResidualOfAnIncludedUpdateIsCarriedOver) {
  EXPECT_EQ(SecondAfter(true), 1.0f);  // 0.5 + 0.75 = 1.25
}

TEST_F(ErrorFeedbackTest, TheResidualOfALostUpdateIsRolledBack) {
  EXPECT_EQ(SecondAfter(false), 0.0f);  // 0.5 alone
}

grpc::ByteBuffer Buffer(const std::string& bytes, size_t cut) {
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, cut)), grpc::Slice(bytes.substr(cut))};
  return grpc::ByteBuffer(slices, 2);
}

TEST(FramingTest, ADownloadMessageReadsTheSameHoweverItsBytesAreCut) {
  v1::DownloadResponse message;
  message.mutable_header()->set_version(300);
  message.set_data("some bytes");
  message.mutable_trailer()->set_crc32c(0xffffffff);
  const std::string bytes = message.SerializeAsString();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const auto parsed = internal::ParseDownloadMessage(Buffer(bytes, cut));
    ASSERT_TRUE(parsed.ok()) << parsed.status() << " cut at " << cut;
    EXPECT_EQ(parsed->header->version(), 300u);
    EXPECT_EQ(parsed->trailer->crc32c(), 0xffffffffu);
    std::string data;
    for (const ByteSpan piece : parsed->data.pieces()) data.append(piece.begin(), piece.end());
    EXPECT_EQ(data, "some bytes");
  }
}

TEST(FramingTest, ATruncatedDownloadMessageIsAnErrorAtEveryLength) {
  v1::DownloadResponse message;
  message.set_data("some bytes");
  message.mutable_trailer()->set_bytes(10);
  const std::string bytes = message.SerializeAsString();
  // Cut between two fields it is a message without the second.
  v1::DownloadResponse first;
  first.set_data("some bytes");
  for (size_t length = 1; length < bytes.size(); ++length) {
    const auto parsed = internal::ParseDownloadMessage(Buffer(bytes.substr(0, length), length / 2));
    EXPECT_EQ(parsed.ok(), length == first.ByteSizeLong()) << length;
  }
}

TEST(FramingTest, FieldsOfALaterReleaseArePassedOver) {
  const std::string bytes = std::string("\x20\x05", 2) +    // 4: varint 5
                            std::string("\x2a\x02xy", 4) +  // 5: "xy"
                            std::string(
                                "\x31"
                                "12345678",
                                9) +  // 6: fixed64
                            std::string(
                                "\x12\x01"
                                "d",
                                3);  // data
  const auto parsed = internal::ParseDownloadMessage(Buffer(bytes, 3));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->data.size(), 1u);
}

TEST(FramingTest, ALengthBeyondTheMessageIsAnErrorWithoutAnAllocation) {
  const std::string bytes(
      "\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7f"
      "x",
      11);
  EXPECT_EQ(internal::ParseDownloadMessage(Buffer(bytes, 1)).status().code(),
            absl::StatusCode::kDataLoss);
}

// As tests/reference/message_golden.py wrote it from the contract; tests/server reads it.
TEST(FramingTest, ASmallUpdateIsTheGoldenMessageToTheByte) {
  const auto golden = [](const std::string& name) {
    return aggregation::testing::ReadBytes(
        absl::StrCat(TRIBUTARY_SOURCE_DIR, "/tests/golden/", name));
  };
  const std::vector<uint8_t> layout_hash = golden("aggregation/layout_hash.bin");
  const std::vector<uint8_t> segments = golden("aggregation/update.bin");
  v1::UploadHeader header;
  header.set_run("run-1");
  header.set_round(3);
  header.set_id("client-7");
  header.set_epoch(1'700'000'000'000'000u);
  header.set_base_version(2);
  header.set_layout_hash(std::string(layout_hash.begin(), layout_hash.end()));
  header.set_weight(3);
  header.set_encoded_bytes(segments.size());
  auto* loss = header.add_metrics();
  loss->set_name("loss");
  loss->set_value(0.75);
  loss->set_weight(3);
  internal::UploadMessages messages(
      header, internal::MakeEncodedDelta(std::make_shared<const internal::Segments>(1, segments)));
  const grpc::ByteBuffer message = messages.Next();
  EXPECT_TRUE(messages.done());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(message.Dump(&slices).ok());
  std::vector<uint8_t> bytes;
  for (const grpc::Slice& slice : slices) bytes.insert(bytes.end(), slice.begin(), slice.end());
  EXPECT_EQ(aggregation::testing::Hex(bytes),
            aggregation::testing::Hex(golden("messages/upload.bin")));
}

TEST(FramingTest, AnEmptyUpdateIsAHeaderAndATrailer) {
  v1::UploadHeader header;
  header.set_round(3);
  internal::UploadMessages messages(
      header, internal::MakeEncodedDelta(std::make_shared<const internal::Segments>()));
  v1::UploadRequest request;
  ASSERT_TRUE(internal::ParseMessage(messages.Next(), &request).ok());
  EXPECT_TRUE(messages.done());
  EXPECT_EQ(request.header().round(), 3u);
  EXPECT_TRUE(request.has_trailer());
  EXPECT_EQ(request.segments(), "");
}

TEST(EncodeTest, ASegmentTooLargeForAMessageIsRefused) {
  TrainResult result;
  result.encoded = std::make_shared<const std::vector<std::vector<uint8_t>>>(
      std::vector<std::vector<uint8_t>>{std::vector<uint8_t>(1'600'000)});
  ResidualStore residuals;
  const auto codec = compression::CodecPolicy::Uniform(std::make_shared<WholeCodec>());
  const auto encoded =
      internal::Encode(*MakeLayout(1), *codec, v1::RoundSpec(), "c", result, &residuals);
  EXPECT_EQ(encoded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(encoded.status().message()), HasSubstr("1600000"));
}

internal::TaskKey KeyOfRound(uint64_t round) { return {round, v1::TRAIN, "base"}; }

v1::Task TaskOfRound(uint64_t round) {
  v1::Task task;
  task.mutable_spec()->set_round(round);
  task.mutable_spec()->set_kind(v1::TRAIN);
  task.mutable_spec()->set_base_sha256("base");
  return task;
}

TEST(MailboxTest, HoldsOneTaskHoweverManyComeDuringALongTraining) {
  internal::Mailbox mailbox;
  for (uint64_t round = 1; round <= 100; ++round) mailbox.PostTask(TaskOfRound(round));
  mailbox.PostEnd(absl::OkStatus());
  // The end drops the task too: nobody waits for it.
  EXPECT_TRUE(std::holds_alternative<internal::End>(mailbox.Next().what));
  EXPECT_TRUE(mailbox.Superseded(KeyOfRound(100)));
}

TEST(MailboxTest, ATaskLeftByALostSessionIsDropped) {
  internal::Mailbox mailbox;
  mailbox.PostTask(TaskOfRound(1));
  mailbox.PostLost();
  v1::Outcome outcome;
  outcome.set_round(1);
  mailbox.PostOutcome(outcome);
  EXPECT_TRUE(std::holds_alternative<v1::Outcome>(mailbox.Next().what));
  EXPECT_TRUE(mailbox.Over(KeyOfRound(1)));
}

// Plain threads in the place of gRPC's: here the thread sanitizer sees all.
TEST(MailboxTest, TakesWhatManyThreadsLeaveAndLosesNothing) {
  internal::Mailbox mailbox;
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 2000;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        v1::Outcome outcome;
        outcome.set_round(t * kEach + i + 1);
        mailbox.PostOutcome(outcome);
        mailbox.StreamOpened();
        mailbox.Retire(std::make_shared<int>(0));
        mailbox.SetWork(i, "train");
      }
    });
  }
  uint64_t sum = 0;
  uint64_t last = 0;
  for (uint64_t i = 0; i < kThreads * kEach; ++i) {
    const internal::Event event = mailbox.Next();
    EXPECT_GT(event.sequence, last);
    last = event.sequence;
    sum += std::get<v1::Outcome>(event.what).round();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, kThreads * kEach * (kThreads * kEach + 1) / 2);
  EXPECT_FALSE(mailbox.streams_open());
}

}  // namespace
}  // namespace tributary::client::testing
