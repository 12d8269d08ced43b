// Error feedback as bookkeeping: nothing is lost over many rounds, across restarts, and where
// rounds are lost.
#include "client/internal/residuals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cmath>

#include <filesystem>
#include <fstream>
#include <span>

#include "aggregation/grid.h"
#include "base/philox.h"
#include "client/internal/encode.h"
#include "compression/policy.h"
#include "compression/segment.h"

namespace tributary::client::internal {
namespace {

using ::testing::HasSubstr;

class File {
 public:
  File() : path_(::testing::TempDir() + "residuals_test_" + std::to_string(getpid())) {}
  ~File() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

std::vector<float> Carried(const ResidualStore& store, size_t n) {
  std::vector<float> carried(n, 0.0f);
  const Wide<const float> residual = store.CommittedWide(0, n, Kept::kResidual);
  for (size_t i = 0; i < residual.size(); ++i) carried[i] = static_cast<float>(residual[i]);
  return carried;
}

// Multiples of 2^-20 below 2^-8.
std::vector<float> GridUpdate(PhiloxStream* random, size_t n) {
  std::vector<float> x(n);
  for (float& v : x) {
    v = std::ldexp(static_cast<float>(static_cast<int>(random->NextBelow(8192)) - 4096), -20);
  }
  return x;
}

constexpr size_t kElements = 4096;
constexpr int kFractionBits = 30;

// Fifty updates that a client's thousand are drawn from. Most of their elements have bits that lie
// below the grid's unit, some are below it altogether.
const std::vector<std::vector<float>>& Updates() {
  static const auto* updates = [] {
    PhiloxStream random(12);
    auto* made = new std::vector<std::vector<float>>;
    for (int u = 0; u < 50; ++u) {
      made->push_back(GridUpdate(&random, kElements));
      for (float& v : made->back()) {
        v = std::ldexp(v * static_cast<float>(random.NextDouble()),
                       -static_cast<int>(random.NextBelow(24)));
      }
    }
    return made;
  }();
  return *updates;
}

// rne(value * 2^f), the double multiplied being exact.
int64_t Units(double value) { return std::llrint(std::ldexp(value, kFractionBits)); }

// Adds what an aggregator folds of the segments, with weight 601; false, and nothing is added,
// where it would refuse one.
constexpr int64_t kWeight = 601;
bool FoldAll(const Segments& segments, const aggregation::Grid& grid, std::vector<int64_t>* sums) {
  for (const bool fold : {false, true}) {
    for (const std::vector<uint8_t>& segment : segments) {
      const PiecedBytes bytes{ByteSpan(segment)};
      ByteCursor cursor(bytes);
      const auto header = *compression::ReadSegmentHeader(&cursor);
      const auto codec = *compression::CodecFromHeader(header.codec, header.parameter);
      const PiecedBytes payload{ByteSpan(segment).subspan(compression::SegmentHeader::kBytes)};
      if (!fold && !codec->Validate(payload, header.count, grid.bound).ok()) return false;
      if (!fold) continue;
      codec->Fold(payload, 0, header.count,
                  {.fraction_bits = grid.fraction_bits, .weight = kWeight},
                  sums->data() + header.first);
    }
  }
  return true;
}

// weight * (sum of what fp32 would have sent in the rounds that counted - residual) is what the
// aggregator summed, in its own integers; of ef21, weight * estimate is.
void ExpectConservation(const std::string& spec) {
  SCOPED_TRACE(spec);
  const auto policy = compression::CodecPolicy::Parse(spec);
  ASSERT_TRUE(policy.ok()) << policy.status();
  const auto layout = *aggregation::ModelLayout::Create(
      {{"w", {32, kElements / 32}, aggregation::DType::kF32, aggregation::Policy::kMean}});
  ResidualStore store;
  std::vector<int64_t> sums(kElements), updates(kElements);
  PhiloxStream random(13);
  int lost = 0;
  for (uint64_t round = 1; round <= 1000; ++round) {
    TrainResult result;
    result.floats = {Updates()[random.NextBelow(Updates().size())]};
    const std::vector<float> update = result.floats[0];
    v1::RoundSpec task;
    task.set_round(round);
    task.set_seed(5);
    *task.mutable_grid() = aggregation::Grid{.fraction_bits = kFractionBits}.ToProto();
    const auto encoded = Encode(*layout, **policy, task, "client", std::move(result), &store);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    if (random.NextBelow(10) < 3) {
      ++lost;
      store.Rollback(round);
      continue;
    }
    store.Commit(round);
    ASSERT_TRUE(FoldAll(*encoded->segments, {.fraction_bits = kFractionBits}, &sums));
    for (size_t i = 0; i < kElements; ++i) updates[i] += Units(double{update[i]});
  }
  EXPECT_GT(lost, 200);
  const bool estimate = (*policy)->estimates();
  const Wide<const float> kept =
      store.CommittedWide(0, kElements, estimate ? Kept::kEstimate : Kept::kResidual);
  ASSERT_EQ(kept.size(), kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const int64_t units = Units(kept[i]);
    ASSERT_EQ(std::ldexp(static_cast<double>(units), -kFractionBits), kept[i]) << i;
    ASSERT_EQ(sums[i], kWeight * (estimate ? units : updates[i] - units)) << i;
  }
}

TEST(Conservation, OverAThousandRoundsOfWhichThirtyPercentAreLostNotAUnitOfTheGridIsMissing) {
  for (const char* spec : {"topk(0.01)",
                           "topk(0.01, values=fp16) | ef | zstd",
                           "topk(0.01, values=int8)",
                           "topk(0.01, values=ternary)",
                           "topk(0.01, values=ternary, across=model, gain=1.5, warmup=20)",
                           "fp16 | ef",
                           "bf16 | ef",
                           "int8 | ef",
                           "int8(rounding=nearest) | ef | lz4",
                           "int4 | ef",
                           "int4(rounding=nearest) | ef | zeros",
                           "int2(rounding=nearest) | ef",
                           "fp8 | ef",
                           "fp8(format=e5m2) | ef",
                           "mxfp8 | ef",
                           "mxfp8(format=e5m2) | ef",
                           "mxfp4 | ef",
                           "mxint8 | ef",
                           "sign",
                           "sign(mode=vote, step=2^-9) | ef",
                           "sign(mode=vote, step=2^-33) | ef",
                           "hq(bits=4, step=2^-10)",
                           "hq(bits=8, step=2^-16)",
                           "hq(bits=8, step=2^-32)",
                           "randk(0.05, scaled=no)",
                           "randk(0.05, scaled=no, values=fp16)",
                           "eden(bits=1) | ef",
                           "eden(bits=4) | ef",
                           "powersgd(rank=2)",
                           "int8 | ef21",
                           "sign | ef21",
                           "topk(0.01) | ef21",
                           "topk(0.01, values=ternary) | ef21"}) {
    ExpectConservation(spec);
  }
}

// By hand, in units: 3.25 is less than half a step of 2^20 and stays, as 3.
TEST(Conservation, TheResidualIsInWholeUnitsAfterDecay) {
  const double unit = std::ldexp(1, -kFractionBits);
  const auto layout = *aggregation::ModelLayout::Create(
      {{"w", {2}, aggregation::DType::kF32, aggregation::Policy::kMean}});
  const auto policy = *compression::CodecPolicy::Parse(
      "fp32; w = hq(step=2^-10, rounding=nearest) | ef(decay=0.5)");
  ResidualStore store;
  v1::RoundSpec task;
  *task.mutable_grid() = aggregation::Grid{.fraction_bits = kFractionBits}.ToProto();
  const auto send = [&](uint64_t round, float a, float b) {
    task.set_round(round);
    TrainResult result;
    result.floats = {{a, b}};
    const auto encoded = Encode(*layout, *policy, task, "client", std::move(result), &store);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    store.Commit(round);
  };
  const auto expect = [&](double a, double b) {
    const Wide<const float> kept = store.CommittedWide(0, 2, Kept::kResidual);
    ASSERT_EQ(kept.size(), 2u);
    EXPECT_EQ(kept[0], a * unit);
    EXPECT_EQ(kept[1], b * unit);
  };
  send(1, static_cast<float>(3.25 * unit), 0x1p-10f);
  expect(3, 0);
  // rne(1.75) + rne(0.5 * 3 = 1.5, to even: 2) = 4.
  send(2, static_cast<float>(1.75 * unit), 0);
  expect(4, 0);
}

// At a grid of 2^50 units, which is as fine as one may be, PowerSGD's residuals are as large as its
// updates.
TEST(Conservation, HoldsOnTheFinestGrid) {
  const aggregation::Grid grid{.fraction_bits = 40, .bound = 1024, .max_weight = 8000};
  const auto layout = *aggregation::ModelLayout::Create(
      {{"w", {64, 96}, aggregation::DType::kF32, aggregation::Policy::kMean}});
  const auto policy = *compression::CodecPolicy::Parse("powersgd(rank=2)");
  constexpr size_t kAll = 64 * 96;
  ResidualStore store;
  PhiloxStream random(16);
  std::vector<int64_t> sums(kAll), updates(kAll);
  int counted = 0;
  for (uint64_t round = 1; round <= 10; ++round) {
    v1::RoundSpec task;
    task.set_round(round);
    *task.mutable_grid() = grid.ToProto();
    TrainResult result;
    result.floats.emplace_back(kAll);
    for (float& v : result.floats[0]) {
      v = static_cast<float>((random.NextDouble() - 0.5) * 400);
    }
    const std::vector<float> update = result.floats[0];
    const auto encoded = Encode(*layout, *policy, task, "client", std::move(result), &store);
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    if (!FoldAll(*encoded->segments, grid, &sums)) {
      store.Rollback(round);
      continue;
    }
    store.Commit(round);
    ++counted;
    for (size_t i = 0; i < kAll; ++i) {
      updates[i] += std::llrint(std::ldexp(double{update[i]}, grid.fraction_bits));
    }
  }
  ASSERT_GE(counted, 5);
  const Wide<const float> kept = store.CommittedWide(0, kAll, Kept::kResidual);
  ASSERT_EQ(kept.size(), kAll);
  double largest = 0;
  for (size_t i = 0; i < kAll; ++i) {
    const double units = std::ldexp(kept[i], grid.fraction_bits);
    largest = std::max(largest, std::abs(units));
    ASSERT_EQ(sums[i], kWeight * (updates[i] - static_cast<int64_t>(units))) << i;
  }
  EXPECT_GT(largest, 0x1p48) << "two floats would have held them";
}

TEST(WideNumbers, AreDoubles) {
  std::vector<float> upper(1), lower(1);
  const Wide<float> wide{upper, lower};
  PhiloxStream random(15);
  for (int i = 0; i < 100'000; ++i) {
    const auto units = static_cast<int64_t>(random.Next64() >> (11 + i % 53));
    for (const int64_t n : {units, -units}) {
      const double value = std::ldexp(static_cast<double>(n), -kFractionBits);
      wide.Set(0, value);
      ASSERT_EQ(wide[0], value) << n;
    }
  }
}

class Fixture {
 public:
  explicit Fixture(const std::string& codec)
      : policy(*compression::CodecPolicy::Parse(codec)),
        layout(*aggregation::ModelLayout::Create(
            {{"w", {64, 96}, aggregation::DType::kF32, aggregation::Policy::kMean},
             {"b", {10}, aggregation::DType::kF32, aggregation::Policy::kMean}})) {}
  // The bytes that a client sends for a round's delta.
  std::vector<uint8_t> Send(ResidualStore* store, uint64_t round, float times = 1) const {
    v1::RoundSpec spec;
    spec.set_round(round);
    spec.set_seed(3);
    *spec.mutable_grid() = aggregation::Grid().ToProto();
    TrainResult result;
    PhiloxStream random(round);
    for (const size_t n : {size_t{64 * 96}, size_t{10}}) {
      result.floats.push_back(GridUpdate(&random, n));
      for (float& v : result.floats.back()) v *= times;
    }
    auto delta = Encode(*layout, *policy, spec, "client", std::move(result), store);
    EXPECT_TRUE(delta.ok()) << delta.status();
    largest = delta->largest;
    std::vector<uint8_t> all;
    for (const auto& segment : *delta->segments) {
      all.insert(all.end(), segment.begin(), segment.end());
    }
    return all;
  }

