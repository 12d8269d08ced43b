// Names in messages; and std::string_view for an Abseil that has its own string_view.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tributary::aggregation::internal {

inline absl::string_view Text(std::string_view s) { return {s.data(), s.size()}; }

// In quotes, with control characters escaped: names come from peers, messages go to logs.
inline std::string Quoted(std::string_view name) {
  return absl::StrCat("\"", absl::CHexEscape(Text(name)), "\"");
}

}  // namespace tributary::aggregation::internal
