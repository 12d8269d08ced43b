// Hyperparameters: defaults, values, refusals.
#include "client/trainer/hyperparameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/status.h"

namespace tributary::client::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<Hyperparameters> Read(const std::map<std::string, double>& values) {
  v1::RoundSpec spec;
  spec.mutable_hyperparameters()->insert(values.begin(), values.end());
  return ReadHyperparameters(spec);
}

TEST(Hyperparameters, HaveTheDocumentedDefaults) {
  const auto read = Read({});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->lr, 0.05);
  EXPECT_EQ(read->momentum, 0);
  EXPECT_EQ(read->weight_decay, 0);
  EXPECT_EQ(read->local_epochs, 1);
  EXPECT_EQ(read->batch_size, 32);
  EXPECT_EQ(read->mu, 0);
}

TEST(Hyperparameters, AreTakenFromTheSpec) {
  const auto read = Read({{"lr", 0.1},
                          {"momentum", 0.9},
                          {"weight_decay", 1e-4},
                          {"local_epochs", 5},
                          {"batch_size", 0},
                          {"mu", 0.01}});
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->lr, 0.1);
  EXPECT_EQ(read->momentum, 0.9);
  EXPECT_EQ(read->weight_decay, 1e-4);
  EXPECT_EQ(read->local_epochs, 5);
  EXPECT_EQ(read->batch_size, 0);
  EXPECT_EQ(read->mu, 0.01);
}

TEST(Hyperparameters, AnUnknownNameIsRefusedAndTheKnownOnesAreListed) {
  const auto read = Read({{"learning_rate", 0.1}});
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Text(read.status()),
              AllOf(HasSubstr("\"learning_rate\""), HasSubstr("lr, momentum")));
}

TEST(Hyperparameters, ValuesOutOfRangeAreRefusedByName) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, double>>{{"lr", 0},
                                                   {"lr", -1},
                                                   {"lr", nan},
                                                   {"lr", infinity},
                                                   {"momentum", 1},
                                                   {"momentum", -0.1},
                                                   {"momentum", nan},
                                                   {"weight_decay", -1},
                                                   {"local_epochs", 0},
                                                   {"local_epochs", 1.5},
                                                   {"batch_size", -1},
                                                   {"batch_size", 0.5},
                                                   {"batch_size", nan},
                                                   {"mu", -1},
                                                   {"mu", infinity}}) {
    const auto read = Read({{name, value}});
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << name << " " << value;
    EXPECT_THAT(Text(read.status()), HasSubstr("\"" + name + "\"")) << value;
  }
}

}  // namespace
}  // namespace tributary::client::trainer
