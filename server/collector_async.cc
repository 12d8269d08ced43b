// The collector of an asynchronous run: buffers in place of rounds (aggregation/async.h). Members,
// uploads, links and folding are the same as in rounds.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "aggregation/cohort.h"
#include "base/status.h"
#include "server/collector.h"
#include "server/internal/async_proto.h"

namespace tributary::server {

using aggregation::AsyncAction;
using aggregation::AsyncMachine;
using aggregation::Contribution;

// ---- What differs between a round and a buffer

aggregation::Admission Collector::OfferUpdate(const v1::UploadHeader& header) {
  if (async_ == nullptr) {
    return machine_->Offer(header.id(), header.epoch(), header.round(),
                           stragglers_.Weight(header.id(), header.weight()), {}, loop_->Now());
  }
  auto admission = async_->Offer(header.id(), header.epoch(), header.base_version(),
                                 header.weight(), loop_->Now());
  RearmAsync();
  return admission;
}

aggregation::Admission Collector::OfferPartial(const v1::PartialSumHeader& header) {
  if (async_ == nullptr) {
    const std::vector<std::string> contributors(header.contributors().begin(),
                                                header.contributors().end());
    return machine_->Offer(header.id(), header.epoch(), header.round(),
                           static_cast<int64_t>(header.weight()), contributors, loop_->Now(),
                           header.part());
  }
  auto admission =
      async_->OfferSum(header.id(), header.epoch(), header.base_version(), header.buffer_attempt(),
                       header.weight(), FromProto(header.contributions()), loop_->Now());
  RearmAsync();
  return admission;
}

bool Collector::CommitPartial(uint64_t ticket) {
  if (async_ == nullptr) return machine_->Commit(ticket);
  const auto verdict = async_->Commit(ticket);
  RearmAsync();
  return verdict.kind == AsyncMachine::Verdict::Kind::kFold;
}

// Nothing more comes from the rack before the next buffer.
void Collector::SumRefused(const v1::PartialSumHeader& header) {
  if (!buffering_ || header.round() != async_spec_.round() ||
      header.buffer_attempt() != async_spec_.asynchronous().attempt()) {
    return;
  }
  ActAsync(async_->Declined(header.id(), header.epoch(), loop_->Now()));
}

void Collector::AttemptAborted(uint64_t ticket) {
  if (async_ != nullptr) return ActAsync(async_->Aborted(ticket, loop_->Now()));
  if (machine_ != nullptr) Act(machine_->Aborted(ticket, loop_->Now()));
}

void Collector::AttemptRefused(uint64_t ticket, const std::string& reason) {
  if (async_ != nullptr) return ActAsync(async_->Refused(ticket, reason, loop_->Now()));
  if (machine_ != nullptr) Act(machine_->Refused(ticket, reason, loop_->Now()));
}

void Collector::AttemptFolded(uint64_t ticket) {
  if (async_ != nullptr) return ActAsync(async_->Folded(ticket, loop_->Now()));
  Act(machine_->Folded(ticket, loop_->Now()));
}

// ---- The buffer's course

void Collector::SetFates(uint64_t version, const AsyncFates& fates,
                         const std::vector<Contribution>& newest, uint64_t max_staleness) {
  async_ = std::make_unique<AsyncMachine>();
  async_->Restore(fates.counted, version, fates.from, fates.voided);
  last_round_ = version;
  async_spec_.mutable_asynchronous()->set_max_staleness(max_staleness);
  for (const Contribution& c : newest) last_rounds_[c.id] = c.base + 1;
}

Collector::AsyncFates Collector::Fates() const {
  if (async_ == nullptr) return {};
  return {async_->Counted(), async_->Voided(), async_->counted_from()};
}

absl::Status Collector::BeginBuffer(const v1::RoundSpec& spec, const aggregation::Grid& grid,
                                    std::shared_ptr<const ModelVersion> model) {
  if (sum_ == nullptr) {
    ASSIGN_OR_RETURN(sum_, aggregation::ExactAccumulator::Create(layout_, grid));
  } else {
    sum_->Reset();
  }
  pool_.Target(sum_.get());
  spec_ = async_spec_ = spec;
  stragglers_.BeginRound(spec_);
  grid_ = grid;
  model_ = std::move(model);
  shelf_.Put(model_);
  StartMeasuring();
  closed_reported_ = false;
  shares_.clear();
  if (async_ == nullptr) async_ = std::make_unique<AsyncMachine>();
  // Who is here since before the first buffer; those whom it knows are left as they are.
  std::vector<AsyncMachine::Member> members;
  for (const auto& [id, child] : children_) {
    if (!async_->Knows(id)) members.push_back({id, child.aggregator, child.epoch});
  }
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  for (const auto& member : members) async_->Joined(member, loop_->Now());
  aggregation::AsyncPlan plan = AsyncPlanOf(spec_, grid_);
  plan.concurrency = ConcurrencyOf("");
  buffering_ = true;
  buffered_told_ = ~uint64_t{0};
  ActAsync(async_->Open(plan, spec_.base_version(), loop_->Now()));
  callbacks_.passed("announce");
  std::vector<uint64_t> waiting;
  for (const auto& [ticket, entry] : tickets_) {
    if (entry.waits != nullptr) waiting.push_back(ticket);
  }
  for (const uint64_t ticket : waiting) {
    const auto it = tickets_.find(ticket);
    if (it == tickets_.end() || !async_->open()) break;
    const std::shared_ptr<Upload> upload = it->second.upload;  // its ticket may end in this
    UploadComplete(upload, std::move(it->second.waits));
  }
  return absl::OkStatus();
}

// Its share of those who train at once, by the clients behind each child as they are now; "": of
// the clients here. 0 is everybody.
uint64_t Collector::ConcurrencyOf(const std::string& aggregator) const {
  const uint64_t all = spec_.asynchronous().concurrency();
  if (all == 0) return 0;
  std::vector<std::string> names = {""};
  std::vector<uint64_t> sizes = {0};
  for (const auto& [id, child] : children_) {
    if (!child.aggregator) ++sizes[0];
  }
  std::map<std::string, uint64_t> aggregators;
  for (const auto& [id, child] : children_) {
    if (child.aggregator) aggregators[id] = child.clients;
  }
  for (const auto& [id, clients] : aggregators) {
    names.push_back(id);
    sizes.push_back(clients);
  }
  const auto shares = aggregation::SplitCount(all, sizes);
  for (size_t i = 0; i < names.size(); ++i) {
    // One at least: nobody is to wait for the others' clients to leave.
    if (names[i] == aggregator) return std::max<uint64_t>(1, shares[i]);
  }
  return 1;
}

void Collector::ActAsync(const std::vector<AsyncAction>& actions) {
  for (const AsyncAction& action : actions) {
    switch (action.kind) {
      case AsyncAction::Kind::kTask:
        deadline_ = loop_->Now() + absl::Milliseconds(async_spec_.deadline_ms());
        SendTask(action.member);
        break;
      case AsyncAction::Kind::kCollect: {
        const auto it = children_.find(action.member);
        if (it == children_.end()) break;
        auto response = std::make_shared<v1::SessionResponse>();
        response->mutable_collect()->set_round(async_spec_.round());
        it->second.session->Send(std::move(response));
        break;
      }
      case AsyncAction::Kind::kAbort: {
        const auto it = tickets_.find(action.ticket);
        if (it == tickets_.end()) break;
        if (it->second.partial != nullptr) {
          it->second.partial->Refuse(absl::StrCat("round ", async_spec_.round(), " has closed"));
        }
        if (it->second.upload != nullptr) {
          v1::UploadResponse response;
          response.set_status(v1::UploadResponse::STALE);
          response.set_reason("session");
          response.set_message("its session broke off before it was whole");
          it->second.upload->Reply(response);
        }
        EndTicket(action.ticket);
        break;
      }
      case AsyncAction::Kind::kStarved:
        spdlog::info("version {}: no update has come for {} s ([async] flush_s), {} clients train",
                     async_spec_.round(), async_spec_.asynchronous().flush_ms() / 1000,
                     async_->training());
        break;
      case AsyncAction::Kind::kClosed:
        CloseBuffer();
        return;
    }
  }
  RearmAsync();
  if (!buffering_ || callbacks_.buffered == nullptr || async_->buffered() == buffered_told_) return;
  buffered_told_ = async_->buffered();
  callbacks_.buffered(buffered_told_);
}

void Collector::RearmAsync() {
  if (async_timer_ != 0) loop_->CancelTimer(async_timer_);
  async_timer_ = 0;
  const auto next = async_->NextTimer();
  if (!next.has_value()) return;
  async_timer_ = loop_->PostAfter(std::max(*next - loop_->Now(), absl::ZeroDuration()), [this] {
    async_timer_ = 0;
    ActAsync(async_->Timer(loop_->Now()));
  });
}

bool Collector::TakeIntoBuffer(uint64_t ticket,
                               std::shared_ptr<const aggregation::EncodedUpdate>* update) {
  const AsyncMachine::Verdict verdict = async_->Commit(ticket);
  RearmAsync();
  Ticket& entry = tickets_[ticket];
  entry.whole = true;
  v1::UploadResponse response;
  switch (verdict.kind) {
    case AsyncMachine::Verdict::Kind::kFold: {
      // The weight that it was admitted with is that of the version then.
      const auto weight = static_cast<int64_t>(verdict.weight);
      if ((*update)->weight() != weight) *update = (*update)->WithWeight(weight);
      return true;
    }
    case AsyncMachine::Verdict::Kind::kWait:
      entry.waits = std::move(*update);
      return false;
    case AsyncMachine::Verdict::Kind::kStale:
      response.set_status(v1::UploadResponse::STALE);
      response.set_reason("staleness");
      response.set_message(absl::StrCat(
          "the update is ", verdict.staleness,
          " versions old, [async] max_staleness = ", async_spec_.asynchronous().max_staleness()));
      break;
    case AsyncMachine::Verdict::Kind::kDuplicate:
      response.set_status(v1::UploadResponse::DUPLICATE);
      break;
  }
  if (entry.upload != nullptr) entry.upload->Reply(response);
  EndTicket(ticket);
  return false;
}

void Collector::CloseBuffer() {
  RearmAsync();
  if (closed_reported_) return;
  UndoHalves();
  if (undoing_ > 0) return;  // Undo comes here again
  closed_reported_ = true;
  aggregation::AsyncResult result = async_->Result();
  CollectedRound round;
  round.result.success = !result.contributions.empty();
  if (!round.result.success) round.result.why_not = "the buffer is empty";
  round.result.weight = result.weight;
  round.result.clients = result.contributions.size();
  round.result.children = std::move(result.children);
  for (const Contribution& c : result.contributions) round.result.contributors.push_back(c.id);
  round.result.rejected = std::move(result.rejected);
  round.result.late = result.stale;
  round.result.asked = async_->training();
  round.contributions = std::move(result.contributions);
  round.wait.closed_by = BufferClosedByName(result.closed_by);
  round.wait.asked = async_->training();
  Measure(&round);
  callbacks_.closed(std::move(round));
}

void Collector::FinishBuffer(const Ending& ending) {
  const aggregation::AsyncResult result = async_->Result();
  buffering_ = false;
  const auto tell = [&](Child& child, uint64_t round, bool in) {
    auto response = std::make_shared<v1::SessionResponse>();
    v1::Outcome* outcome = response->mutable_outcome();
    outcome->set_round(round);
    outcome->set_committed(ending.committed);
    outcome->set_included(in && ending.included);
    if (!outcome->included()) {
      outcome->set_reason(in || !ending.why_not.empty() ? ending.why_not
                                                        : "its sum came too late or not at all");
      // A rack's sum may have been refused for what another rack has brought already.
      outcome->set_ask(!child.aggregator && callbacks_.inquire != nullptr &&
                       (ending.committed || !ending.known));
    }
    child.session->Send(std::move(response));
  };
  for (const Contribution& c : result.contributions) {
    const auto child = children_.find(c.id);
    if (child != children_.end() && !child->second.aggregator)
      tell(child->second, c.base + 1, true);
  }
  for (auto& [id, child] : children_) {
    if (!child.aggregator) continue;
    tell(child, async_spec_.round(),
         std::binary_search(result.children.begin(), result.children.end(), id));
  }
  if (ending.committed) {
    last_round_ = async_spec_.round();
    last_children_.clear();
    last_rounds_.clear();
    if (ending.included) {
      for (const std::string& id : result.children) last_children_[id] = 1;
      for (const Contribution& c : result.contributions) last_rounds_[c.id] = c.base + 1;
    }
  }
  async_->Settle(ending.committed && ending.included, ending.committed);
  ResolveAll(false);
  RearmAsync();
}

}  // namespace tributary::server
