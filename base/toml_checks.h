// What every config reader checks alike: ranges, words out of a list, addresses.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/toml_reader.h"

namespace tributary {

// `[section] key = value`, as findings begin.
std::string KeyText(const std::string& section, const std::string& key, const std::string& value);
std::string Quoted(const std::string& text);  // in double quotes

// Reads a number and checks its range, both ends included; NaN is in none.
template <typename T>
void ReadIn(TomlReader& toml, const std::string& section, const std::string& key, T* out,
            double low, double high) {
  if (!toml.Read(section, key, out)) return;
  const auto value = static_cast<double>(*out);
  toml.Require(value >= low && value <= high, section, key,
               absl::StrCat(KeyText(section, key, absl::StrCat(*out)), " is out of range: ", low,
                            " to ", high));
}

// Reads a word of a list; the finding names the nearest. `why` follows the list.
void ReadOneOf(TomlReader& toml, const std::string& section, const std::string& key,
               std::string* out, const std::vector<std::string>& allowed,
               const std::string& why = "");

struct HostPort {
  std::string host;
  int port = 0;  // 0..65535
};
// "host:port", the host as far as the last colon; nothing for anything else.
std::optional<HostPort> ParseHostPort(const std::string& text);

// kListen: 0 stands for "any free port". kConnect: a port that others connect to, 1 to 65535.
enum class PortUse { kListen, kConnect };
void CheckHostPort(TomlReader& toml, const std::string& section, const std::string& key,
                   const std::string& value, PortUse use);

}  // namespace tributary
