// Error feedback: what a codec rounded away in one round is added to the next round's delta, but
// only once the round's outcome says that the update counted.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tributary::client::internal {

// What is kept of a tensor (compression/policy.h): each kind is apart, so that a run that changes
// its codec never takes one for another.
// kMemory is the trainer's (client.h); kBasis says what residual, momentum and estimate are of:
// the rows and columns of dct's planes, or nothing, of the elements themselves.
enum class Kept : uint32_t {
  kResidual = 0,
  kMomentum = 1,
  kEstimate = 2,
  kWarm = 3,
  kMemory = 4,
  kBasis = 5
};
inline constexpr size_t kKeptKinds = 6;

// What one client keeps of its tensors, a vector each (empty: none). Run's thread only.
class ResidualStore {
 public:
  // `path`: the file that holds them between two lives of the client; "": memory alone.
  explicit ResidualStore(std::string path = "") : path_(std::move(path)) {}

  // Residuals are of one run and one layout. The first call reads the file; where what is held is
  // of others it is dropped, and the text says so (else it is empty). A file that does not read is
  // dropped too.
  std::string Bind(const std::string& run, const std::string& layout_hash);
  // Writes the file, whole or not at all; OK without a path.
  absl::Status Save() const;
  // delta += factor times what is committed, where there is something of this length.
  void AddTo(uint32_t tensor, std::span<float> delta, float factor = 1,
             Kept kind = Kept::kResidual) const;
  // Begins the encoding of `round`; what was pending is rolled back.
  void Begin(uint64_t round, size_t tensors);
  // Where the encoding of `tensor` in the begun round leaves what is to be kept; `elements` floats,
  // zeroed.
  std::span<float> Pending(uint32_t tensor, size_t elements, Kept kind = Kept::kResidual);
  // Other state that a codec carries from encoding to encoding, committed and rolled back with the
  // residuals.
  std::span<const float> Committed(uint32_t tensor, Kept kind) const {
    const size_t slot = Slot(tensor, kind, committed_.size());
    return slot < committed_.size() ? std::span<const float>(committed_[slot])
                                    : std::span<const float>();
  }
  std::vector<float>* PendingState(uint32_t tensor, Kept kind) {
    return &pending_[Slot(tensor, kind, pending_.size())];
  }
  // The begun round's update counted: what it left is what the next carries. Else the committed
  // residuals stay: the next delta is trained anew, and nothing of the lost one was sent.
  // Other rounds than the begun one change nothing.
  void Commit(uint64_t round);
  void Rollback(uint64_t round);
  bool pending() const { return has_pending_; }
  uint64_t pending_round() const { return round_; }

 private:
  using Tensors = std::vector<std::vector<float>>;
  // All tensors' residuals, then all momenta, and so on in the order of Kept.
  static size_t Slot(uint32_t tensor, Kept kind, size_t slots) {
    return static_cast<size_t>(kind) * (slots / kKeptKinds) + tensor;
  }
  std::string Serialized() const;
  bool Parse(const std::string& bytes);

  std::string path_;
  std::string identity_;  // run and layout hash
  bool read_ = false;     // the file was looked at
  Tensors committed_;
  Tensors pending_;
  uint64_t round_ = 0;
  bool has_pending_ = false;
};

}  // namespace tributary::client::internal
