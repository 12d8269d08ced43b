// A receiving and a sending thread for a child's link.
#include "server/tier_child.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "server/model_stream.h"

namespace tributary::server {
namespace {
// Each partial sum gets two. A child that takes none of them and goes on offering fills our memory.
constexpr size_t kMostAnswers = 16;
}  // namespace

// ---- The outbox

void TierOutbox::Put(std::shared_ptr<const ModelVersion> model) {
  {
    std::lock_guard lock(mu_);
    model_ = std::move(model);
  }
  wake_.notify_all();
}

void TierOutbox::Put(v1::PartialSumAnswer answer) {
  {
    std::lock_guard lock(mu_);
    answers_.push_back(std::move(answer));
    closed_ = closed_ || answers_.size() > kMostAnswers;
  }
  wake_.notify_all();
}

void TierOutbox::Close() {
  {
    std::lock_guard lock(mu_);
    closed_ = true;
  }
  wake_.notify_all();
}

std::optional<TierOutbox::Item> TierOutbox::Next() {
  std::unique_lock lock(mu_);
  wake_.wait(lock, [this] { return closed_ || !answers_.empty() || model_ != nullptr; });
  if (closed_) return std::nullopt;
  Item item;
  if (!answers_.empty()) {
    item.answer = std::move(answers_.front());
    answers_.pop_front();
  } else {
    item.model = std::move(model_);
    model_ = nullptr;
  }
  return item;
}

// ---- A partial sum on its way in

class TierChild::Incoming final : public IncomingPartial {
 public:
  Incoming(v1::PartialSumHeader header, std::shared_ptr<TierOutbox> outbox)
      : header_(std::move(header)), outbox_(std::move(outbox)) {}
  const v1::PartialSumHeader& header() const override { return header_; }

  void Admit(std::shared_ptr<PartialFold> fold) override {
    v1::PartialSumAnswer answer = Answer();
    answer.set_have_chunks(fold->chunks());
    answer.set_have_digest(fold->digest());
    {
      std::lock_guard lock(mu_);
      if (decided_) return;  // the link is gone
      decided_ = true;
      fold_ = std::move(fold);
      start_ = answer.have_chunks();
    }
    outbox_->Put(std::move(answer));
    decision_.notify_all();
  }
  void Refuse(const std::string& why) override {
    v1::PartialSumAnswer answer = Answer();
    answer.set_refused(why);
    outbox_->Put(std::move(answer));
    End();
  }
  void Taken() override {
    v1::PartialSumAnswer answer = Answer();
    answer.set_taken(true);
    outbox_->Put(std::move(answer));
    End();
  }
  // Only for who waits: once it is admitted, the receiver finds out by itself.
  void LinkGone() {
    {
      std::lock_guard lock(mu_);
      if (decided_) return;
      decided_ = gone_ = true;
    }
    decision_.notify_all();
  }

  enum class Decision { kAdmitted, kNotAdmitted, kLinkGone };
  Decision Await() {
    std::unique_lock lock(mu_);
    decision_.wait(lock, [this] { return decided_; });
    return fold_ != nullptr ? Decision::kAdmitted
           : gone_          ? Decision::kLinkGone
                            : Decision::kNotAdmitted;
  }
  // Null once it is answered for good.
  std::shared_ptr<PartialFold> fold() {
    std::lock_guard lock(mu_);
    return fold_;
  }
  uint64_t start() {  // what was told
    std::lock_guard lock(mu_);
    return start_;
  }

 private:
  v1::PartialSumAnswer Answer() const {
    v1::PartialSumAnswer answer;
    answer.set_round(header_.round());
    answer.set_attempt(header_.attempt());
    return answer;
  }
  void End() {
    {
      std::lock_guard lock(mu_);
      decided_ = true;
      fold_ = nullptr;
    }
    decision_.notify_all();
  }

