// A codec spec as text: "name(value, key=value, ...)", stages joined by "|".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tributary::compression {

// One stage, its arguments taken one by one; what is left over at the end is an error.
class SpecStage {
 public:
  // `whole` is the spec as the user wrote it, for messages.
  static absl::StatusOr<SpecStage> Parse(absl::string_view text, absl::string_view whole);

  const std::string& name() const { return name_; }
  // The argument without a key, or with this key; each is given once.
  std::optional<std::string> TakePositional();
  std::optional<std::string> Take(absl::string_view key);
  // The value of `key` as one of `words`, by its place; the first where it is not given.
  absl::StatusOr<int> TakeWord(absl::string_view key, std::vector<absl::string_view> words);
  // A power of two in [least, most].
  absl::StatusOr<uint32_t> TakePowerOfTwo(absl::string_view key, uint32_t usual, uint32_t least,
                                          uint32_t most);
  absl::StatusOr<uint32_t> TakeNumber(absl::string_view key, uint32_t usual, uint32_t least,
                                      uint32_t most);
  // "2^-12": 12; where it may be agreed, "auto": `usual`, until the round's spec says a number.
  absl::StatusOr<int> TakeStep(int usual, int most, bool agreed);
  // A decimal number in [least, most].
  absl::StatusOr<double> TakeDecimal(absl::string_view key, double usual, double least,
                                     double most);
  // A fraction in (0, most], without key.
  absl::StatusOr<double> TakeFraction(double most);
  absl::StatusOr<double> TakeFraction(absl::string_view key, double usual, double most);
  // INVALID_ARGUMENT where an argument was not taken.
  absl::Status Done() const;
  // INVALID_ARGUMENT with the spec, what is wrong, and what is known.
  absl::Status Bad(absl::string_view what) const;

 private:
  std::string whole_, name_;
  std::vector<std::pair<std::string, std::string>> arguments_;  // key "": positional
};

}  // namespace tributary::compression