  const std::shared_ptr<const compression::CodecPolicy> policy;
  const std::shared_ptr<const aggregation::ModelLayout> layout;
  mutable std::optional<float> largest;
};

// PowerSGD's Q is committed, rolled back and kept in the file together with the residuals.
TEST(WarmStart, ComesFromTheLastRoundThatCountedAndSurvivesARestart) {
  const Fixture fixture("powersgd(rank=2)");
  const File file;
  ResidualStore steady, shaken, cold;
  std::vector<uint8_t> expected;
  for (ResidualStore* store : {&steady, &shaken}) {
    fixture.Send(store, 1);
    store->Commit(1);
  }
  expected = fixture.Send(&steady, 3);
  fixture.Send(&shaken, 2);
  shaken.Rollback(2);
  EXPECT_EQ(fixture.Send(&shaken, 3), expected) << "the lost round left no trace";
  EXPECT_NE(fixture.Send(&cold, 3), expected) << "a cold start is another";
  // Without the residual's part, the Q of the round before still makes a difference.
  EXPECT_EQ(shaken.Committed(0, Kept::kWarm).size(), 96u * 2);
  EXPECT_TRUE(shaken.Committed(1, Kept::kWarm).empty()) << "the bias goes as fp32";
  {
    ResidualStore first(file.path());
    first.Bind("run", "layout");
    fixture.Send(&first, 1);
    first.Commit(1);
    ASSERT_TRUE(first.Save().ok());
  }
  ResidualStore second(file.path());
  EXPECT_EQ(second.Bind("run", "layout"), "");
  EXPECT_EQ(fixture.Send(&second, 3), expected);
}

TEST(AgreedStep, IsFoundFromTheLargestOfWhatHqEncodesWithItsResidual) {
  const Fixture fixture("hq(bits=4, step=2^-12)");
  ResidualStore store;
  fixture.Send(&store, 1);
  ASSERT_TRUE(fixture.largest.has_value());
  PhiloxStream random(1);
  float largest = 0;
  for (const float v : GridUpdate(&random, 64 * 96)) largest = std::max(largest, std::abs(v));
  EXPECT_EQ(*fixture.largest, largest);
  store.Commit(1);
  fixture.Send(&store, 2, 0);
  EXPECT_NEAR(*fixture.largest, largest - 7 * 0x1p-12, 0x1p-12) << "what the round before cut off";
  const Fixture other("int8");
  other.Send(&store, 1);
  EXPECT_FALSE(other.largest.has_value());
}

// A stage behind hq hides its name: without the largest, the root would never agree on a step.
TEST(AgreedStep, IsFoundBehindStagesToo) {
  ResidualStore plain;
  const Fixture bare("hq(bits=4, step=2^-12)");
  bare.Send(&plain, 1);
  for (const char* spec : {"hq(bits=4, step=2^-12) | zstd", "hq(bits=4, step=2^-12) | zeros | lz4",
                           "int8; w = hq(bits=4, step=2^-12) | zeros"}) {
    ResidualStore store;
    const Fixture staged(spec);
    staged.Send(&store, 1);
    EXPECT_EQ(staged.largest, bare.largest) << spec;
  }
}

TEST(ResidualFile, GivesANewLifeWhatTheOldOneCommittedAndLeftPending) {
  const File file;
  {
    ResidualStore store(file.path());
    EXPECT_EQ(store.Bind("run", "layout"), "");
    store.Begin(7, 1);
    store.PendingWide(0, 2, Kept::kResidual).Set(0, 0.5);
    store.Commit(7);
    store.Begin(8, 1);
    store.PendingWide(0, 2, Kept::kResidual).Set(1, 0.25);
    ASSERT_TRUE(store.Save().ok());
  }
  for (const bool included : {true, false}) {
    ResidualStore store(file.path());
    EXPECT_EQ(store.Bind("run", "layout"), "");
    ASSERT_TRUE(store.pending());
    EXPECT_EQ(store.pending_round(), 8u);
    included ? store.Commit(8) : store.Rollback(8);
    EXPECT_EQ(Carried(store, 2),
              included ? (std::vector<float>{0, 0.25f}) : (std::vector<float>{0.5f, 0}));
  }
}

TEST(ResidualFile, OfAnotherLayoutOrRunIsDroppedAndSaysSo) {
  const File file;
  ResidualStore old(file.path());
  EXPECT_EQ(old.Bind("run", "layout"), "");
  old.Begin(1, 1);
  old.PendingWide(0, 1, Kept::kResidual).Set(0, 1);
  old.Commit(1);
  ASSERT_TRUE(old.Save().ok());
  for (const auto& [run, layout] : {std::pair{"run", "other"}, {"run2", "layout"}}) {
    ResidualStore store(file.path());
    EXPECT_THAT(store.Bind(run, layout), HasSubstr("starts again from zero"));
    EXPECT_EQ(Carried(store, 1), std::vector<float>{0});
  }
  EXPECT_THAT(old.Bind("run", "other"), HasSubstr("another run or model layout"));
  EXPECT_EQ(Carried(old, 1), std::vector<float>{0});
  EXPECT_EQ(old.Bind("run", "other"), "") << "said once";
}

TEST(ResidualFile, ThatIsDamagedAnywhereIsDroppedAndSaysSo) {
  const File file;
  ResidualStore store(file.path());
  store.Bind("run", "layout");
  store.Begin(1, 1);
  store.PendingWide(0, 3, Kept::kResidual).Set(0, 1);
  store.Commit(1);
  ASSERT_TRUE(store.Save().ok());
  std::ifstream in(file.path(), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  for (size_t at = 0; at < good.size(); ++at) {
    for (const bool cut : {false, true}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x40);
      if (cut) bad = good.substr(0, at);
      std::ofstream(file.path(), std::ios::binary | std::ios::trunc) << bad;
      ResidualStore reader(file.path());
      EXPECT_THAT(reader.Bind("run", "layout"), HasSubstr("is damaged")) << at;
      EXPECT_EQ(Carried(reader, 3), std::vector<float>(3, 0));
    }
  }
}

TEST(ResidualFile, ThatCannotBeWrittenIsAnErrorWithItsName) {
  ResidualStore store("/nowhere/at/all");
  store.Bind("run", "layout");
  EXPECT_THAT(std::string(store.Save().message()), HasSubstr("/nowhere/at/all"));
}

}  // namespace
}  // namespace tributary::client::internal
