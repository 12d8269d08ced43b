// Error feedback as papers have it: ef with decay and momentum correction, ef21, top-k over a whole
// model and its warm-up, against a float64 reference (tests/reference/feedback.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "aggregation/ef21.h"
#include "aggregation/in_planes.h"
#include "base/philox.h"
#include "client/internal/encode.h"
#include "compression/codec.h"
#include "compression/policy.h"
#include "compression/segment.h"
#include "tests/aggregation/testing.h"

namespace tributary::client::internal {
namespace {

using aggregation::DType;
using aggregation::Grid;
using aggregation::ModelLayout;
using aggregation::Policy;
using nlohmann::json;
using ::testing::HasSubstr;
using LayoutPtr = std::shared_ptr<const ModelLayout>;
using PolicyPtr = std::shared_ptr<const compression::CodecPolicy>;

PolicyPtr PolicyOf(const std::string& spec) {
  auto policy = compression::CodecPolicy::Parse(spec);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *policy;
}

// The reference's deltas.
std::vector<float> Delta(char name, int elements, int round, int client = 0) {
  const float scale = name == 'a' ? 1.0f : name == 'b' ? 4.0f : 0.5f;
  std::vector<float> x(static_cast<size_t>(elements));
  for (int i = 0; i < elements; ++i) {
    const int v = (i * i * 3 + i * 7 + client * 13 + round * 29 + name) % 61 - 30;
    x[static_cast<size_t>(i)] = scale * static_cast<float>(v) / 1024;
  }
  return x;
}

LayoutPtr Layout(size_t tensors) {
  std::vector<aggregation::TensorSpec> specs = {{"a", {16, 32}, DType::kF32, Policy::kMean},
                                                {"b", {24}, DType::kF32, Policy::kMean},
                                                {"c", {10, 16}, DType::kF32, Policy::kMean}};
  specs.resize(tensors);
  return *ModelLayout::Create(std::move(specs));
}

TrainResult Deltas(const ModelLayout& layout, int round, int client = 0) {
  TrainResult result;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    result.floats.push_back(Delta(layout.tensors()[t].name[0],
                                  static_cast<int>(layout.TensorElements(t)), round, client));
  }
  return result;
}

std::shared_ptr<const Segments> Send(const ModelLayout& layout, const PolicyPtr& policy,
                                     uint64_t round, TrainResult result, ResidualStore* store) {
  v1::RoundSpec spec;
  spec.set_round(round);
  spec.set_seed(1);
  *spec.mutable_grid() = Grid().ToProto();
  auto encoded = Encode(layout, *policy, spec, "client", std::move(result), store);
  EXPECT_TRUE(encoded.ok()) << encoded.status();
  return encoded->segments;
}

// What a server decodes, by tensor.
std::vector<std::vector<float>> Decoded(const ModelLayout& layout, const Segments& segments) {
  std::vector<std::vector<float>> all;
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) all.emplace_back(layout.TensorElements(t));
  for (const std::vector<uint8_t>& segment : segments) {
    const PiecedBytes bytes{ByteSpan(segment)};
    ByteCursor cursor(bytes);
    const auto header = *compression::ReadSegmentHeader(&cursor);
    const auto codec = *compression::CodecFromHeader(header.codec, header.parameter);
    const PiecedBytes payload{ByteSpan(segment).subspan(compression::SegmentHeader::kBytes)};
    EXPECT_TRUE(codec->Validate(payload, header.count, 4096).ok());
    codec->Decode(payload, std::span(all[header.tensor]).subspan(header.first, header.count));
  }
  return all;
}

const json& Reference() {
  static const auto* reference = new json(
      json::parse(std::ifstream(TRIBUTARY_SOURCE_DIR "/tests/golden/feedback/feedback.json")));
  return *reference;
}

bool Among(const json& list, const json& what) {
  return std::find(list.begin(), list.end(), what) != list.end();
}

void ExpectSent(const json& wanted, const std::vector<std::vector<float>>& got,
                const ModelLayout& layout, const std::string& where) {
  for (const auto& [name, values] : wanted.items()) {
    uint32_t t = 0;
    while (layout.tensors()[t].name != name) ++t;
    for (size_t i = 0; i < got[t].size(); ++i) {
      const double expected = values.value(std::to_string(i), 0.0);
      ASSERT_NEAR(static_cast<double>(got[t][i]), expected, 1e-7 * std::abs(expected))
          << where << ", tensor " << name << ", element " << i;
    }
  }
}

