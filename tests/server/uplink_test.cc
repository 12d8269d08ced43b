// The child's side towards its parent, against a parent that reads when the test says so.
#include "server/uplink.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/philox.h"
#include "server/partial_digest.h"
#include "server/tier_stream.h"
#include "tests/server/held.h"
#include "tests/server/held_parent.h"
#include "tests/server/node_fixture.h"
#include "transport/tcp.h"

namespace tributary::server {
namespace {

// Six chunks: more than a link's credit of two, so that a forward waits for the reader.
std::shared_ptr<const aggregation::ModelLayout> Layout() {
  return *aggregation::ModelLayout::Create({{"w",
                                             {6 * aggregation::kChunkElements - 100},
                                             aggregation::DType::kF32,
                                             aggregation::Policy::kMean}});
}

class Child final : public DeafChild {
 public:
  void OnForwarded(uint64_t round, absl::Status status, double) override {
    std::lock_guard lock(mu_);
    forwarded_.push_back(round);
    EXPECT_EQ(absl::IsInvalidArgument(status), expect_refusal) << status;
    EXPECT_TRUE(status.ok() || expect_refusal) << status;
    changed_.notify_all();
  }
  void OnReleased(uint64_t forward) override {
    std::lock_guard lock(mu_);
    released_.push_back(forward);
    changed_.notify_all();
  }
  template <typename Condition>
  bool Await(Condition condition) {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, absl::ToChronoSeconds(kPatience), condition);
  }
  std::vector<uint64_t> forwarded_, released_;  // guarded by mu_; look at them in Await
  std::atomic<bool> expect_refusal = false;

 private:
  std::mutex mu_;
  std::condition_variable changed_;
};

class UplinkTest : public testing::Test {
 protected:
  UplinkTest() {
    sum_ = *aggregation::ExactAccumulator::Create(Layout(), *aggregation::ProveGrid({}));
    FillSum();
    uplink_ =
        Uplink::Start({.id = "rack", .epoch = 1, .parents = {parent_.endpoint()}, .transport = {}},
                      transport::MakeTcpFabric(), &child_);
  }
  // One update of random floats: blocks of the widths that a round has.
  void FillSum() {
    const auto codec = *compression::MakeCodec("fp32");
    PhiloxStream random(7);
    std::vector<float> x(Layout()->elements());
    for (float& value : x) value = static_cast<float>(random.NextDouble() - 0.5);
    struct Source final : aggregation::DeltaSource {
      absl::StatusOr<std::span<const float>> Floats(uint32_t) override { return floats; }
      absl::StatusOr<std::span<const int64_t>> Ints(uint32_t) override {
        return std::span<const int64_t>();
      }
      std::span<const float> floats;
    } source;
    source.floats = x;
    Segments segments;
    const absl::Status encoded = aggregation::EncodeUpdate(*Layout(), *codec, 1, 1, source,
                                                           [&](std::vector<uint8_t> segment) {
                                                             segments.push_back(std::move(segment));
                                                             return absl::OkStatus();
                                                           });
    ASSERT_TRUE(encoded.ok()) << encoded;
    const v1::UploadTrailer trailer = RawClient::Trailer(segments);
    aggregation::UpdateAssembler assembler(Layout(), *aggregation::ProveGrid({}), "c", 1000,
                                           trailer.encoded_bytes());
    for (auto& segment : segments) {
      const auto owned = std::make_shared<const std::vector<uint8_t>>(std::move(segment));
      ASSERT_TRUE(assembler.Add(PiecedBytes(*owned), owned)) << assembler.refusal().message;
    }
    const auto update = assembler.Finish(trailer.encoded_bytes(), trailer.crc32c());
    ASSERT_NE(update, nullptr);
    const aggregation::EncodedUpdate* const one = update.get();
    sum_->Fold({&one, 1}, {.begin = 0, .end = Layout()->elements()});
  }
  std::vector<uint8_t> Packed(uint64_t chunk) const {
    std::vector<uint8_t> bytes(aggregation::kMaxPackedChunkBytes);
    bytes.resize(sum_->PackChunk(chunk, bytes.data()));
    return bytes;
  }
  v1::PartialSumHeader Header(uint64_t round) const {
    v1::PartialSumHeader header;
    header.set_round(round);
    header.set_id("rack");
    header.set_chunks(sum_->chunk_count());
    return header;
  }

