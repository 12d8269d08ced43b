// Codecs zstd and lz4: another codec's payload, compressed without loss (RFC 8878; the LZ4 block
// format).
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compression/internal/scalar.h"
#include "compression/internal/stage.h"
#include "compression/segment.h"

namespace tributary::compression {
namespace {

// A payload after decompression: the codec within and its bytes, in memory that the thread reuses.
struct Inner {
  std::shared_ptr<const Codec> codec;
  PiecedBytes payload;
};

std::vector<uint8_t>& Scratch(int which) {
  thread_local std::vector<uint8_t> scratch[2];
  return scratch[which];
}

// The library would also take several frames, skippable ones between them, and the formats of its
// first releases, which other readers of a payload need not know.
bool IsOneFrame(const std::vector<uint8_t>& bytes) {
  return bytes.size() >= sizeof(uint32_t) && LoadLe<uint32_t>(bytes.data()) == ZSTD_MAGICNUMBER &&
         ZSTD_findFrameCompressedSize(bytes.data(), bytes.size()) == bytes.size();
}

class StageCodec final : public Codec {
 public:
  StageCodec(CodecId id, std::shared_ptr<const Codec> inner, int level)
      : inner_(std::move(inner)), level_(level) {
    if (inner_ != nullptr) capabilities_ = inner_->capabilities();
    capabilities_.linear = false;
    capabilities_.id = id;
    capabilities_.name = id == CodecId::kZstd ? "zstd" : "lz4";
  }
  const Capabilities& capabilities() const override { return capabilities_; }
  uint32_t parameter() const override { return 0; }
  bool fixed_rate() const override { return false; }
  bool folds_whole() const override { return true; }
  uint64_t MaxSegmentElements() const override {
    return std::min(kMaxStageTiles * kTileElements, inner_->MaxSegmentElements());
  }
  uint64_t EncodedBytes(uint64_t n) const override {
    const size_t inner = inner_->EncodedBytes(n);
    return kStageHeadBytes + (zstd() ? ZSTD_compressBound(inner) : Lz4Bound(inner));
  }
  std::shared_ptr<const Codec> ForShape(std::span<const uint64_t> shape) const override {
    auto inner = inner_->ForShape(shape);
    return inner == nullptr
               ? nullptr
               : std::make_shared<StageCodec>(capabilities_.id, std::move(inner), level_);
  }
  absl::StatusOr<TensorPlan> Plan(std::span<const float> x,
                                  const EncodeContext& context) const override {
    return inner_->Plan(x, context);
  }
  double SharedFraction(uint32_t round) const override { return inner_->SharedFraction(round); }

  absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                      std::vector<uint8_t>* out) const override {
    std::vector<uint8_t> plain;
    RETURN_IF_ERROR(inner_->Encode(x, context, &plain));
    Wrap({inner_->capabilities().id, inner_->parameter()}, plain, out);
    return absl::OkStatus();
  }

  absl::StatusOr<SegmentForm> EncodeSegment(std::span<const float> x, const EncodeContext& context,
                                            std::vector<uint8_t>* out) const override {
    std::vector<uint8_t> plain;
    ASSIGN_OR_RETURN(const SegmentForm form, inner_->EncodeSegment(x, context, &plain));
    const size_t at = out->size();
    Wrap(form, plain, out);
    const size_t wrapped = out->size() - at;
    if (wrapped < plain.size() && plain.size() / kMaxStageRatio < wrapped) {
      return SegmentForm{capabilities_.id, 0};
    }
    out->resize(at);  // it does not win
    out->insert(out->end(), plain.begin(), plain.end());
    return form;
  }

  absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const override {
    if (n > kMaxStageTiles * kTileElements) {
      return absl::InvalidArgumentError(
          absl::StrCat(capabilities_.name, " payload: bytes do not hold ", n, " elements; at most ",
                       kMaxStageTiles * kTileElements, " are compressed as one segment"));
    }
    if (n == 0) return payload.size() == 0 ? absl::OkStatus() : Wrong(payload, "no element");
    ASSIGN_OR_RETURN(const Head head, ReadHead(payload));
    // Where n says how long it is, nothing of another length is decompressed.
    if (head.codec->fixed_rate() && head.codec->EncodedBytes(n) != head.plain) {
      return Wrong(payload, absl::StrCat(head.plain, " bytes within of ", n,
                                         " elements, which take ", head.codec->EncodedBytes(n)));
    }
    ASSIGN_OR_RETURN(const PiecedBytes plain, Decompressed(payload, head.plain));
    return Annotate(head.codec->Validate(plain, n, bound),
                    absl::StrCat(capabilities_.name, " payload"));
  }

  void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count, const GridFold& grid,
            int64_t* acc) const override {
    const absl::StatusOr<Inner> inner = Unwrap(payload);
    if (inner.ok()) inner->codec->Fold(inner->payload, begin, count, grid, acc);
  }

  void Decode(const PiecedBytes& payload, std::span<float> out) const override {
    const absl::StatusOr<Inner> inner = Unwrap(payload);
    if (inner.ok()) inner->codec->Decode(inner->payload, out);
  }

  const Codec* inner() const { return inner_.get(); }

