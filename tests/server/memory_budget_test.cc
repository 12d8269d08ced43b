// The in-flight budget: first come first served, and what is held beside it.
#include "server/memory_budget.h"

#include <gtest/gtest.h>

#include <vector>

namespace tributary::server {
namespace {

class MemoryBudgetTest : public ::testing::Test {
 protected:
  void Reserve(uint64_t key, uint64_t bytes) {
    budget_.Reserve(key, bytes, [this, key] { granted_.push_back(key); });
  }
  MemoryBudget budget_{1000};
  std::vector<uint64_t> granted_;
};

TEST_F(MemoryBudgetTest, GrantsInTheOrderOfAskingAndNobodyPassesTheFirst) {
  Reserve(1, 600);
  Reserve(2, 500);
  Reserve(3, 100);  // would fit, and is not its turn
  EXPECT_EQ(granted_, std::vector<uint64_t>{1});
  EXPECT_EQ(budget_.waiting(), 2u);
  budget_.Release(600);
  EXPECT_EQ(granted_, (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(budget_.used(), 600u);
}

TEST_F(MemoryBudgetTest, OneThatNoLongerWaitsMakesWay) {
  Reserve(1, 600);
  Reserve(2, 500);
  Reserve(3, 100);
  EXPECT_TRUE(budget_.Drop(2));
  EXPECT_EQ(granted_, (std::vector<uint64_t>{1, 3}));
  EXPECT_FALSE(budget_.Drop(1)) << "it has its memory";
  EXPECT_EQ(budget_.used(), 700u);
}

TEST_F(MemoryBudgetTest, WhatIsHeldUnaskedCountsUpToAFifth) {
  budget_.SetUnasked(150);
  Reserve(1, 500);
  Reserve(2, 350);  // 1000 in all
  Reserve(3, 1);
  EXPECT_EQ(granted_, (std::vector<uint64_t>{1, 2}));
  budget_.SetUnasked(5000);  // 200 of it
  budget_.Release(51);
  EXPECT_EQ(granted_, (std::vector<uint64_t>{1, 2, 3}));  // 799 + 1 + 200
  Reserve(4, 1);
  EXPECT_EQ(granted_.size(), 3u);
  budget_.SetUnasked(0);
  budget_.Release(0);
  EXPECT_EQ(granted_.back(), 4u);
}

TEST_F(MemoryBudgetTest, OneThatIsAloneIsGrantedWhateverIsHeldUnasked) {
  budget_.SetUnasked(5000);
  Reserve(1, 1000);
  EXPECT_EQ(granted_, std::vector<uint64_t>{1});
  Reserve(2, 1000);
  EXPECT_EQ(granted_.size(), 1u);
  budget_.Release(1000);
  EXPECT_EQ(granted_.back(), 2u);
}

}  // namespace
}  // namespace tributary::server
