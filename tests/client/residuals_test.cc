// Error feedback as bookkeeping: nothing is lost over many rounds, across restarts, and where
// rounds are lost.
#include "client/internal/residuals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <cmath>

#include <filesystem>
#include <fstream>
#include <functional>
#include <span>

#include "base/philox.h"
#include "client/internal/encode.h"
#include "compression/policy.h"

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
  std::vector<float> zero(n, 0.0f);
  store.AddTo(0, zero);
  return zero;
}

// Multiples of 2^-20 below 1: every sum here is exact in binary32.
std::vector<float> GridUpdate(PhiloxStream* random, size_t n) {
  std::vector<float> x(n);
  for (float& v : x) {
    v = std::ldexp(static_cast<float>(static_cast<int>(random->NextBelow(8192)) - 4096), -20);
  }
  return x;
}

constexpr size_t kElements = 4096;

// What a client's updates of a thousand rounds are drawn from.
const std::vector<std::vector<float>>& Updates() {
  static const auto* updates = [] {
    PhiloxStream random(12);
    auto* made = new std::vector<std::vector<float>>;
    for (int u = 0; u < 50; ++u) made->push_back(GridUpdate(&random, kElements));
    return made;
  }();
  return *updates;
}

// Of a codec whose scales are of any 24 bits, no residual is a whole number of the grid's units,
// unless the blocks are such that their scales are. `x` is what is about to be encoded; changing
// it is another update of the trainer's.
using Complete = std::function<void(std::span<float> x)>;

// int8 and int4: a block's first element, larger than all others, gives a scale of a power of two.
Complete LargestIs(float largest) {
  return [largest](std::span<float> x) {
    for (size_t i = 0; i < x.size(); i += 128) x[i] = largest;
  };
}

// sign: a block's last element makes the mean magnitude a multiple of 2^-20.
void CompleteTheMean(std::span<float> x) {
  constexpr size_t kBlock = 1024;
  for (size_t i = 0; i < x.size(); i += kBlock) {
    double sum = 0;
    for (size_t j = i; j + 1 < i + kBlock; ++j) sum += std::abs(double{x[j]});
    x[i + kBlock - 1] = static_cast<float>(std::ceil(sum * 0x1p10) * 0x1p-10 - sum);
  }
}

// A client's rounds, of which three in ten are lost. each(update, x, payload, residual) of every
// round that counted: `x` was encoded.
template <class Each>
void RunRounds(const compression::Codec& codec, const std::vector<std::vector<float>>& updates,
               const Complete& complete, ResidualStore* store, Each each) {
  PhiloxStream random(13);
  int lost = 0;
  for (uint32_t round = 1; round <= 1000; ++round) {
    const std::vector<float> carried = Carried(*store, kElements);
    std::vector<float> x = updates[random.NextBelow(updates.size())];
    if (complete) {
      for (size_t i = 0; i < kElements; ++i) x[i] += carried[i];
      complete(x);
      for (size_t i = 0; i < kElements; ++i) x[i] -= carried[i];
    }
    const std::vector<float> update = x;
    store->Begin(round, 1);
    store->AddTo(0, x);
    std::vector<uint8_t> payload;
    ASSERT_TRUE(codec.Encode(x, {.round = round}, &payload, store->Pending(0, kElements)).ok());
    if (random.NextBelow(10) < 3) {
      ++lost;
      store->Rollback(round);
      continue;
    }
    store->Commit(round);
    each(update, x, payload, Carried(*store, kElements));
  }
  EXPECT_GT(lost, 200);
}

constexpr compression::GridFold kGrid{.fraction_bits = 30, .weight = 601};

// In units of the grid; `whole` becomes false where it is between two.
int64_t Units(double value, bool* whole) {
  const double units = std::ldexp(value, kGrid.fraction_bits);
  *whole = *whole && units == std::nearbyint(units);
  return static_cast<int64_t>(units);
}

// weight * (sum of the updates of the rounds that counted - residual) = what the aggregator summed,
// in its own integers; and of the floats that it would decode.
void ExpectConservation(const std::string& spec, const Complete& complete = nullptr) {
  SCOPED_TRACE(spec);
  const auto policy = compression::CodecPolicy::Parse(spec);
  ASSERT_TRUE(policy.ok()) << policy.status();
  const compression::TensorCodec& chosen = (*policy)->For("w", kElements, 2);
  ASSERT_TRUE(chosen.error_feedback);
  ResidualStore store;
  std::vector<int64_t> sums(kElements), updates(kElements);
  std::vector<double> sent(kElements);
  std::vector<float> decoded(kElements);
  bool whole = true;
  RunRounds(*chosen.codec, Updates(), complete, &store,
            [&](const auto& update, const auto&, const auto& payload, const auto&) {
              const PiecedBytes bytes{ByteSpan(payload)};
              ASSERT_EQ(chosen.codec->Validate(bytes, kElements, 4096), absl::OkStatus());
              chosen.codec->Fold(bytes, 0, kElements, kGrid, sums.data());
              chosen.codec->Decode(bytes, decoded);
              for (size_t i = 0; i < kElements; ++i) {
                updates[i] += Units(double{update[i]}, &whole);
                sent[i] += double{decoded[i]};
              }
            });
  const std::vector<float> residual = Carried(store, kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const int64_t left = Units(double{residual[i]}, &whole);
    ASSERT_EQ(sums[i], kGrid.weight * (updates[i] - left)) << i;
    ASSERT_EQ(sent[i] + double{residual[i]},
              std::ldexp(static_cast<double>(updates[i]), -kGrid.fraction_bits))
        << i;
  }
  EXPECT_TRUE(whole) << "an update or a residual is not a whole number of the grid's units";
}

