// Error feedback: what a codec rounded away in one round is added to the next round's delta, but
// only once the round's outcome says that the update counted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tributary::client::internal {

// One client's residuals, a vector a tensor (empty: none). Run's thread only.
class ResidualStore {
 public:
  // delta += the committed residual, where there is one of this length.
  void AddTo(uint32_t tensor, std::span<float> delta) const;
  // Begins the encoding of `round`; what was pending is rolled back.
  void Begin(uint64_t round, size_t tensors);
  // Where the encoding of `tensor` in the begun round leaves its residual; `elements` floats,
  // zeroed.
  std::span<float> Pending(uint32_t tensor, size_t elements);
  // The begun round's update counted: what it left is what the next carries. Else the committed
  // residuals stay: the next delta is trained anew, and nothing of the lost one was sent.
  // Other rounds than the begun one change nothing.
  void Commit(uint64_t round);
  void Rollback(uint64_t round);
  bool pending() const { return has_pending_; }

 private:
  std::vector<std::vector<float>> committed_;
  std::vector<std::vector<float>> pending_;
  uint64_t round_ = 0;
  bool has_pending_ = false;
};

}  // namespace tributary::client::internal