TEST(FeedbackReference, WhatIsSentIsWhatTheRecursionsSayWithTwoRoundsLost) {
  ASSERT_EQ(Reference()["clients"].size(), 7u);
  for (const json& c : Reference()["clients"]) {
    const std::string spec = c["spec"];
    const LayoutPtr layout = Layout(spec.starts_with("fp32") ? 1 : 3);
    const PolicyPtr policy = PolicyOf(spec);
    ResidualStore store;
    for (int round = 1; round <= static_cast<int>(c["sent"].size()); ++round) {
      const auto segments =
          Send(*layout, policy, static_cast<uint64_t>(round), Deltas(*layout, round), &store);
      ExpectSent(c["sent"][static_cast<size_t>(round) - 1], Decoded(*layout, *segments), *layout,
                 spec + ", round " + std::to_string(round));
      if (Among(Reference()["lost"], round)) {
        store.Rollback(static_cast<uint64_t>(round));
      } else {
        store.Commit(static_cast<uint64_t>(round));
      }
    }
  }
}

// Four clients, of whom some take part in each round, and the root behind them.
class Federation {
 public:
  Federation(const json& reference, double momentum) : r_(reference), momentum_(momentum) {
    NewOptimizer();
    model_.resize(layout_->model_bytes());
  }
  void NewOptimizer() {
    auto inner = aggregation::MakeServerOptimizer(
        {.name = momentum_ > 0 ? "fedavgm" : "fedavg", .schedule = {}, .momentum = momentum_},
        layout_);
    optimizer_ = *aggregation::MakeEf21({.tensors = {true, false},
                                         .population_weight = r_["population"],
                                         .fraction_bits = Grid().fraction_bits},
                                        *std::move(inner), layout_);
  }
  // The sum of what counted in `round`, and its weight.
  void Collect(int round) {
    sum_ = aggregation::testing::MakeAccumulator(layout_, Grid());
    weight_ = 0;
    for (const int c : r_["parts"][static_cast<size_t>(round) - 1]) {
      ResidualStore& store = stores_[static_cast<size_t>(c)];
      const int64_t weight = r_["weights"][static_cast<size_t>(c)];
      const auto segments =
          Send(*layout_, policy_, static_cast<uint64_t>(round), Deltas(*layout_, round, c), &store);
      if (Among(r_["lost"], json::array({round, c}))) {
        store.Rollback(static_cast<uint64_t>(round));
        continue;
      }
      store.Commit(static_cast<uint64_t>(round));
      weight_ += static_cast<uint64_t>(weight);
      const auto update = aggregation::testing::Assemble(
          layout_, Grid(), {std::string(1, static_cast<char>('a' + c)), weight, *segments});
      aggregation::testing::FoldAll(sum_.get(), {update});
    }
  }
  std::vector<uint8_t> Apply(int round) {
    std::vector<uint8_t> next(model_.size());
    EXPECT_TRUE(optimizer_
                    ->Apply({.sum = *sum_,
                             .grid = Grid(),
                             .weight = weight_,
                             .round = static_cast<uint64_t>(round)},
                            model_, next)
                    .ok());
    return next;
  }
  void Commit(std::vector<uint8_t> next) {
    optimizer_->Commit();
    model_ = std::move(next);
  }
  float At(size_t i) const {
    float value;
    std::memcpy(&value, model_.data() + sizeof value * i, sizeof value);
    return value;
  }
  aggregation::ServerOptimizer& optimizer() { return *optimizer_; }
  const std::vector<uint8_t>& model() const { return model_; }
  std::vector<ResidualStore>& stores() { return stores_; }

 private:
  const json& r_;
  const double momentum_;
  const LayoutPtr layout_ = Layout(2);
  const PolicyPtr policy_ = PolicyOf(r_["spec"]);
  std::vector<ResidualStore> stores_ = std::vector<ResidualStore>(4);
  std::unique_ptr<aggregation::ServerOptimizer> optimizer_;
  std::unique_ptr<aggregation::ExactAccumulator> sum_;
  uint64_t weight_ = 0;
  std::vector<uint8_t> model_;
};

constexpr size_t kA = 512, kB = 24;  // elements