 private:
  bool zstd() const { return capabilities_.id == CodecId::kZstd; }
  static size_t Lz4Bound(size_t n) {
    return static_cast<size_t>(LZ4_compressBound(static_cast<int>(n)));
  }

  void Wrap(const SegmentForm& form, const std::vector<uint8_t>& plain,
            std::vector<uint8_t>* out) const {
    if (plain.empty()) return;
    const size_t at = out->size();
    const size_t room = zstd() ? ZSTD_compressBound(plain.size()) : Lz4Bound(plain.size());
    out->resize(at + kStageHeadBytes + room);
    uint8_t* p = out->data() + at;
    StoreLe(static_cast<uint16_t>(form.id), p);
    StoreLe(uint16_t{0}, p + 2);
    StoreLe(form.parameter, p + 4);
    StoreLe(static_cast<uint32_t>(plain.size()), p + 8);
    p += kStageHeadBytes;
    const size_t used =
        zstd() ? ZSTD_compress(p, room, plain.data(), plain.size(), level_)
               : static_cast<size_t>(LZ4_compress_default(
                     reinterpret_cast<const char*>(plain.data()), reinterpret_cast<char*>(p),
                     static_cast<int>(plain.size()), static_cast<int>(room)));
    out->resize(at + kStageHeadBytes + used);
  }

  absl::Status Wrong(const PiecedBytes& payload, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(capabilities_.name, " payload of ", payload.size(),
                     " bytes: bytes do not hold what they "
                     "claim: ",
                     what, "; the payload is damaged or of another codec"));
  }

  // What the payload says is within it, checked before anything is allocated.
  struct Head {
    std::shared_ptr<const Codec> codec;
    size_t plain = 0;  // bytes
  };
  absl::StatusOr<Head> ReadHead(const PiecedBytes& payload) const {
    uint8_t bytes[kStageHeadBytes];
    if (!ByteCursor(payload).Read(bytes, sizeof bytes)) return Wrong(payload, "the head is cut");
    const auto id = LoadLe<uint16_t>(bytes);
    if (!MayBeWithin(id, capabilities_.id)) return Wrong(payload, "a stage within a stage");
    if (LoadLe<uint16_t>(bytes + 2) != 0) return Wrong(payload, "bytes 2 and 3 are not 0");
    Head head;
    ASSIGN_OR_RETURN(head.codec, CodecFromHeader(id, LoadLe<uint32_t>(bytes + 4)));
    head.plain = LoadLe<uint32_t>(bytes + 8);
    if (head.plain <= kMaxPayloadBytes && head.plain / kMaxStageRatio <= payload.size())
      return head;
    return Wrong(payload, absl::StrCat(head.plain, " bytes within are over the limits of ",
                                       kMaxPayloadBytes, " and ", kMaxStageRatio, " to 1"));
  }

  // The `plain` bytes within, in memory that the thread reuses.
  absl::StatusOr<PiecedBytes> Decompressed(const PiecedBytes& payload, size_t plain) const {
    std::vector<uint8_t>& from = Scratch(0);
    std::vector<uint8_t>& to = Scratch(1);
    from.resize(payload.size() - kStageHeadBytes);
    to.resize(std::max<size_t>(plain, 1));
    ByteCursor(payload, kStageHeadBytes).Read(from.data(), from.size());
    if (Decompress(from, to.data(), plain) != plain) {
      return Wrong(payload, "they do not decompress");
    }
    return PiecedBytes(ByteSpan(to).first(plain));
  }

  absl::StatusOr<Inner> Unwrap(const PiecedBytes& payload) const {
    ASSIGN_OR_RETURN(Head head, ReadHead(payload));
    ASSIGN_OR_RETURN(PiecedBytes plain, Decompressed(payload, head.plain));
    return Inner{std::move(head.codec), std::move(plain)};
  }

  // The bytes that came out; anything but `n` is an error.
  size_t Decompress(const std::vector<uint8_t>& from, uint8_t* to, size_t n) const {
    if (zstd())
      return IsOneFrame(from) ? ZSTD_decompress(to, n, from.data(), from.size()) : SIZE_MAX;
    const int got =
        LZ4_decompress_safe(reinterpret_cast<const char*>(from.data()), reinterpret_cast<char*>(to),
                            static_cast<int>(from.size()), static_cast<int>(n));
    return got < 0 ? SIZE_MAX : static_cast<size_t>(got);
  }

  const std::shared_ptr<const Codec> inner_;
  const int level_;
  Capabilities capabilities_;
};

}  // namespace

const Codec* WithinCompressed(const Codec& codec) {
  const auto* stage = dynamic_cast<const StageCodec*>(&codec);
  return stage == nullptr ? nullptr : stage->inner();
}
std::shared_ptr<const Codec> MakeZstd(std::shared_ptr<const Codec> inner, int level) {
  return std::make_shared<StageCodec>(CodecId::kZstd, std::move(inner), level);
}
std::shared_ptr<const Codec> MakeLz4(std::shared_ptr<const Codec> inner) {
  return std::make_shared<StageCodec>(CodecId::kLz4, std::move(inner), 0);
}
std::shared_ptr<const Codec> MakeStageDecoder(CodecId id) {
  return std::make_shared<StageCodec>(id, MakeCodec("fp32").value(), 1);
}

}  // namespace tributary::compression
