// Lines of rounds.jsonl: every field is explained to operators.
#include "server/round_report.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace tributary::server {
namespace {

// docs/operations.md, "rounds.jsonl".
std::string Explained() {
  std::ifstream file(absl::StrCat(TRIBUTARY_SOURCE_DIR, "/docs/operations.md"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t begin = text.find("\n## rounds.jsonl");
  EXPECT_NE(begin, std::string::npos);
  return text.substr(begin, text.find("\n## ", begin + 1) - begin);
}

// One in which nothing is left out because it is empty.
RoundReport Full() {
  RoundReport report;
  report.why_not = "x";
  report.participation.clients = 1;
  report.collected.contributions.push_back({.id = "a", .base = 1, .weight = 2});
  report.evaluation["loss"] = 1;
  report.root_evaluation["loss"] = 1;
  report.root_evaluation_failed = "x";
  return report;
}

TEST(RoundReport, EveryFieldIsExplainedInTheDocs) {
  const std::string text = Explained();
  const auto line = nlohmann::json::parse(ToJson(Full()));
  const auto explains = [&](const std::string& name) {
    return text.find(absl::StrCat("`", name, "`")) != std::string::npos;
  };
  for (const auto& [name, value] : line.items()) {
    const bool grouped = value.is_object() && !value.empty() && !name.ends_with("evaluation");
    if (!grouped) {
      EXPECT_TRUE(explains(name)) << name;
      continue;
    }
    for (const auto& [inner, ignored] : value.items()) {
      EXPECT_TRUE(explains(inner) || explains("." + inner) ||
                  explains(absl::StrCat(name, ".", inner)))
          << name << "." << inner;
    }
  }
}

}  // namespace
}  // namespace tributary::server
