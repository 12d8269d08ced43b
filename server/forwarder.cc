// Header, answer, chunks, trailer, answer.
#include "server/forwarder.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "server/partial_digest.h"

namespace tributary::server {
namespace {

// The digest of the first chunks as this sum has them.
PartialDigest DigestOfFirst(const aggregation::ExactAccumulator& sum, uint64_t chunks) {
  PartialDigest digest;
  std::vector<uint8_t> packed(aggregation::kMaxPackedChunkBytes);
  for (uint64_t i = 0; i < chunks; ++i) {
    digest.Add({packed.data(), sum.PackChunk(i, packed.data())});
  }
  return digest;
}

}  // namespace

Forwarder::Forwarder(absl::Duration patience, Events events)
    : patience_(patience), events_(std::move(events)), thread_([this] { Run(); }) {}

Forwarder::~Forwarder() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    if (running_link_ != nullptr) running_link_->Cancel("shutting down");
  }
  wake_.notify_all();
  thread_.join();
}

void Forwarder::UseLink(std::shared_ptr<transport::Link> link) {
  {
    std::lock_guard lock(mu_);
    link_ = std::move(link);
  }
  wake_.notify_all();
}

void Forwarder::Answer(v1::PartialSumAnswer answer) {
  {
    std::lock_guard lock(mu_);
    if (running_job_ == 0 || answer.attempt() != attempt_) return;  // to one that is over
    if (!answer.refused().empty()) refused_ = answer.refused();
    answer_ = std::move(answer);
  }
  wake_.notify_all();
}

void Forwarder::Forward(v1::PartialSumHeader header, const aggregation::ExactAccumulator* sum) {
  {
    std::lock_guard lock(mu_);
    GiveUp();
    job_ = Job{++last_job_, std::move(header), sum};
  }
  wake_.notify_all();
}

uint64_t Forwarder::Abandon() {
  std::lock_guard lock(mu_);
  GiveUp();
  return running_job_;
}

void Forwarder::GiveUp() {
  job_.reset();
  given_up_ = last_job_;
  wake_.notify_all();
  // One that waits for the parent's credit would wait on; its link is made anew.
  if (running_job_ == 0 || listening_) return;
  running_link_->Cancel("the round was given up");
  if (link_ == running_link_) link_ = nullptr;
}

void Forwarder::Run() {
  std::unique_lock lock(mu_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || (job_.has_value() && link_ != nullptr); });
    if (stopping_) return;
    Job job = *std::move(job_);
    job_.reset();
    running_job_ = job.number;
    running_link_ = link_;
    const std::shared_ptr<transport::Link> link = link_;
    ++attempt_;
    answer_.reset();
    refused_.reset();
    lock.unlock();
    const absl::Duration start = RealClock().Monotonic();
    const absl::Status status = Send(link, &job);
    const double seconds = absl::ToDoubleSeconds(RealClock().Monotonic() - start);
    lock.lock();
    running_job_ = 0;
    running_link_ = nullptr;
    const bool given_up = job.number <= given_up_;
    // A stream that ends for the parent's reason or for ours leaves the link as it is; any other
    // end is the link's, and is tried again unless another link would change nothing.
    const bool broken = !status.ok() && Ended(job).ok();
    const bool again = broken && !absl::IsInvalidArgument(status);
    if (broken && link_ == link) link_ = nullptr;
    lock.unlock();
    if (broken) link->Cancel("a partial sum was not sent to its end");
    if (given_up) {
      events_.released(job.number);
    } else if (!again) {
      events_.forwarded(job.header.round(), status, seconds);
    }
    lock.lock();
    // Once more over the next link, unless there is a newer word by now.
    if (again && job.number > given_up_) job_ = std::move(job);
  }
}

absl::Status Forwarder::Ended(const Job& job) const {
  if (stopping_ || job.number <= given_up_) return absl::CancelledError("the round was given up");
  if (refused_.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the parent refuses the partial sum: ", *refused_));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::PartialSumAnswer> Forwarder::NextAnswer(
    const std::shared_ptr<transport::Link>& link, const Job& job) {
  std::unique_lock lock(mu_);
  listening_ = true;
  // As long as the round: the parent may have to wait for memory. A parent that is gone ends the
  // link.
  wake_.wait(lock, [&] { return answer_.has_value() || link_ != link || !Ended(job).ok(); });
  listening_ = false;
  RETURN_IF_ERROR(Ended(job));
  if (!answer_.has_value()) {
    return Annotate(absl::UnavailableError(link->status().message()),
                    "the link ended before the parent's answer");
  }
  v1::PartialSumAnswer answer = *std::move(answer_);
  answer_.reset();
  return answer;
}

absl::Status Forwarder::Send(const std::shared_ptr<transport::Link>& link, Job* job) {
  v1::PartialSumHeader& header = job->header;
  const aggregation::ExactAccumulator& sum = *job->sum;
  absl::Status ended;
  const StreamPace pace{patience_, [&] {
                          std::lock_guard lock(mu_);
                          ended = Ended(*job);
                          return !ended.ok();
                        }};
  if (header.packed_bytes() == 0) header.set_packed_bytes(sum.PackedBytes());
  {
    std::lock_guard lock(mu_);
    header.set_attempt(attempt_);
  }
  const uint64_t chunks = header.chunks();
  const auto shape = SendStreamHeader(*link, PartialStreamId(header.round()),
                                      header.SerializeAsString(), chunks + 1, pace);
  if (!shape.ok()) return ended.ok() ? shape.status() : ended;
  ASSIGN_OR_RETURN(v1::PartialSumAnswer answer, NextAnswer(link, *job));
  if (answer.taken()) return absl::OkStatus();  // over a link that broke before it said so

  uint64_t first = std::min(answer.have_chunks(), chunks);
  PartialDigest digest = DigestOfFirst(sum, first);
  if (first > 0 && digest.Value() != answer.have_digest()) {
    spdlog::warn("round {}: the parent has {} chunks of another partial sum: from the start",
                 header.round(), first);
    digest.Clear();
    first = 0;
  } else if (first > 0) {
    spdlog::info("round {}: the parent has {} of {} chunks of the partial sum already",
                 header.round(), first, chunks);
  }
  const absl::Status sent = SendStreamData(
      *link, *shape, first,
      [&](uint64_t i, uint8_t* out) -> size_t {
        if (i < chunks) {
          const size_t bytes = sum.PackChunk(i, out);
          digest.Add({out, bytes});
          return bytes;
        }
        v1::PartialSumTrailer trailer;
        trailer.set_digest(digest.Value());
        const std::string text = trailer.SerializeAsString();
        text.copy(reinterpret_cast<char*>(out), text.size());
        return text.size();
      },
      pace);
  if (!sent.ok()) return ended.ok() ? sent : ended;
  return NextAnswer(link, *job).status();  // taken, or an error
}

}  // namespace tributary::server
