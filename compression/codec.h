// The codec interface: one tensor's float span <-> one self-describing segment payload.
//
// A codec turns floats into bytes at the client and, at the aggregator, folds those bytes onto the
// integer grid without ever materialising floats. Codecs depend on nothing but base/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bytes.h"

namespace tributary::compression {

// Elements per tile: what a fold worker keeps in its cache (256 KiB of int64). Segments start on a
// multiple of it within their tensor and end on one or at the tensor's end, so tiles are
// independent.
inline constexpr uint64_t kTileElements = 32768;

// Codec numbers of the wire format (docs/wire-format.md). Never reused.
enum class CodecId : uint16_t {
  kRawInt64 = 1,  // int64 deltas of non-float tensors; not a float codec
  kFp32 = 2,
  kFp16 = 3,
  kBf16 = 4,
  kInt8 = 5,
  kInt4 = 6,
  kInt2 = 7,
  kSign = 8,
  kTopK = 9,
  kFp8 = 10,
  kMxFp8 = 11,
  kMxFp4 = 12,
  kMxInt8 = 13,
  kRandK = 14,
  kEden = 15,
  kHq = 16,
  kZstd = 17,  // another codec's payload, compressed
  kLz4 = 18,
  kPowerSgd = 19,
  kSketch = 20,
  kZeros = 21,  // another codec's payload, of the blocks that are not all zeros
};

// Tensors of one dimension or with fewer elements than this stay fp32 under the codecs whose
// minimum_elements it is, unless a rule says otherwise: they are a percent of a model, and biases
// and norms suffer most.
inline constexpr uint64_t kSmallTensorElements = 4096;

// What a codec can promise; `tributary codecs` and the config check read it.
struct Capabilities {
  CodecId id;
  std::string name;       // as in configs: "int8"
  bool linear = false;    // encoded forms may be summed without decoding
  bool unbiased = false;  // E[decode(encode(x))] = x
  bool needs_error_feedback = false;
  bool deterministic = false;     // encoding uses no random numbers
  uint64_t minimum_elements = 0;  // smaller tensors stay fp32 unless a rule names them
};

// What an encoder has to know of a whole tensor before it encodes the first segment. Top-k: which
// elements are among the k largest. PowerSGD: the factors.
struct TensorPlan {
  uint32_t threshold = 0;  // |bits| of the smallest that is kept ...
  uint64_t ties_end = 0;   // ... and of those just at it only the ones before this index are
  std::shared_ptr<const std::vector<float>> factors = {};
  uint64_t columns = 0;  // of the matrix that they are the factors of
};

// Where the random numbers of one encoding come from: Philox's key and counter. An element's index
// within its tensor gives the counter (README.md has the bits), so that the numbers do not depend
// on segmentation.
struct EncodeContext {
  uint64_t key = 0;  // SeededHash(run seed, "codec", client id)
  uint32_t round = 0;
  uint32_t tensor = 0;
  uint64_t first = 0;  // index within the tensor of x[0]; a multiple of kTileElements
  // SeededHash(run seed, "mask", ""): of the numbers that all clients share (randk's masks).
  uint64_t shared_key = 0;
  // What Plan said of the whole tensor; null: x is the whole tensor.
  const TensorPlan* plan = nullptr;
  // Plan's alone: what it left in `next_warm` when this client last encoded this tensor and the
  // update counted (empty: nothing), and where it leaves what the next time begins from (null:
  // nowhere). PowerSGD's warm start.
  std::span<const float> warm = {};
  std::vector<float>* next_warm = nullptr;
};

// Where the last FoldMany over a payload ended: for codecs that would otherwise look for a tile
// from the payload's first one on. Kept by the caller from tile to tile of one payload, in rising
// order;
// {} for a payload's first.
struct FoldCursor {
  uint64_t begin = 0;   // the element behind it
  uint64_t offset = 0;  // where that one's tile begins in the payload
};

// One update's part in a FoldMany.
struct FoldPart {
  const PiecedBytes* payload = nullptr;
  uint64_t begin = 0;  // as Fold's
  int64_t weight = 1;
  FoldCursor* cursor = nullptr;  // may be null
};

// How elements become integers: q = rne(double(x) * 2^fraction_bits), then acc += weight * q. The
// kernels are right for |q| <= 2^51, so a grid keeps bound * 2^fraction_bits <= 2^50, `bound` being
// what Validate was given.
struct GridFold {
  int fraction_bits = 30;  // [0, 60]
  // The caller has proved that nothing overflows. A negative weight undoes a fold exactly.
  int64_t weight = 1;
};

// What a segment header has to say of a payload.
struct SegmentForm {
  CodecId id;
  uint32_t parameter = 0;
};

// A codec with its parameters. Immutable, thread-safe.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual const Capabilities& capabilities() const = 0;
  // The 32-bit parameter word carried in the segment header (int8: the block length).
  virtual uint32_t parameter() const = 0;

