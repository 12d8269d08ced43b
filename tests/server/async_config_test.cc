// [async]: what it gives, and each mistake named with its place and its mend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/config.h"
#include "server/internal/async_proto.h"

namespace tributary::server {
namespace {

using ::testing::HasSubstr;

std::string Root(const std::string& aggregation, const std::string& more) {
  return absl::StrCat(
      "[node]\nname = \"g\"\n[run]\nname = \"r\"\nmodel = \"logreg\"\n[checkpoint]\ndirectory = "
      "\"d\"\n[aggregation]\n",
      aggregation, "\n", more);
}

std::string Error(const std::string& aggregation, const std::string& more) {
  const auto config = ParseConfig(Root(aggregation, more), "f.toml");
  return config.ok() ? "none" : Text(config.status());
}

constexpr char kAsync[] = "mode = \"async\"\nfractional_weights = true";
constexpr char kFedAsync[] = "mode = \"fedasync\"\nfractional_weights = true";

TEST(AsyncConfig, ReadsItsSection) {
  const auto config =
      ParseConfig(Root(kAsync,
                       "[async]\nbuffer = 7\nconcurrency = 20\nmax_staleness = 3\nflush_s = "
                       "1.5\ncollect_s = 4\n[straggler]\ndeadline_s = 90"),
                  "f.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  v1::RoundSpec spec;
  *spec.mutable_asynchronous() = AsyncProto(*config);
  spec.set_deadline_ms(90'000);
  spec.set_max_client_weight(5);
  aggregation::Grid grid;
  grid.max_weight = 11;
  const aggregation::AsyncPlan plan = AsyncPlanOf(spec, grid);
  EXPECT_EQ(plan.buffer, 7u);
  EXPECT_EQ(plan.concurrency, 20u);
  EXPECT_EQ(plan.max_staleness, 3u);
  EXPECT_EQ(plan.flush_after, absl::Milliseconds(1500));
  EXPECT_EQ(plan.collect_within, absl::Seconds(4));
  EXPECT_EQ(plan.task_limit, absl::Seconds(90));
  EXPECT_EQ(plan.max_weight, 11u);
  EXPECT_EQ(plan.max_client_weight, 5u);
  EXPECT_EQ(spec.asynchronous().mixing(), 0);
  const auto fedasync = ParseConfig(Root(kFedAsync, ""), "f.toml");
  ASSERT_TRUE(fedasync.ok()) << fedasync.status();
  EXPECT_EQ(AsyncProto(*fedasync).buffer(), 1u);
  EXPECT_EQ(AsyncProto(*fedasync).mixing(), 0.6);
}

TEST(AsyncConfig, MistakesAreNamedWithTheirMend) {
  EXPECT_THAT(Error("mode = \"asynch\"", ""), HasSubstr("\"asynch\""));
  EXPECT_THAT(Error("", "[async]\nbuffer = 3"), HasSubstr("f.toml:10:1: [async] does nothing"));
  EXPECT_THAT(Error("mode = \"async\"", ""), HasSubstr("set fractional_weights = true"));
  EXPECT_THAT(Error(kFedAsync, "[async]\nbuffer = 3"), HasSubstr("applies each update by itself"));
  EXPECT_THAT(Error(kAsync, "[async]\nmixing = 0.5"),
              HasSubstr("use [aggregation] server_learning"));
  EXPECT_THAT(Error(kAsync, "[async]\nbuffer = 0"), HasSubstr("[async] buffer"));
  EXPECT_THAT(Error(kAsync, "[async]\nbuffer = 10000\nmax_staleness = 100"),
              HasSubstr("a million at most"));
  EXPECT_THAT(Error(kAsync, "[async]\nbufer = 3"), HasSubstr("did you mean \"buffer\""));
  EXPECT_THAT(Error(kAsync, "[cohort]\nfraction = 0.5"), HasSubstr("[async] concurrency"));
  EXPECT_THAT(Error(kAsync, "[straggler]\nlate = \"carry\""), HasSubstr("nobody is waited for"));
  EXPECT_THAT(Error(kAsync, "[training]\nfednova = 1"), HasSubstr("set fednova = 0"));
}

// Codecs that go by rounds.
TEST(AsyncConfig, RefusesSketchesAndTheAgreedStep) {
  for (const char* mode : {kAsync, kFedAsync}) {
    EXPECT_THAT(Error(mode, "[compression]\ncodec = \"sketch(0.2); small = fp32\""),
                HasSubstr("take topk, or mode = \"sync\""));
    EXPECT_THAT(Error(mode, "[compression]\ncodec = \"hq(bits=4, step=auto)\""),
                HasSubstr("give the step, as in hq(step=2^-12)"));
    EXPECT_EQ(Error(mode, "[compression]\ncodec = \"hq(bits=4, step=2^-9)\""), "none");
  }
}

// alpha / sqrt(1 + tau) for one; for several the mean of it, weighted by examples: with weights of
// 4 and 1 examples, 3 and 0 versions old, folded as 2 and 1: 0.6 * (4 * 0.5 + 1 * 1) / 5 = 0.36.
TEST(AsyncConfig, FedAsyncMixesByAge) {
  EXPECT_DOUBLE_EQ(MixingOf(0.6, {{"a", 0, 3, 2 * 65536}}), 0.3);
  EXPECT_DOUBLE_EQ(MixingOf(0.6, {{"a", 0, 3, 2 * 65536}, {"b", 3, 0, 65536}}), 0.36);
}

}  // namespace
}  // namespace tributary::server
