// Which Highway targets there are, and forcing one.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compression/codec.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace tributary::compression {
namespace {

// As the CPU has them, whatever is forced: asked once, before the first forcing.
const std::vector<int64_t>& RealTargets() {
  static const auto* targets = new std::vector<int64_t>(hwy::SupportedAndGeneratedTargets());
  return *targets;
}

}  // namespace

std::vector<std::string> SupportedTargets() {
  std::vector<std::string> names;
  for (const int64_t target : RealTargets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

absl::Status ForceTarget(std::string_view target) {
  int64_t mask = 0;
  for (const int64_t known : RealTargets()) {
    if (target == hwy::TargetName(known)) mask = known;
  }
  if (mask == 0 && !target.empty()) {
    return absl::NotFoundError(absl::StrCat("kernel target ", std::string(target),
                                            ": this CPU or build has only ",
                                            absl::StrJoin(SupportedTargets(), ", ")));
  }
  hwy::SetSupportedTargetsForTest(mask);  // 0 ends the forcing
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return absl::OkStatus();
}

}  // namespace tributary::compression
