// The set-up of a link's verbs half.
#include "transport/roce/set_up.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/hello.h"
#include "transport/roce/completion_error.h"
#include "transport/roce/endpoint.h"

namespace tributary::transport::roce {
namespace {

using internal::Deadline;

// No chunk or grant has it: it would need slot 1023 of a link at a sequence that a probe, which
// comes first, cannot be mistaken for.
constexpr uint32_t kProbeImmediate = 0xffffffff;

absl::StatusOr<v1::RoceSetUp> ReadSetUp(int fd, const Deadline& deadline) {
  std::array<uint8_t, internal::kHelloPrefixBytes> prefix;
  RETURN_IF_ERROR(tcp::ReadAll(fd, prefix.data(), prefix.size(), deadline));
  ASSIGN_OR_RETURN(const size_t length, internal::DecodePrefix(prefix));
  std::vector<uint8_t> message(length);
  RETURN_IF_ERROR(tcp::ReadAll(fd, message.data(), message.size(), deadline));
  return DecodeSetUp(message);
}

// Sends a packet of the full path MTU over each queue pair and waits for the peer's: a path that
// drops large packets is found here, in words, and not in the first round.
class Probe {
 public:
  Probe(Wire& wire, int control, const Deadline& deadline)
      : wire_(wire),
        control_(control),
        deadline_(deadline),
        heard_(wire.queue_pairs().size(), false) {}

  absl::Status Run() {
    const absl::Status status = Loop();
    if (!status.ok()) {
      for (const ibv_wc& completion : early_) Account(completion);
    }
    return status;
  }
  std::vector<ibv_wc> early() && { return std::move(early_); }

 private:
  absl::Status Loop() {
    RETURN_IF_ERROR(Send());
    while (!Done()) {
      ASSIGN_OR_RETURN(const bool some, Take());
      if (some) continue;
      RETURN_IF_ERROR(wire_.Arm());
      ASSIGN_OR_RETURN(const bool late, Take());
      if (!late) RETURN_IF_ERROR(Sleep());
    }
    return absl::OkStatus();
  }

  absl::Status Send() {
    const Slot& from = wire_.slot(0);
    std::memset(from.data, 0x5a, wire_.mtu_bytes());
    for (const auto& pair : wire_.queue_pairs()) {
      // An empty packet first: where it passes and the full one does not, it is the MTU.
      RETURN_IF_ERROR(pair->PostEmpty(SentRequest::Kind::kProbe));
      RETURN_IF_ERROR(pair->PostWrite({.from = from.data,
                                       .local_key = from.local_key,
                                       .bytes = wire_.mtu_bytes(),
                                       .to = wire_.peer_address(0),
                                       .remote_key = wire_.peer_key(0)},
                                      kProbeImmediate, /*signalled=*/true,
                                      {.kind = SentRequest::Kind::kProbe, .chunk = {}}));
    }
    return absl::OkStatus();
  }

  bool Done() const {
    for (const auto& pair : wire_.queue_pairs()) {
      if (pair->in_flight() > 0 || !heard_[pair->index()]) return false;
    }
    return true;
  }

  QueuePair& PairOf(const ibv_wc& completion) {
    return *wire_.queue_pairs()[QueuePair::IndexOf(completion.wr_id)];
  }
  void Account(const ibv_wc& completion) {
    if (QueuePair::IsReceive(completion.wr_id)) return PairOf(completion).OnReceived();
    PairOf(completion).OnSent(completion.wr_id, [](const SentRequest&) {});
  }

  // True where there were completions. After an error the rest of them is still accounted for.
  absl::StatusOr<bool> Take() {
    ibv_wc completions[16];
    ASSIGN_OR_RETURN(const size_t n, wire_.Poll(absl::MakeSpan(completions)));
    absl::Status status;
    for (size_t i = 0; i < n; ++i) {
      const absl::Status one = TakeOne(completions[i]);
      if (status.ok()) status = one;
    }
    RETURN_IF_ERROR(status);
    return n > 0;
  }

  absl::Status TakeOne(const ibv_wc& completion) {
    QueuePair& pair = PairOf(completion);
    const bool receive = QueuePair::IsReceive(completion.wr_id);
    if (receive && completion.status == IBV_WC_SUCCESS && heard_[pair.index()]) {
      early_.push_back(completion);  // the link will account for it
      return absl::OkStatus();
    }
    const size_t under_way = pair.in_flight();
    Account(completion);
    if (completion.status != IBV_WC_SUCCESS) return Failed(pair, under_way, completion);
    if (!receive) return absl::OkStatus();
    if (completion.imm_data != htobe32(kProbeImmediate) ||
        completion.byte_len != wire_.mtu_bytes()) {
      return absl::DataLossError(absl::StrCat("queue pair ", pair.index(),
                                              " did not bring a probe of ", wire_.mtu_bytes(),
                                              " bytes first, but ", completion.byte_len, " bytes"));
    }
    heard_[pair.index()] = true;
    return pair.PostReceive();
  }

