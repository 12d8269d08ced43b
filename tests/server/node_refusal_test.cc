// Updates that a node must refuse: each with its reason, and the others' result as if the offender
// had never been.
#include <gmock/gmock.h>

#include <functional>
#include <limits>

#include "compression/segment.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

struct Offence {
  std::string name;
  std::string reason;
  std::function<v1::UploadResponse(RawClient&)> commit;
  // Not counted as an answer: the offender must answer otherwise for the round to close.
  bool still_awaited = false;
  v1::UploadResponse::Status status = v1::UploadResponse::REJECTED;
};

Segments WithFloat(float value, const std::string& codec = "fp32") {
  Segments segments = EncodeTest(3, codec);
  // The first element of the first segment, right behind its header.
  std::memcpy(segments[0].data() + compression::SegmentHeader::kBytes, &value, 4);
  return segments;
}

// Rewrites the header of segment `n`.
Segments WithHeader(size_t n, const std::function<void(compression::SegmentHeader&)>& change) {
  Segments segments = EncodeTest(3);
  const PiecedBytes bytes{ByteSpan(segments[n])};
  ByteCursor cursor(bytes);
  compression::SegmentHeader header = *compression::ReadSegmentHeader(&cursor);
  change(header);
  compression::WriteSegmentHeader(header, segments[n].data());
  return segments;
}

v1::UploadResponse Send(RawClient& client, const Segments& segments) {
  return client.Upload(segments);
}

// An update of a model with other tensors than the run's, honestly told by its layout hash.
v1::UploadResponse SendOfLayout(
    RawClient& client, const std::function<void(std::vector<aggregation::TensorSpec>&)>& change) {
  EXPECT_EQ(client.task().spec().layout_hash(), TestLayout()->hash());
  std::vector<aggregation::TensorSpec> tensors = TestLayout()->tensors();
  change(tensors);
  const Segments segments = EncodeTest(3);
  v1::UploadHeader header = client.Header(segments);
  header.set_layout_hash((*aggregation::ModelLayout::Create(std::move(tensors)))->hash());
  return client.Upload(header, segments, RawClient::Trailer(segments));
}

// Offences told by the layout hash alone: nothing of the payload was read, so the client is awaited
// on.
std::vector<Offence> LayoutOffences() {
  const auto of = [](const std::function<void(std::vector<aggregation::TensorSpec>&)>& change) {
    return [change](RawClient& c) { return SendOfLayout(c, change); };
  };
  return {
      {"LayoutWithATensorMissing", "layout", of([](auto& tensors) { tensors.pop_back(); }), true},
      {"LayoutWithOneTensorMore", "layout", of([](auto& tensors) {
         tensors.push_back({"more", {2}});
       }),
       true},
      {"LayoutWithATensorRenamed", "layout", of([](auto& tensors) { tensors[0].name = "weights"; }),
       true},
      {"LayoutWithAnotherShapeOfTheSameSize", "layout",
       of([](auto& tensors) { std::swap(tensors[0].shape[0], tensors[0].shape[1]); }), true},
  };
}

std::vector<Offence> Offences() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const auto weight = [](int64_t w) {
    return [w](RawClient& c) { return c.Upload(EncodeTest(3), w); };
  };
  return {
      {"NaN", "non_finite", [=](RawClient& c) { return Send(c, WithFloat(nan)); }},
      {"Inf", "non_finite", [=](RawClient& c) { return Send(c, WithFloat(-inf)); }},
      {"BeyondTheBound", "bound", [=](RawClient& c) { return Send(c, WithFloat(1e30f)); }},
      {"NaNScale", "non_finite", [=](RawClient& c) { return Send(c, WithFloat(nan, "int8")); }},
      {"WeightZero", "weight", weight(0), true},
      {"WeightNegative", "weight", weight(-5), true},
      {"WeightOverTheCap", "weight", weight(1'000'000), true},
      {"LayoutHash", "layout",
       [](RawClient& c) {
         const Segments s = EncodeTest(3);
         v1::UploadHeader header = c.Header(s);
         header.set_layout_hash(std::string(32, 'x'));
         return c.Upload(header, s, RawClient::Trailer(s));
       },
       true},
      {"BitFlippedOnTheWay", "checksum",
       [](RawClient& c) {
         const Segments honest = EncodeTest(3);
         Segments flipped = honest;
         flipped[1].back() ^= 0x10;
         return c.Upload(c.Header(honest), flipped, RawClient::Trailer(honest));
       },
       true, v1::UploadResponse::RETRY},
      {"MissingTensor", "layout",
       [](RawClient& c) {
         Segments s = EncodeTest(3);
         s.pop_back();
         return Send(c, s);
       }},
      {"ExtraTensor", "layout",
       [](RawClient& c) { return Send(c, WithHeader(0, [](auto& h) { h.tensor = 9; })); }},
      {"OtherSize", "layout",
       [](RawClient& c) { return Send(c, WithHeader(1, [](auto& h) { h.count += 1; })); }},
      {"ChunkOutOfOrder", "layout",
       [](RawClient& c) {
         Segments s = EncodeTest(3);
         std::swap(s[0], s[1]);
         return Send(c, s);
       }},
      {"UnknownCodec", "codec",
       [](RawClient& c) { return Send(c, WithHeader(0, [](auto& h) { h.codec = 999; })); }},
      {"TruncatedPayload", "malformed",
       [](RawClient& c) {
         Segments s = EncodeTest(3);
         s.back().resize(s.back().size() - 3);
         return Send(c, s);
       }},
      {"OverlongPayload", "size",
       [](RawClient& c) {
         const Segments honest = EncodeTest(3);
         Segments longer = honest;
         longer.push_back(std::vector<uint8_t>(100, 0));
         return c.Upload(c.Header(honest), longer, RawClient::Trailer(longer));
       }},
      {"DeclaresMoreThanTheBudget", "size",
       [](RawClient& c) {
         const Segments s = EncodeTest(3);
         v1::UploadHeader header = c.Header(s);
         header.set_encoded_bytes(uint64_t{1} << 60);
         return c.Upload(header, s, RawClient::Trailer(s));
       }},
      {"UnknownRun", "run",
       [](RawClient& c) {
         const Segments s = EncodeTest(3);
         v1::UploadHeader header = c.Header(s);
         header.set_run("another");
         return c.Upload(header, s, RawClient::Trailer(s));
       },
       true},
  };
}

