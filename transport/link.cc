// Chunk: the lease on a slot; and figures in words.
#include "transport/link.h"

#include "absl/strings/str_cat.h"

namespace tributary::transport {

Chunk& Chunk::operator=(Chunk&& other) noexcept {
  if (this == &other) return *this;
  if (owner_ != nullptr) owner_->Return(slot_);
  owner_ = std::exchange(other.owner_, nullptr);
  slot_ = other.slot_;
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  capacity_ = std::exchange(other.capacity_, 0);
  kind_ = other.kind_;
  filled_on_device_ = other.filled_on_device_;
  device_address_ = other.device_address_;
  tag_ = other.tag_;
  return *this;
}

Chunk::~Chunk() {
  if (owner_ != nullptr) owner_->Return(slot_);
}

std::string PathText(const LinkStats& stats) {
  if (stats.congestion_window == 0) return "";
  return absl::StrCat(stats.retransmits, " segments sent again, round trip ",
                      absl::FormatDuration(stats.round_trip), ", congestion window ",
                      stats.congestion_window, " segments");
}

}  // namespace tributary::transport
