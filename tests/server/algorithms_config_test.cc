// What SCAFFOLD and FedDyn do not go with is said with place, reason and mend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/config.h"

namespace tributary::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// [training] begins in line 9; `more` follows it.
std::string Findings(const std::string& training, const std::string& more = "",
                     const std::string& model = "logreg") {
  const auto config = ParseConfig(
      absl::StrCat("[node]\nname = \"r\"\n[run]\nname = \"r\"\nmodel = \"", model,
                   "\"\n[checkpoint]\ndirectory = \"checkpoints\"\n[cohort]\n[training]\n",
                   training, "\n", more),
      "c.toml");
  return config.ok() ? "" : Text(config.status());
}

constexpr char kScaffold[] = "scaffold = 1\npopulation_weight = 100";
constexpr char kFedDyn[] = "feddyn = 0.1\npopulation_weight = 100";

TEST(AlgorithmsConfig, AreReadAndHandedToClients) {
  EXPECT_EQ(Findings(kScaffold), "");
  EXPECT_EQ(Findings(kFedDyn), "");
  EXPECT_EQ(Findings(kScaffold, "[compression]\ncodec = \"topk(0.1) | ef; scaffold.* = int8\""),
            "");
  EXPECT_EQ(Findings(kScaffold, "[aggregation]\noptimizer = \"fedadam\""), "");
  EXPECT_EQ(Findings(kFedDyn, "[compression]\ncodec = \"int8\"\ndownlink = \"int8\""), "");
}

TEST(AlgorithmsConfig, NeedTheWeightOfAllClients) {
  EXPECT_THAT(Findings("scaffold = 1"),
              AllOf(HasSubstr("c.toml:10:12: "), HasSubstr("give population_weight")));
  EXPECT_THAT(Findings("feddyn = 0.1"),
              AllOf(HasSubstr("c.toml:10:10: "), HasSubstr("give population_weight")));
  EXPECT_THAT(Findings("population_weight = 5"),
              AllOf(HasSubstr("c.toml:10:21: "), HasSubstr("does nothing without")));
  EXPECT_THAT(Findings("scaffold = 0.5\npopulation_weight = 5"), HasSubstr("0 or 1"));
}

TEST(AlgorithmsConfig, ExcludeEachOther) {
  EXPECT_THAT(Findings(absl::StrCat(kScaffold, "\nfeddyn = 0.1")),
              HasSubstr("scaffold and feddyn above 0 exclude each other"));
  EXPECT_THAT(Findings(absl::StrCat(kScaffold, "\nfednova = 1")),
              HasSubstr("scaffold and fednova above 0 exclude each other"));
  EXPECT_THAT(Findings(absl::StrCat(kFedDyn, "\nmu = 1")),
              HasSubstr("feddyn and mu above 0 exclude each other"));
}

TEST(AlgorithmsConfig, ExcludeWhatChangesWeightsOrHasNoRounds) {
  const std::string fractions = "[aggregation]\nfractional_weights = true\n";
  for (const char* algorithm : {kScaffold, kFedDyn}) {
    EXPECT_THAT(Findings(algorithm, fractions + "[straggler]\nlate = \"carry\""),
                AllOf(HasSubstr("c.toml:10:"), HasSubstr("weight to stay what it is")));
    EXPECT_THAT(Findings(algorithm, fractions + "mode = \"async\""),
                AllOf(HasSubstr("c.toml:10:"), HasSubstr("set [aggregation] mode = \"sync\"")));
  }
  EXPECT_THAT(Findings(kScaffold, "[compression]\ndownlink = \"int8\""),
              AllOf(HasSubstr("c.toml:13:12: "), HasSubstr("control variate")));
}

TEST(AlgorithmsConfig, ScaffoldsVariatesTakeCodecsThatClientsCanFollow) {
  for (const char* codec : {"topk(0.1) | ef; small = topk(0.1) | ef", "sketch(0.5)"}) {
    EXPECT_THAT(Findings(kScaffold, absl::StrCat("[compression]\ncodec = \"", codec, "\"")),
                AllOf(HasSubstr("c.toml:13:9: "), HasSubstr("\"scaffold.fc."),
                      HasSubstr("\"; scaffold.* = int8\"")))
        << codec;
  }
}

TEST(AlgorithmsConfig, ErrorFeedbackForAllRulesIsNotForScaffoldsVariates) {
  for (const char* codec : {"int8", "topk(0.1); scaffold.* = int8"}) {
    EXPECT_THAT(
        Findings(kScaffold,
                 absl::StrCat("[compression]\ncodec = \"", codec, "\"\nerror_feedback = true")),
        AllOf(HasSubstr("c.toml:14:18: "), HasSubstr("\"scaffold.fc."), HasSubstr("leave it out"),
              HasSubstr("\"topk(0.01) | ef; scaffold.* = int8\"")))
        << codec;
  }
  EXPECT_EQ(Findings(kScaffold,
                     "[compression]\ncodec = \"int8; scaffold.* = fp32\"\n"
                     "error_feedback = true"),
            "")
      << "what is exact is followed";
  EXPECT_EQ(Findings(kFedDyn, "[compression]\ncodec = \"int8\"\nerror_feedback = true"), "");
}

