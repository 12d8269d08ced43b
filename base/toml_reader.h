// Reads a TOML file key by key and collects every finding with its place, so that a user mends all
// at once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tributary {

// Not thread-safe. Sections are tables of the top level; "a.b" names a table within a table.
class TomlReader {
 public:
  // INVALID_ARGUMENT with path:line:column where the text is not TOML.
  static absl::StatusOr<TomlReader> Parse(const std::string& text, const std::string& path);
  // NOT_FOUND where the file is not there, or is a directory.
  static absl::StatusOr<TomlReader> Load(const std::string& path);
  TomlReader(TomlReader&&) noexcept;
  ~TomlReader();

  bool Has(const std::string& section) const;
  bool Has(const std::string& section, const std::string& key) const;

  // Each makes `key` known and, where it is there with the right type, sets *out and returns true.
  // A wrong type is a finding. Integers must not be negative for the unsigned forms.
  bool Read(const std::string& section, const std::string& key, std::string* out);
  bool Read(const std::string& section, const std::string& key, bool* out);
  bool Read(const std::string& section, const std::string& key, uint32_t* out);
  bool Read(const std::string& section, const std::string& key, uint64_t* out);
  bool Read(const std::string& section, const std::string& key, int* out);
  bool Read(const std::string& section, const std::string& key,
            double* out);  // integers are fine too
  // A string or an array of strings.
  bool Read(const std::string& section, const std::string& key, std::vector<std::string>* out);
  // Bytes: an integer, or "512MiB", "2GiB", "64KiB", "100MB".
  bool ReadBytes(const std::string& section, const std::string& key, uint64_t* out);
  // All keys of a section as strings, or as numbers; they are all known.
  std::map<std::string, std::string> ReadStrings(const std::string& section);

  // What is in this section is not looked at further.
  void Ignore(const std::string& section);
  // A finding about a key (or, with key "", about the section; or, with both "", about the file).
  void Complain(const std::string& section, const std::string& key, const std::string& what);
  // Complains unless ok.
  void Require(bool ok, const std::string& section, const std::string& key,
               const std::string& what) {
    if (!ok) Complain(section, key, what);
  }
  // "path:line:column" of the key, or of its section, or "path".
  std::string Where(const std::string& section, const std::string& key) const;

  // Every key that was asked for, whether it is there or not: "section.key", and "section.*" where
  // all were.
  std::vector<std::string> KnownKeys() const;

  // After everything was read: unknown sections and keys join the findings; INVALID_ARGUMENT with
  // all, a line each.
  absl::Status Finish();

 private:
  struct State;
  // Complains of what is larger.
  bool ReadUpTo(const std::string& section, const std::string& key, uint64_t most, uint64_t* out);
  explicit TomlReader(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The candidate nearest to `word` by edit distance, "" where none is near (more than half of it
// would change).
std::string Nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace tributary
