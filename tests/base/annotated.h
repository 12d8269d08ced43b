// What the annotated configs in configs/ show, to hold against what the parsers know.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/toml_reader.h"

namespace tributary {

// "section.key" of each line `key = value`, also where it is commented out.
inline std::set<std::string> AnnotatedKeys(const std::vector<std::string>& files) {
  static const std::regex header(R"((?:# )?\[([\w.]+)\]\s*)");
  static const std::regex line_of_key(R"re((?:# )?("?[\w.]+"?\s*=.*))re");
  std::set<std::string> out;
  for (const std::string& name : files) {
    std::ifstream file(absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs/", name));
    EXPECT_TRUE(file.is_open()) << name;
    std::string section, line;
    while (std::getline(file, line)) {
      std::smatch match;
      if (std::regex_match(line, match, header)) {
        section = match[1];
      } else if (std::regex_match(line, match, line_of_key) &&
                 TomlReader::Parse(match[1], name).ok()) {  // else it is prose with a "="
        std::string key = match[1].str().substr(0, match[1].str().find('='));
        std::erase_if(key, [](char c) { return c == ' ' || c == '"'; });
        out.insert(absl::StrCat(section, ".", key));
      }
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
