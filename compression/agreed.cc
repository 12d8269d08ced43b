// Replacing "step=auto" in a spec's text.
#include "compression/agreed.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "compression/codec.h"
#include "compression/internal/block_format.h"
#include "compression/internal/stage.h"

namespace tributary::compression {
namespace {

constexpr std::string_view kAuto = "auto";
constexpr int kUsualStep = 12;  // as hq's own
constexpr double kRoom = 2;     // clients differ, and rounds do

// The first place from `at` on that is no white space.
size_t Past(std::string_view spec, size_t at) {
  while (at < spec.size() && absl::ascii_isspace(static_cast<unsigned char>(spec[at]))) ++at;
  return at;
}

// Where the arguments of the next hq begin; npos: there is none with arguments.
size_t NextArguments(std::string_view spec, size_t from) {
  for (size_t at = spec.find("hq", from); at != std::string_view::npos; at = spec.find("hq", at)) {
    at = Past(spec, at + 2);
    if (at < spec.size() && spec[at] == '(') return at + 1;
  }
  return std::string_view::npos;
}

// Where "auto" stands in "step = auto" within [from, to); npos: nowhere.
size_t FindAuto(std::string_view spec, size_t from, size_t to) {
  const size_t key = spec.find("step", from);
  if (key >= to) return std::string_view::npos;
  size_t at = Past(spec, key + 4);
  if (at >= to || spec[at] != '=') return std::string_view::npos;
  at = Past(spec, at + 1);
  return spec.substr(at, kAuto.size()) == kAuto ? at : std::string_view::npos;
}

int StepFor(int levels, std::optional<double> largest) {
  if (!largest.has_value() || !(*largest > 0)) return kUsualStep;
  // The smallest 2^-s with levels * 2^-s >= room * largest.
  const double exponent = std::floor(std::log2(levels / (kRoom * *largest)));
  return static_cast<int>(std::clamp<double>(exponent, 0, kMaxStepExponent));
}

}  // namespace

bool IsHq(const Codec& codec) {
  const Codec* at = &codec;
  for (const Codec* within = at; within != nullptr;) {
    at = within;
    within = WithinCompressed(*at);
    if (within == nullptr) within = WithinZeros(*at);
  }
  return at->capabilities().id == CodecId::kHq;
}

bool WantsAgreedStep(std::string_view spec) { return WithAgreedStep(spec, std::nullopt) != spec; }

std::string WithAgreedStep(std::string_view spec, std::optional<double> largest) {
  std::string result(spec);
  for (size_t at = NextArguments(result, 0); at != std::string::npos;
       at = NextArguments(result, at)) {
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
