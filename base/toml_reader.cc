// TOML by toml++; places, types and near misses.
#include "base/toml_reader.h"

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tributary {

struct TomlReader::State {
  std::string path;
  toml::table root;
  std::map<std::string, std::set<std::string>> known;
  std::set<std::string> open;  // sections whose keys are all known
  std::vector<std::pair<toml::source_position, std::string>> findings;

  const toml::table* Section(const std::string& name) const {
    const toml::table* table = &root;
    for (const auto part : absl::StrSplit(name, '.')) {
      const toml::node* node = table->get(std::string_view(part.data(), part.size()));
      if (node == nullptr || !node->is_table()) return nullptr;
      table = node->as_table();
    }
    return table;
  }
  const toml::node* Key(const std::string& section, const std::string& key) const {
    const toml::table* table = Section(section);
    return table == nullptr ? nullptr : table->get(key);
  }
  void Add(const toml::source_position& at, const std::string& what) {
    findings.emplace_back(at, what);
  }
  void WrongType(const toml::node& node, const std::string& section, const std::string& key,
                 const char* wanted) {
    std::string found = "a value of another kind";
    if (node.is_string()) found = absl::StrCat("the string \"", node.as_string()->get(), "\"");
    if (node.is_integer()) found = absl::StrCat("the integer ", node.as_integer()->get());
    if (node.is_floating_point())
      found = absl::StrCat("the number ", node.as_floating_point()->get());
    if (node.is_boolean()) found = node.as_boolean()->get() ? "true" : "false";
    if (node.is_array()) found = "an array";
    if (node.is_table()) found = "a table";
    Add(node.source().begin,
        absl::StrCat("[", section, "] ", key, " must be ", wanted, ", not ", found));
  }

  // Keys and sections that nobody has asked for.
  void FindUnknown();
  void FindUnknownKeys(const std::string& section, const toml::table& table);
  std::string KeyHint(const std::string& section, const std::string& key) const;
  std::string SectionHint(const std::string& name) const;
  // "[a] or [b]": the sections that know this key; "" where none does.
  std::string SectionsWith(const std::string& key) const;
};

namespace {

std::string Hint(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string near = Nearest(word, candidates);
  return near.empty() ? absl::StrCat("; known are ", absl::StrJoin(candidates, ", "))
                      : absl::StrCat("; did you mean \"", near, "\"?");
}

}  // namespace

std::string TomlReader::State::SectionsWith(const std::string& key) const {
  std::vector<std::string> sections;
  for (const auto& [section, keys] : known) {
    if (keys.contains(key)) sections.push_back(absl::StrCat("[", section, "]"));
  }
  return absl::StrJoin(sections, " or ");
}

std::string TomlReader::State::KeyHint(const std::string& section, const std::string& key) const {
  if (const std::string elsewhere = SectionsWith(key); !elsewhere.empty()) {
    return absl::StrCat("; it belongs in ", elsewhere);
  }
  std::vector<std::string> candidates(known.at(section).begin(), known.at(section).end());
  for (const std::string& name : open) {  // tables within this one
    if (name.starts_with(section + ".")) candidates.push_back(name.substr(section.size() + 1));
  }
  return Hint(key, candidates);
}

std::string TomlReader::State::SectionHint(const std::string& name) const {
  std::vector<std::string> sections;
  for (const auto& [section, keys] : known) sections.push_back(section);
  return Hint(name, sections);
}

void TomlReader::State::FindUnknownKeys(const std::string& section, const toml::table& table) {
  for (const auto& [key_node, value] : table) {
    const std::string key(key_node.str());
    const std::string within = absl::StrCat(section, ".", key);
    if (known.at(section).contains(key) || open.contains(within)) continue;
    if (value.is_table() && known.contains(within)) {
      FindUnknownKeys(within, *value.as_table());
      continue;
    }
    Add(key_node.source().begin,
        absl::StrCat("unknown key \"", key, "\" in [", section, "]", KeyHint(section, key)));
  }
}

void TomlReader::State::FindUnknown() {
  for (const auto& [name_node, node] : root) {
    const std::string name(name_node.str());
    const toml::source_position at = name_node.source().begin;
    if (open.contains(name)) continue;
    if (known.contains(name) && node.is_table()) {
      FindUnknownKeys(name, *node.as_table());
    } else if (known.contains(name)) {
      Add(at, absl::StrCat("[", name, "] is a section: write \"[", name,
                           "]\" on a line of its own, and its keys below"));
    } else if (node.is_table() || node.is_array_of_tables()) {
      Add(at, absl::StrCat("unknown section [", name, "]", SectionHint(name)));
    } else {
      const std::string sections = SectionsWith(name);
      Add(at, absl::StrCat("key \"", name, "\" stands outside any section",
                           sections.empty() ? SectionHint(name)
                                            : absl::StrCat("; it belongs in ", sections)));
    }
  }
}

TomlReader::TomlReader(std::unique_ptr<State> state) : state_(std::move(state)) {}
TomlReader::TomlReader(TomlReader&&) noexcept = default;
TomlReader::~TomlReader() = default;

absl::StatusOr<TomlReader> TomlReader::Parse(const std::string& text, const std::string& path) {
  toml::parse_result result = toml::parse(text, path);
  if (!result) {
    const toml::parse_error& error = result.error();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.source().begin.line, ":", error.source().begin.column,
                     ": not TOML: ", std::string(error.description())));
  }
  auto state = std::make_unique<State>();
  state->path = path;
  state->root = std::move(result).table();
  return TomlReader(std::move(state));
}