  // The size in bytes of `n` encoded elements: of a fixed-rate codec exactly that, of the others
  // the most that it can be.
  virtual uint64_t EncodedBytes(uint64_t n) const = 0;
  virtual bool fixed_rate() const { return true; }
  // True where Fold reads all of a payload whatever part of it is asked for: who folds such a
  // payload tile by tile pays for all of it each time.
  virtual bool folds_whole() const { return false; }
  // No segment may have more elements.
  virtual uint64_t MaxSegmentElements() const { return uint64_t{1} << 38; }
  // This codec for tensors of one shape, where that matters to its encoder; null where it does not.
  virtual std::shared_ptr<const Codec> ForShape(std::span<const uint64_t>) const { return nullptr; }
  // Looks at a whole tensor, for EncodeContext::plan. INVALID_ARGUMENT as Encode.
  virtual absl::StatusOr<TensorPlan> Plan(std::span<const float>, const EncodeContext&) const {
    return TensorPlan{};
  }
  // Above 0: the codec keeps this share of the elements of all its tensors together, and who
  // encodes a model plans them with PlanTogether. 0: each tensor is planned alone.
  virtual double SharedFraction(uint32_t /*round*/) const { return 0; }

  // Appends the encoding of x to `out`. INVALID_ARGUMENT, with nothing appended, where an element
  // is NaN or infinite (or too large for the format: said so).
  virtual absl::Status Encode(std::span<const float> x, const EncodeContext& context,
                              std::vector<uint8_t>* out) const = 0;

  // Encode as one segment's payload: a stage leaves out what does not win, so that the form differs
  // from segment to segment.
  virtual absl::StatusOr<SegmentForm> EncodeSegment(std::span<const float> x,
                                                    const EncodeContext& context,
                                                    std::vector<uint8_t>* out) const {
    absl::Status status = Encode(x, context, out);
    if (!status.ok()) return status;
    return SegmentForm{capabilities().id, parameter()};
  }

  // Checks a payload that claims `n` elements, all of it, before anything is folded: its length,
  // that every element is finite, and |element| <= bound. Errors say which element or block
  // and why: INVALID_ARGUMENT (malformed), DATA_LOSS (not finite), OUT_OF_RANGE (beyond the bound).
  virtual absl::Status Validate(const PiecedBytes& payload, uint64_t n, double bound) const = 0;

  // acc[i] += weight * rne(double(x[begin + i]) * 2^f) for i in [0, count), where x are the
  // payload's elements; `begin` is a multiple of kTileElements. Only for a payload that Validate
  // has passed.
  virtual void Fold(const PiecedBytes& payload, uint64_t begin, uint64_t count,
                    const GridFold& grid, int64_t* acc) const = 0;

  // Fold for each part, all onto the same `count` sums: a codec that can keep a sum in a register
  // while the parts pass over it does.
  virtual void FoldMany(std::span<const FoldPart> parts, uint64_t count, int fraction_bits,
                        int64_t* acc) const {
    for (const FoldPart& part : parts) {
      Fold(*part.payload, part.begin, count, {fraction_bits, part.weight}, acc);
    }
  }

  // The floats themselves: out[i] = float(x[i]), all of the payload's elements. Validated payloads
  // only.
  virtual void Decode(const PiecedBytes& payload, std::span<float> out) const = 0;
};

// Builds the float codec a config names: "fp32", "int8(block=64, rounding=nearest)",
// "topk(0.01, values=ternary)", ...; README.md lists the codecs and their parameters.
// INVALID_ARGUMENT names the spec, what is wrong and what is known.
absl::StatusOr<std::shared_ptr<const Codec>> MakeCodec(std::string_view spec);

// Plans by which the tensors together keep the max(1, round(fraction * elements)) elements that are
// largest in magnitude, of equal ones the first in order; zeros never. Elements may be anything:
// Encode refuses what is not finite.
std::vector<TensorPlan> PlanTogether(std::span<const std::span<const float>> tensors,
                                     double fraction);

// How a codec is written in a spec: "int8(block=128, rounding=stochastic|nearest)"; "" for an
// unknown name.
std::string CodecSyntax(const std::string& name);

// Builds the codec that a segment header names; INVALID_ARGUMENT for an unknown id or a parameter
// out of range.
absl::StatusOr<std::shared_ptr<const Codec>> CodecFromHeader(uint16_t id, uint32_t parameter);

// All capability rows, by id.
std::vector<Capabilities> AllCodecs();

// --- Non-float tensors: int64 deltas, little-endian, 8 bytes an element (CodecId::kRawInt64).
void EncodeRawInt64(std::span<const int64_t> x, std::vector<uint8_t>* out);
// |element| <= bound for every element, and the length is 8 n.
absl::Status ValidateRawInt64(const PiecedBytes& payload, uint64_t n, int64_t bound);
// acc[i] += weight * x[begin + i].
void FoldRawInt64(const PiecedBytes& payload, uint64_t begin, uint64_t count, int64_t weight,
                  int64_t* acc);

// --- Kernel targets (Highway's run-time dispatch), for tests and benches.
// The targets this CPU can run, best first: e.g. {"AVX3", "AVX2", "SSE4", ..., "EMU128"}.
std::vector<std::string> SupportedTargets();
// Restricts dispatch, in the whole process, to the named target; "" restores the best. NOT_FOUND if
// this CPU or build lacks it. Not to be called while kernels run.
absl::Status ForceTarget(std::string_view target);

}  // namespace tributary::compression
