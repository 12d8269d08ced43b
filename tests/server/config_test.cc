// An aggregator's config: each mistake is named with its place and its mend.
#include "server/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "server/fabrics.h"
#include "tests/base/annotated.h"
#include "tests/base/replaced.h"

namespace tributary::server {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kRoot[] = R"([node]
name = "global"
listen = "127.0.0.1:7070"
[transport]
kind = "tcp"
listen = "127.0.0.1:0"
lanes = 2
heartbeat_s = 1
progress_timeout_s = 60
[limits]
inflight_bytes = "1GiB"
fold_workers = 1
[log]
level = "info"
[run]
name = "r"
rounds = 3
seed = 1
model = "resnet18"
[aggregation]
fraction_bits = 30
max_round_weight = 1048576
max_client_weight = 1024
[aggregation.policies]
"bn1.num_batches_tracked" = "first"
[cohort]
minimum = 2
maximum = 10
fraction = 1.0
[straggler]
deadline_s = 600
quorum = 1.0
[compression]
codec = "int8"
[checkpoint]
directory = "checkpoints"
keep = 3
[training]
lr = 0.05
momentum = 0.9
)";

constexpr char kRack[] = R"([node]
name = "rack-0"
listen = "0.0.0.0:7080"
parent = ["global.example:7070", "spare.example:7070"]
)";

// The findings on a text, "" where it has none.
std::string Findings(const std::string& text) {
  const auto config = ParseConfig(text, "bad.toml");
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return Text(config.status());
}

// A change to kRoot, and what its one finding must contain: first its place.
struct Row {
  const char* from;
  const char* to;
  std::vector<std::string> says;
};

void ExpectEach(const std::vector<Row>& rows, const char* base = kRoot) {
  for (const Row& row : rows) {
    const std::string findings = Findings(Replaced(base, row.from, row.to));
    SCOPED_TRACE(absl::StrCat(row.to, "\n", findings));
    EXPECT_EQ(findings.find("bad.toml:" + row.says[0] + ": "), 0u);
    for (const std::string& part : row.says) EXPECT_THAT(findings, HasSubstr(part));
    EXPECT_THAT(findings, Not(HasSubstr("\n"))) << "one mistake, one finding";
  }
}

TEST(ConfigTest, GoodOnesHaveNoFindings) {
  EXPECT_EQ(Findings(kRoot), "");
  EXPECT_EQ(Findings(kRack), "");
}