  HeldParent parent_{Layout(), /*slots=*/2};
  Child child_;
  std::unique_ptr<aggregation::ExactAccumulator> sum_;
  std::unique_ptr<Uplink> uplink_;
};

// Reads chunks up to and with the stream's header.
void ReadHeader(transport::Link& link, StreamReader* reader, v1::PartialSumHeader* header) {
  while (true) {
    const auto chunk = link.Receive(Deadline::After(kPatience));
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    const auto got = reader->Feed(*chunk);
    ASSERT_TRUE(got.ok()) << got.status();
    if (*got != StreamReader::Got::kHeader) continue;
    ASSERT_TRUE(header->ParseFromString(reader->header()));
    return;
  }
}

// `have`: the first chunks that the parent says it has, of this sum.
void Answer(transport::Link& link, const v1::PartialSumHeader& header, bool taken,
            const std::vector<std::vector<uint8_t>>& have = {}) {
  v1::PartialSumAnswer answer;
  answer.set_round(header.round());
  answer.set_attempt(header.attempt());
  answer.set_taken(taken);
  PartialDigest digest;
  for (const auto& chunk : have) digest.Add(chunk);
  answer.set_have_chunks(have.size());
  answer.set_have_digest(digest.Value());
  const auto sent =
      SendStreamHeader(link, PartialStreamId(header.round()), answer.SerializeAsString(), 0,
                       {kPatience, [] { return false; }});
  EXPECT_TRUE(sent.ok()) << sent.status();
}

// Plays the parent of a stream to its end; the packed chunks that came.
std::vector<std::vector<uint8_t>> ReadAll(transport::Link& link, v1::PartialSumHeader* header,
                                          const std::vector<std::vector<uint8_t>>& have = {}) {
  StreamReader reader;
  std::vector<std::vector<uint8_t>> chunks;
  ReadHeader(link, &reader, header);
  Answer(link, *header, false, have);
  reader.AllowStartAt(have.size());
  while (true) {
    auto chunk = link.Receive(Deadline::After(kPatience));
    EXPECT_TRUE(chunk.ok()) << chunk.status();
    if (!chunk.ok()) return chunks;
    const auto got = reader.Feed(*chunk);
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok()) return chunks;
    if (reader.data_index() + 1 < reader.total()) {
      chunks.emplace_back(chunk->bytes().begin(), chunk->bytes().end());
      continue;
    }
    v1::PartialSumTrailer trailer;
    EXPECT_TRUE(trailer.ParseFromArray(chunk->data(), static_cast<int>(chunk->size())));
    EXPECT_EQ(trailer.digest().size(), 32u);
    *chunk = transport::Chunk();
    Answer(link, *header, true);
    return chunks;
  }
}

TEST_F(UplinkTest, ForwardsTheSumAndSaysItsBytesBeforehand) {
  const auto link = parent_.Accept();
  ASSERT_NE(link, nullptr);
  uplink_->Forward(Header(3), sum_.get());
  v1::PartialSumHeader header;
  const auto chunks = ReadAll(*link, &header);
  ASSERT_EQ(chunks.size(), sum_->chunk_count());
  EXPECT_EQ(header.round(), 3u);
  std::vector<uint8_t> expected(aggregation::kMaxPackedChunkBytes);
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < chunks.size(); ++i) {
    const size_t size = sum_->PackChunk(i, expected.data());
    EXPECT_EQ(chunks[i], std::vector<uint8_t>(expected.begin(), expected.begin() + size));
    bytes += size;
  }
  EXPECT_EQ(header.packed_bytes(), bytes);
  EXPECT_TRUE(child_.Await([&] { return child_.forwarded_ == std::vector<uint64_t>{3}; }));
}

// Answers the header that comes, and takes the first chunk after it.
absl::StatusOr<transport::Chunk> Begin(transport::Link& link) {
  StreamReader reader;
  v1::PartialSumHeader header;
  ReadHeader(link, &reader, &header);
  Answer(link, header, false);
  return link.Receive(Deadline::After(kPatience));
}