absl::StatusOr<TomlReader> TomlReader::Load(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": is a directory; name a config file in it"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": no such file, or it cannot be read"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return Parse(text, path);
}

bool TomlReader::Has(const std::string& section) const {
  return state_->Section(section) != nullptr;
}
bool TomlReader::Has(const std::string& section, const std::string& key) const {
  return state_->Key(section, key) != nullptr;
}

bool TomlReader::Read(const std::string& section, const std::string& key, std::string* out) {
  state_->known[section].insert(key);
  const toml::node* node = state_->Key(section, key);
  if (node == nullptr) return false;
  if (!node->is_string()) {
    state_->WrongType(*node, section, key, "a string");
    return false;
  }
  *out = node->as_string()->get();
  return true;
}

bool TomlReader::Read(const std::string& section, const std::string& key, bool* out) {
  state_->known[section].insert(key);
  const toml::node* node = state_->Key(section, key);
  if (node == nullptr) return false;
  if (!node->is_boolean()) {
    state_->WrongType(*node, section, key, "true or false");
    return false;
  }
  *out = node->as_boolean()->get();
  return true;
}

bool TomlReader::Read(const std::string& section, const std::string& key, uint64_t* out) {
  state_->known[section].insert(key);
  const toml::node* node = state_->Key(section, key);
  if (node == nullptr) return false;
  if (!node->is_integer() || node->as_integer()->get() < 0) {
    state_->WrongType(*node, section, key, "a whole number, not negative");
    return false;
  }
  *out = static_cast<uint64_t>(node->as_integer()->get());
  return true;
}

bool TomlReader::ReadUpTo(const std::string& section, const std::string& key, uint64_t most,
                          uint64_t* out) {
  if (!Read(section, key, out)) return false;
  if (*out <= most) return true;
  Complain(section, key,
           absl::StrCat("[", section, "] ", key, " = ", *out, " is too large: at most ", most));
  return false;
}

bool TomlReader::Read(const std::string& section, const std::string& key, uint32_t* out) {
  uint64_t wide = 0;
  if (!ReadUpTo(section, key, std::numeric_limits<uint32_t>::max(), &wide)) return false;
  *out = static_cast<uint32_t>(wide);
  return true;
}

bool TomlReader::Read(const std::string& section, const std::string& key, int* out) {
  uint64_t wide = 0;
  if (!ReadUpTo(section, key, std::numeric_limits<int>::max(), &wide)) return false;
  *out = static_cast<int>(wide);
  return true;
}

bool TomlReader::Read(const std::string& section, const std::string& key, double* out) {
  state_->known[section].insert(key);
  const toml::node* node = state_->Key(section, key);
  if (node == nullptr) return false;
  if (node->is_integer()) {
    *out = static_cast<double>(node->as_integer()->get());
  } else if (node->is_floating_point()) {
    *out = node->as_floating_point()->get();
  } else {
    state_->WrongType(*node, section, key, "a number");
    return false;
  }
  return true;
}

