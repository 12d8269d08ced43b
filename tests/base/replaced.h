// A text changed at one place, as tests of configs do it.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace tributary {

inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at == std::string::npos) return text;
  return text.replace(at, from.size(), to);
}

}  // namespace tributary