TEST(Ef21, MovesTheModelByTheMeanOfAllClientsEstimatesAsTheReferenceDoes) {
  const json& r = Reference()["root"];
  ASSERT_EQ(r["models"].size(), 2u);
  for (const json& c : r["models"]) {
    Federation federation(r, c["momentum"]);
    for (int round = 1; round <= static_cast<int>(r["parts"].size()); ++round) {
      federation.Collect(round);
      federation.Commit(federation.Apply(round));
      const json& after = c["after"][static_cast<size_t>(round) - 1];
      for (size_t i = 0; i < kA + kB; ++i) {
        const double expected = i < kA ? after["a"][i] : after["b"][i - kA];
        ASSERT_NEAR(static_cast<double>(federation.At(i)), expected, 1e-6)
            << "momentum " << c["momentum"] << ", round " << round << ", element " << i;
      }
    }
  }
}

TEST(Ef21, TotalsAreTheSumOfWeightTimesEstimateToTheBit) {
  const json& r = Reference()["root"];
  Federation federation(r, 0);
  for (int round = 1; round <= static_cast<int>(r["parts"].size()); ++round) {
    federation.Collect(round);
    federation.Commit(federation.Apply(round));
  }
  const std::string totals = federation.optimizer().State()["ef21"];
  ASSERT_EQ(totals.size(), kA * sizeof(int64_t));
  std::vector<Wide<const float>> g(4);
  for (size_t c = 0; c < 4; ++c)
    g[c] = federation.stores()[c].CommittedWide(0, kA, Kept::kEstimate);
  for (size_t i = 0; i < kA; ++i) {
    int64_t total = 0, wanted = 0;
    std::memcpy(&total, totals.data() + i * sizeof total, sizeof total);
    for (size_t c = 0; c < 4; ++c) {
      const int64_t weight = r["weights"][c];
      wanted += weight * static_cast<int64_t>(std::ldexp(g[c][i], Grid().fraction_bits));
    }
    ASSERT_EQ(total, wanted) << i;
  }
}

TEST(Ef21, GoesOnAfterARestartAndForgetsARoundThatWasNotCommitted) {
  const json& r = Reference()["root"];
  for (const double momentum : {0.0, 0.5}) {
    Federation whole(r, momentum), restarted(r, momentum);
    for (int round = 1; round <= 4; ++round) {
      whole.Collect(round);
      restarted.Collect(round);
      restarted.Apply(round);  // its checkpoint could not be written; tried again
      whole.Commit(whole.Apply(round));
      auto next = restarted.Apply(round);
      const auto state = restarted.optimizer().State();
      restarted.Commit(std::move(next));
      restarted.NewOptimizer();
      ASSERT_TRUE(restarted.optimizer().Restore(state).ok());
      ASSERT_EQ(restarted.model(), whole.model()) << "round " << round;
    }
  }
}

TEST(Ef21, RefusesAStateThatIsNotItsOwnAndARoundHeavierThanThePopulation) {
  json r = Reference()["root"];
  Federation federation(r, 0);
  federation.Collect(5);
  federation.Commit(federation.Apply(5));
  const auto good = federation.optimizer().State();
  const auto why = [&](const std::string& key, const std::string& value) {
    auto state = good;
    state[key] = value;
    if (value.empty()) state.erase(key);
    return std::string(federation.optimizer().Restore(state).message());
  };
  EXPECT_THAT(why("ef21", ""), HasSubstr("has no estimates of ef21"));
  EXPECT_THAT(why("ef21", good.at("ef21").substr(1)), HasSubstr("4095 bytes"));
  EXPECT_THAT(why("ef21_fraction_bits", "31"), HasSubstr("31 fraction bits, the grid 30"));
  EXPECT_EQ(federation.optimizer().State(), good);
  const auto plain = *aggregation::MakeServerOptimizer({}, Layout(2));
  EXPECT_THAT(std::string(plain->Restore(good).message()), HasSubstr("codec is without"));

  r["population"] = 20;  // all four weigh 24, and one update of round 5 is lost
  r["lost"] = json::array();
  Federation small(r, 0);
  small.Collect(5);
  std::vector<uint8_t> next(small.model().size());
  const auto sum = aggregation::testing::MakeAccumulator(Layout(2), Grid());
  const absl::Status status = small.optimizer().Apply(
      {.sum = *sum, .grid = Grid(), .weight = 24, .round = 5}, small.model(), next);
  EXPECT_THAT(std::string(status.message()), HasSubstr("weighs 24, all clients together 20"));
  const auto integers = *ModelLayout::Create({{"n", {4}, DType::kI64, Policy::kMean}});
  const auto refused =
      aggregation::MakeEf21({.tensors = {true}, .population_weight = 1},
                            *aggregation::MakeServerOptimizer({}, integers), integers);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("\"n\" is not"));
}

