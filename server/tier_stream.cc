// Cutting a header into chunks, and putting it together again.
#include "server/tier_stream.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "base/status.h"

namespace tributary::server {
namespace {
// Room for the ids of some two million contributors; a longer header is a mistake or an attack.
constexpr uint64_t kMostHeaderChunks = 64;
}  // namespace

absl::StatusOr<StreamShape> SendStreamHeader(transport::Link& link, uint64_t stream,
                                             const std::string& header, uint64_t data_chunks,
                                             const StreamPace& pace) {
  const uint64_t header_chunks =
      std::max<uint64_t>(1, (header.size() + kModelChunkBytes - 1) / kModelChunkBytes);
  if (header_chunks > kMostHeaderChunks) {
    return absl::InvalidArgumentError(absl::StrCat("the stream's header has ", header.size(),
                                                   " bytes; at most ",
                                                   kMostHeaderChunks * kModelChunkBytes, " fit"));
  }
  for (uint64_t i = 0; i < header_chunks; ++i) {
    if (pace.cancelled()) return absl::CancelledError("the stream was given up");
    ASSIGN_OR_RETURN(transport::Chunk chunk, link.Borrow(Deadline::After(pace.patience)));
    chunk.tag() = {
        .stream = stream, .index = i, .a = header_chunks, .b = header_chunks + data_chunks};
    const size_t at = i * kModelChunkBytes;
    const size_t n = std::min<size_t>(kModelChunkBytes, header.size() - at);
    std::memcpy(chunk.data(), header.data() + at, n);
    chunk.set_size(n);
    RETURN_IF_ERROR(link.Send(std::move(chunk)));
  }
  return StreamShape{stream, header_chunks, data_chunks};
}

absl::Status SendStreamData(transport::Link& link, const StreamShape& shape, uint64_t first,
                            const StreamFill& fill, const StreamPace& pace) {
  for (uint64_t i = first; i < shape.data_chunks; ++i) {
    if (pace.cancelled()) return absl::CancelledError("the stream was given up");
    ASSIGN_OR_RETURN(transport::Chunk chunk, link.Borrow(Deadline::After(pace.patience)));
    chunk.tag() = {.stream = shape.stream,
                   .index = shape.header_chunks + i,
                   .a = shape.header_chunks,
                   .b = shape.header_chunks + shape.data_chunks};
    chunk.set_size(fill(i, chunk.data()));
    RETURN_IF_ERROR(link.Send(std::move(chunk)));
  }
  return absl::OkStatus();
}

absl::Status SendStream(transport::Link& link, uint64_t stream, const std::string& header,
                        uint64_t chunks, absl::Duration patience, const StreamFill& fill,
                        const std::function<bool()>& cancelled) {
  const StreamPace pace{patience, cancelled};
  ASSIGN_OR_RETURN(const StreamShape shape, SendStreamHeader(link, stream, header, chunks, pace));
  return SendStreamData(link, shape, 0, fill, pace);
}

absl::StatusOr<StreamReader::Got> StreamReader::Feed(const transport::Chunk& chunk) {
  const transport::ChunkTag& tag = chunk.tag();
  if (tag.index == 0) {
    if (tag.a == 0 || tag.a > kMostHeaderChunks || tag.b < tag.a) {
      return absl::InvalidArgumentError(absl::StrCat("stream ", tag.stream, " claims ", tag.a,
                                                     " header chunks of ", tag.b, " chunks"));
    }
    stream_ = tag.stream;
    next_ = 0;
    header_chunks_ = tag.a;
    total_ = tag.b - tag.a;
    start_ = 0;
    header_.clear();
  }
  if (start_ > 0 && next_ == header_chunks_) {
    if (tag.index == header_chunks_ + start_) next_ = tag.index;
    start_ = 0;
  }
  if (tag.stream != stream_ || tag.index != next_ || tag.index >= header_chunks_ + total_) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", tag.index, " of stream ", tag.stream,
                                                   " came where chunk ", next_, " of stream ",
                                                   stream_, " was expected"));
  }
  ++next_;
  if (tag.index < header_chunks_) {
    header_.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
    return tag.index + 1 == header_chunks_ ? Got::kHeader : Got::kMoreHeader;
  }
  data_index_ = tag.index - header_chunks_;
  return Got::kData;
}

absl::StatusOr<transport::Chunk> ReceiveNext(transport::Link& link, const StreamReader& reader,
                                             absl::Duration patience) {
  if (!reader.amid_data()) return link.Receive(Deadline::Infinite());
  absl::StatusOr<transport::Chunk> chunk = link.Receive(Deadline::After(patience));
  if (!absl::IsDeadlineExceeded(chunk.status()) || !link.status().ok()) return chunk;
  return absl::DeadlineExceededError(absl::StrCat(
      "stream ", reader.stream(), " of \"", absl::Utf8SafeCHexEscape(link.peer()),
      "\": data chunk ", reader.data_index() + 2, " of ", reader.total(), " did not come within ",
      absl::FormatDuration(patience), " of the one before (progress_timeout)"));
}

}  // namespace tributary::server