  const v1::PartialSumHeader header_;
  const std::shared_ptr<TierOutbox> outbox_;
  std::mutex mu_;
  std::condition_variable decision_;
  bool decided_ = false;  // guarded by mu_, as all below
  bool gone_ = false;
  uint64_t start_ = 0;
  std::shared_ptr<PartialFold> fold_;
};

// ---- The link

TierChild::TierChild(std::unique_ptr<transport::Link> link, v1::TierHello hello,
                     TierHandler* handler, absl::Duration patience, ModelCounters* counters,
                     std::function<void()> ended)
    : link_(std::move(link)),
      hello_(std::move(hello)),
      handler_(handler),
      patience_(patience),
      counters_(counters),
      ended_(std::move(ended)),
      held_sha256_(hello_.takes_steps() ? hello_.held_sha256() : "") {
  receiver_ = std::thread([this] { Receive(); });
  sender_ = std::thread([this] { SendDown(); });
}

TierChild::~TierChild() {
  Cancel("this node has dropped the link");
  receiver_.join();
  sender_.join();
}

void TierChild::Cancel(const std::string& why) {
  std::shared_ptr<Incoming> waiting;
  {
    std::lock_guard lock(mu_);
    cancelled_ = true;
    waiting = waiting_;
  }
  link_->Cancel(why);  // first: the sender has a reason of its own for when it is woken
  outbox_->Close();
  if (waiting != nullptr) waiting->LinkGone();
}

void TierChild::Receive() {
  const absl::Status why = ReceiveUntilError();
  const std::string path = transport::PathText(link_->stats());
  spdlog::info("link of \"{}\" ended: {}{}{}", hello_.id(), Text(why), path.empty() ? "" : "; ",
               path);
  if (incoming_ != nullptr) handler_->OnPartialBroken(incoming_, why);
  Cancel(Text(why));
  over_ = true;
  ended_();
}

absl::Status TierChild::ReceiveUntilError() {
  while (true) {
    ASSIGN_OR_RETURN(transport::Chunk chunk, Next());
    const absl::StatusOr<StreamReader::Got> got = reader_.Feed(chunk);
    if (!got.ok()) {
      // Nobody knows what its next chunk would be: the link ends with it.
      absl::Status why = Annotate(got.status(), absl::StrCat("link of \"", hello_.id(), "\""));
      Bad(why);
      return why;
    }
    if (*got == StreamReader::Got::kHeader) {
      chunk = transport::Chunk();  // its credit goes back before we wait for a decision
      RETURN_IF_ERROR(Start());
    } else if (*got == StreamReader::Got::kData && incoming_ != nullptr) {
      Take(chunk);
    }
  }
}

absl::StatusOr<transport::Chunk> TierChild::Next() {
  // A child that is told that its sum does not count stops where it is, and the link stays.
  const auto awaited = [this] { return incoming_ != nullptr && incoming_->fold() != nullptr; };
  if (!awaited()) return link_->Receive(Deadline::Infinite());
  absl::StatusOr<transport::Chunk> chunk = ReceiveNext(*link_, reader_, patience_);
  if (!absl::IsDeadlineExceeded(chunk.status()) || awaited()) return chunk;
  return link_->Receive(Deadline::Infinite());  // it was told so meanwhile
}

absl::Status TierChild::Start() {
  if (incoming_ != nullptr) {
    handler_->OnPartialBroken(incoming_, absl::AbortedError("the child began another stream"));
    incoming_ = nullptr;
  }
  v1::PartialSumHeader header;
  if (!header.ParseFromString(reader_.header()) || header.id() != hello_.id() ||
      header.epoch() != hello_.epoch() || header.chunks() + 1 != reader_.total() ||
      reader_.stream() != PartialStreamId(header.round())) {
    absl::Status why = absl::InvalidArgumentError(
        absl::StrCat("link of \"", hello_.id(),
                     "\": the stream's header is not a PartialSumHeader of this child"));
    Bad(why);
    return why;
  }
  auto incoming = std::make_shared<Incoming>(std::move(header), outbox_);
  {
    std::lock_guard lock(mu_);
    if (cancelled_) return absl::CancelledError("the link was cancelled");
    waiting_ = incoming;
  }
  handler_->OnPartialStart(incoming);
  const Incoming::Decision decision = incoming->Await();
  {
    std::lock_guard lock(mu_);
    waiting_ = nullptr;
  }
  if (decision == Incoming::Decision::kNotAdmitted) return absl::OkStatus();  // data is drained
  incoming_ = incoming;
  if (decision == Incoming::Decision::kLinkGone)
    return absl::CancelledError("the link ended while a partial sum waited for its turn");
  reader_.AllowStartAt(incoming->start());
  data_began_ = false;
  return absl::OkStatus();
}

void TierChild::Take(const transport::Chunk& chunk) {
  const absl::Status status = TakeData(chunk);
  if (absl::IsCancelled(status)) {
    incoming_ = nullptr;  // the round has closed meanwhile: the rest is drained
  } else if (!status.ok()) {
    Bad(status);
  }
}

absl::Status TierChild::TakeData(const transport::Chunk& chunk) {
  const std::shared_ptr<PartialFold> fold = incoming_->fold();
  if (fold == nullptr) return absl::CancelledError("it is answered");
  const uint64_t index = reader_.data_index();
  // The child's sum is another than the one that it began to send: it begins anew.
  if (!data_began_ && index == 0 && incoming_->start() > 0) {
    spdlog::info("the partial sum of \"{}\" is not the one that it had begun: from its start again",
                 hello_.id());
    fold->StartOver();
  }
  data_began_ = true;
  const uint64_t chunks = incoming_->header().chunks();
  if (index < chunks) {
    RETURN_IF_ERROR(fold->Take(index, chunk.bytes()));
    spdlog::debug("partial sum of \"{}\": chunk {} of {} is in", hello_.id(), index + 1, chunks);
    return absl::OkStatus();
  }
  v1::PartialSumTrailer trailer;
  if (!trailer.ParseFromArray(chunk.data(), static_cast<int>(chunk.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the partial sum of \"", hello_.id(), "\" does not end with its trailer"));
  }
  RETURN_IF_ERROR(fold->Finish(trailer.digest()));
  handler_->OnPartialComplete(std::exchange(incoming_, nullptr));
  return absl::OkStatus();
}

void TierChild::Bad(const absl::Status& why) {
  handler_->OnPartialBad(hello_.id(), hello_.epoch(), std::exchange(incoming_, nullptr), why);
}

void TierChild::SendDown() {
  while (const auto item = outbox_->Next()) {
    absl::Status status;
    if (item->answer.has_value()) {
      status = SendStream(
          *link_, PartialStreamId(item->answer->round()), item->answer->SerializeAsString(), 0,
          patience_, [](uint64_t, uint8_t*) { return size_t{0}; }, [] { return false; });
    } else {
      status = SendModelNow(*item->model);
    }
    if (!status.ok()) {
      spdlog::warn("{} to \"{}\": {}",
                   item->model != nullptr ? absl::StrCat("model ", item->model->version) : "answer",
                   hello_.id(), Text(status));
      break;
    }
  }
  // Also where the child let answers pile up: it is not to wait for one that does not come.
  Cancel("nothing can be sent down this link any more");
}

absl::Status TierChild::SendModelNow(const ModelVersion& model) {
  // Before it is sent: its sum may be back before this thread runs again.
  const SentBytes bytes = BytesToSend(model, held_sha256_);
  counters_->sent += bytes.sent;
  counters_->saved += bytes.saved;
  const RealClock clock;
  const absl::Duration began = clock.Monotonic();
  RETURN_IF_ERROR(SendModelStream(*link_, model, held_sha256_, patience_, [this] {
    std::lock_guard lock(mu_);
    return cancelled_;
  }));
  handler_->OnModelSent(hello_.id(), clock.Monotonic() - began);
  if (hello_.takes_steps()) held_sha256_ = model.sha256;
  return absl::OkStatus();
}

}  // namespace tributary::server