// Racks add coefficients; the root's model moves by the mean of the deltas themselves.
TEST(InPlanes, TheRootTakesTheSumOfCoefficientsBack) {
  const LayoutPtr layout = Layout(2);
  const PolicyPtr policy = PolicyOf("fp32; a = fp16 | dct(4x8)");
  ASSERT_TRUE(policy->transforms());
  const auto sum = aggregation::testing::MakeAccumulator(layout, Grid());
  std::vector<double> mean(kA + kB);
  ResidualStore none;
  for (int client = 0; client < 3; ++client) {
    const int64_t weight = 2 * client + 1;  // 9 in all
    const auto segments = Send(*layout, policy, 1, Deltas(*layout, 1, client), &none);
    aggregation::testing::FoldAll(
        sum.get(),
        {aggregation::testing::Assemble(
            layout, Grid(), {std::string(1, static_cast<char>('a' + client)), weight, *segments})});
    const TrainResult given = Deltas(*layout, 1, client);
    for (size_t i = 0; i < kA + kB; ++i) {
      const float d = i < kA ? given.floats[0][i] : given.floats[1][i - kA];
      mean[i] += static_cast<double>(weight) * static_cast<double>(d) / 9;
    }
  }
  const auto inner = [&] { return *aggregation::MakeServerOptimizer({}, layout); };
  auto optimizer = *aggregation::MakeInPlanes({{4, 8}}, inner(), layout);
  const std::vector<uint8_t> base(layout->model_bytes());
  std::vector<uint8_t> next(base.size());
  ASSERT_TRUE(
      optimizer->Apply({.sum = *sum, .grid = Grid(), .weight = 9, .round = 1}, base, next).ok());
  for (size_t i = 0; i < kA + kB; ++i) {
    float value;
    std::memcpy(&value, next.data() + sizeof value * i, sizeof value);
    // fp16's error is 2^-12 of a coefficient, which are below 0.2 here.
    ASSERT_NEAR(static_cast<double>(value), mean[i], i < kA ? 1e-4 : 1e-8) << i;
  }
  EXPECT_THAT(std::string(aggregation::MakeInPlanes({{5, 8}}, inner(), layout).status().message()),
              HasSubstr("made of planes"));
}

// 1,000 rounds of which 30 % are lost. Multiples of 2^-20 below 2^-7, so that sums are exact.
struct Long {
  std::vector<double> updates, sent;  // of the rounds that counted
  ResidualStore store;
  int lost = 0;
};

template <class EachRound>
void RunLong(const std::string& spec, Long* run, EachRound each) {
  const auto layout = *ModelLayout::Create({{"a", {16, 256}, DType::kF32, Policy::kMean}});
  const PolicyPtr policy = PolicyOf(spec);
  PhiloxStream random(12);
  run->updates.assign(4096, 0);
  run->sent.assign(4096, 0);
  for (uint64_t round = 1; round <= 1000; ++round) {
    TrainResult result;
    result.floats.emplace_back(4096);
    for (float& v : result.floats[0]) {
      v = std::ldexp(static_cast<float>(static_cast<int>(random.NextBelow(8192)) - 4096), -20);
    }
    const std::vector<float> d = result.floats[0];
    const auto segments = Send(*layout, policy, round, std::move(result), &run->store);
    if (random.NextBelow(10) < 3) {
      ++run->lost;
      run->store.Rollback(round);
      continue;
    }
    run->store.Commit(round);
    const std::vector<float> c = Decoded(*layout, *segments)[0];
    for (size_t i = 0; i < 4096; ++i) {
      run->updates[i] += static_cast<double>(d[i]);
      run->sent[i] += static_cast<double>(c[i]);
    }
    each(d, c);
  }
  EXPECT_GT(run->lost, 200);
}

Wide<const float> KeptIn(const ResidualStore& store, Kept kind) {
  const Wide<const float> kept = store.CommittedWide(0, 4096, kind);
  EXPECT_EQ(kept.size(), 4096u);
  return kept;
}

TEST(FeedbackConservation, OfTopKOverTheModelNothingIsMissing) {
  Long run;
  RunLong("topk(0.01, across=model, warmup=20)", &run, [](const auto&, const auto&) {});
  const Wide<const float> e = KeptIn(run.store, Kept::kResidual);
  for (size_t i = 0; i < e.size(); ++i) {
    ASSERT_EQ(run.sent[i] + e[i], run.updates[i]) << i;
  }
}

