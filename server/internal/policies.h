// Private to server/: what [aggregation.policies] makes of a model's layout.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "aggregation/layout.h"

namespace tributary::server {

// Whether a pattern means this tensor: its name, or a prefix ending in '*'.
bool PolicyMatches(const std::string& pattern, const std::string& tensor);

// The layout with the policies applied, which are words of the config ("mean", ..., checked there).
// Of several patterns that mean a tensor, its name goes before prefixes, a longer prefix before a
// shorter. INVALID_ARGUMENT names a pattern that means no tensor, and the nearest.
absl::StatusOr<std::shared_ptr<const aggregation::ModelLayout>> WithPolicies(
    std::shared_ptr<const aggregation::ModelLayout> layout,
    const std::map<std::string, std::string>& policies);

// What is wrong with one pattern alone: "" where it means a tensor.
std::string WrongPattern(const aggregation::ModelLayout& layout, const std::string& pattern);

}  // namespace tributary::server
