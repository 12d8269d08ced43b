// One client's update as it arrives: segments checked one by one, held uncopied, folded only when
// whole.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/grid.h"
#include "aggregation/layout.h"
#include "base/bytes.h"
#include "compression/codec.h"
#include "compression/policy.h"
#include "compression/segment.h"

namespace tributary::aggregation {

class SketchedTensors;

// Why an update is refused; `reason` is one of UploadResponse.reason's words.
struct Refusal {
  std::string reason;
  std::string message;
};

// A validated update. Immutable, thread-safe. Holds its encoded bytes alive, but for those that
// were released.
class EncodedUpdate {
 public:
  struct Segment {
    uint32_t tensor = 0;
    uint64_t first = 0;
    uint64_t count = 0;
    std::shared_ptr<const compression::Codec> codec;  // null: raw int64
    PiecedBytes payload;
  };
  const std::vector<Segment>& segments() const { return segments_; }
  // The segment that holds a tile (an index into layout.tiles()).
  const Segment& ForTile(uint32_t tile) const { return segments_[segment_of_tile_[tile]]; }
  int64_t weight() const { return weight_; }
  const std::string& id() const { return id_; }
  uint64_t encoded_bytes() const { return encoded_bytes_; }
  // The same update, its bytes shared, with another weight: where that is known only when it is
  // folded.
  std::shared_ptr<const EncodedUpdate> WithWeight(int64_t weight) const;
  // Lets go of the bytes whose elements all lie in `folded`, and says how many they were. For who
  // folds the update piece by piece: nobody may read those elements again. Threads: beside other
  // calls, if their ranges have no element in common.
  uint64_t Release(ElementRange folded) const;

 private:
  friend class UpdateAssembler;
  // What was added at once: whole segments, adjacent ones.
  struct Piece {
    ElementRange elements;
    uint64_t bytes = 0;
    std::shared_ptr<const void> owner;
  };
  std::vector<Segment> segments_;
  std::vector<uint32_t> segment_of_tile_;
  mutable std::vector<Piece> pieces_;
  int64_t weight_ = 0;
  std::string id_;
  uint64_t encoded_bytes_ = 0;
};

// Builds an EncodedUpdate from the pieces of one upload. Not thread-safe; one upload, one
// assembler. Segments must cover every element of every tensor that is not SKIP, in layout order,
// without gap or overlap; any codec known may be used per segment. After a refusal every call
// returns the same one.
class UpdateAssembler {
 public:
  UpdateAssembler(std::shared_ptr<const ModelLayout> layout, const Grid& grid, std::string id,
                  int64_t weight, uint64_t declared_bytes);

  // Which tensors come as sketches (aggregation/sketches.h): those and no others do. Without it
  // none may. Before Add.
  void Expect(std::shared_ptr<const SketchedTensors> sketched) { sketched_ = std::move(sketched); }
  // Takes whole segments; `owner` keeps `bytes` alive until the update is destroyed or has released
  // them. Everything in them is validated now, while it is in the cache. False where the update is
  // refused: see
  // refusal().
  bool Add(const PiecedBytes& bytes, std::shared_ptr<const void> owner);
  // The trailer: total length and CRC32C (over all segments' bytes). Null where refused.
  std::shared_ptr<const EncodedUpdate> Finish(uint64_t encoded_bytes, uint32_t crc32c);
  const Refusal& refusal() const { return refusal_; }

 private:
  bool Refuse(std::string reason, const std::string& message);
  bool AddSegment(ByteCursor* cursor);
  bool CheckPlace(const compression::SegmentHeader& header);
  bool CheckPayload(const compression::SegmentHeader& header, EncodedUpdate::Segment* segment);
  void SkipFinishedTensors();
  std::string TensorText(uint32_t tensor) const;

  std::shared_ptr<const ModelLayout> layout_;
  Grid grid_;
  uint64_t declared_bytes_;
  uint32_t next_tensor_ = 0;
  uint64_t next_element_ = 0;
  uint32_t crc_ = 0;
  uint16_t last_codec_ = 0;  // of the segment before
  uint32_t last_parameter_ = 0;
  Refusal refusal_;
  bool refused_ = false;
  std::shared_ptr<const SketchedTensors> sketched_;
  std::shared_ptr<EncodedUpdate> update_;
};

// The most bytes that an update may declare: every element as the widest codec, plus headers.
uint64_t MaxEncodedBytes(const ModelLayout& layout);

// The sending side: encodes a delta into whole segments.
// `floats` holds tensor i's delta (TensorElements(i) floats) when it is a float tensor, `ints` when
// not; the accessors are called once a tensor, in order, but of tensors that a codec chooses from
// together (Codec::SharedFraction) before the others; what they return must live until the end of
// the call. SKIP tensors are not asked for. `emit`
// gets the encoding of one segment (header and payload) at a time, in order.
struct DeltaSource {
  virtual ~DeltaSource() = default;
  virtual absl::StatusOr<std::span<const float>> Floats(uint32_t tensor) = 0;
  virtual absl::StatusOr<std::span<const int64_t>> Ints(uint32_t tensor) = 0;
  // What a codec that starts warm left behind when this tensor was last encoded and counted, and
  // where it leaves what the next time begins from: EncodeContext's. Asked for where
  // the policy has ef.
  virtual std::span<const float> Warm(uint32_t) { return {}; }
  virtual std::vector<float>* NextWarm(uint32_t) { return nullptr; }
};
// Where the codecs' random numbers come from: SeededHash(run seed, "codec", client id), and
// SeededHash(run seed, "mask", ""), which all clients share.
struct EncodeKeys {
  uint64_t client = 0;
  uint64_t shared = 0;
};
// Each tensor by its own codec.
absl::Status EncodeUpdate(const ModelLayout& layout, const compression::CodecPolicy& policy,
                          const EncodeKeys& keys, uint32_t round, DeltaSource& deltas,
                          const std::function<absl::Status(std::vector<uint8_t> segment)>& emit);
// All of them by one, as with ef.
absl::Status EncodeUpdate(const ModelLayout& layout, const compression::Codec& codec,
                          uint64_t codec_key, uint32_t round, DeltaSource& deltas,
                          const std::function<absl::Status(std::vector<uint8_t> segment)>& emit);

}  // namespace tributary::aggregation
