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

// No chunk or grant has it: it would need slot 1023 of a link at a sequence that a probe, which
// comes first, cannot be mistaken for.
constexpr uint32_t kProbeImmediate = 0xffffffff;

// A side whose probe fails without a cause of its own waits so long for the other's: it was found
// at the same time, and has to travel only by the control socket.
constexpr absl::Duration kReasonPatience = absl::Seconds(2);

// Whose words a failure's are: ours, and certain; ours of what was seen, which may be the peer's
// end, and most likely is not, or is; or the peer's.
enum class Source { kOurs, kLikely, kGuess, kPeer };
struct Failure {
  absl::Status status;
  Source source = Source::kOurs;
};

absl::StatusOr<std::vector<uint8_t>> ReadMessage(int fd, const Deadline& deadline) {
  std::array<uint8_t, internal::kHelloPrefixBytes> prefix;
  RETURN_IF_ERROR(tcp::ReadAll(fd, prefix.data(), prefix.size(), deadline));
  ASSIGN_OR_RETURN(const size_t length, internal::DecodePrefix(prefix));
  std::vector<uint8_t> message(length);
  RETURN_IF_ERROR(tcp::ReadAll(fd, message.data(), message.size(), deadline));
  return message;
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

  Failure Run() {
    const absl::Status status = Loop();
    if (status.ok()) return {};
    for (const ibv_wc& completion : early_) wire_.Account(completion);
    // Where it was no completion, it has a source of its own.
    return failed_.status.ok() ? Failure{.status = status, .source = source_} : failed_;
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
    RETURN_IF_ERROR(wire_.arena().ToWire(from, 0, wire_.mtu_bytes()));
    for (const auto& pair : wire_.queue_pairs()) {
      // An empty packet first: where it passes and the full one does not, it is the MTU.
      RETURN_IF_ERROR(pair->PostEmpty(SentRequest::Kind::kProbe));
      RETURN_IF_ERROR(pair->PostWrite({.from = from.wire,
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

  // Takes all completions that are there; true where there were some. Behind an error that is a
  // guess its cause may be among them.
  absl::StatusOr<bool> Take() {
    bool some = false;
    while (true) {
      ibv_wc completions[16];
      ASSIGN_OR_RETURN(const size_t n, wire_.Poll(absl::MakeSpan(completions)));
      for (size_t i = 0; i < n; ++i) {
        Failure one = TakeOne(completions[i]);
        const bool better = failed_.status.ok() || one.source < failed_.source;
        if (!one.status.ok() && better) failed_ = std::move(one);
      }
      if (n == 0) break;
      some = true;
    }
    RETURN_IF_ERROR(failed_.status);
    return some;
  }

  Failure TakeOne(const ibv_wc& completion) {
    QueuePair& pair = PairOf(completion);
    const bool receive = QueuePair::IsReceive(completion.wr_id);
    if (receive && completion.status == IBV_WC_SUCCESS && heard_[pair.index()]) {
      early_.push_back(completion);  // the link will account for it
      return {};
    }
    const size_t under_way = pair.in_flight();
    wire_.Account(completion);
    if (completion.status != IBV_WC_SUCCESS) return Failed(pair, under_way, completion);
    if (!receive) return {};
    if (completion.imm_data != htobe32(kProbeImmediate) ||
        completion.byte_len != wire_.mtu_bytes()) {
      return {.status = absl::DataLossError(absl::StrCat(
                  "queue pair ", pair.index(), " did not bring a probe of ", wire_.mtu_bytes(),
                  " bytes first, but ", completion.byte_len, " bytes"))};
    }
    heard_[pair.index()] = true;
    return {.status = pair.PostReceive()};
  }

  Failure Failed(const QueuePair& pair, size_t under_way, const ibv_wc& completion) {
    if (completion.status == IBV_WC_RETRY_EXC_ERR && under_way == 1) {
      return {.status = absl::UnavailableError(absl::StrCat(
                  "empty packets reach the peer and packets of the path MTU, ", wire_.mtu_bytes(),
                  " bytes, do not: something between has a smaller MTU; raise it, or set path_mtu "
                  "lower")),
              .source = Source::kLikely};
    }
    return {.status = CompletionError(wire_.device().api(), "probing the path", pair, completion),
            .source = Source::kGuess};
  }

  absl::Status Sleep() {
    pollfd entries[2] = {{.fd = wire_.fd(), .events = POLLIN, .revents = 0},
                         {.fd = control_, .events = POLLIN, .revents = 0}};
    poll(entries, 2, deadline_.PollMillis());
    wire_.AckEvents();
    // Our own cause, if there is one, was there before what the peer makes of it.
    RETURN_IF_ERROR(Take().status());
    if (entries[1].revents != 0) RETURN_IF_ERROR(HearControl());
    if (Done() || !deadline_.Expired()) return absl::OkStatus();
    source_ = Source::kGuess;
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
      ASSIGN_OR_RETURN(const std::vector<uint8_t> message, ReadMessage(control_, deadline_));
      source_ = Source::kPeer;
      RETURN_IF_ERROR(DecodeSetUp(message).status());
      source_ = Source::kOurs;
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
  Failure failed_;                 // of a completion: the first of the surest
  Source source_ = Source::kOurs;  // of what else failed
};

// The steps of one side.
class SetUp {
 public:
  SetUp(const RocePart& part, const internal::ReadySockets& sockets, const LinkOptions& options,
        const Deadline& deadline)
      : part_(part),
        sockets_(sockets),
        options_(options),
        deadline_(deadline),
        fd_(sockets.control.get()) {}

  absl::StatusOr<ReadyWire> Run() {
    ReadyWire ready;
    const absl::Status status = Exchange(&ready);
    if (status.ok()) return ready;
    if (source_ == Source::kPeer) return status;
    // Before the queue pairs go, which may take longer than the peer waits for it. Short enough for
    // any socket's buffer; a peer that is gone does not hear it.
    const std::string words = EncodeSetUpRefusal(status);
    send(fd_, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (source_ == Source::kOurs) return status;
    // Both sides probe at once, and the one that fails first takes its queue pairs with it: all
    // that the other then sees is a peer that does not answer. The one that knows the cause says
    // it.
    const absl::Status theirs = PeersReason();
    if (theirs.ok()) return status;
    return absl::Status(theirs.code(),
                        absl::StrCat(theirs.message(), " (this side saw: ", status.message(), ")"));
  }

 private:
  absl::StatusOr<v1::RoceSetUp> Read() {
    ASSIGN_OR_RETURN(const std::vector<uint8_t> message, ReadMessage(fd_, deadline_));
    absl::StatusOr<v1::RoceSetUp> decoded = DecodeSetUp(message);
    if (!decoded.ok()) source_ = Source::kPeer;
    return decoded;
  }

  // What the peer gives as its reason; OK where it gives none in time.
  absl::Status PeersReason() const {
    const Deadline until = Deadline::Sooner(deadline_, Deadline::After(kReasonPatience));
    const absl::StatusOr<std::vector<uint8_t>> message = ReadMessage(fd_, until);
    return message.ok() ? DecodeSetUp(*message).status() : absl::OkStatus();
  }

  absl::Status Exchange(ReadyWire* ready) {
    // The acceptor's hello has the number that both sides agreed on, the connecter's the wish.
    const uint32_t queue_pairs =
        std::min(sockets_.hellos.ours.lanes(), sockets_.hellos.theirs.lanes());
    const uint32_t peer_slots = sockets_.hellos.theirs.slots();
    ASSIGN_OR_RETURN(const RoceNode::Place place, part_.node->PlaceFor(fd_, deadline_));
    ASSIGN_OR_RETURN(ready->wire, Wire::Create(place.device,
                                               {.place = place.at,
                                                .queue_pairs = queue_pairs,
                                                .slots = options_.slots,
                                                .peer_slots = peer_slots,
                                                .chunk_bytes = options_.chunk_bytes,
                                                .share = part_.share},
                                               part_.node->options()));
    v1::RoceSetUp ours;
    *ours.mutable_endpoint() = ready->wire->endpoint();
    RETURN_IF_ERROR(tcp::WriteAll(fd_, EncodeSetUp(ours), deadline_));
    ASSIGN_OR_RETURN(const v1::RoceSetUp theirs, Read());
    RETURN_IF_ERROR(
        CheckEndpoint(theirs.endpoint(), ours.endpoint().infiniband(), queue_pairs, peer_slots));
    RETURN_IF_ERROR(ready->wire->Connect(theirs.endpoint()));
    // What is sent before the other side can receive is lost, and sent again only after
    // ack_timeout.
    v1::RoceSetUp connected;
    connected.set_connected(true);
    RETURN_IF_ERROR(tcp::WriteAll(fd_, EncodeSetUp(connected), deadline_));
    ASSIGN_OR_RETURN(const v1::RoceSetUp answer, Read());
    if (!answer.connected()) {
      return absl::DataLossError(
          "the peer did not say that it is connected; it breaks the protocol");
    }
    Probe probe(*ready->wire, fd_, deadline_);
    const Failure failure = probe.Run();
    source_ = failure.source;
    RETURN_IF_ERROR(Annotate(failure.status, ready->wire->description()));
    ready->early = std::move(probe).early();
    return absl::OkStatus();
  }

  const RocePart& part_;
  const internal::ReadySockets& sockets_;
  const LinkOptions& options_;
  const Deadline deadline_;
  const int fd_;
  Source source_ = Source::kOurs;  // of the failure, if there is one
};

}  // namespace

absl::StatusOr<ReadyWire> SetUpWire(const RocePart& part, const internal::ReadySockets& sockets,
                                    const LinkOptions& options, const Deadline& deadline) {
  return SetUp(part, sockets, options, deadline).Run();
}

}  // namespace tributary::transport::roce
