// Codecs that the root takes part in: hq's step, agreed anew each round, and sketches.
#include "base/philox.h"
#include "compression/agreed.h"
#include "compression/policy.h"
#include "node_fixture.h"

namespace tributary::server {
namespace {

Segments EncodeAs(const std::string& codec, aggregation::DeltaSource& deltas, uint64_t seed) {
  const auto policy = compression::CodecPolicy::Parse(codec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  Segments out;
  const absl::Status status =
      aggregation::EncodeUpdate(*TestLayout(), **policy, {1, SeededHash(seed, "mask", "")}, 1,
                                deltas, [&](std::vector<uint8_t> segment) {
                                  out.push_back(std::move(segment));
                                  return absl::OkStatus();
                                });
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

v1::UploadResponse UploadWithLargest(RawClient* client, const std::string& codec, double largest) {
  TestDeltas deltas(1);
  const Segments segments = EncodeAs(codec, deltas, 1);
  v1::UploadHeader header = client->Header(segments);
  v1::Metric* const metric = header.add_metrics();
  metric->set_name(compression::kLargestMetric);
  metric->set_value(largest);
  metric->set_weight(1);
  return client->Upload(header, segments, RawClient::Trailer(segments));
}

TEST_F(NodeTest, TheStepOfHqFollowsTheMeanOfWhatClientsReportedTheRoundBefore) {
  TestNode node(Config("[compression]\ncodec = \"hq(step=auto)\"\n", 2));
  RawClient a(node.endpoint(), "a", kEpoch), b(node.endpoint(), "b", kEpoch);
  const std::string first = a.AwaitTask().spec().codec();
  EXPECT_EQ(first, "hq(step=2^-12)");
  b.AwaitTask();
  EXPECT_EQ(UploadWithLargest(&a, first, 0.1).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(UploadWithLargest(&b, first, 0.5).status(), v1::UploadResponse::ACCEPTED);
  // Twice 0.3: 127 * 2^-7 is 0.99, 127 * 2^-8 would be 0.496.
  EXPECT_EQ(a.AwaitTask().spec().codec(), "hq(step=2^-7)");
  EXPECT_EQ(node.Round(0).codec, "hq(step=2^-12)");
}

// A root that starts again takes the step that it would have taken.
TEST_F(NodeTest, TheStepOfHqOutlivesTheRoot) {
  const std::string config = Config("[compression]\ncodec = \"hq(step=auto)\"\n", 2);
  {
    TestNode node(config);
    RawClient a(node.endpoint(), "a", kEpoch), b(node.endpoint(), "b", kEpoch);
    const std::string first = a.AwaitTask().spec().codec();
    b.AwaitTask();
    EXPECT_EQ(UploadWithLargest(&a, first, 0.1).status(), v1::UploadResponse::ACCEPTED);
    EXPECT_EQ(UploadWithLargest(&b, first, 0.5).status(), v1::UploadResponse::ACCEPTED);
    ASSERT_TRUE(node.Round(0).committed);
    node.Shutdown();
  }
  TestNode again(config);
  RawClient a(again.endpoint(), "a", kEpoch + 1), b(again.endpoint(), "b", kEpoch + 1);
  const v1::RoundSpec spec = a.AwaitTask().spec();
  EXPECT_EQ(spec.round(), 2u);
  EXPECT_EQ(spec.codec(), "hq(step=2^-7)");  // twice 0.3, as above
}

TEST_F(NodeTest, ClientsAndReportsSeeErrorFeedbackAsIfItWereWrittenInTheCodec) {
  const std::string written = "topk(0.01, values=ternary) | ef | zstd";
  std::vector<std::string> models;
  for (const std::string section :
       {"codec = \"topk(0.01, values=ternary) | zstd\"\nerror_feedback = true\n",
        "codec = \"topk(0.01, values=ternary) | ef | zstd\"\n"}) {
    TestNode node(Config("[compression]\n" + section, 1, 1));
    RawClient client(node.endpoint(), "a", kEpoch);
    EXPECT_EQ(client.AwaitTask().spec().codec(), written);
    TestDeltas deltas(1);
    EXPECT_EQ(client.Upload(EncodeAs(written, deltas, 1)).status(), v1::UploadResponse::ACCEPTED);
    EXPECT_EQ(node.Round(0).codec, written);
    models.push_back(node.Round(0).model_sha256);
  }
  EXPECT_EQ(models[0], models[1]);
}

// Ten elements are 1 or -1, the others 0.
class HeavyDeltas final : public aggregation::DeltaSource {
 public:
  static float Value(uint64_t i) { return i % 4000 != 7 ? 0.0f : i % 8000 == 7 ? 1.0f : -1.0f; }
  absl::StatusOr<std::span<const float>> Floats(uint32_t tensor) override {
    floats_.assign(TestLayout()->TensorElements(tensor), 0.0f);
    for (uint64_t i = 0; tensor == 0 && i < floats_.size(); ++i) floats_[i] = Value(i);
    return std::span<const float>(floats_);
  }
  absl::StatusOr<std::span<const int64_t>> Ints(uint32_t) override {
    ints_.assign(3, 0);
    return std::span<const int64_t>(ints_);
  }

 private:
  std::vector<float> floats_;
  std::vector<int64_t> ints_;
};

TEST_F(NodeTest, ARoundOfSketchesRefusesPlainUpdatesAndSketchesByAnotherSeed) {
  const std::string codec = "sketch(0.5, recover=0.00025)";
  TestNode node(Config("[compression]\ncodec = \"" + codec + "\"\n"));
  RawClient a(node.endpoint(), "a", kEpoch), b(node.endpoint(), "b", kEpoch);
  const uint64_t seed = a.AwaitTask().spec().seed();
  b.AwaitTask();
  HeavyDeltas deltas;
  const v1::UploadResponse plain = a.Upload(EncodeAs("fp32", deltas, seed));
  EXPECT_EQ(plain.status(), v1::UploadResponse::REJECTED);
  EXPECT_EQ(plain.reason(), "codec") << plain.message();
  EXPECT_EQ(b.Upload(EncodeAs(codec, deltas, seed + 1)).reason(), "codec");
}

TEST_F(NodeTest, ASketchedRoundMovesTheModelByTheMeanOfWhatWasLarge) {
  const std::string codec = "sketch(0.5, recover=0.00025)";
  TestNode node(Config("[compression]\ncodec = \"" + codec + "\"\n"));
  RawClient a(node.endpoint(), "a", kEpoch), b(node.endpoint(), "b", kEpoch);
  const uint64_t seed = a.AwaitTask().spec().seed();
  b.AwaitTask();
  HeavyDeltas deltas;
  const Segments segments = EncodeAs(codec, deltas, seed);
  EXPECT_EQ(a.Upload(segments, 3).status(), v1::UploadResponse::ACCEPTED);
  EXPECT_EQ(b.Upload(segments, 8).status(), v1::UploadResponse::ACCEPTED);
  ASSERT_TRUE(node.Round(0).committed);
  const std::vector<uint8_t> model = Model();
  ASSERT_FALSE(model.empty());
  for (uint64_t i = 0; i < 39'300; ++i) {
    float value;
    std::memcpy(&value, model.data() + 4 * i, 4);
    // Where two of the ten meet in a cell, the median is of other rows.
    ASSERT_NEAR(value, static_cast<float>(i % 64) / 8 + HeavyDeltas::Value(i), 1e-6) << i;
  }
}

}  // namespace
}  // namespace tributary::server