// A parent that is alive, has begun to send a model, and sends no more of it.
TEST_F(UplinkTest, AModelThatStopsInTheMiddleEndsTheLinkInWordsAndAnIdleLinkStays) {
  uplink_.reset();
  TransportConfig transport;
  transport.progress_timeout_s = 0.2;
  uplink_ = Uplink::Start(
      {.id = "rack", .epoch = 2, .parents = {parent_.endpoint()}, .transport = transport},
      transport::MakeTcpFabric(), &child_);
  std::unique_ptr<transport::Link> link;
  v1::TierHello hello;
  while (hello.epoch() != 2) {  // the first is the fixture's child's
    link = parent_.Accept();
    ASSERT_TRUE(link != nullptr && hello.ParseFromString(link->hello()));
  }
  const auto alive = [&] {
    return absl::IsDeadlineExceeded(link->Receive(Deadline::After(absl::Seconds(1))).status());
  };
  EXPECT_TRUE(alive()) << "between streams it may be idle";
  const auto model = ZeroModel(Layout());
  v1::ModelStreamHeader header;
  header.set_version(model->version);
  header.set_sha256(model->sha256);
  header.set_bytes(model->bytes.size());
  header.set_layout_hash(Layout()->hash());
  const uint64_t chunks = (model->bytes.size() + kModelChunkBytes - 1) / kModelChunkBytes;
  const StreamPace pace{kPatience, [] { return false; }};
  const auto shape =
      SendStreamHeader(*link, ModelStreamId(0), header.SerializeAsString(), chunks, pace);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_TRUE(alive()) << "its data has not begun";
  uint64_t sent = 0;
  const absl::Status stopped = SendStreamData(*link, *shape, 0,
                                              [](uint64_t, uint8_t* data) {
                                                std::memset(data, 0, kModelChunkBytes);
                                                return kModelChunkBytes;
                                              },
                                              {kPatience, [&] { return sent++ == 1; }});
  EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
  const absl::Status ended = link->Receive(Deadline::After(kPatience)).status();
  EXPECT_EQ(ended.code(), absl::StatusCode::kUnavailable) << ended;
  EXPECT_NE(ended.message().find(absl::StrCat("stream 0 of \"parent\": data chunk 2 of ", chunks,
                                              " did not come within 200ms")),
            std::string::npos)
      << ended;
}

