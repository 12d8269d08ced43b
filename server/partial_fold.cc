// Taking, keeping and undoing the chunks of a partial sum.
#include "server/partial_fold.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::server {

PartialFold::PartialFold(const v1::PartialSumHeader& header,
                         const aggregation::ExactAccumulator* sum, aggregation::FoldPool* pool)
    : header_(header), sum_(sum), pool_(pool) {}

absl::Status PartialFold::Take(uint64_t index, ByteSpan packed) {
  {
    std::lock_guard lock(mu_);
    if (sealed_) return absl::CancelledError("the partial sum is not taken any more");
    if (index != digest_.chunks()) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", index, " of the partial sum of \"",
                                                     header_.id(), "\" came where chunk ",
                                                     digest_.chunks(), " was expected"));
    }
    if (packed.size() > header_.packed_bytes() - bytes_) {
      return absl::InvalidArgumentError(
          absl::StrCat("the partial sum of \"", header_.id(), "\" is longer than the ",
                       header_.packed_bytes(), " bytes that its header says"));
    }
  }
  RETURN_IF_ERROR(sum_->ValidateChunk(index, packed));
  auto piece = std::make_shared<aggregation::PackedPartial>();
  piece->first_chunk = index;
  if (!header_.contributors().empty()) piece->first_id = header_.contributors(0);
  piece->chunks.emplace_back(packed.begin(), packed.end());
  const bool undoable = sum_->CanSubtractChunk(index);
  std::lock_guard lock(mu_);
  if (sealed_) return absl::CancelledError("the partial sum is not taken any more");
  digest_.Add(packed);
  bytes_ += packed.size();
  taken_bytes_ += packed.size();
  if (undoable) {
    pool_->Merge(piece, nullptr);
    folded_.push_back(std::move(piece));
  } else {
    held_.push_back(std::move(piece));
  }
  return absl::OkStatus();
}

absl::Status PartialFold::Finish(const std::string& digest) {
  std::lock_guard lock(mu_);
  if (sealed_) return absl::CancelledError("the partial sum is not taken any more");
  if (digest_.chunks() != sum_->chunk_count() || bytes_ != header_.packed_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the partial sum of \"", header_.id(), "\" ended after ", digest_.chunks(), " chunks of ",
        sum_->chunk_count(), " and ", bytes_, " bytes of ", header_.packed_bytes()));
  }
  const std::string seen = digest_.Value();
  if (digest != seen) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the partial sum of \"", header_.id(), "\" has digest ",
        absl::BytesToHexString(seen.substr(0, 8)), "…, its trailer says ",
        absl::BytesToHexString(digest.substr(0, 8)), "…: its chunks are not all of one sum"));
  }
  return absl::OkStatus();
}

void PartialFold::SubtractAll() {
  for (Piece& piece : folded_) pool_->Subtract(std::move(piece), nullptr);
  folded_.clear();
  held_.clear();
  digest_.Clear();
  bytes_ = 0;
}

void PartialFold::StartOver() {
  std::promise<void> undone;
  {
    std::lock_guard lock(mu_);
    SubtractAll();
    pool_->Fence([&undone] { undone.set_value(); });
  }
  undone.get_future().wait();
}

void PartialFold::Seal() {
  std::lock_guard lock(mu_);
  sealed_ = true;
}

bool PartialFold::SameSum(const v1::PartialSumHeader& header) const {
  return header.run() == header_.run() && header.round() == header_.round() &&
         header.id() == header_.id() && header.layout_hash() == header_.layout_hash() &&
         header.base_version() == header_.base_version() && header.weight() == header_.weight() &&
         header.chunks() == header_.chunks() && header.packed_bytes() == header_.packed_bytes() &&
         std::equal(header.contributors().begin(), header.contributors().end(),
                    header_.contributors().begin(), header_.contributors().end());
}

void PartialFold::Resume() {
  std::lock_guard lock(mu_);
  sealed_ = false;
}

void PartialFold::Settle(std::function<void()> done) {
  std::lock_guard lock(mu_);
  sealed_ = true;
  for (Piece& piece : held_) pool_->Merge(std::move(piece), nullptr);
  held_.clear();
  folded_.clear();
  pool_->Fence(std::move(done));
}

void PartialFold::Undo(std::function<void()> done) {
  std::lock_guard lock(mu_);
  sealed_ = true;
  SubtractAll();
  pool_->Fence(std::move(done));
}

uint64_t PartialFold::chunks() const {
  std::lock_guard lock(mu_);
  return digest_.chunks();
}

std::string PartialFold::digest() const {
  std::lock_guard lock(mu_);
  return digest_.Value();
}

uint64_t PartialFold::taken_bytes() const {
  std::lock_guard lock(mu_);
  return taken_bytes_;
}

}  // namespace tributary::server
