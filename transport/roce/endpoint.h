// What the two ends of a link tell each other while it is set up: bytes and checks. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "transport/roce/verbs_api.h"
#include "tributary/v1/link.pb.h"

namespace tributary::transport::roce {

std::string EncodeSetUp(const v1::RoceSetUp& message);
std::string EncodeSetUpRefusal(const absl::Status& why);
// The peer's refusal as a status with its code and words, or the message.
absl::StatusOr<v1::RoceSetUp> DecodeSetUp(ByteSpan message);

// DATA_LOSS where a field is missing or out of range, FAILED_PRECONDITION where the two ports
// cannot work together. `queue_pairs` and `peer_slots` are what the hellos said.
absl::Status CheckEndpoint(const v1::RoceEndpoint& theirs, bool infiniband, uint32_t queue_pairs,
                           uint32_t peer_slots);

// The immediate of a chunk or a grant: the low bits of its sequence and its slot.
inline constexpr uint32_t kSlotBits = 10;
inline constexpr uint32_t kSequenceMask = (uint32_t{1} << (32 - kSlotBits)) - 1;
inline uint32_t Immediate(uint64_t sequence, uint32_t slot) {
  return (static_cast<uint32_t>(sequence) & kSequenceMask) << kSlotBits | slot;
}
inline uint32_t ImmediateSlot(uint32_t immediate) { return immediate & ((1U << kSlotBits) - 1); }
inline bool IsSequence(uint32_t immediate, uint64_t sequence) {
  return immediate >> kSlotBits == (static_cast<uint32_t>(sequence) & kSequenceMask);
}

}  // namespace tributary::transport::roce
