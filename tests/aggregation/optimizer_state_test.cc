// Promises of the server optimizers that have a memory: the papers' algorithms to 1e-6 (float64
// reference: tests/reference/server_optimizers.py), the same bits on any number of threads, and a
// state that survives a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "aggregation/optimizer.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

constexpr int kElements = 96;
constexpr int kRounds = 3;

// As in the reference: multiples of 1/64.
std::vector<float> Delta(int round, int client) {
  std::vector<float> out(kElements);
  for (int i = 0; i < kElements; ++i) {
    out[i] = static_cast<float>((i * 7 + client * 13 + round * 29) % 61 - 30) / 64;
  }
  return out;
}

// The reference's model as fp32 and as fp64.
testing::LayoutPtr Layout() {
  return testing::MakeLayout({{"single", {kElements}, DType::kF32, Policy::kMean},
                              {"frozen", {5}, DType::kF32, Policy::kSkip},
                              {"double", {kElements}, DType::kF64, Policy::kMean}});
}

Bytes Base() {
  std::vector<float> single(kElements + 5);
  std::vector<double> wide(kElements);
  for (int i = 0; i < kElements; ++i) wide[i] = ((i * 11) % 37 - 18) / 16.0;
  std::copy(wide.begin(), wide.end(), single.begin());
  Bytes bytes(single.size() * 4 + wide.size() * 8);
  std::memcpy(bytes.data(), single.data(), single.size() * 4);
  std::memcpy(bytes.data() + single.size() * 4, wide.data(), wide.size() * 8);
  return bytes;
}

double At(const Bytes& model, bool wide, int i) {
  if (!wide) {
    float value;
    std::memcpy(&value, model.data() + 4 * i, 4);
    return static_cast<double>(value);
  }
  double value;
  std::memcpy(&value, model.data() + (kElements + 5) * 4 + 8 * i, 8);
  return value;
}

class Rounds {
 public:
  explicit Rounds(OptimizerOptions options) : options_(std::move(options)) { Restart({}); }

  // A new optimizer, as after a crash.
  void Restart(const std::map<std::string, std::string>& state) {
    optimizer_ = *MakeServerOptimizer(options_, layout_);
    if (!state.empty()) {
      ASSERT_TRUE(optimizer_->Restore(state).ok());
    }
  }
  Bytes Apply(int round) {
    auto sum = testing::MakeAccumulator(layout_, Grid());
    std::vector<testing::UpdatePtr> updates;
    const int64_t weights[] = {3, 5, 9};
    for (int c = 0; c < 3; ++c) {
      testing::GivenDeltas deltas(*layout_);
      deltas.floats[0] = deltas.floats[2] = Delta(round, c);
      updates.push_back(testing::Assemble(
          layout_, Grid(),
          testing::Record(*layout_, {"fp32"}, std::string(1, 'a' + c), weights[c], deltas)));
    }
    testing::FoldAll(sum.get(), updates);
    Bytes next(model_.size());
    EXPECT_TRUE(
        optimizer_->Apply({*sum, Grid(), 17, static_cast<uint64_t>(round)}, model_, next).ok());
    return next;
  }
  void Commit(Bytes next) {
    optimizer_->Commit();
    model_ = std::move(next);
  }
  ServerOptimizer& optimizer() { return *optimizer_; }
  const Bytes& model() const { return model_; }

 private:
  OptimizerOptions options_;
  testing::LayoutPtr layout_ = Layout();
  std::unique_ptr<ServerOptimizer> optimizer_;
  Bytes model_ = Base();
};

