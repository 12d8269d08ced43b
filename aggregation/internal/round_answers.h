// What the two halves of the round machine share.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "aggregation/round.h"

namespace tributary::aggregation::internal {

// Counts come from children too: they stop at the top and do not wrap.
inline uint64_t AddSaturating(uint64_t a, uint64_t b) {
  return b > std::numeric_limits<uint64_t>::max() - a ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

// Reasons come from children too, who may invent any: a longer one than a word is counted as this.
inline constexpr size_t kMostReasonBytes = 64;
inline std::string ReasonToCount(const std::string& reason) {
  return reason.size() <= kMostReasonBytes ? reason : "other";
}

inline bool IsAnswered(Answer answer) {
  return answer == Answer::kAccepted || answer == Answer::kRejected || answer == Answer::kDeclined;
}

inline bool IsIn(Answer answer) {
  return answer == Answer::kFolding || answer == Answer::kAccepted;
}

inline bool IsPending(Answer answer) {
  return answer == Answer::kAwaited || answer == Answer::kUploading;
}

}  // namespace tributary::aggregation::internal
