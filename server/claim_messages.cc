// Cutting by the bytes that the ids take.
#include "server/claim_messages.h"

#include <google/protobuf/io/coded_stream.h>

#include <string>
#include <utility>

namespace tributary::server {
namespace {

// In a repeated field whose number is below 16: the tag, the length, and the id itself.
size_t Encoded(const std::string& id) {
  return 1 + google::protobuf::io::CodedOutputStream::VarintSize64(id.size()) + id.size();
}

template <typename Message>
class Cutter {
 public:
  explicit Cutter(Message empty) : empty_(std::move(empty)) {}
  // Where this id goes. One that is too long for any message has one of its own: it came in one.
  Message& For(const std::string& id) {
    const size_t bytes = Encoded(id);
    if (messages_.empty() || bytes_ + bytes > kMostIdsInMessage) {
      messages_.push_back(empty_);
      bytes_ = 0;
    }
    bytes_ += bytes;
    return messages_.back();
  }
  std::vector<Message> Take() && { return std::move(messages_); }

 private:
  const Message empty_;
  std::vector<Message> messages_;
  size_t bytes_ = 0;  // of the last one's ids
};

}  // namespace

std::vector<v1::Claims> InMessages(v1::Claims claims) {
  if (claims.clients().empty()) return {std::move(claims)};
  google::protobuf::RepeatedPtrField<std::string> ids;
  ids.Swap(claims.mutable_clients());
  Cutter<v1::Claims> cutter(std::move(claims));
  for (std::string& id : ids) cutter.For(id).add_clients(std::move(id));
  return std::move(cutter).Take();
}

std::vector<v1::ClaimsAnswer> InMessages(const v1::ClaimsAnswer& answer) {
  v1::ClaimsAnswer empty;
  empty.set_round(answer.round());
  Cutter<v1::ClaimsAnswer> cutter(std::move(empty));
  for (const std::string& id : answer.granted()) cutter.For(id).add_granted(id);
  for (const std::string& id : answer.taken()) cutter.For(id).add_taken(id);
  for (const std::string& id : answer.refused()) cutter.For(id).add_refused(id);
  return std::move(cutter).Take();
}

}  // namespace tributary::server