TEST(ServerOptimizerReference, ThreeRoundsOfEachEqualFloat64ToOneMillionth) {
  std::ifstream file(TRIBUTARY_SOURCE_DIR "/tests/golden/optimizers/three_rounds.json");
  const auto cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 11u);
  for (const auto& c : cases) {
    const auto& spec = c["spec"];
    if (spec["name"] == "fednova") continue;  // fednova_test.cc
    Rounds rounds({.name = spec["name"],
                   .schedule = {.rate = spec["rate"],
                                .kind = spec.value("kind", "constant"),
                                .rounds = spec.value("rounds", 1u),
                                .factor = spec.value("factor", 0.5),
                                .warmup = spec.value("warmup", 0u)},
                   .momentum = spec["momentum"],
                   .beta1 = spec["beta1"],
                   .beta2 = spec["beta2"],
                   .tau = spec["tau"]});
    double worst = 0;
    for (int round = 1; round <= kRounds; ++round) {
      rounds.Commit(rounds.Apply(round));
      for (int i = 0; i < kElements; ++i) {
        const double expected = c["models"][round - 1][i];
        for (const bool wide : {false, true}) {
          worst = std::max(worst, std::abs(At(rounds.model(), wide, i) - expected));
        }
      }
    }
    EXPECT_LT(worst, 1e-6) << spec;
    RecordProperty("worst." + spec["name"].get<std::string>(), std::to_string(worst));
  }
}

class Remembering : public ::testing::TestWithParam<const char*> {
 protected:
  OptimizerOptions Options() const {
    return {.name = GetParam(), .schedule = {.rate = 0.1, .kind = "exponential", .factor = 0.9}};
  }
};

TEST_P(Remembering, GoesOnAfterARestartAsIfNothingHadBeen) {
  Rounds whole(Options());
  Rounds restarted(Options());
  for (int round = 1; round <= kRounds; ++round) {
    whole.Commit(whole.Apply(round));
    Bytes next = restarted.Apply(round);
    // The checkpoint is written between Apply and Commit.
    const auto state = restarted.optimizer().State();
    restarted.Commit(std::move(next));
    restarted.Restart(state);
    EXPECT_EQ(restarted.model(), whole.model()) << "round " << round;
  }
}

TEST_P(Remembering, ForgetsARoundThatWasNotCommitted) {
  Rounds whole(Options());
  Rounds failing(Options());
  whole.Commit(whole.Apply(1));
  failing.Commit(failing.Apply(1));
  failing.Apply(2);  // its checkpoint could not be written
  whole.Commit(whole.Apply(3));
  failing.Commit(failing.Apply(3));
  EXPECT_EQ(failing.model(), whole.model());
}

TEST_P(Remembering, RefusesADamagedOrForeignStateAndStaysAsItWas) {
  Rounds rounds(Options());
  rounds.Commit(rounds.Apply(1));
  auto good = rounds.optimizer().State();
  const std::string other = std::string(GetParam()) == "fedyogi" ? "fedadam" : "fedyogi";
  auto foreign = good;
  foreign["optimizer"] = other;
  EXPECT_THAT(rounds.optimizer().Restore(foreign).message(),
              AllOf(HasSubstr("\"" + other + "\""), HasSubstr(GetParam())));
  EXPECT_THAT(rounds.optimizer().Restore({}).message(), HasSubstr("\"fedavg\""));
  auto cut = good;
  cut["m"].pop_back();
  EXPECT_THAT(rounds.optimizer().Restore(cut).message(), HasSubstr("767 bytes"));
  auto nan = good;
  std::memset(nan["m"].data(), 0xFF, 4);
  EXPECT_THAT(rounds.optimizer().Restore(nan).message(), HasSubstr("\"m\" holds"));
  EXPECT_EQ(rounds.optimizer().State(), good);
}