TEST(ConfigTest, ReadsWhatIsWrittenAndKeepsDefaultsElsewhere) {
  const auto config = ParseConfig(kRoot, "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->is_root());
  EXPECT_EQ(config->limits.inflight_bytes, uint64_t{1} << 30);
  EXPECT_EQ(config->run->rounds, 3u);
  EXPECT_EQ(config->aggregation.policies.at("bn1.num_batches_tracked"), "first");
  EXPECT_EQ(config->training.values.at("momentum"), 0.9);
  EXPECT_EQ(config->training.values.at("batch_size"), 32);
  EXPECT_EQ(config->straggler.rejoin_grace_s, 5);
  EXPECT_EQ(config->cohort.over_selection, 1.3);
  EXPECT_FALSE(config->straggler.partial_work);
  EXPECT_EQ(config->where.at("node.listen"), "c.toml:3:10");
}

TEST(ConfigTest, SectionOfATransportIsReadAndItsKeysAreChecked) {
  const std::string roce = Replaced(
      kRoot, "[limits]",
      "[transport.roce]\ndevice = \"mlx5_0\"\npath_mtu = 1024\narena_bytes = \"64MiB\"\n[limits]");
  const auto config = ParseConfig(roce, "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->transport.roce.device, "mlx5_0");
  EXPECT_EQ(config->transport.roce.path_mtu, 1024u);
  EXPECT_EQ(config->transport.roce.arena_bytes, uint64_t{64} << 20);
  EXPECT_EQ(config->transport.roce.gid_index, -1);
  EXPECT_THAT(Findings(Replaced(roce, "device =", "devise =")),
              AllOf(HasSubstr("bad.toml:11:1: unknown key \"devise\" in [transport.roce]"),
                    HasSubstr("did you mean \"device\"?")));
  EXPECT_THAT(Findings(Replaced(roce, "path_mtu = 1024", "path_mtu = 1500")),
              HasSubstr("path_mtu = 1500 is not 0, 256, 512, 1024, 2048 or 4096"));
}

TEST(ConfigTest, WhatTransportSaysReachesLinksAndTheirDevices) {
  const auto config = ParseConfig(absl::StrCat(kRack, R"([transport]
kind = "roce"
lanes = 3
slots = 5
heartbeat_s = 0.5
heartbeats_missed = 7
progress_timeout_s = 9
[transport.roce]
device = "mlx5_1"
port = 2
gid_index = 4
path_mtu = 2048
traffic_class = 106
hop_limit = 3
service_level = 6
ack_timeout_s = 0.016
retries = 5
arena_bytes = "64MiB"
)"),
                                  "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  const transport::LinkOptions link = LinkOptionsOf(config->transport);
  EXPECT_EQ(link.lanes, 3u);
  EXPECT_EQ(link.slots, 5u);
  EXPECT_EQ(link.heartbeat, absl::Milliseconds(500));
  EXPECT_EQ(link.heartbeats_missed, 7);
  EXPECT_EQ(link.progress_timeout, absl::Seconds(9));
  const transport::RoceOptions roce = RoceOptionsOf(config->transport);
  EXPECT_EQ(roce.device, "mlx5_1");
  EXPECT_EQ(roce.port, 2u);
  EXPECT_EQ(roce.gid_index, 4);
  EXPECT_EQ(roce.path_mtu, 2048u);
  EXPECT_EQ(roce.traffic_class, 106u);
  EXPECT_EQ(roce.hop_limit, 3u);
  EXPECT_EQ(roce.service_level, 6u);
  EXPECT_EQ(roce.ack_timeout, absl::Milliseconds(16));
  EXPECT_EQ(roce.retries, 5u);
  EXPECT_EQ(roce.arena_bytes, size_t{64} << 20);
}

// A config that says nothing leaves the transports' own defaults.
TEST(ConfigTest, DefaultsOfTransportAreThoseOfLinksAndDevices) {
  const transport::LinkOptions link = LinkOptionsOf({});
  EXPECT_EQ(link.lanes, transport::LinkOptions().lanes);
  EXPECT_EQ(link.slots, transport::LinkOptions().slots);
  EXPECT_EQ(link.heartbeat, transport::LinkOptions().heartbeat);
  EXPECT_EQ(link.heartbeats_missed, transport::LinkOptions().heartbeats_missed);
  EXPECT_EQ(link.progress_timeout, transport::LinkOptions().progress_timeout);
  const transport::RoceOptions roce = RoceOptionsOf({});
  EXPECT_EQ(roce.port, transport::RoceOptions().port);
  EXPECT_EQ(roce.service_level, transport::RoceOptions().service_level);
  EXPECT_EQ(roce.ack_timeout, transport::RoceOptions().ack_timeout);
  EXPECT_EQ(roce.retries, transport::RoceOptions().retries);
  EXPECT_EQ(roce.arena_bytes, transport::RoceOptions().arena_bytes);
}

TEST(ConfigTest, RoceNumbersOutOfRangeNameTheRange) {
  const std::string roce = absl::StrCat(kRack, "[transport]\nkind = \"roce\"\n[transport.roce]\n");
  ASSERT_EQ(Findings(absl::StrCat(
                roce, "port = 1\nservice_level = 15\nack_timeout_s = 60\nretries = 7\n")),
            "");
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"port = 256", "0 to 255"},
      {"service_level = 16", "0 to 15"},
      {"ack_timeout_s = 0", "1e-05 to 60"},
      {"ack_timeout_s = 61", "1e-05 to 60"},
      {"retries = 0", "1 to 7"},
      {"retries = 8", "1 to 7"},
  };
  for (const auto& [line, range] : rows) {
    EXPECT_THAT(Findings(absl::StrCat(roce, line, "\n")),
                AllOf(HasSubstr(absl::StrCat("[transport.roce] ", line)), HasSubstr(range)));
  }
}

TEST(ConfigTest, FaultsOnPurposeAreARacks) {
  const std::string faults = "[transport.faults]\nstall_after = 5\ncut_after = 9\n";
  const auto config = ParseConfig(absl::StrCat(kRack, faults), "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->transport.faults.stall_after, 5u);
  EXPECT_EQ(config->transport.faults.cut_after, 9u);
  EXPECT_THAT(Findings(absl::StrCat(kRoot, faults)),
              HasSubstr("[transport.faults] is about links to a parent, and a root has none"));
  EXPECT_THAT(Findings(Replaced(absl::StrCat(kRack, faults), "cut_after = 9", "cut_after = -1")),
              HasSubstr("cut_after"));
}

// The annotated examples are what users start from.
TEST(ConfigTest, EveryAnnotatedConfigPasses) {
  int checked = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs"))) {
    // Those have readers of their own: the client (and as evaluator), and `tributary simulate`.
    const std::string name = entry.path().filename();
    if (entry.path().extension() != ".toml" || name == "client.toml" || name == "evaluator.toml" ||
        name == "simulate.toml") {
      continue;
    }
    const auto config = LoadConfig(entry.path().string());
    EXPECT_TRUE(config.ok()) << config.status();
    ++checked;
  }
  EXPECT_GE(checked, 6);
}

TEST(ConfigTest, UnknownKeysNameTheNearestOrWhereTheyBelong) {
  ExpectEach({
      {"quorum =",
       "quorom =",
       {"32:1", "unknown key \"quorom\" in [straggler]", "did you mean \"quorum\"?"}},
      {"lanes =", "lane =", {"7:1", "did you mean \"lanes\"?"}},
      {"level =", "colour =", {"14:1", "in [log]", "known are file, format, level"}},
      {"keep = 3", "codec = \"fp32\"", {"37:1", "in [checkpoint]", "it belongs in [compression]"}},
      {"keep = 3", "name = \"x\"", {"37:1", "it belongs in [node] or [run]"}},
      {"[aggregation.policies]",
       "[aggregation.polices]",
       {"24:14", "unknown key \"polices\"", "did you mean \"policies\"?"}},
      {"lr = 0.05",
       "learning_rate = 0.05",
       {"39:1", "in [training]", "\"learning_rate\"", "known are"}},
      {"[straggler]",
       "[stragler]",
       {"30:2", "unknown section [stragler]", "did you mean \"straggler\"?"}},
      {"[log]\n", "[[log]]\n", {"13:3", "[log] is a section", "write \"[log]\""}},
  });
}

TEST(ConfigTest, KeysOutsideAnySectionAreSaidToBelongInOne) {
  EXPECT_THAT(Findings(absl::StrCat("rounds = 3\n", kRoot)),
              HasSubstr("bad.toml:1:1: key \"rounds\" stands outside any section; it belongs in "
                        "[run]"));
  EXPECT_THAT(Findings(Replaced(kRoot, "[log]\nlevel = \"info\"\n", "")), "");
  EXPECT_THAT(Findings(absl::StrCat("log = 3\n", Replaced(kRoot, "[log]\nlevel = \"info\"\n", ""))),
              HasSubstr("bad.toml:1:1: [log] is a section"));
}

TEST(ConfigTest, WrongTypesNameWhatIsThereAndWhatIsWanted) {
  ExpectEach({
      {"rounds = 3", "rounds = \"3\"", {"17:10", "must be a whole number", "the string \"3\""}},
      {"rounds = 3", "rounds = 3.5", {"17:10", "must be a whole number", "the number 3.5"}},
      {"rounds = 3", "rounds = -3", {"17:10", "not negative", "the integer -3"}},
      {"rounds = 3", "rounds = 5000000000", {"17:10", "too large: at most 4294967295"}},
      {"fraction_bits = 30",
       "fraction_bits = 3000000000",
       {"21:17", "too large: at most 2147483647"}},
      {"seed = 1", "seed = true", {"18:8", "must be a whole number", "true"}},
      {"fraction = 1.0", "fraction = [1]", {"29:12", "must be a number", "an array"}},
      {"kind = \"tcp\"", "kind = 1", {"5:8", "must be a string", "the integer 1"}},
      {"\"1GiB\"", "\"1 gigabyte\"", {"11:18", "\"512MiB\" or \"2GiB\""}},
      {"= \"first\"", "= 1", {"25:29", "must be a string"}},
      {"lr = 0.05", "lr = \"fast\"", {"39:6", "must be a number"}},
  });
}

TEST(ConfigTest, NumbersOutOfRangeNameTheRange) {
  ExpectEach({
      {"lanes = 2", "lanes = 17", {"7:9", "[transport] lanes = 17", "1 to 16"}},
      {"lanes = 2", "lanes = 0", {"7:9", "1 to 16"}},
      {"\"1GiB\"", "100", {"11:18", "[limits] inflight_bytes = 100", "64KiB"}},
      {"fold_workers = 1", "fold_workers = 257", {"12:16", "0 to 256"}},
      {"fold_workers = 1",
       "grant_timeout_s = 0",
       {"12:19", "[limits] grant_timeout_s = 0", "0.1 to"}},
      {"rounds = 3", "rounds = 0", {"17:10", "1 to"}},
      {"fraction_bits = 30", "fraction_bits = 45", {"21:17", "20 to 44"}},
      {"max_client_weight = 1024", "max_client_weight = 0", {"23:21", "1 to"}},
      {"fraction = 1.0", "fraction = 1.5", {"29:12", "[cohort] fraction = 1.5", "to 1"}},
      {"fraction = 1.0", "fraction = nan", {"29:12", "out of range"}},
      {"quorum = 1.0", "quorum = 0", {"32:10", "out of range"}},
      {"deadline_s = 600", "deadline_s = inf", {"31:14", "out of range"}},
      {"keep = 3", "keep = 0", {"37:8", "1 to 1000"}},
      {"heartbeat_s = 1", "heartbeat_s = 0", {"8:15", "0.05 to 3600"}},
      {"heartbeat_s = 1",
       "heartbeats_missed = 0",
       {"8:21", "[transport] heartbeats_missed = 0", "1 to 1000"}},
  });
}

TEST(ConfigTest, TrainingValuesOutOfRangeAreRefusedHereAndNotByEveryClient) {
  ExpectEach({
      {"lr = 0.05", "lr = 0", {"39:6", "[training]", "\"lr\" is 0", "above 0"}},
      {"lr = 0.05", "lr = nan", {"39:6", "above 0"}},
      {"momentum = 0.9", "momentum = 1", {"40:12", "below 1"}},
      {"momentum = 0.9", "local_epochs = 1.5", {"40:16", "a whole number from 1 to 10000"}},
      {"momentum = 0.9", "batch_size = -1", {"40:14", "a whole number from 0"}},
      {"momentum = 0.9", "weight_decay = -1e-4", {"40:16", "0 to 1e6"}},
      {"momentum = 0.9", "mu = inf", {"40:6", "0 to 1e6"}},
  });
}

TEST(ConfigTest, WordsOutsideTheListNameTheNearest) {
  ExpectEach({
      {"\"tcp\"",
       "\"rocce\"",
       {"5:8", "not one of tcp, shm, roce, auto", "did you mean \"roce\"?"}},
      {"\"info\"", "\"inform\"", {"14:9", "did you mean \"info\"?"}},
      {"fraction_bits = 30", "optimizer = \"fedavq\"", {"21:13", "did you mean \"fedavg\"?"}},
      {"\"first\"", "\"frist\"", {"25:29", "\"frist\" is not one of", "first"}},
      {"\"int8\"", "\"int9\"", {"34:9", "[compression] codec", "int8"}},
      {"\"int8\"", "\"int8(block=5)\"", {"34:9", "block"}},
      {"\"resnet18\"", "\"resnet19\"", {"19:9", "\"resnet19\" is not known", "resnet18"}},
      {"name = \"r\"", "name = \"a/b\"", {"16:8", "letters, digits"}},
  });
}

TEST(ConfigTest, Ef21NeedsThePopulationsWeightAndExcludesWhatChangesWeights) {
  const std::string good =
      Replaced(kRoot, "\"int8\"", "\"int8 | ef21\"\npopulation_weight = 60000");
  EXPECT_EQ(Findings(good), "");
  EXPECT_EQ(ParseConfig(good, "c.toml")->compression.population_weight, 60000u);
  EXPECT_THAT(Findings(Replaced(good, "\npopulation_weight = 60000", "")),
              AllOf(HasSubstr("34:9"), HasSubstr("give population_weight")));
  EXPECT_THAT(Findings(Replaced(good, "60000", "2000000")),
              AllOf(HasSubstr("35:21"), HasSubstr("passes [aggregation] max_round_weight")));
  EXPECT_THAT(Findings(Replaced(good, " | ef21", "")),
              AllOf(HasSubstr("35:21"), HasSubstr("does nothing without ef21")));
  EXPECT_THAT(Findings(Replaced(good, "momentum = 0.9", "fednova = 1")),
              AllOf(HasSubstr("34:9"), HasSubstr("fednova")));
  EXPECT_THAT(Findings(Replaced(good, "quorum = 1.0", "late = \"carry\"")),
              HasSubstr("ef21 needs each client's weight"));
  EXPECT_THAT(Findings(Replaced(good, "\"bn1.num_batches_tracked\" = \"first\"",
                                "\"conv1.weight\" = \"sum\"")),
              AllOf(HasSubstr("34:9"), HasSubstr("ef21 is for tensors that are averaged"),
                    HasSubstr("conv1.weight = fp32")));
}

// The codec of kRoot with [compression] error_feedback.
std::string WithFeedback(const std::string& codec, const std::string& value = "true") {
  return Replaced(kRoot, "\"int8\"", absl::StrCat("\"", codec, "\"\nerror_feedback = ", value));
}

TEST(ConfigTest, ErrorFeedbackIsEfInTheCodecAsIfWrittenByHand) {
  const auto codec = [](const std::string& text) {
    const auto config = ParseConfig(text, "c.toml");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->compression.codec : "";
  };
  const std::string written = "topk(0.01, values=ternary) | ef | zstd";
  EXPECT_EQ(codec(Replaced(kRoot, "int8", written)), written);
  EXPECT_EQ(codec(WithFeedback("topk(0.01, values=ternary) | zstd")), written);
  EXPECT_EQ(codec(WithFeedback(written)), written);
  EXPECT_EQ(codec(WithFeedback("topk(0.01) | zstd; small = fp16; fc.* = fp32")),
            "topk(0.01) | ef | zstd; small = fp16 | ef; fc.* = fp32");
  EXPECT_EQ(codec(WithFeedback("topk(0.01) | zstd", "false")), "topk(0.01) | zstd");
  EXPECT_EQ(codec(WithFeedback(written, "false")), written) << "as the chain says";
  EXPECT_EQ(codec(Replaced(WithFeedback("int8 | ef21"), "error_feedback",
                           "population_weight = 60000\nerror_feedback")),
            "int8 | ef21");
}

TEST(ConfigTest, ErrorFeedbackThatCannotBeIsRefusedWithItsPlaceAndMend) {
  const auto one = [](const std::string& text, const std::string& place) {
    const std::string findings = Findings(text);
    EXPECT_EQ(findings.find(absl::StrCat("bad.toml:", place, ": ")), 0u) << findings;
    EXPECT_THAT(findings, Not(HasSubstr("\n"))) << "one mistake, one finding";
    return findings;
  };
  EXPECT_THAT(one(WithFeedback("fp32"), "35:18"),
              AllOf(HasSubstr("[compression] error_feedback: codec \"fp32\""),
                    HasSubstr("loses nothing"), HasSubstr("leave error_feedback out")));
  EXPECT_THAT(one(WithFeedback("randk(0.1) | zstd"), "35:18"),
              AllOf(HasSubstr("codec \"randk(0.1) | zstd\""), HasSubstr("scaled=no")));
  EXPECT_THAT(one(WithFeedback("int8; fc.* = sketch(0.1)"), "35:18"),
              AllOf(HasSubstr("codec \"sketch(0.1)\""), HasSubstr("write ef into the chains")));
  EXPECT_THAT(one(WithFeedback("int8", "\"yes\""), "35:18"),
              AllOf(HasSubstr("[compression] error_feedback must be true or false"),
                    HasSubstr("the string \"yes\"")));
  EXPECT_THAT(one(WithFeedback("int8", "1"), "35:18"), HasSubstr("the integer 1"));
  EXPECT_THAT(one(WithFeedback("int9"), "34:9"), HasSubstr("[compression] codec: codec \"int9\""));
  EXPECT_THAT(one(Replaced(WithFeedback("int8"), "error_feedback", "error_feedbak"), "35:1"),
              HasSubstr("did you mean \"error_feedback\"?"));
  EXPECT_THAT(one(Replaced(kRoot, "momentum = 0.9", "error_feedback = true"), "40:1"),
              HasSubstr("it belongs in [compression]"));
}

TEST(ConfigTest, InverseProbabilityNeedsFractionalWeightsAndRounds) {
  const std::string wanted =
      Replaced(kRoot, "fraction = 1.0", "weighting = \"inverse_probability\"");
  EXPECT_THAT(Findings(wanted), AllOf(HasSubstr("29:13"), HasSubstr("fractional_weights = true")));
  const std::string good = Replaced(wanted, "max_round_weight = 1048576",
                                    "max_round_weight = 4096\nfractional_weights = true");
  EXPECT_EQ(Findings(good), "");
  EXPECT_EQ(ParseConfig(good, "c.toml")->cohort.weighting, "inverse_probability");
  EXPECT_EQ(ParseConfig(good, "c.toml")->cohort.most_gain, 10);
  EXPECT_THAT(Findings(Replaced(good, "momentum = 0.9", "fednova = 1")),
              AllOf(HasSubstr("fednova = 1 weighs steps"), HasSubstr("inverse_probability")));
  EXPECT_THAT(Findings(Replaced(kRoot, "fraction = 1.0", "most_gain = 5")),
              AllOf(HasSubstr("29:13"), HasSubstr("does nothing without weighting")));
  EXPECT_THAT(Findings(Replaced(kRoot, "fraction = 1.0", "weighting = \"inverse\"")),
              AllOf(HasSubstr("29:13"), HasSubstr("inverse_probability")));
}

TEST(ConfigTest, LateUpdatesMayBeASupplementThatIsWaitedFor) {
  const std::string good =
      Replaced(kRoot, "quorum = 1.0", "late = \"supplement\"\nsupplement_wait_s = 2.5");
  EXPECT_EQ(Findings(good), "");
  EXPECT_EQ(ParseConfig(good, "c.toml")->straggler.late, "supplement");
  EXPECT_EQ(ParseConfig(good, "c.toml")->straggler.supplement_wait_s, 2.5);
  EXPECT_EQ(ParseConfig(kRoot, "c.toml")->straggler.supplement_wait_s, 1);
  EXPECT_THAT(Findings(Replaced(good, "supplement\"", "supplant\"")),
              AllOf(HasSubstr("[straggler] late"), HasSubstr("supplement")));
  EXPECT_THAT(Findings(Replaced(good, "2.5", "-1")), HasSubstr("[straggler] supplement_wait_s"));
}

TEST(ConfigTest, DctNeedsAveragedTensorsOfItsPlanes) {
  const std::string good = Replaced(Replaced(kRoot, "\"int8\"", "\"topk(0.1) | dct(28x28)\""),
                                    "\"resnet18\"", "\"2nn\"");
  const std::string policies = "\"bn1.num_batches_tracked\" = \"first\"\n";
  EXPECT_EQ(Findings(Replaced(good, policies, "")), "");
  EXPECT_THAT(Findings(Replaced(Replaced(good, policies, ""), "28x28", "29x29")),
              AllOf(HasSubstr("no tensor of model \"2nn\""), HasSubstr("multiple of rows")));
  EXPECT_THAT(Findings(Replaced(good, policies, "\"fc1.weight\" = \"sum\"\n")),
              AllOf(HasSubstr("dct is for tensors that are averaged"), HasSubstr("fc1.weight")));
}

// 0.2 * 32,768 / 5 is 1,310 columns, which is 0.03998 of a tile's elements.
TEST(ConfigTest, ASketchThatWouldRecoverMoreThanItTellsApartIsRefused) {
  EXPECT_EQ(Findings(Replaced(kRoot, "\"int8\"", "\"sketch(0.2)\"")), "");
  EXPECT_EQ(Findings(Replaced(kRoot, "\"int8\"", "\"sketch(0.2, recover=0.0399)\"")), "");
  EXPECT_THAT(Findings(Replaced(kRoot, "\"int8\"", "\"sketch(0.2, recover=0.04)\"")),
              AllOf(HasSubstr("34:9"), HasSubstr("1310 columns"), HasSubstr("1310.72"),
                    HasSubstr("set recover to 0.0399")));
}

TEST(ConfigTest, AddressesThatCannotBeUsedAreRefused) {
  for (const char* bad : {"h", "h:", ":1", "h:65536", "h:1x", "h:-1", "h:99999999999"}) {
    EXPECT_THAT(Findings(Replaced(kRack, "0.0.0.0:7080", bad)),
                HasSubstr("bad.toml:3:10: [node] listen"))
        << bad;
    EXPECT_THAT(Findings(Replaced(kRack, "spare.example:7070", bad)),
                HasSubstr("bad.toml:4:10: [node] parent"))
        << bad;
  }
  EXPECT_EQ(Findings(Replaced(kRack, "0.0.0.0:7080", "[::1]:0")), "");
  EXPECT_THAT(Findings(Replaced(kRack, "spare.example:7070", "spare.example:0")),
              AllOf(HasSubstr("[node] parent"), HasSubstr("a port from 1 to 65535")));
  EXPECT_THAT(Findings(Replaced(kRack, "[\"global.example:7070\", \"spare.example:7070\"]", "[]")),
              AllOf(HasSubstr("bad.toml:4:10: [node] parent names nobody"),
                    HasSubstr("drop it where this is the root")));
  ExpectEach({{"lanes = 2", "advertise = \"nat.example:0\"", {"7:13", "advertise", "from 1 to"}}});
}

TEST(ConfigTest, AddressesThatCannotGoTogetherAreRefused) {
  const char* door = "0.0.0.0:7080";
  for (const char* itself : {"0.0.0.0:7080", "127.0.0.1:7080", "localhost:7080"}) {
    EXPECT_THAT(Findings(Replaced(kRack, "global.example:7070", itself)),
                AllOf(HasSubstr("bad.toml:4:10: [node] parent"),
                      HasSubstr("is this aggregator itself"), HasSubstr(door)))
        << itself;
  }
  EXPECT_EQ(Findings(Replaced(kRack, "global.example:7070", "127.0.0.1:7081")), "");
  ExpectEach(
      {{"127.0.0.1:0", "127.0.0.1:7070", {"6:10", "[transport] listen", "[node] listen", "port 0"}},
       {"127.0.0.1:0", "0.0.0.0:7070", {"6:10", "give links another"}}});
}

TEST(ConfigTest, ImpossibleCombinationsAreRefusedWithTheirMend) {
  ExpectEach({
      {"heartbeat_s = 1\n",
       "heartbeat_s = 60\n",
       {"9:22", "heartbeat_s = 60", "not below progress_timeout_s"}},
      {"minimum = 2", "minimum = 11", {"27:11", "passes maximum = 10", "no round could succeed"}},
      {"max_client_weight = 1024",
       "max_client_weight = 1048577",
       {"23:21", "passes max_round_weight = 1048576", "lower the one or raise the other"}},
      {"max_round_weight = 1048576\nmax_client_weight = 1024\n",
       "max_round_weight = 1\nmax_client_weight = 1\n",
       {"27:11", "minimum = 2", "max_round_weight = 1", "no round could succeed"}},
      {"max_round_weight = 1048576\n",
       "max_round_weight = 1099511627777\n",
       {"22:20", "1 to 2^40", "lower"}},
      {"fraction_bits = 30",
       "bound = 1e9",
       {"21:9", "no grid is exact", "lower the largest weight"}},
      {"fraction_bits = 30", "bound = 0", {"21:9", "an element bound of 0 is out of range"}},
      {"fraction_bits = 30", "bound = nan", {"21:9", "out of range"}},
      {"\"1GiB\"",
       "\"10MiB\"",
       {"11:18", "holds not one update of model \"resnet18\"", "as int8", "raise it"}},
  });
}

TEST(ConfigTest, PoliciesAreHeldAgainstTheModelsTensors) {
  const char* policy = "\"bn1.num_batches_tracked\" = \"first\"";
  ExpectEach({
      {policy,
       "\"bn1.num_batch_tracked\" = \"first\"",
       {"25:27", "\"bn1.num_batch_tracked\" fits no tensor",
        "did you mean \"bn1.num_batches_tracked\"?"}},
      {policy, "\"encoder.*\" = \"skip\"", {"25:15", "\"encoder.*\" fits no tensor"}},
      {policy, "\"*\" = \"skip\"", {"24:1", "leave nothing of model \"resnet18\" to send"}},
  });
  EXPECT_EQ(Findings(Replaced(kRoot, policy, "\"layer1.*\" = \"skip\"")), "");
  EXPECT_EQ(Findings(Replaced(kRoot, policy, "\"*\" = \"skip\"\n\"fc.weight\" = \"mean\"")), "")
      << "a name goes before a prefix";
}

TEST(ConfigTest, RequiredKeysThatAreMissingAreNamed) {
  EXPECT_THAT(
      Findings(""),
      AllOf(HasSubstr("bad.toml: [node] name is required"), HasSubstr("[run] name is required"),
            HasSubstr("[run] model is required"), HasSubstr("[checkpoint] directory is required")));
}

TEST(ConfigTest, ARackDoesNotDescribeTheRun) {
  EXPECT_THAT(Findings(absl::StrCat(kRack, "[run]\nname = \"r\"\n")),
              AllOf(HasSubstr("bad.toml:5:1: [run] describes the run"),
                    HasSubstr("move it to the root's file"), HasSubstr("bad.toml:4:10")));
}

TEST(ConfigTest, AllMistakesAreNamedAtOnceInOrder) {
  const std::string findings = Findings(
      Replaced(Replaced(Replaced(kRoot, "lanes = 2", "lanes = 0"), "rounds = 3", "runds = 3"),
               "lr = 0.05", "lr = -1"));
  const size_t lanes = findings.find("bad.toml:7:9: "), rounds = findings.find("\nbad.toml:17:1: "),
               lr = findings.find("\nbad.toml:39:6: ");
  EXPECT_LT(lanes, rounds) << findings;
  EXPECT_LT(rounds, lr) << findings;
  EXPECT_NE(lr, std::string::npos) << findings;
}

TEST(ConfigTest, WhatIsNotTomlNamesThePlace) {
  EXPECT_THAT(Findings("[node]\nname = \"x\nlisten = 1\n"), HasSubstr("bad.toml:2:"));
  EXPECT_THAT(Findings("[node]\nname = \"x\"\nname = \"y\"\n"), HasSubstr("bad.toml:3:"));
}

TEST(ConfigTest, EveryKeyIsAnnotatedInConfigs) {
  ExpectAnnotated(ConfigKeys(),
                  {"async.toml", "flat.toml", "global.toml", "rack.toml", "three-tier/global.toml",
                   "three-tier/rack.toml", "three-tier/region.toml"});
}

TEST(ConfigTest, AClientsConfigIsToldFromAnAggregators) {
  const auto config = LoadConfig(absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs/client.toml"));
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(Text(config.status()),
              AllOf(HasSubstr("client.toml:"), HasSubstr("this is a client's config"),
                    HasSubstr("tributary-client")));
}

// ---- Files

class ConfigFilesTest : public testing::Test {
 protected:
  ConfigFilesTest() {
    std::string pattern = (fs::temp_directory_path() / "tributary-config-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~ConfigFilesTest() override { fs::remove_all(dir_); }
  std::string dir_;
};

TEST_F(ConfigFilesTest, AMissingFileOrADirectoryIsNotFound) {
  for (const std::string& path : {dir_ + "/none.toml", dir_}) {
    const auto config = LoadConfig(path);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(Text(config.status()), HasSubstr(path));
  }
}

TEST_F(ConfigFilesTest, FilesThatCannotBeWrittenOrReadAreRefused) {
  std::ofstream(dir_ + "/file") << "x";
  const auto with = [&](const char* from, const std::string& to) {
    return Findings(Replaced(kRoot, from, to));
  };
  EXPECT_THAT(with("level = \"info\"", absl::StrFormat("file = \"%s\"", dir_)),
              AllOf(HasSubstr("bad.toml:14:8: [log] file"), HasSubstr("is a directory")));
  EXPECT_THAT(with("level = \"info\"", absl::StrFormat("file = \"%s/none/log\"", dir_)),
              AllOf(HasSubstr("bad.toml:14:8: [log] file"), HasSubstr("no directory"),
                    HasSubstr("make it")));
  EXPECT_THAT(with("[log]\n", absl::StrFormat("[metrics]\nrounds_file = \"%s\"\n[log]\n", dir_)),
              HasSubstr("bad.toml:14:15: [metrics] rounds_file"));
  EXPECT_THAT(with("\"checkpoints\"", absl::StrFormat("\"%s/file\"", dir_)),
              AllOf(HasSubstr("bad.toml:36:13: [checkpoint] directory"), HasSubstr("is a file")));
  EXPECT_THAT(with("\"resnet18\"", absl::StrFormat("\"%s/none.safetensors\"", dir_)),
              HasSubstr("bad.toml:19:9: [run] model: no file"));
  std::ofstream(dir_ + "/bad.safetensors") << "not a model at all";
  EXPECT_THAT(with("\"resnet18\"", absl::StrFormat("\"%s/bad.safetensors\"", dir_)),
              AllOf(HasSubstr("bad.toml:19:9: [run] model:"), HasSubstr("bad.safetensors")));
}

}  // namespace
}  // namespace tributary::server