class OffenceTest : public NodeTest, public testing::WithParamInterface<Offence> {};

TEST_P(OffenceTest, IsRefusedWithItsReasonAndLeavesTheOthersBitIdentical) {
  const std::string expected = HonestHash();
  TestNode node(Config("[aggregation]\nmax_client_weight = 1000\n"));
  // Three are present before the round starts: two honest ones are its minimum.
  RawClient bad(node.endpoint(), "offender");
  bad.AwaitJoined();
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  bad.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  const v1::UploadResponse answer = GetParam().commit(bad);
  EXPECT_EQ(answer.status(), GetParam().status);
  EXPECT_EQ(answer.reason(), GetParam().reason) << answer.message();
  EXPECT_FALSE(answer.message().empty());
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  if (GetParam().still_awaited) {
    v1::SessionRequest decline;
    decline.mutable_report()->set_round(1);
    decline.mutable_report()->set_kind(v1::TRAIN);
    decline.mutable_report()->set_declined("found out");
    bad.Send(decline);
  }
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.collected.result.clients, 2u);
  EXPECT_EQ(report.model_sha256, expected);
}

INSTANTIATE_TEST_SUITE_P(All, OffenceTest, testing::ValuesIn(Offences()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Layouts, OffenceTest, testing::ValuesIn(LayoutOffences()),
                         [](const auto& info) { return info.param.name; });

// The layout would allow it: only the budget, which honest updates fill to the byte, does not.
TEST_F(NodeTest, AnUploadOfOneByteMoreThanTheBudgetIsRefusedAndLeavesTheOthersBitIdentical) {
  const std::string expected = HonestHash();
  const uint64_t budget = RawClient::Trailer(EncodeTest(1)).encoded_bytes();
  ASSERT_EQ(RawClient::Trailer(EncodeTest(2)).encoded_bytes(), budget);
  ASSERT_LE(budget + 1, aggregation::MaxEncodedBytes(*TestLayout()));
  TestNode node(Config(absl::StrCat("[limits]\ninflight_bytes = ", budget, "\n")));
  RawClient bad(node.endpoint(), "offender");
  bad.AwaitJoined();
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  bad.AwaitTask();
  const Segments segments = EncodeTest(3);
  v1::UploadHeader header = bad.Header(segments);
  header.set_encoded_bytes(budget + 1);
  const v1::UploadResponse answer = bad.Upload(header, segments, RawClient::Trailer(segments));
  EXPECT_EQ(answer.status(), v1::UploadResponse::REJECTED);
  EXPECT_EQ(answer.reason(), "size");
  EXPECT_THAT(answer.message(), testing::HasSubstr(absl::StrCat("1 to ", budget, " are allowed")));
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport report = node.Round(0);
  EXPECT_TRUE(report.committed) << report.why_not;
  EXPECT_EQ(report.collected.result.clients, 2u);
  EXPECT_EQ(report.model_sha256, expected);
}

TEST_F(NodeTest, BitFlippedUploadIsAskedForAgainAndThenCounts) {
  const std::string expected = HonestHash();
  TestNode node(Config());
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  const Segments honest = EncodeTest(1);
  Segments flipped = honest;
  flipped[0].back() ^= 1;
  EXPECT_EQ(a.Upload(a.Header(honest), flipped, RawClient::Trailer(honest)).status(),
            v1::UploadResponse::RETRY);
  EXPECT_EQ(a.Upload(honest).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(node.Round(0).model_sha256, expected);
}

TEST_F(NodeTest, RoundWhoseEveryUpdateWasRefusedFailsCleanlyAndTheNextRuns) {
  TestNode node(Config("", 2));
  RawClient a(node.endpoint(), "a"), b(node.endpoint(), "b");
  const std::string base = a.AwaitTask().spec().base_sha256();
  b.AwaitTask();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  a.Upload(WithFloat(nan));
  b.Upload(WithFloat(nan));
  const RoundReport failed = node.Round(0);
  EXPECT_FALSE(failed.committed);
  EXPECT_EQ(failed.collected.result.rejected.at("non_finite"), 2u);
  EXPECT_THAT(ToJson(failed),
              testing::AllOf(testing::HasSubstr("\"accepted\":0,"),
                             testing::HasSubstr("\"rejected\":{\"non_finite\":2},")));
  const v1::Outcome outcome = a.AwaitOutcome();
  EXPECT_FALSE(outcome.committed());
  EXPECT_FALSE(outcome.included());
  const v1::Task next = a.AwaitTask();
  EXPECT_EQ(next.spec().base_version(), 0u);
  EXPECT_EQ(next.spec().base_sha256(), base) << "the model stays";
  b.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_TRUE(node.Round(1).committed);
}

}  // namespace
}  // namespace tributary::server
