// A root whose weights are fractional, its rounds' end up to the test.
#pragma once

#include <string>

#include "absl/strings/str_format.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {

inline constexpr int64_t kExample = 65536;  // one example

class FractionalTest : public testing::Test {
 protected:
  std::string Config(int rounds, int minimum, const std::string& cohort,
                     const std::string& straggler, int evaluate_every = 0) {
    return absl::StrFormat(
        "[node]\nname = \"root\"\nlisten = \"127.0.0.1:0\"\n[run]\nname = \"t\"\nrounds = %d\n"
        "model = \"%s\"\nevaluate_every = %d\n[aggregation]\nfractional_weights = true\n"
        "max_round_weight = 4096\n"
        "[cohort]\nminimum = %d\n%s\n[straggler]\n%s\n[checkpoint]\ndirectory = \"%s\"\n",
        rounds, WriteTestModel(dir_), evaluate_every, minimum, cohort, straggler,
        dir_ / "checkpoints");
  }
  TempDir dir_;
};

}  // namespace tributary::server