bool TomlReader::Read(const std::string& section, const std::string& key,
                      std::vector<std::string>* out) {
  state_->known[section].insert(key);
  const toml::node* node = state_->Key(section, key);
  if (node == nullptr) return false;
  std::vector<std::string> strings;
  if (node->is_string()) {
    strings.push_back(node->as_string()->get());
  } else if (node->is_array()) {
    for (const toml::node& element : *node->as_array()) {
      if (!element.is_string()) {
        state_->WrongType(element, section, key, "a string or an array of strings");
        return false;
      }
      strings.push_back(element.as_string()->get());
    }
  } else {
    state_->WrongType(*node, section, key, "a string or an array of strings");
    return false;
  }
  *out = std::move(strings);
  return true;
}

bool TomlReader::ReadBytes(const std::string& section, const std::string& key, uint64_t* out) {
  const toml::node* node = state_->Key(section, key);
  if (node == nullptr || !node->is_string()) return Read(section, key, out);
  state_->known[section].insert(key);
  const std::string text = node->as_string()->get();
  static constexpr std::pair<std::string_view, uint64_t> kUnits[] = {{"KiB", uint64_t{1} << 10},
                                                                     {"MiB", uint64_t{1} << 20},
                                                                     {"GiB", uint64_t{1} << 30},
                                                                     {"TiB", uint64_t{1} << 40},
                                                                     {"KB", 1'000},
                                                                     {"MB", 1'000'000},
                                                                     {"GB", 1'000'000'000},
                                                                     {"B", 1}};
  for (const auto& [suffix, factor] : kUnits) {
    if (!text.ends_with(suffix)) continue;
    std::string number = text.substr(0, text.size() - suffix.size());
    while (number.ends_with(' ')) number.pop_back();
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size() ||
        value > std::numeric_limits<uint64_t>::max() / factor) {
      break;
    }
    *out = value * factor;
    return true;
  }
  state_->WrongType(*node, section, key,
                    "a number of bytes such as 1073741824, \"512MiB\" or \"2GiB\"");
  return false;
}

std::map<std::string, std::string> TomlReader::ReadStrings(const std::string& section) {
  std::map<std::string, std::string> out;
  state_->open.insert(section);
  const toml::table* table = state_->Section(section);
  if (table == nullptr) return out;
  for (const auto& [key, node] : *table) {
    if (node.is_string()) {
      out[std::string(key.str())] = node.as_string()->get();
    } else {
      state_->WrongType(node, section, std::string(key.str()), "a string");
    }
  }
  return out;
}

void TomlReader::Ignore(const std::string& section) { state_->open.insert(section); }

void TomlReader::Complain(const std::string& section, const std::string& key,
                          const std::string& what) {
  toml::source_position at = {0, 0};
  if (const toml::node* node = key.empty() ? nullptr : state_->Key(section, key); node != nullptr) {
    at = node->source().begin;
  } else if (const toml::table* table = section.empty() ? nullptr : state_->Section(section);
             table != nullptr) {
    at = table->source().begin;
  }
  state_->Add(at, what);
}

std::string TomlReader::Where(const std::string& section, const std::string& key) const {
  if (const toml::node* node = state_->Key(section, key); node != nullptr) {
    return absl::StrCat(state_->path, ":", node->source().begin.line, ":",
                        node->source().begin.column);
  }
  if (const toml::table* table = state_->Section(section); table != nullptr) {
    return absl::StrCat(state_->path, ":", table->source().begin.line, ":",
                        table->source().begin.column);
  }
  return state_->path;
}

std::vector<std::string> TomlReader::KnownKeys() const {
  std::vector<std::string> out;
  for (const auto& [section, keys] : state_->known) {
    for (const std::string& key : keys) out.push_back(absl::StrCat(section, ".", key));
  }
  for (const std::string& section : state_->open) out.push_back(absl::StrCat(section, ".*"));
  return out;
}

absl::Status TomlReader::Finish() {
  state_->FindUnknown();
  if (state_->findings.empty()) return absl::OkStatus();
  std::stable_sort(
      state_->findings.begin(), state_->findings.end(), [](const auto& a, const auto& b) {
        return std::pair(a.first.line, a.first.column) < std::pair(b.first.line, b.first.column);
      });
  std::vector<std::string> lines;
  for (const auto& [at, what] : state_->findings) {
    lines.push_back(at.line == 0
                        ? absl::StrCat(state_->path, ": ", what)
                        : absl::StrCat(state_->path, ":", at.line, ":", at.column, ": ", what));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

std::string Nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = word.size() / 2 + 1;
  for (const std::string& candidate : candidates) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substituted = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

}  // namespace tributary
