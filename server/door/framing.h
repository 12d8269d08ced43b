// Reading UploadRequest and writing DownloadResponse field by field, so that payload bytes are
// never copied.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "tributary/v1/client_service.pb.h"

namespace tributary::server::door {

// The slices of one received message; keeps them alive.
class MessageSlices {
 public:
  // INTERNAL where gRPC cannot give the slices (a decompression error).
  static absl::StatusOr<std::shared_ptr<const MessageSlices>> From(grpc::ByteBuffer* buffer);
  const PiecedBytes& bytes() const { return bytes_; }

 private:
  std::vector<grpc::Slice> slices_;
  PiecedBytes bytes_;
};

// One UploadRequest, in place.
struct UploadMessage {
  std::optional<v1::UploadHeader> header;
  PiecedBytes segments;  // points into the message's slices
  std::optional<v1::UploadTrailer> trailer;
};
// INVALID_ARGUMENT for anything that is not a well-formed UploadRequest in field order.
absl::StatusOr<UploadMessage> ParseUploadMessage(const PiecedBytes& message);

// Serialises `message` into one slice.
grpc::ByteBuffer ToByteBuffer(const google::protobuf::Message& message);
// A DownloadResponse whose data field is the pieces, uncopied; `owner` lives as long as gRPC needs
// it.
grpc::ByteBuffer DataMessage(const PiecedBytes& data, const std::shared_ptr<const void>& owner);

}  // namespace tributary::server::door