  absl::Status Failed(const QueuePair& pair, size_t under_way, const ibv_wc& completion) const {
    if (completion.status == IBV_WC_RETRY_EXC_ERR && under_way == 1) {
      return absl::UnavailableError(absl::StrCat(
          "empty packets reach the peer and packets of the path MTU, ", wire_.mtu_bytes(),
          " bytes, do not: something between has a smaller MTU; raise it, or set path_mtu lower"));
    }
    return CompletionError(wire_.device().api(), "probing the path", pair, completion);
  }

  absl::Status Sleep() {
    pollfd entries[2] = {{.fd = wire_.fd(), .events = POLLIN, .revents = 0},
                         {.fd = control_, .events = POLLIN, .revents = 0}};
    poll(entries, 2, deadline_.PollMillis());
    wire_.AckEvents();
    if (entries[1].revents != 0) RETURN_IF_ERROR(HearControl());
    if (!deadline_.Expired()) return absl::OkStatus();
    return absl::DeadlineExceededError(
        "the peer's probe did not arrive in time; does the network carry RoCE (UDP port 4791) both "
        "ways?");
  }

  // The peer may have given up, or be done and at work already.
  absl::Status HearControl() {
    char first = 0;
    const ssize_t n = recv(control_, &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
    if (n <= 0) return absl::UnavailableError("the peer gave up while the path was probed");
    char word[8] = {};
    if (recv(control_, word, sizeof(word), MSG_PEEK | MSG_DONTWAIT) == sizeof(word) &&
        std::memcmp(word, "TRIBLINK", sizeof(word)) == 0) {
      ASSIGN_OR_RETURN(v1::RoceSetUp unexpected, ReadSetUp(control_, deadline_));
      return absl::DataLossError("the peer set up the link twice; it breaks the link protocol");
    }
    control_ = -1;  // its first control messages: the link's thread will read them
    return absl::OkStatus();
  }

  Wire& wire_;
  int control_;
  const Deadline deadline_;
  std::vector<bool> heard_;
  std::vector<ibv_wc> early_;
};

absl::StatusOr<ReadyWire> Exchange(const RoceNode& node, const internal::ReadySockets& sockets,
                                   const LinkOptions& options, const Deadline& deadline) {
  const int fd = sockets.control.get();
  // The acceptor's hello has the number that both sides agreed on, the connecter's the wish.
  const uint32_t queue_pairs = std::min(sockets.hellos.ours.lanes(), sockets.hellos.theirs.lanes());
  ASSIGN_OR_RETURN(const RoceNode::Place place, node.PlaceFor(fd));
  ReadyWire ready;
  ASSIGN_OR_RETURN(ready.wire, Wire::Create(place.device,
                                            {.gid = place.gid,
                                             .queue_pairs = queue_pairs,
                                             .slots = options.slots,
                                             .peer_slots = sockets.hellos.theirs.slots(),
                                             .chunk_bytes = options.chunk_bytes},
                                            node.options()));
  v1::RoceSetUp ours;
  *ours.mutable_endpoint() = ready.wire->endpoint();
  RETURN_IF_ERROR(tcp::WriteAll(fd, EncodeSetUp(ours), deadline));
  ASSIGN_OR_RETURN(const v1::RoceSetUp theirs, ReadSetUp(fd, deadline));
  RETURN_IF_ERROR(CheckEndpoint(theirs.endpoint(), ours.endpoint().infiniband(), queue_pairs,
                                sockets.hellos.theirs.slots()));
  RETURN_IF_ERROR(ready.wire->Connect(theirs.endpoint()));
  // What is sent before the other side can receive is lost, and sent again only after ack_timeout.
  v1::RoceSetUp connected;
  connected.set_connected(true);
  RETURN_IF_ERROR(tcp::WriteAll(fd, EncodeSetUp(connected), deadline));
  ASSIGN_OR_RETURN(const v1::RoceSetUp answer, ReadSetUp(fd, deadline));
  if (!answer.connected()) {
    return absl::DataLossError("the peer did not say that it is connected; it breaks the protocol");
  }
  Probe probe(*ready.wire, fd, deadline);
  RETURN_IF_ERROR(Annotate(probe.Run(), ready.wire->description()));
  ready.early = std::move(probe).early();
  return ready;
}

}  // namespace

absl::StatusOr<ReadyWire> SetUpWire(const RoceNode& node, const internal::ReadySockets& sockets,
                                    const LinkOptions& options, const Deadline& deadline) {
  absl::StatusOr<ReadyWire> ready = Exchange(node, sockets, options, deadline);
  if (!ready.ok()) {
    // Short enough for any socket's buffer; a peer that is gone does not hear it.
    const std::string words = EncodeSetUpRefusal(ready.status());
    send(sockets.control.get(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  return ready;
}

}  // namespace tributary::transport::roce
