// Pending and committed residuals.
#include "client/internal/residuals.h"

#include <utility>

namespace tributary::client::internal {

void ResidualStore::AddTo(uint32_t tensor, std::span<float> delta) const {
  if (tensor >= committed_.size() || committed_[tensor].size() != delta.size()) return;
  for (size_t i = 0; i < delta.size(); ++i) delta[i] += committed_[tensor][i];
}

void ResidualStore::Begin(uint64_t round, size_t tensors) {
  pending_.assign(tensors, {});
  round_ = round;
  has_pending_ = true;
}

std::span<float> ResidualStore::Pending(uint32_t tensor, size_t elements) {
  pending_[tensor].assign(elements, 0.0f);
  return pending_[tensor];
}

void ResidualStore::Commit(uint64_t round) {
  if (!has_pending_ || round != round_) return;
  committed_ = std::exchange(pending_, {});
  has_pending_ = false;
}

void ResidualStore::Rollback(uint64_t round) {
  if (!has_pending_ || round != round_) return;
  pending_.clear();
  has_pending_ = false;
}

}  // namespace tributary::client::internal