TEST(AlgorithmsConfig, FedDynHasAServerStepOfItsOwn) {
  EXPECT_THAT(Findings(kFedDyn, "[aggregation]\noptimizer = \"fedadam\""),
              AllOf(HasSubstr("c.toml:13:13: "), HasSubstr("whose server step is its own")));
  EXPECT_THAT(Findings(kFedDyn, "[aggregation]\nserver_learning_rate = 0.5"),
              HasSubstr("server_learning_rate does nothing with [training] feddyn"));
}

TEST(AlgorithmsConfig, RacksOwnRoundsExcludeWhatOnlyTheRootOrAClientCanUndo) {
  const auto with = [](const std::string& more, int rounds = 2) {
    const auto config = ParseConfig(
        absl::StrCat(
            "[node]\nname = \"r\"\n[run]\nname = \"r\"\nmodel = \"logreg\"\nrack_rounds = ", rounds,
            "\n[checkpoint]\ndirectory = \"checkpoints\"\n", more),
        "c.toml");
    return config.ok() ? "" : Text(config.status());
  };
  EXPECT_EQ(with(""), "");
  EXPECT_EQ(with("[training]\nmu = 0.1\n[compression]\ncodec = \"int8\""), "");
  EXPECT_EQ(with("[training]\nfednova = 1", 1), "");
  EXPECT_THAT(with("", 0), AllOf(HasSubstr("c.toml:6:15: "), HasSubstr("1")));
  EXPECT_THAT(with("", 1001), HasSubstr("c.toml:6:15: "));
  for (const std::string algorithm : {"fednova = 1", kScaffold, kFedDyn}) {
    EXPECT_THAT(with("[training]\n" + algorithm),
                AllOf(HasSubstr("c.toml:6:15: "), HasSubstr("the root's alone")));
  }
  EXPECT_THAT(with("[aggregation]\nfractional_weights = true\nmode = \"async\""),
              HasSubstr("there are no rounds"));
  EXPECT_THAT(with("[aggregation]\nfractional_weights = true\n[straggler]\nlate = \"carry\""),
              HasSubstr("late = \"carry\""));
  EXPECT_THAT(with("[compression]\ndownlink = \"int8\""), HasSubstr("go down whole"));
  EXPECT_THAT(with("[compression]\ncodec = \"topk(0.1) | ef\""), HasSubstr("rolled back"));
  EXPECT_THAT(with("[compression]\ncodec = \"int8\"\nerror_feedback = true"),
              AllOf(HasSubstr("c.toml:6:15: "), HasSubstr("[compression] error_feedback"),
                    HasSubstr("rolled back")));
  EXPECT_THAT(with("[compression]\ncodec = \"sketch(0.5)\""), HasSubstr("taken apart"));
}

TEST(EvaluationConfig, NamesAProgramThatIsThere) {
  EXPECT_EQ(Findings("", "[evaluation]\ncommand = [\"/bin/sh\", \"-c\", \"cat\"]\nevery = 3"), "");
  EXPECT_EQ(Findings("", "[evaluation]\ncommand = \"sh\""), "");
  EXPECT_THAT(Findings("", "[evaluation]\nevery = 3"),
              AllOf(HasSubstr("c.toml:11:1: "), HasSubstr("command is required")));
  EXPECT_THAT(Findings("", "[evaluation]\ncommand = []"),
              AllOf(HasSubstr("c.toml:12:11: "), HasSubstr("command is required")));
  EXPECT_THAT(Findings("", "[evaluation]\ncommand = [\"no-such-program\"]"),
              AllOf(HasSubstr("c.toml:12:11: "), HasSubstr("nor in PATH")));
  EXPECT_THAT(Findings("", "[evaluation]\ncommand = \"sh\"\nevery = 0"),
              HasSubstr("c.toml:13:9: "));
  const auto rack = ParseConfig(
      "[node]\nname = \"r\"\nparent = [\"h:1\"]\n[evaluation]\ncommand = \"sh\"\n", "c.toml");
  EXPECT_THAT(Text(rack.status()), HasSubstr("[evaluation] describes the run"));
}

TEST(AlgorithmsConfig, ScaffoldNeedsAnAveragedTensor) {
  EXPECT_THAT(Findings(kScaffold, "[aggregation.policies]\n\"fc.*\" = \"sum\""),
              AllOf(HasSubstr("c.toml:10:12: "), HasSubstr("no such float tensor")));
}

}  // namespace
}  // namespace tributary::server
