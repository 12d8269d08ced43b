// What the annotated configs in configs/ show, to hold against what the parsers know.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/toml_reader.h"

namespace tributary {

// By hand: GCC warns of std::regex itself under the address sanitizer.
inline bool IsKeyName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
  });
}

// "section.key" of each line `key = value`, also where it is commented out.
inline std::set<std::string> AnnotatedKeys(const std::vector<std::string>& files) {
  std::set<std::string> out;
  for (const std::string& name : files) {
    std::ifstream file(absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs/", name));
    EXPECT_TRUE(file.is_open()) << name;
    std::string section, whole;
    while (std::getline(file, whole)) {
      absl::string_view line = absl::StripTrailingAsciiWhitespace(whole);
      absl::ConsumePrefix(&line, "# ");
      absl::string_view header = line;
      if (absl::ConsumePrefix(&header, "[") && absl::ConsumeSuffix(&header, "]") &&
          IsKeyName(header)) {
        section = std::string(header);
        continue;
      }
      absl::string_view key = absl::StripTrailingAsciiWhitespace(line.substr(0, line.find('=')));
      if (absl::ConsumePrefix(&key, "\"")) absl::ConsumeSuffix(&key, "\"");
      if (!absl::StrContains(line, '=') || !IsKeyName(key)) continue;
      // Else it is prose with a "=".
      if (TomlReader::Parse(std::string(line), name).ok())
        out.insert(absl::StrCat(section, ".", key));
    }
  }
  return out;
}

// Each key that is known is shown, and each that is shown is known. "section.*" stands for any.
inline void ExpectAnnotated(const std::vector<std::string>& known,
                            const std::vector<std::string>& files) {
  std::set<std::string> stale = AnnotatedKeys(files);
  ASSERT_FALSE(known.empty());
  for (const std::string& key : known) {
    const bool any = key.ends_with(".*");
    const std::string start = key.substr(0, key.size() - 1);
    const size_t shown =
        any ? std::erase_if(stale, [&](const std::string& one) { return one.starts_with(start); })
            : stale.erase(key);
    EXPECT_GT(shown, 0u) << key
                         << " is in none of the annotated configs; add it to one, with what "
                            "it does and its default";
  }
  for (const std::string& key : stale) {
    ADD_FAILURE() << key << " is in the annotated configs, and no parser knows it";
  }
}

}  // namespace tributary
