// Ranges, words and addresses of config files.
#include "base/toml_checks.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_join.h"

namespace tributary {

std::string KeyText(const std::string& section, const std::string& key, const std::string& value) {
  return absl::StrCat("[", section, "] ", key, " = ", value);
}

std::string Quoted(const std::string& text) { return absl::StrCat("\"", text, "\""); }

void ReadOneOf(TomlReader& toml, const std::string& section, const std::string& key,
               std::string* out, const std::vector<std::string>& allowed, const std::string& why) {
  if (!toml.Read(section, key, out)) return;
  if (std::find(allowed.begin(), allowed.end(), *out) != allowed.end()) return;
  const std::string near = Nearest(*out, allowed);
  toml.Complain(section, key,
                absl::StrCat(KeyText(section, key, Quoted(*out)), " is not one of ",
                             absl::StrJoin(allowed, ", "), why,
                             near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?")));
}

std::optional<HostPort> ParseHostPort(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  HostPort out{.host = text.substr(0, colon), .port = -1};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, out.port);
  if (error != std::errc() || stop != end || out.port < 0 || out.port > 65535) return std::nullopt;
  return out;
}

void CheckHostPort(TomlReader& toml, const std::string& section, const std::string& key,
                   const std::string& value, PortUse use) {
  const std::optional<HostPort> address = ParseHostPort(value);
  const int least = use == PortUse::kListen ? 0 : 1;
  toml.Require(address.has_value() && address->port >= least, section, key,
               absl::StrCat(KeyText(section, key, Quoted(value)),
                            " is not \"host:port\" with a port from ", least, " to 65535"));
}

}  // namespace tributary
