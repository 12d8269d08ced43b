// Matching tensors by name.
#include "server/internal/policies.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/toml_reader.h"

namespace tributary::server {
namespace {

using aggregation::ModelLayout;
using aggregation::Policy;
using aggregation::TensorSpec;

Policy PolicyNamed(const std::string& name) {
  if (name == "sum") return Policy::kSum;
  if (name == "max") return Policy::kMax;
  if (name == "first") return Policy::kFirst;
  if (name == "skip") return Policy::kSkip;
  return Policy::kMean;
}

}  // namespace

bool PolicyMatches(const std::string& pattern, const std::string& tensor) {
  return pattern.ends_with('*') ? tensor.starts_with(pattern.substr(0, pattern.size() - 1))
                                : tensor == pattern;
}

std::string WrongPattern(const ModelLayout& layout, const std::string& pattern) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : layout.tensors()) {
    if (PolicyMatches(pattern, tensor.name)) return "";
    names.push_back(tensor.name);
  }
  const std::string near = Nearest(pattern, names);
  return absl::StrCat("[aggregation.policies] \"", pattern, "\" fits no tensor of the model",
                      near.empty() ? absl::StrCat("; its first is \"", names.front(), "\"")
                                   : absl::StrCat("; did you mean \"", near, "\"?"));
}

absl::StatusOr<std::shared_ptr<const ModelLayout>> WithPolicies(
    std::shared_ptr<const ModelLayout> layout, const std::map<std::string, std::string>& policies) {
  if (policies.empty()) return layout;
  // The most particular last, to have the last word: a name is longer than any prefix of it.
  std::vector<std::pair<std::string, std::string>> ordered(policies.begin(), policies.end());
  std::ranges::stable_sort(ordered, {}, [](const auto& entry) {
    return std::pair(!entry.first.ends_with('*'), entry.first.size());
  });
  std::vector<TensorSpec> tensors = layout->tensors();
  for (const auto& [pattern, policy] : ordered) {
    if (const std::string wrong = WrongPattern(*layout, pattern); !wrong.empty()) {
      return absl::InvalidArgumentError(wrong);
    }
    for (TensorSpec& tensor : tensors) {
      if (PolicyMatches(pattern, tensor.name)) tensor.policy = PolicyNamed(policy);
    }
  }
  return ModelLayout::Create(std::move(tensors));
}

}  // namespace tributary::server
