// Upload and Download messages as bytes, written and read by hand so that payloads are never copied
// into a protobuf field. They are ordinary protobuf: a typed peer reads and writes the same bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "grpcpp/support/byte_buffer.h"
#include "tributary/v1/client_service.pb.h"

namespace tributary::client::internal {

using Segments = std::vector<std::vector<uint8_t>>;

// An update as it is kept and sent: whole segments in order.
struct EncodedDelta {
  std::shared_ptr<const Segments> segments;
  uint64_t bytes = 0;                 // of all segments together
  uint32_t crc32c = 0;                // over all segments' bytes
  std::optional<float> largest = {};  // |element| that hq encoded: compression/agreed.h
};
EncodedDelta MakeEncodedDelta(std::shared_ptr<const Segments> segments);

// Most segment bytes in a message, unless one segment alone is larger (it may be, up to the
// contract's 1.5 MiB).
inline constexpr uint64_t kMessageSegmentBytes = 1 << 20;
inline constexpr uint64_t kLargestSegmentBytes = 3 << 19;
// An update below this goes as one message.
inline constexpr uint64_t kSmallUpdateBytes = 512 << 10;

// Yields the messages of one upload, one after another, so that no more than what is in flight is
// held beside the segments themselves. A large update's first message is its header alone: until
// the aggregator admits it, nothing of it lies there.
class UploadMessages {
 public:
  UploadMessages(const v1::UploadHeader& header, EncodedDelta delta);
  bool done() const { return done_; }
  // The next message; its slices refer to the segments and keep them alive. Not when done().
  grpc::ByteBuffer Next();
  uint64_t segment_bytes() const { return segment_bytes_; }  // handed out so far

 private:
  std::string header_;  // serialized; emptied once sent
  EncodedDelta delta_;
  size_t next_segment_ = 0;
  uint64_t segment_bytes_ = 0;
  bool header_sent_ = false;
  bool done_ = false;
};

// One message of a Download. `data` lies in the slices, which live with the object.
struct DownloadMessage {
  std::vector<grpc::Slice> slices;
  std::optional<v1::ModelHeader> header;
  PiecedBytes data;
  std::optional<v1::ModelTrailer> trailer;
};
absl::StatusOr<DownloadMessage> ParseDownloadMessage(const grpc::ByteBuffer& buffer);

grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message);
absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* message);

}  // namespace tributary::client::internal
