// Codec zeros: another codec's payload of those blocks of a segment that are not zero throughout,
// and a bitmap that says which; for layers that are frozen and rows that nobody touched.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/scalar.h"
#include "compression/internal/sparse_kernels.h"
#include "compression/internal/stage.h"
#include "compression/segment.h"

namespace tributary::compression {
namespace {

constexpr size_t kHeadBytes = 12;  // u16 codec, u16 0, u32 parameter, u32 elements

uint64_t BlocksOf(uint64_t n) { return (n + kZeroBlock - 1) / kZeroBlock; }
uint64_t BitmapBytes(uint64_t n) { return (BlocksOf(n) + 7) / 8; }

// Which blocks of n elements are there.
struct Present {
  uint64_t n = 0;
  std::vector<uint8_t> bitmap;

  bool Has(uint64_t block) const { return (bitmap[block / 8] >> block % 8 & 1) != 0; }
  uint64_t Length(uint64_t block) const {
    return std::min<uint64_t>(kZeroBlock, n - block * kZeroBlock);
  }
  // Elements of the present blocks that begin before `end`.
  uint64_t Before(uint64_t end) const {
    uint64_t elements = 0;
    for (uint64_t b = 0; b * kZeroBlock < end; ++b) elements += Has(b) ? Length(b) : 0;
    return elements;
  }
  // visit(first element, elements, elements of present blocks before) of the present blocks that
  // begin in [begin, end).
  template <class Visit>
  void ForEach(uint64_t begin, uint64_t end, Visit visit) const {
    uint64_t before = Before(begin);
    for (uint64_t b = begin / kZeroBlock; b * kZeroBlock < end; ++b) {
      if (!Has(b)) continue;
      visit(b * kZeroBlock, Length(b), before);
      before += Length(b);
    }
  }
};

Present Look(std::span<const float> x) {
  Present present{x.size(), std::vector<uint8_t>(BitmapBytes(x.size()))};
  for (uint64_t b = 0; b < BlocksOf(x.size()); ++b) {
    if (AnyNonzero(x.data() + b * kZeroBlock, present.Length(b))) {
      present.bitmap[b / 8] |= static_cast<uint8_t>(1 << b % 8);
    }
  }
  return present;
}

struct Inner {
  std::shared_ptr<const Codec> codec;
  Present present;
  PiecedBytes payload;
};

absl::Status Wrong(const PiecedBytes& payload, uint64_t n, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("zeros payload: ", payload.size(),
                                                 " bytes do not hold ", n, " elements: ", what,
                                                 "; the payload is damaged or of another codec"));
}

absl::StatusOr<Inner> Unwrap(const PiecedBytes& payload) {
  Inner inner;
  ByteCursor cursor(payload);
  uint8_t head[kHeadBytes];
  if (!cursor.Read(head, sizeof head)) return Wrong(payload, 1, "the head is cut");
  const uint64_t n = LoadLe<uint32_t>(head + 8);
  if (n > kMaxStageTiles * kTileElements) return Wrong(payload, n, "more than a segment may have");
  inner.present = {n, std::vector<uint8_t>(BitmapBytes(n))};
  if (!cursor.Read(inner.present.bitmap.data(), inner.present.bitmap.size())) {
    return Wrong(payload, n, "the head is cut");
  }
  const auto id = LoadLe<uint16_t>(head);
  if (!MayBeWithin(id, CodecId::kZeros)) return Wrong(payload, n, "a stage within a stage");
  if (LoadLe<uint16_t>(head + 2) != 0) return Wrong(payload, n, "bytes 2 and 3 are not 0");
  if (BlocksOf(n) % 8 != 0 && inner.present.bitmap.back() >> BlocksOf(n) % 8 != 0) {
    return Wrong(payload, n, "bits are set after the last block");
  }
  ASSIGN_OR_RETURN(inner.codec, CodecFromHeader(id, LoadLe<uint32_t>(head + 4)));
  cursor.Take(payload.size() - kHeadBytes - inner.present.bitmap.size(), &inner.payload);
  return inner;
}

class ZerosCodec final : public Codec {
 public:
  explicit ZerosCodec(std::shared_ptr<const Codec> inner)
      : inner_(std::move(inner)), capabilities_(inner_->capabilities()) {
    capabilities_.linear = false;
    capabilities_.id = CodecId::kZeros;
    capabilities_.name = "zeros";
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override { return 0; }
  bool fixed_rate() const override { return false; }
  bool folds_whole() const override { return true; }
  uint64_t MaxSegmentElements() const override {
    return std::min(kMaxStageTiles * kTileElements, inner_->MaxSegmentElements());
  }
  uint64_t EncodedBytes(uint64_t n) const override {
    return n == 0 ? 0 : kHeadBytes + BitmapBytes(n) + inner_->EncodedBytes(n);
  }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override {
    return EncodePresent(Look(x), x, context, out);
  }

  absl::StatusOr<SegmentForm> EncodeSegment(std::span<const float> x, const EncodeContext& context,
                                            std::vector<uint8_t>* out) const override {
    const Present present = Look(x);
    const uint64_t within = present.Before(x.size());
    if (kHeadBytes + present.bitmap.size() + inner_->EncodedBytes(within) >=
        inner_->EncodedBytes(x.size())) {
      return inner_->EncodeSegment(x, context, out);  // it does not win
    }
    RETURN_IF_ERROR(EncodePresent(present, x, context, out));
    return SegmentForm{CodecId::kZeros, 0};
  }

  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override {
    if (n == 0) {
      return payload.size() == 0 ? absl::OkStatus() : Wrong(payload, n, "none take no byte");
    }
    ASSIGN_OR_RETURN(const Inner inner, Unwrap(payload));
    if (inner.present.n != n) {
      return Wrong(payload, n, absl::StrCat("they are of ", inner.present.n));
    }
    return Annotate(inner.codec->Validate(inner.payload, inner.present.Before(n), bound),
                    "zeros payload");
  }

  // Tiles of the inner payload are not those of the segment: what overlaps is folded to sums aside.
  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override {
    if (count == 0) return;
    const absl::StatusOr<Inner> inner = Unwrap(payload);
    if (!inner.ok()) return;
    const uint64_t from = inner->present.Before(begin) / kTileElements * kTileElements;
    const uint64_t most = inner->present.Before(begin + count);
    thread_local std::vector<int64_t> sums;
    sums.assign(most - std::min(from, most), 0);
    if (sums.empty()) return;
    inner->codec->Fold(inner->payload, from, sums.size(), grid, sums.data());
    inner->present.ForEach(begin, begin + count,
                           [&](uint64_t at, uint64_t length, uint64_t before) {
                             AddSums(sums.data() + (before - from),
                                     std::min(length, begin + count - at), acc + (at - begin));
                           });
  }

  void Decode(const PiecedBytes& payload, std::span<float> out) const override {
    std::ranges::fill(out, 0.0f);
    if (out.empty()) return;
    const absl::StatusOr<Inner> inner = Unwrap(payload);
    if (!inner.ok()) return;
    std::vector<float> within(inner->present.Before(out.size()));
    inner->codec->Decode(inner->payload, within);
    inner->present.ForEach(0, out.size(), [&](uint64_t at, uint64_t length, uint64_t before) {
      std::copy_n(within.begin() + static_cast<ptrdiff_t>(before), length,
                  out.begin() + static_cast<ptrdiff_t>(at));
    });
  }

  const Codec* inner() const { return inner_.get(); }

 private:
  absl::Status EncodePresent(const Present& present, std::span<const float> x,
                             const EncodeContext& context, std::vector<uint8_t>* out) const;

  const std::shared_ptr<const Codec> inner_;
  Capabilities capabilities_;
};

absl::Status ZerosCodec::EncodePresent(const Present& present, std::span<const float> x,
                                       const EncodeContext& context,
                                       std::vector<uint8_t>* out) const {
  if (x.empty()) return absl::OkStatus();
  std::vector<float> within(present.Before(x.size()));
  present.ForEach(0, x.size(), [&](uint64_t at, uint64_t length, uint64_t before) {
    std::copy_n(x.begin() + static_cast<ptrdiff_t>(at), length,
                within.begin() + static_cast<ptrdiff_t>(before));
  });
  std::vector<uint8_t> head(kHeadBytes);
  std::vector<uint8_t> payload;
  const absl::StatusOr<SegmentForm> form = inner_->EncodeSegment(within, context, &payload);
  // Refused: once more as a whole, whose message counts elements as the caller does.
  if (!form.ok()) {
    const absl::Status whole = inner_->Encode(x, context, &payload);
    return whole.ok() ? form.status() : whole;
  }
  StoreLe(static_cast<uint16_t>(form->id), head.data());
  StoreLe(form->parameter, head.data() + 4);
  StoreLe(static_cast<uint32_t>(x.size()), head.data() + 8);
  out->insert(out->end(), head.begin(), head.end());
  out->insert(out->end(), present.bitmap.begin(), present.bitmap.end());
  out->insert(out->end(), payload.begin(), payload.end());
  return absl::OkStatus();
}

}  // namespace

const Codec* WithinZeros(const Codec& codec) {
  const auto* stage = dynamic_cast<const ZerosCodec*>(&codec);
  return stage == nullptr ? nullptr : stage->inner();
}
std::shared_ptr<const Codec> MakeZeros(std::shared_ptr<const Codec> inner) {
  return std::make_shared<ZerosCodec>(std::move(inner));
}

}  // namespace tributary::compression
