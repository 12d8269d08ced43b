// The collector's way of a child aggregator's partial sum: offered -> admitted -> reserved ->
// folded while it is received -> counted; or broken off, and gone on with or undone.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "server/collector.h"

namespace tributary::server {

using aggregation::Admission;
using aggregation::Verdict;

namespace {

// As of a Join.
bool IsId(const std::string& id) {
  return !id.empty() && id.size() <= aggregation::kMostIdBytes &&
         std::none_of(id.begin(), id.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

// What is wrong with them, or "". One of an asynchronous run may have several updates in the sum.
std::string CheckContributors(const v1::PartialSumHeader& header, bool asynchronous) {
  for (int i = 0; i < header.contributors_size(); ++i) {
    const std::string& id = header.contributors(i);
    if (!IsId(id)) {
      return absl::StrCat("its contributors are no ids: number ", i, " has ", id.size(),
                          " bytes, or control characters");
    }
    if (i == 0 || header.contributors(i - 1) < id) continue;
    if (asynchronous && header.contributors(i - 1) == id) continue;
    return absl::StrCat("its contributors are not in order: number ", i,
                        " is not above the one before");
  }
  return "";
}

}  // namespace

void Collector::OnPartialStart(std::shared_ptr<IncomingPartial> partial) {
  loop_->Post([this, partial = std::move(partial)] { PartialStart(partial); });
}
void Collector::OnPartialComplete(std::shared_ptr<IncomingPartial> partial) {
  loop_->Post([this, partial = std::move(partial)] { PartialComplete(partial); });
}
void Collector::OnPartialBroken(std::shared_ptr<IncomingPartial> partial, absl::Status why) {
  loop_->Post(
      [this, partial = std::move(partial), why = std::move(why)] { PartialBroken(partial, why); });
}
void Collector::OnPartialBad(const std::string& id, uint64_t epoch,
                             std::shared_ptr<IncomingPartial> partial, absl::Status why) {
  loop_->Post([this, id, epoch, partial = std::move(partial), why = std::move(why)] {
    PartialBad(id, epoch, partial, why);
  });
}

void Collector::OnModelSent(const std::string& id, absl::Duration took) {
  loop_->Post([this, id, took] { stragglers_.Downloaded(id, took); });
}

bool Collector::Holds(uint64_t ticket, const std::shared_ptr<IncomingPartial>& partial) const {
  const auto it = tickets_.find(ticket);
  return it != tickets_.end() && it->second.partial == partial;
}

uint64_t Collector::UncountedChunks(const std::string& child) const {
  if (const auto half = halves_.find(child); half != halves_.end())
    return half->second.fold->chunks();
  for (const auto& [ticket, entry] : tickets_) {
    if (entry.fold != nullptr && entry.partial->header().id() == child) return entry.fold->chunks();
  }
  return 0;
}

// ---- Offered

std::string Collector::CheckPartial(const v1::PartialSumHeader& header) const {
  const auto child = children_.find(header.id());
  if (child == children_.end() || !child->second.aggregator ||
      child->second.epoch != header.epoch()) {
    return absl::StrCat("it has no session of epoch ", header.epoch());
  }
  if (async_ != nullptr ? !buffering_ : machine_ == nullptr || spec_.kind() != v1::TRAIN)
    return "no round is open";
  if (header.run() != run_) return absl::StrCat("it is for run \"", header.run(), "\"");
  if (header.layout_hash() != layout_->hash()) {
    return "its layout is not the run's; it was built from another model: restart it with this run";
  }
  if (header.base_version() != train_spec().base_version()) {
    return absl::StrCat("it starts from model version ", header.base_version(), ", not ",
                        train_spec().base_version());
  }
  if (header.chunks() != sum_->chunk_count()) {
    return absl::StrCat("it has ", header.chunks(), " chunks, the layout ", sum_->chunk_count());
  }
  if (header.contributors().empty()) return "it names no contributors";
  if (std::string why = CheckContributors(header, async_ != nullptr); !why.empty()) return why;
  if (header.packed_bytes() > sum_->chunk_count() * aggregation::kMaxPackedChunkBytes ||
      header.packed_bytes() > budget_.limit()) {
    return absl::StrCat("its ", header.packed_bytes(), " bytes pass [limits] inflight_bytes (",
                        budget_.limit(), "); raise it");
  }
  return "";
}

void Collector::PartialStart(const std::shared_ptr<IncomingPartial>& partial) {
  const v1::PartialSumHeader& header = partial->header();
  const auto refuse = [&](const std::string& why) {
    spdlog::warn("partial sum of \"{}\" for round {} refused: {}", header.id(), header.round(),
                 why);
    partial->Refuse(why);
    const auto child = children_.find(header.id());
    if (child == children_.end() || child->second.epoch != header.epoch()) return;
    UndoHalf(header.id());
    if (async_ != nullptr) {
      SumRefused(header);
      return;
    }
    // Nothing else is to come from it this round: it need not be awaited.
    if (machine_ != nullptr && header.round() == spec_.round() &&
        machine_->AnswerOf(header.id()) == aggregation::Answer::kAwaited) {
      Act(machine_->Reported(header.id(), header.epoch(), 0, loop_->Now()));
    }
  };
  if (const std::string why = CheckPartial(header); !why.empty()) {
    refuse(why);
    return;
  }
  if (first_partial_ == absl::ZeroDuration()) first_partial_ = loop_->Now();
  const Admission admission = OfferPartial(header);
  if (admission.verdict == Verdict::kDuplicate) {
    partial->Taken();  // the word that it is in was lost with its link
    return;
  }
  if (admission.verdict != Verdict::kAdmit) {
    refuse(admission.message);
    Rearm();
    return;
  }
  if (const auto old = tickets_.find(admission.replaces); old != tickets_.end()) {
    old->second.partial->Refuse("a newer attempt replaced this one");
    Suspend(admission.replaces);
  }
  stragglers_.OfferSeen(header.id(), loop_->Now());
  partial->ticket = admission.ticket;
  tickets_[admission.ticket].partial = partial;
  TakeIn(partial);
  Rearm();
}

// Goes on with what there is of the same partial sum, or begins.
void Collector::TakeIn(const std::shared_ptr<IncomingPartial>& partial) {
  const v1::PartialSumHeader& header = partial->header();
  const auto half = halves_.find(header.id());
  if (half != halves_.end() && half->second.fold->SameSum(header)) {
    Ticket& ticket = tickets_[partial->ticket];
    ticket.fold = std::move(half->second.fold);
    ticket.reserved = half->second.reserved;
    halves_.erase(half);
    spdlog::info("the partial sum of \"{}\" for round {} goes on after chunk {} of {}", header.id(),
                 header.round(), ticket.fold->chunks(), header.chunks());
    ticket.fold->Resume();
    partial->Admit(ticket.fold);
    return;
  }
  UndoHalf(header.id());
  Reserve(partial->ticket, std::max<uint64_t>(header.packed_bytes(), 1), [this, partial] {
    auto fold = std::make_shared<PartialFold>(partial->header(), sum_.get(), &pool_);
    tickets_[partial->ticket].fold = fold;
    partial->Admit(std::move(fold));
  });
}

// ---- Received

void Collector::PartialComplete(const std::shared_ptr<IncomingPartial>& partial) {
  const uint64_t ticket = partial->ticket;
  if (!Holds(ticket, partial)) return;
  const v1::PartialSumHeader& header = partial->header();
  if (!CommitPartial(ticket)) {
    spdlog::warn("partial sum of \"{}\" for round {} came too late", header.id(), header.round());
    partial->Refuse(absl::StrCat("round ", header.round(), " has closed"));
    EndTicket(ticket);
    return;
  }
  Ticket& entry = tickets_[ticket];
  const std::shared_ptr<PartialFold> fold = std::exchange(entry.fold, nullptr);
  entry.metrics = header.metrics();
  last_partial_ = loop_->Now();
  stragglers_.Whole(header.id(), header.packed_bytes(), true, last_partial_);
  bytes_.from_aggregators += fold->taken_bytes();
  bytes_.below += header.ingress_bytes();
  std::map<std::string, uint64_t> rejected;
  for (const auto& reason : header.rejected()) rejected[reason.reason()] += reason.count();
  if (async_ != nullptr) {
    async_->CountBelow(rejected, header.late());
  } else {
    machine_->CountBelow(rejected, header.late());
  }
  partial->Taken();
  fold->Settle([this, ticket] { loop_->Post([this, ticket] { Folded(ticket); }); });
  callbacks_.passed("forward");
}

void Collector::PartialBroken(const std::shared_ptr<IncomingPartial>& partial,
                              const absl::Status& why) {
  spdlog::warn("the partial sum of \"{}\" broke off: {}", partial->header().id(), Text(why));
  if (!Holds(partial->ticket, partial)) return;
  Suspend(partial->ticket);
  AttemptAborted(partial->ticket);
}

void Collector::PartialBad(const std::string& id, uint64_t epoch,
                           const std::shared_ptr<IncomingPartial>& partial,
                           const absl::Status& why) {
  spdlog::warn("the partial sum of \"{}\" is refused: {}", id, Text(why));
  if (partial != nullptr) partial->Refuse(Text(why));
  if (partial != nullptr && Holds(partial->ticket, partial)) {
    RefuseTicket(partial->ticket, "malformed");
    return;
  }
  const auto child = children_.find(id);
  if (child != children_.end() && child->second.epoch == epoch) UndoHalf(id);
}

// ---- Broken off

void Collector::Suspend(uint64_t ticket) {
  const auto it = tickets_.find(ticket);
  if (it == tickets_.end()) return;
  const std::shared_ptr<PartialFold>& fold = it->second.fold;
  if (fold == nullptr || fold->chunks() == 0 ||
      !(async_ != nullptr ? async_->open() : machine_->open())) {
    EndTicket(ticket);
    return;
  }
  Half half{std::move(it->second.fold), it->second.reserved};
  half.fold->Seal();
  const std::string child = it->second.partial->header().id();
  tickets_.erase(it);
  UndoHalf(child);
  spdlog::info("{} chunks of the partial sum of \"{}\" are kept for its return",
               half.fold->chunks(), child);
  halves_[child] = std::move(half);
  if (budget_.waiting() > 0) UndoHalves();
}

void Collector::UndoHalf(const std::string& child) {
  const auto it = halves_.find(child);
  if (it == halves_.end()) return;
  const Half half = std::move(it->second);
  halves_.erase(it);
  spdlog::info("{} chunks of the partial sum of \"{}\" are undone", half.fold->chunks(), child);
  Undo(half.fold, half.reserved);
}

void Collector::UndoHalves() {
  while (!halves_.empty()) UndoHalf(std::string(halves_.begin()->first));
}

// Its memory is free when the workers are through with it.
void Collector::Undo(const std::shared_ptr<PartialFold>& fold, uint64_t reserved) {
  bytes_.from_aggregators += fold->taken_bytes();
  ++undoing_;
  fold->Undo([this, reserved] {
    loop_->Post([this, reserved] {
      --undoing_;
      budget_.Release(reserved);
      if (undoing_ > 0) return;
      if (machine_ != nullptr && machine_->closed()) Close();
      if (buffering_ && async_->closed()) CloseBuffer();
    });
  });
}

}  // namespace tributary::server