INSTANTIATE_TEST_SUITE_P(All, Remembering,
                         ::testing::Values("fedavgm", "fedadagrad", "fedadam", "fedyogi"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ServerOptimizerTest, HasTheSameBitsOnAnyNumberOfThreads) {
  const auto layout = testing::MakeLayout({{"f32", {100'003}, DType::kF32, Policy::kMean},
                                           {"bf16", {70'001}, DType::kBf16, Policy::kMean},
                                           {"skip", {3}, DType::kF32, Policy::kSkip},
                                           {"f64", {40'000}, DType::kF64, Policy::kMean},
                                           {"f16", {}, DType::kF16, Policy::kMean},
                                           {"max", {40'000}, DType::kF32, Policy::kMax},
                                           {"i64", {40'000}, DType::kI64, Policy::kMean}});
  auto sum = testing::MakeAccumulator(layout, Grid());
  for (int c = 0; c < 3; ++c) {
    auto deltas = testing::RandomDeltas(*layout, 40 + c);
    testing::FoldAll(sum.get(),
                     {testing::Assemble(layout, Grid(),
                                        testing::Record(*layout, {"fp32"}, std::string(1, 'a' + c),
                                                        3 + c, deltas))});
  }
  Bytes base(layout->model_bytes());
  for (size_t i = 0; i < base.size(); ++i) base[i] = static_cast<uint8_t>(i % 5);
  for (const std::string& name : ServerOptimizerNames()) {
    std::vector<Bytes> results;
    std::vector<std::map<std::string, std::string>> states;
    for (const int threads : {1, 2, 4, 7}) {
      const auto optimizer = *MakeServerOptimizer({.name = name, .threads = threads}, layout);
      results.emplace_back(base.size());
      const absl::Status status = optimizer->Apply({*sum, Grid(), 12}, base, results.back());
      ASSERT_TRUE(status.ok()) << status;
      states.push_back(optimizer->State());
    }
    for (size_t i = 1; i < results.size(); ++i) {
      EXPECT_EQ(results[i], results[0]) << name;
      EXPECT_EQ(states[i], states[0]) << name;
    }
  }
}

TEST(ServerOptimizerTest, TellsTheFirstOfSeveralErrorsOnAnyNumberOfThreads) {
  const auto layout = testing::MakeLayout({{"small", {300'000}, DType::kU8, Policy::kSum}});
  testing::GivenDeltas deltas(*layout);
  deltas.ints[0].assign(300'000, 0);
  for (int i = 70'000; i < 300'000; ++i) deltas.ints[0][i] = 1;
  auto sum = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(
      sum.get(),
      {testing::Assemble(layout, Grid(), testing::Record(*layout, {"fp32"}, "a", 1, deltas))});
  const Bytes base(300'000, 255);
  Bytes next(base.size());
  for (const int threads : {1, 4}) {
    const auto optimizer = *MakeServerOptimizer({.threads = threads}, layout);
    EXPECT_THAT(optimizer->Apply({*sum, Grid(), 1}, base, next).message(),
                HasSubstr("element 70000: 255 moved by 1"));
  }
}

TEST(ServerOptimizerTest, IsMadeByNameAndRefusesWhatItDoesNotKnow) {
  const auto layout = Layout();
  EXPECT_EQ((*MakeServerOptimizer({}, layout))->name(), "fedavg");
  EXPECT_THAT(MakeServerOptimizer({.name = "fedprox"}, layout).status().message(),
              HasSubstr("known: fedavg, fedavgm, fedadagrad, fedadam, fedyogi"));
  const OptimizerOptions bad[] = {{.schedule = {.rate = 0}},       {.momentum = 1}, {.beta1 = -0.1},
                                  {.beta2 = std::nan("")},         {.tau = 0},      {.threads = 0},
                                  {.schedule = {.rate = HUGE_VAL}}};
  for (const OptimizerOptions& options : bad) {
    EXPECT_EQ(MakeServerOptimizer(options, layout).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ServerOptimizerTest, FedAvgKeepsNoStateAndRefusesAnothers) {
  const auto optimizer = *MakeServerOptimizer({}, Layout());
  EXPECT_TRUE(optimizer->State().empty());
  EXPECT_EQ(optimizer->state_bytes(), 0u);
  EXPECT_TRUE(optimizer->Restore({}).ok());
  EXPECT_THAT(optimizer->Restore({{"optimizer", "fedadam"}}).message(), HasSubstr("\"fedadam\""));
}

TEST(ServerOptimizerTest, RefusesASumOfAnotherLayout) {
  const auto other = testing::MakeLayout({{"w", {4}}});
  const auto sum = testing::MakeAccumulator(other, Grid());
  const auto optimizer = *MakeServerOptimizer({}, Layout());
  Bytes model(16);
  Bytes next(16);
  EXPECT_THAT(optimizer->Apply({*sum, Grid(), 1}, model, next).message(), HasSubstr("layout"));
}

}  // namespace
}  // namespace tributary::aggregation
