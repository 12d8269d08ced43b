// Early returns on absl::Status, and adding context to one; Abseil of 2022 has no macros for it.
#pragma once

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tributary {

// The same code with `context: ` before the message.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  // Debian builds Abseil with a string_view of its own.
  return absl::Status(status.code(), absl::StrCat(absl::string_view(context.data(), context.size()),
                                                  ": ", status.message()));
}

// The message as a std::string: for loggers, which do not know Abseil's string_view.
inline std::string Text(const absl::Status& status) { return std::string(status.message()); }

}  // namespace tributary

#define TRIBUTARY_CONCAT_INNER_(a, b) a##b
#define TRIBUTARY_CONCAT_(a, b) TRIBUTARY_CONCAT_INNER_(a, b)

// Returns from the enclosing function when `expr` is not OK.
#define RETURN_IF_ERROR(expr)                              \
  do {                                                     \
    absl::Status tributary_status_ = (expr);               \
    if (!tributary_status_.ok()) return tributary_status_; \
  } while (false)

// `lhs` may declare: ASSIGN_OR_RETURN(auto x, MakeX()). So it cannot stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL_(TRIBUTARY_CONCAT_(tributary_or_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL_(var, lhs, expr)   \
  auto var = (expr);                             \
  if (!var.ok()) return std::move(var).status(); \
  lhs = std::move(var).value()
// NOLINTEND(bugprone-macro-parentheses)