TEST(FeedbackConservation, Ef21sEstimateIsTheSumOfWhatCounted) {
  Long run;
  RunLong("topk(0.01) | ef21", &run, [](const auto&, const auto&) {});
  const Wide<const float> g = KeptIn(run.store, Kept::kEstimate);
  for (size_t i = 0; i < g.size(); ++i) {
    ASSERT_EQ(run.sent[i], g[i]) << i;
  }
}

TEST(FeedbackConservation, WithMomentumSentAndResidualAreTheSumOfCorrectedUpdates) {
  Long run;
  std::vector<double> u(4096), corrected(4096);
  RunLong("topk(0.01) | ef(momentum=0.5)", &run, [&](const auto& d, const auto& c) {
    for (size_t i = 0; i < d.size(); ++i) {
      u[i] = 0.5 * u[i] + static_cast<double>(d[i]);
      corrected[i] += u[i];
      if (c[i] != 0) u[i] = 0;
    }
  });
  const Wide<const float> e = KeptIn(run.store, Kept::kResidual);
  for (size_t i = 0; i < e.size(); ++i) {
    // Momenta have more bits than binary32: 700 roundings of values below 1.
    ASSERT_NEAR(run.sent[i] + e[i], corrected[i], 700 * 0x1p-24) << i;
  }
}

// A run that is started again with or without dct, or with other planes: coefficients are no
// elements.
TEST(FeedbackState, OfCoefficientsIsNotTakenForOneOfElements) {
  const std::string path = ::testing::TempDir() + "feedback_test_dct_" + std::to_string(getpid());
  const auto layout = Layout(1);
  for (const char* feedback : {"ef", "ef(momentum=0.5)", "ef21"}) {
    const auto spec = [&](const std::string& planes) {
      return PolicyOf("fp32; a = topk(0.1) | " + planes + feedback);
    };
    const PolicyPtr plain = spec(""), planes = spec("dct(4x8) | "), others = spec("dct(8x4) | ");
    for (const auto& [before, after] :
         {std::pair(plain, planes), {planes, plain}, {planes, others}, {planes, planes}}) {
      ResidualStore store(path);
      store.Bind("run", "layout");
      Send(*layout, before, 1, Deltas(*layout, 1), &store);
      store.Commit(1);
      ASSERT_TRUE(store.Save().ok());
      ResidualStore next(path), fresh;
      EXPECT_EQ(next.Bind("run", "layout"), "");
      EXPECT_EQ(*Send(*layout, after, 2, Deltas(*layout, 2), &next) ==
                    *Send(*layout, after, 2, Deltas(*layout, 2), &fresh),
                before != after)
          << feedback;
      std::filesystem::remove(path);
    }
  }
}

TEST(FeedbackState, OfAllKindsSurvivesARestartAndIsNotTakenForAnother) {
  const std::string path = ::testing::TempDir() + "feedback_test_" + std::to_string(getpid());
  const auto layout = Layout(1);
  for (const char* feedback : {"ef(decay=0.5, momentum=0.5)", "ef21"}) {
    const PolicyPtr policy = PolicyOf(std::string("fp32; a = topk(0.1) | ") + feedback);
    ResidualStore whole;
    for (int round = 1; round <= 6; ++round) {
      const auto n = static_cast<uint64_t>(round);
      ResidualStore life(path);
      if (round > 1) {
        EXPECT_EQ(life.Bind("run", "layout"), "");
        life.Commit(n - 1);
      } else {
        life.Bind("run", "layout");
      }
      const auto of_whole = Send(*layout, policy, n, Deltas(*layout, round), &whole);
      const auto of_life = Send(*layout, policy, n, Deltas(*layout, round), &life);
      EXPECT_EQ(*of_life, *of_whole) << feedback << ", round " << round;
      whole.Commit(n);
      ASSERT_TRUE(life.Save().ok());  // and dies before it hears the outcome
    }
    // Under another feedback it starts from zero.
    ResidualStore other(path);
    other.Bind("run", "layout");
    other.Commit(6);
    const bool estimate = std::string(feedback) == "ef21";
    const PolicyPtr changed =
        PolicyOf(estimate ? "fp32; a = topk(0.1) | ef" : "fp32; a = topk(0.1) | ef21");
    ResidualStore fresh;
    EXPECT_EQ(*Send(*layout, changed, 7, Deltas(*layout, 7), &other),
              *Send(*layout, changed, 7, Deltas(*layout, 7), &fresh));
    std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace tributary::client::internal
