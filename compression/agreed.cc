// Replacing "step=auto" in a spec's text.
#include "compression/agreed.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "compression/internal/block_format.h"

namespace tributary::compression {
namespace {

constexpr std::string_view kAuto = "auto";
constexpr int kUsualStep = 12;  // as hq's own
constexpr double kRoom = 2;     // clients differ, and rounds do

// Where "auto" stands in "step = auto" within [from, to); npos: nowhere.
size_t FindAuto(std::string_view spec, size_t from, size_t to) {
  const size_t key = spec.find("step", from);
  if (key >= to) return std::string_view::npos;
  size_t at = key + 4;
  const auto skip = [&] {
    while (at < to && spec[at] == ' ') ++at;
  };
  skip();
  if (at >= to || spec[at] != '=') return std::string_view::npos;
  ++at;
  skip();
  return spec.substr(at, kAuto.size()) == kAuto ? at : std::string_view::npos;
}

int StepFor(int levels, std::optional<double> largest) {
  if (!largest.has_value() || !(*largest > 0)) return kUsualStep;
  // The smallest 2^-s with levels * 2^-s >= room * largest.
  const double exponent = std::floor(std::log2(levels / (kRoom * *largest)));
  return static_cast<int>(std::clamp<double>(exponent, 0, kMaxStepExponent));
}

}  // namespace

bool WantsAgreedStep(std::string_view spec) { return WithAgreedStep(spec, std::nullopt) != spec; }

std::string WithAgreedStep(std::string_view spec, std::optional<double> largest) {
  std::string result(spec);
  for (size_t at = result.find("hq("); at != std::string::npos; at = result.find("hq(", at + 3)) {
    const size_t end = result.find(')', at);
    if (end == std::string::npos) break;
    const size_t word = FindAuto(result, at, end);
    if (word == std::string::npos) continue;
    const std::string arguments = result.substr(at, end - at);
    const size_t bits = arguments.find("bits");
    const bool four = bits != std::string::npos &&
                      arguments.find_first_of("48", bits) != std::string::npos &&
                      arguments[arguments.find_first_of("48", bits)] == '4';
    result.replace(word, kAuto.size(), absl::StrCat("2^-", StepFor(four ? 7 : 127, largest)));
  }
  return result;
}

}  // namespace tributary::compression
