// Folding a tile of top-k: decoding places, fetching sums and adding to them, each ahead of the
// next.
#include <algorithm>
#include <cstdint>

#include "compression/internal/sparse.h"
#include "compression/internal/sparse_kernels.h"

namespace tributary::compression {
namespace {

constexpr size_t kBlock = SumQueue::kBlock;

// The values of a tile, as what they add to sums.
class TileTerms {
 public:
  TileTerms(SparseValues kind, const uint8_t* values, float scale, const FoldArgs& args)
      : kind_(kind), values_(values), args_(args) {
    if (kind == SparseValues::kInt8) args_.scale *= static_cast<double>(scale);  // exact: 24 bits
    if (kind == SparseValues::kTernary) FoldOne(static_cast<double>(scale), args, &positive_);
  }
  // Of values [from, from + n), `from` a multiple of 8.
  void Write(size_t from, size_t n, int64_t* terms) const {
    switch (kind_) {
      case SparseValues::kFloat32:
        return TermsOfFloats(values_ + 4 * from, n, args_, terms);
      case SparseValues::kFloat16:
        return TermsOfHalves(values_ + 2 * from, n, args_, terms);
      case SparseValues::kInt8:
        return TermsOfInt8s(values_ + from, n, args_, terms);
      case SparseValues::kTernary:
        return TermsOfSigns(values_ + from / 8, n, positive_, terms);
    }
  }

 private:
  const SparseValues kind_;
  const uint8_t* const values_;
  FoldArgs args_;
  int64_t positive_ = 0;
};

inline void AddTerms(const uint16_t* places, const int64_t* terms, size_t n, int64_t* acc) {
  for (size_t j = 0; j < n; ++j) {
    int64_t& sum = acc[places[j]];
    sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(terms[j]));
  }
}

}  // namespace

void SumQueue::Drain() {
  AddTerms(places_, terms_, count_, acc_);
  count_ = 0;
}

void FoldSparseTile(SparseValues kind, const TileEntry& entry, const uint8_t* p, uint64_t length,
                    float scale, const FoldArgs& args, int64_t* acc, SumQueue* queue) {
  const TileTerms all(kind, p + entry.index_bytes, scale, args);
  uint16_t places[kPlacesRoom];
  int64_t terms[kBlock];
  ReadIndices(entry, p, places);
  size_t n = entry.count;
  while (n > 0 && places[n - 1] >= length) --n;  // they rise
  const auto fetch = [&](size_t from, size_t to) {
    for (size_t j = from; j < to; ++j) __builtin_prefetch(acc + places[j], 1, 2);
  };
  size_t added = 0, fetched = std::min(n, kBlock);
  fetch(0, fetched);
  queue->Drain();
  for (; fetched + kBlock <= n; fetched += kBlock, added += kBlock) {
    fetch(fetched, fetched + kBlock);
    all.Write(added, kBlock, terms);
    AddTerms(places + added, terms, kBlock, acc);
  }
  fetch(fetched, n);
  all.Write(added, n - added, queue->terms_);
  std::copy(places + added, places + n, queue->places_);
  queue->count_ = n - added;
  queue->acc_ = acc;
}

}  // namespace tributary::compression