TEST(Conservation, OverAThousandRoundsOfWhichThirtyPercentAreLostNotAUnitOfTheGridIsMissing) {
  ExpectConservation("topk(0.01)");
  ExpectConservation("topk(0.01, values=fp16) | ef | zstd");
  ExpectConservation("fp16 | ef");
  ExpectConservation("bf16 | ef");
  ExpectConservation("sign(mode=vote, step=2^-9) | ef");
  ExpectConservation("hq(bits=4, step=2^-10)");
  ExpectConservation("randk(0.05, scaled=no)");
  ExpectConservation("mxint8 | ef");
  ExpectConservation("mxfp4 | ef");
  ExpectConservation("mxfp8 | ef");
  ExpectConservation("mxfp8(format=e5m2) | ef");
  ExpectConservation("int8 | ef", LargestIs(127 * 0x1p-10f));
  ExpectConservation("int8(rounding=nearest) | ef | lz4", LargestIs(127 * 0x1p-10f));
  ExpectConservation("int4 | ef", LargestIs(7 * 0x1p-9f));
  // To nearest: at random, what is left of an element may be nearly the largest.
  ExpectConservation("int2(rounding=nearest) | ef", LargestIs(0x1p-7f));
  ExpectConservation("sign | ef", CompleteTheMean);
}

// Scales of 24 bits times codes: residuals are floats, and no float holds x less such a product.
// What may be missing is what rounding takes in each round that counted - of delta + residual, of
// the value to a float, of the residual, and of the value to the grid - and nothing else.
void ExpectConservationButForRounding(const std::string& spec) {
  SCOPED_TRACE(spec);
  const auto policy = compression::CodecPolicy::Parse(spec);
  ASSERT_TRUE(policy.ok()) << policy.status();
  const compression::TensorCodec& chosen = (*policy)->For("w", kElements, 2);
  ASSERT_TRUE(chosen.error_feedback);
  std::vector<std::vector<float>> finer = Updates();
  PhiloxStream random(14);
  for (std::vector<float>& update : finer) {
    for (float& v : update) v *= static_cast<float>(random.NextDouble());
  }
  ResidualStore store;
  std::vector<int64_t> sums(kElements);
  std::vector<double> updates(kElements), rounding(kElements);
  std::vector<float> decoded(kElements);
  RunRounds(*chosen.codec, finer, nullptr, &store,
            [&](const auto& update, const auto& x, const auto& payload, const auto& residual) {
              const PiecedBytes bytes{ByteSpan(payload)};
              chosen.codec->Fold(bytes, 0, kElements, kGrid, sums.data());
              chosen.codec->Decode(bytes, decoded);
              for (size_t i = 0; i < kElements; ++i) {
                updates[i] += double{update[i]};
                rounding[i] += 0x1p-24 * (std::abs(double{x[i]}) + std::abs(double{decoded[i]}) +
                                          std::abs(double{residual[i]})) +
                               std::ldexp(0.5, -kGrid.fraction_bits);
              }
            });
  const std::vector<float> residual = Carried(store, kElements);
  for (size_t i = 0; i < kElements; ++i) {
    const double sent = std::ldexp(static_cast<double>(sums[i]), -kGrid.fraction_bits) /
                        static_cast<double>(kGrid.weight);
    ASSERT_NEAR(sent + double{residual[i]}, updates[i], 1.001 * rounding[i]) << i;
    ASSERT_LT(rounding[i], 2e-5);  // an update's elements are some 1e-3
  }
}

TEST(Conservation, OfScalesOfAnyBitsOnlyWhatFloatsRoundIsMissing) {
  ExpectConservationButForRounding("int8 | ef");
  ExpectConservationButForRounding("int4(rounding=nearest) | ef");
  ExpectConservationButForRounding("sign | ef");
  ExpectConservationButForRounding("fp8 | ef");
  ExpectConservationButForRounding("topk(0.01, values=ternary) | ef");
  ExpectConservationButForRounding("topk(0.01, values=int8) | ef");
  ExpectConservationButForRounding("int2(rounding=nearest) | ef");
  ExpectConservationButForRounding("eden(bits=2) | ef");
  ExpectConservationButForRounding("powersgd(rank=2)");
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
    store.Pending(0, 2)[0] = 0.5f;
    store.Commit(7);
    store.Begin(8, 1);
    store.Pending(0, 2)[1] = 0.25f;
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
  old.Pending(0, 1)[0] = 1;
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
  store.Pending(0, 3)[0] = 1;
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
