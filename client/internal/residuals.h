// Error feedback: what a codec rounded away in one round is added to the next round's delta, but
// only once the round's outcome says that the update counted.
#pragma once

#include <bit>
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
// the rows and columns of dct's planes, or nothing, of the elements themselves. Residual and
// estimate are Wide: their lower halves are kinds of their own.
enum class Kept : uint32_t {
  kResidual = 0,
  kMomentum = 1,
  kEstimate = 2,
  kWarm = 3,
  kMemory = 4,
  kBasis = 5,
  kResidualLower = 6,
  kEstimateLower = 7
};
inline constexpr size_t kKeptKinds = 8;

// Doubles whose upper and lower 32 bits lie in two vectors of floats, as all that is kept is
// floats: not numbers of their own, but their bits. 2^53 whole units of a grid stay whole. `Float`:
// float or const float.
template <class Float>
struct Wide {
  std::span<Float> upper = {}, lower = {};
  size_t size() const { return upper.size(); }
  double operator[](size_t i) const {
    return std::bit_cast<double>(uint64_t{std::bit_cast<uint32_t>(upper[i])} << 32 |
                                 std::bit_cast<uint32_t>(lower[i]));
  }
  void Set(size_t i, double value) const {
    const auto bits = std::bit_cast<uint64_t>(value);
    upper[i] = std::bit_cast<float>(static_cast<uint32_t>(bits >> 32));
    lower[i] = std::bit_cast<float>(static_cast<uint32_t>(bits));
  }
};

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
  void AddTo(uint32_t tensor, std::span<float> delta, float factor, Kept kind) const;
  // Begins the encoding of `round`; what was pending is rolled back.
  void Begin(uint64_t round, size_t tensors);
  // Where the encoding of `tensor` in the begun round leaves what is to be kept; `elements` floats,
  // zeroed.
  std::span<float> Pending(uint32_t tensor, size_t elements, Kept kind);
  // The same of kinds that are Wide: kResidual, kEstimate. What is committed is empty where it has
  // another length than `elements`.
  Wide<float> PendingWide(uint32_t tensor, size_t elements, Kept kind);
  Wide<const float> CommittedWide(uint32_t tensor, size_t elements, Kept kind) const;
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
  // Floats of earlier releases' files become doubles.
  static void Widen(Tensors* tensors);

  std::string path_;
  std::string identity_;  // run and layout hash
  bool read_ = false;     // the file was looked at
  Tensors committed_;
  Tensors pending_;
  uint64_t round_ = 0;
  bool has_pending_ = false;
};

}  // namespace tributary::client::internal
