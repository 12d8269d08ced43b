// Codecs that sum without decoding, through nodes: two racks and a root make the model that one
// node makes of the same updates, to the bit, and for those that decode element by element it is
// the mean of what each update decodes to.
#include <cmath>

#include "aggregation/grid.h"
#include "base/philox.h"
#include "compression/agreed.h"
#include "compression/policy.h"
#include "compression/segment.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

constexpr const char* kIds[] = {"a", "b", "c", "d"};
constexpr int64_t kWeights[] = {3, 8, 5, 2};
constexpr size_t kClients = std::size(kIds);

// As a client of this id encodes in this round; what of it is decoded alone is added, with the
// client's weight, to `sum`.
Segments EncodeFor(const v1::RoundSpec& spec, size_t client, std::vector<double>* sum) {
  TestDeltas deltas(spec.round() * 10 + client);
  const auto policy = compression::CodecPolicy::Parse(spec.codec());
  EXPECT_TRUE(policy.ok()) << policy.status();
  Segments out;
  const absl::Status status = aggregation::EncodeUpdate(
      *TestLayout(), **policy,
      {SeededHash(spec.seed(), "codec", kIds[client]), SeededHash(spec.seed(), "mask", "")},
      static_cast<uint32_t>(spec.round()), deltas, [&](std::vector<uint8_t> segment) {
        out.push_back(std::move(segment));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  for (const std::vector<uint8_t>& segment : out) {
    const PiecedBytes bytes{ByteSpan(segment)};
    ByteCursor cursor(bytes);
    const auto header = *compression::ReadSegmentHeader(&cursor);
    if (header.tensor != 0) continue;
    const auto codec = *compression::CodecFromHeader(header.codec, header.parameter);
    std::vector<float> decoded(header.count);
    codec->Decode(PiecedBytes(ByteSpan(segment).subspan(compression::SegmentHeader::kBytes)),
                  decoded);
    for (size_t i = 0; i < decoded.size(); ++i) {
      (*sum)[header.first + i] +=
          static_cast<double>(kWeights[client]) * static_cast<double>(decoded[i]);
    }
  }
  return out;
}

struct Ran {
  std::vector<std::string> codecs, models;      // of each round
  std::vector<std::vector<double>> moved;       // the mean of what was decoded of "weight"
  std::vector<std::vector<uint8_t>> published;  // the models
};

class CodecTiersTest : public NodeTest, public testing::WithParamInterface<const char*> {
 protected:
  static constexpr uint32_t kRounds = 2;

  std::string Root() {
    return Config(absl::StrCat("[compression]\ncodec = \"", GetParam(), "\"\n"), kRounds, kClients);
  }
  static std::string Rack(const std::string& name, const TestNode& root) {
    return absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = [\"%s\"]\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n",
        name, root.endpoint());
  }
  std::vector<uint8_t> ModelOf(uint32_t round) const {
    const auto checkpoint = models::ReadSafetensorsAs(
        dir_ / absl::StrFormat("checkpoints-%d/test/%08d/model.safetensors", runs_, round),
        TestLayout());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? checkpoint->bytes : std::vector<uint8_t>();
  }
  // Both rounds, client i at `endpoints[i]`.
  Ran Play(TestNode& root, const std::vector<std::string>& endpoints) {
    Ran ran;
    std::vector<std::unique_ptr<RawClient>> clients;
    for (size_t i = 0; i < kClients; ++i) {
      clients.push_back(std::make_unique<RawClient>(endpoints[i], kIds[i], kEpoch));
    }
    for (uint32_t round = 0; round < kRounds; ++round) {
      std::vector<double> sum(TestLayout()->TensorElements(0));
      for (size_t i = 0; i < kClients; ++i) {
        const v1::RoundSpec spec = clients[i]->AwaitTask().spec();
        const Segments segments = EncodeFor(spec, i, &sum);
        v1::UploadHeader header = clients[i]->Header(segments, kWeights[i]);
        // What hq(step=auto) goes by; others have no use for it.
        v1::Metric* const largest = header.add_metrics();
        largest->set_name(compression::kLargestMetric);
        largest->set_value(0.125 * static_cast<double>(i + 1));
        largest->set_weight(1);
        const auto answer = clients[i]->Upload(header, segments, RawClient::Trailer(segments));
        EXPECT_EQ(answer.status(), v1::UploadResponse::ACCEPTED) << answer.message();
      }
      const RoundReport report = root.Round(round);
      EXPECT_TRUE(report.committed) << report.why_not;
      EXPECT_EQ(report.collected.result.clients, kClients);
      ran.codecs.push_back(report.codec);
      ran.models.push_back(report.model_sha256);
      for (double& v : sum) v /= 18;  // 3 + 8 + 5 + 2
      ran.moved.push_back(std::move(sum));
    }
    EXPECT_TRUE(root.End().ok());
    for (uint32_t round = 1; round <= kRounds; ++round) ran.published.push_back(ModelOf(round));
    return ran;
  }
  Ran Flat() {
    TestNode root(Root());
    return Play(root, std::vector<std::string>(kClients, root.endpoint()));
  }
  Ran Tiers() {
    TestNode root(Root());
    TestNode one(Rack("rack-1", root)), two(Rack("rack-2", root));
    return Play(root, {one.endpoint(), two.endpoint(), one.endpoint(), two.endpoint()});
  }
};

TEST_P(CodecTiersTest, TwoRacksAndARootMakeTheModelOfOneNodeToTheBit) {
  const Ran flat = Flat(), tiers = Tiers();
  EXPECT_EQ(tiers.codecs, flat.codecs);
  ASSERT_EQ(tiers.models, flat.models);
  EXPECT_NE(flat.models[0], flat.models[1]) << "the second round moved nothing";
  if (std::string_view(GetParam()).ends_with("step=auto)")) {
    // Twice the mean of what was reported, 0.3125: 127 of 2^-7 reach it, and 7 of 2^-3.
    const bool bytes = std::string_view(GetParam()).starts_with("hq(bits=8");
    EXPECT_EQ(tiers.codecs[1], bytes ? "hq(bits=8, step=2^-7)" : "hq(bits=4, step=2^-3)");
  }

  if (std::string_view(GetParam()).starts_with("sketch")) return;  // decoded at the root alone
  // The grid's unit is 2^-30; a model's float near 8 has steps of 2^-20.
  std::vector<double> wanted(TestLayout()->TensorElements(0));
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<double>(i % 64) / 8;
  for (uint32_t round = 0; round < kRounds; ++round) {
    ASSERT_EQ(flat.published[round].size(), TestLayout()->model_bytes());
    for (size_t i = 0; i < wanted.size(); ++i) {
      wanted[i] += flat.moved[round][i];
      float got;
      std::memcpy(&got, flat.published[round].data() + 4 * i, 4);
      ASSERT_NEAR(static_cast<double>(got), wanted[i], 0x1p-30 + 0x1p-21 * (round + 1))
          << "round " << round + 1 << ", element " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Linear, CodecTiersTest,
                         testing::Values("hq(bits=8, step=2^-10)", "hq(bits=4, step=2^-6)",
                                         "hq(bits=8, step=auto)", "hq(bits=4, step=auto)",
                                         "sign(mode=vote, step=2^-7)", "randk(0.1)",
                                         "randk(0.1, scaled=no)", "sketch(0.5, recover=0.01)"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase_if(name, [](char c) {
                             return !std::isalnum(static_cast<unsigned char>(c));
                           });
                           return name;
                         });

}  // namespace
}  // namespace tributary::server
