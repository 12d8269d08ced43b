// Streams over a link: a protobuf header, then data chunks (docs/wire-format.md, "Streams between
// tiers").
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "transport/link.h"

namespace tributary::server {

inline constexpr uint64_t kModelChunkBytes = uint64_t{1} << 20;
inline uint64_t ModelStreamId(uint64_t version) { return 2 * version; }
inline uint64_t PartialStreamId(uint64_t round) { return 2 * round + 1; }
inline bool IsPartialStream(uint64_t stream) { return stream % 2 == 1; }

// How long each chunk may wait for credit; and what is asked before each: true ends the stream with
// CANCELLED (it is cut short by the next stream's first chunk).
struct StreamPace {
  absl::Duration patience;
  std::function<bool()> cancelled;
};
// `fill(i, data)` writes data chunk i into the borrowed slot and returns its bytes.
using StreamFill = std::function<size_t(uint64_t, uint8_t*)>;

// A stream whose header has been sent.
struct StreamShape {
  uint64_t stream = 0;
  uint64_t header_chunks = 0;
  uint64_t data_chunks = 0;
};
absl::StatusOr<StreamShape> SendStreamHeader(transport::Link& link, uint64_t stream,
                                             const std::string& header, uint64_t data_chunks,
                                             const StreamPace& pace);
// The data chunks from `first` on.
absl::Status SendStreamData(transport::Link& link, const StreamShape& shape, uint64_t first,
                            const StreamFill& fill, const StreamPace& pace);
// Both.
absl::Status SendStream(transport::Link& link, uint64_t stream, const std::string& header,
                        uint64_t chunks, absl::Duration patience, const StreamFill& fill,
                        const std::function<bool()>& cancelled);

// Puts received chunks together. Feed them in order; after each, ask what it was. Not thread-safe.
class StreamReader {
 public:
  enum class Got { kMoreHeader, kHeader, kData };
  // kHeader: header() is complete (data may be empty: total() == 0). kData: data chunk
  // `data_index()` is this chunk. INVALID_ARGUMENT for a gap, a header over 64 chunks, or counts
  // that do not fit.
  absl::StatusOr<Got> Feed(const transport::Chunk& chunk);
  // After a header: the data may begin with chunk `first`, or with 0.
  void AllowStartAt(uint64_t first) { start_ = first; }
  uint64_t stream() const { return stream_; }
  const std::string& header() const { return header_; }
  uint64_t data_index() const { return data_index_; }
  uint64_t total() const { return total_; }  // data chunks
  // Some of its data has come, and not all: its sender waits for nothing but credit.
  bool amid_data() const { return next_ > header_chunks_ && next_ < header_chunks_ + total_; }

 private:
  uint64_t stream_ = 0;
  uint64_t next_ = 0;
  uint64_t header_chunks_ = 0;
  uint64_t total_ = 0;
  uint64_t data_index_ = 0;
  uint64_t start_ = 0;  // of the data, beside 0; only until its first chunk
  std::string header_;
};

// The next chunk for `reader`. A link may be idle between streams, and before a stream's data, as
// long as it likes; where data has begun it goes on within `patience`, or that is
// DEADLINE_EXCEEDED, in words.
absl::StatusOr<transport::Chunk> ReceiveNext(transport::Link& link, const StreamReader& reader,
                                             absl::Duration patience);

}  // namespace tributary::server
