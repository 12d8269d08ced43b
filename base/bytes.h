// A byte string that lies in several pieces of memory, read in place: what gRPC hands over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace tributary {

using ByteSpan = std::span<const uint8_t>;

// Non-owning. The pieces, in order, are the byte string; the owner of the memory outlives it.
// Thread rule: const use from many threads.
class PiecedBytes {
 public:
  PiecedBytes() = default;
  explicit PiecedBytes(ByteSpan one) { Append(one); }

  void Append(ByteSpan piece) {
    if (piece.empty()) return;
    pieces_.push_back(piece);
    size_ += piece.size();
  }
  size_t size() const { return size_; }
  const std::vector<ByteSpan>& pieces() const { return pieces_; }

 private:
  std::vector<ByteSpan> pieces_;
  size_t size_ = 0;
};

// Walks a PiecedBytes from `offset` on. Kernels take whole units (an element, a block) where they
// lie contiguous in a piece, and only the one unit that straddles two pieces is copied.
class ByteCursor {
 public:
  explicit ByteCursor(const PiecedBytes& bytes, size_t offset = 0) : pieces_(&bytes.pieces()) {
    Skip(offset);
  }

  // The contiguous bytes at the cursor; empty at the end.
  ByteSpan Contiguous() const {
    return piece_ < pieces_->size() ? (*pieces_)[piece_].subspan(at_) : ByteSpan();
  }
  size_t Remaining() const {
    size_t n = 0;
    for (size_t i = piece_; i < pieces_->size(); ++i) n += (*pieces_)[i].size();
    return n - (piece_ < pieces_->size() ? at_ : 0);
  }
  // Advances; stops at the end.
  void Skip(size_t n) {
    at_ += n;
    while (piece_ < pieces_->size() && at_ >= (*pieces_)[piece_].size()) {
      at_ -= (*pieces_)[piece_].size();
      ++piece_;
    }
  }
  // Copies `n` bytes and advances; false, with nothing promised of `out`, where fewer are left.
  bool Read(void* out, size_t n) {
    auto* to = static_cast<uint8_t*>(out);
    while (n > 0) {
      const ByteSpan here = Contiguous();
      if (here.empty()) return false;
      const size_t take = here.size() < n ? here.size() : n;
      std::memcpy(to, here.data(), take);
      to += take;
      n -= take;
      Skip(take);
    }
    return true;
  }
  // Appends the next `n` bytes to `out` as pieces, uncopied, and advances; false where fewer are
  // left.
  bool Take(size_t n, PiecedBytes* out) {
    while (n > 0) {
      const ByteSpan here = Contiguous();
      if (here.empty()) return false;
      const size_t take = here.size() < n ? here.size() : n;
      out->Append(here.first(take));
      n -= take;
      Skip(take);
    }
    return true;
  }

 private:
  const std::vector<ByteSpan>* pieces_;
  size_t piece_ = 0;
  size_t at_ = 0;
};

}  // namespace tributary