// A stopped process: its machine takes in what fits into its windows, and then nothing more.
TEST_F(UplinkTest, AParentThatDoesNotReadHoldsUpNobodyAndIsToldAllInItsOrderLater) {
  const auto link = parent_.Accept();  // the child has joined
  parent_.Read(false);
  constexpr uint64_t kReports = 400;
  const std::string text(100'000, 'x');  // 40 MB: more than any window
  for (uint64_t round = 1; round <= kReports; ++round) {
    v1::Report report;
    report.set_round(round);
    report.set_declined(text);
    uplink_->SendReport(report);  // hangs where it waits for the parent
  }
  parent_.Read(true);
  const std::vector<v1::Report> reports = parent_.reports(kReports);
  ASSERT_EQ(reports.size(), kReports);
  for (uint64_t i = 0; i < kReports; ++i) ASSERT_EQ(reports[i].round(), i + 1);
}

// A client that moves here is claimed before it is counted among the clients that are here: else
// the parent takes it for one that nobody has to wait for.
TEST_F(UplinkTest, WhatIsSaidComesInItsOrderTheCensusToo) {
  ASSERT_NE(parent_.Accept(), nullptr);
  constexpr uint64_t kReports = 2000;
  for (uint64_t i = 1; i <= kReports; ++i) {
    v1::Report report;
    report.set_round(i);
    uplink_->SendReport(report);
    uplink_->SetCensus(i, 10 * i);
  }
  ASSERT_EQ(parent_.reports(kReports).size(), kReports);
  const std::vector<uint64_t> census = parent_.census_at_reports();
  for (uint64_t i = 0; i < kReports; ++i) ASSERT_EQ(census[i], i) << "at report " << i + 1;
}

// 100 MB each time, in many messages and in few.
TEST_F(UplinkTest, AParentThatLeavesEverythingUnreadLosesTheSession) {
  size_t joins = 0;
  for (const int messages : {100'000, 1'000}) {
    const auto link = parent_.Accept();  // its session's: the child is ready to say something
    ASSERT_NE(link, nullptr);
    parent_.Read(false);
    v1::Report report;
    report.set_declined(std::string(100'000'000 / messages, 'x'));
    for (int i = 0; i < messages; ++i) uplink_->SendReport(report);
    parent_.Read(true);
    ++joins;
    ASSERT_EQ(parent_.helds(joins + 1).size(), joins + 1) << "with " << messages << " messages";
  }
}

// The parent does not read: a caller that waited for the forwarder would wait with it.
TEST_F(UplinkTest, AbandonDoesNotWaitAndTheNextForwardGoesThrough) {
  const auto stuck = parent_.Accept();
  ASSERT_NE(stuck, nullptr);
  uplink_->Forward(Header(1), sum_.get());
  // A chunk is held: it has begun, and cannot end.
  const auto first = Begin(*stuck);
  ASSERT_TRUE(first.ok()) << first.status();
  const uint64_t given_up = uplink_->Abandon();
  EXPECT_NE(given_up, 0u) << "it was sending";
  EXPECT_TRUE(child_.Await([&] { return child_.released_ == std::vector<uint64_t>{given_up}; }));
  EXPECT_EQ(uplink_->Abandon(), 0u) << "nothing is read any more";

  uplink_->Forward(Header(2), sum_.get());
  const auto link = parent_.Accept();
  ASSERT_NE(link, nullptr);
  v1::PartialSumHeader header;
  EXPECT_EQ(ReadAll(*link, &header).size(), sum_->chunk_count());
  EXPECT_EQ(header.round(), 2u);
  EXPECT_TRUE(child_.Await([&] { return child_.forwarded_ == std::vector<uint64_t>{2}; }))
      << "round 1 is not told as forwarded";
}

TEST_F(UplinkTest, ANewForwardReplacesOneThatIsStuck) {
  const auto stuck = parent_.Accept();
  ASSERT_NE(stuck, nullptr);
  uplink_->Forward(Header(1), sum_.get());
  const auto first = Begin(*stuck);
  ASSERT_TRUE(first.ok()) << first.status();
  uplink_->Forward(Header(1), sum_.get());
  const auto link = parent_.Accept();
  ASSERT_NE(link, nullptr);
  v1::PartialSumHeader header;
  EXPECT_EQ(ReadAll(*link, &header).size(), sum_->chunk_count());
  EXPECT_TRUE(child_.Await([&] { return child_.forwarded_ == std::vector<uint64_t>{1}; }));
}

TEST_F(UplinkTest, ForwardGoesOverTheNextLinkWhereTheFirstBreaks) {
  auto broken = parent_.Accept();
  ASSERT_NE(broken, nullptr);
  uplink_->Forward(Header(1), sum_.get());
  ASSERT_TRUE(Begin(*broken).ok());
  broken->Cancel("the test cuts it");
  const auto link = parent_.Accept();
  ASSERT_NE(link, nullptr);
  v1::PartialSumHeader header;
  EXPECT_EQ(ReadAll(*link, &header).size(), sum_->chunk_count());
  EXPECT_TRUE(child_.Await([&] { return child_.forwarded_ == std::vector<uint64_t>{1}; }));
}

TEST_F(UplinkTest, SendsOnlyWhatTheParentLacksWhereItHasTheFirstChunksOfThisSum) {
  const auto link = parent_.Accept();
  ASSERT_NE(link, nullptr);
  uplink_->Forward(Header(1), sum_.get());
  v1::PartialSumHeader header;
  const std::vector<std::vector<uint8_t>> have = {Packed(0), Packed(1)};
  const auto rest = ReadAll(*link, &header, have);
  ASSERT_EQ(rest.size(), sum_->chunk_count() - 2);
  EXPECT_EQ(rest.front(), Packed(2));
  EXPECT_EQ(rest.back(), Packed(sum_->chunk_count() - 1));
  EXPECT_TRUE(child_.Await([&] { return child_.forwarded_ == std::vector<uint64_t>{1}; }));
}

TEST_F(UplinkTest, SendsAllWhereTheParentHasChunksOfAnotherSum) {
  const auto link = parent_.Accept();
  ASSERT_NE(link, nullptr);
  uplink_->Forward(Header(1), sum_.get());
  v1::PartialSumHeader header;
  std::vector<std::vector<uint8_t>> have = {Packed(0), Packed(1)};
  have[1].back() ^= 1;
  const auto all = ReadAll(*link, &header, have);
  ASSERT_EQ(all.size(), sum_->chunk_count());
  EXPECT_EQ(all.front(), Packed(0));
  EXPECT_TRUE(child_.Await([&] { return child_.forwarded_ == std::vector<uint64_t>{1}; }));
}

TEST_F(UplinkTest, ARefusalEndsTheForwardAndIsNotTriedAgain) {
  const auto link = parent_.Accept();
  ASSERT_NE(link, nullptr);
  child_.expect_refusal = true;
  uplink_->Forward(Header(1), sum_.get());
  StreamReader reader;
  v1::PartialSumHeader header;
  ReadHeader(*link, &reader, &header);
  v1::PartialSumAnswer answer;
  answer.set_round(1);
  answer.set_attempt(header.attempt());
  answer.set_refused("the moon is full");
  ASSERT_TRUE(SendStreamHeader(*link, PartialStreamId(1), answer.SerializeAsString(), 0,
                               {kPatience, [] { return false; }})
                  .ok());
  EXPECT_TRUE(child_.Await([&] { return child_.forwarded_ == std::vector<uint64_t>{1}; }));
  child_.expect_refusal = false;
  // The link is as good as before.
  uplink_->Forward(Header(2), sum_.get());
  EXPECT_EQ(ReadAll(*link, &header).size(), sum_->chunk_count());
  EXPECT_EQ(header.round(), 2u);
  EXPECT_TRUE(child_.Await([&] { return child_.forwarded_ == std::vector<uint64_t>{1, 2}; }));
}

}  // namespace
}  // namespace tributary::server
