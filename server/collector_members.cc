// The collector's members: who joins, what their sessions say, who leaves.
#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "server/collector.h"

namespace tributary::server {

using aggregation::Answer;

namespace {

// A peer's words, for the log: on one line, and not the whole disk.
std::string Words(const std::string& text) {
  return absl::Utf8SafeCHexEscape(absl::string_view(text).substr(0, 200));
}

}  // namespace

void Collector::OnJoin(std::shared_ptr<Session> session) {
  loop_->Post([this, session = std::move(session)]() mutable { Join(std::move(session)); });
}

void Collector::OnMessage(std::shared_ptr<Session> session, v1::SessionRequest message) {
  // A heartbeat that changes nothing is only a sign of life, which the session has noted already.
  if (message.has_heartbeat() && session->join().role() == v1::CLIENT) return session->Handled();
  loop_->Post([this, session = std::move(session), message = std::move(message)] {
    Message(session, message);
    session->Handled();
  });
}

void Collector::OnSessionEnd(std::shared_ptr<Session> session) {
  loop_->Post([this, session = std::move(session)] { End(session); });
}

void Collector::Join(std::shared_ptr<Session> session) {
  if (layout_ == nullptr) {
    spdlog::debug("\"{}\" from {} waits for the run", session->join().id(), session->peer());
    waiting_joins_.push_back(std::move(session));
    return;
  }
  const v1::Join& join = session->join();
  const auto refuse = [&](const std::string& reason, uint64_t retry_after_ms = 0) {
    spdlog::warn("{} \"{}\" from {} refused: {}",
                 join.role() == v1::CLIENT ? "client" : "aggregator", join.id(), session->peer(),
                 reason);
    auto response = std::make_shared<v1::SessionResponse>();
    response->mutable_refused()->set_reason(reason);
    response->mutable_refused()->set_retry_after_ms(retry_after_ms);
    session->Send(std::move(response));
    session->Finish();
  };
  if (!join.run().empty() && join.run() != run_) {
    refuse(absl::StrCat("run \"", join.run(), "\" is not served here, \"", run_,
                        "\" is; correct the client's run"));
    return;
  }
  if (join.role() == v1::AGGREGATOR && tier_ == nullptr) {
    refuse("this aggregator offers no links; give it a [transport] section");
    return;
  }
  const auto old = children_.find(join.id());
  if (old != children_.end()) {
    if (join.epoch() < old->second.epoch) {
      // Epochs are times of the system's clock: it may have been set back, and the later life be
      // dead, which its silence will show.
      refuse(absl::StrCat("a later life of \"", join.id(),
                          "\" has joined already; give each client its own id"),
             HeartbeatMillis());
      return;
    }
    // The newer session wins. The same life reconnecting needs no word on its dead stream.
    old->second.session->superseded = true;
    // It makes a link of its own; what the old one was to bring may be older than what is held now.
    if (old->second.aggregator && tier_ != nullptr) tier_->Drop(join.id(), old->second.epoch);
    if (join.epoch() > old->second.epoch) {
      spdlog::info("\"{}\" joined again from {}: the newer session wins", join.id(),
                   session->peer());
      auto response = std::make_shared<v1::SessionResponse>();
      response->mutable_stop()->set_kind(v1::Stop::SUPERSEDED);
      response->mutable_stop()->set_reason(absl::StrCat("another session with the id \"", join.id(),
                                                        "\" joined from ", session->peer()));
      old->second.session->Send(std::move(response));
      old->second.session->Finish();
    } else {
      old->second.session->Cancel();
    }
  }
  EndOfferOf(join.id());  // whoever is there now offers anew
  if (old != children_.end() && old->second.aggregator) --aggregators_here_;
  if (join.role() == v1::AGGREGATOR) ++aggregators_here_;
  Child& child = children_[join.id()];
  child = {.session = session,
           .aggregator = join.role() == v1::AGGREGATOR,
           .epoch = join.epoch(),
           .examples = join.examples(),
           .clients = join.clients(),
           .held_sha256 = join.held_sha256()};
  if (child.aggregator) tier_->Expect(join.id(), join.epoch());
  spdlog::debug("\"{}\" joined from {} ({})", join.id(), session->peer(), Words(join.software()));
  Welcome(join.id(), child);
}

void Collector::Welcome(const std::string& id, Child& child) {
  auto response = std::make_shared<v1::SessionResponse>();
  v1::Joined* joined = response->mutable_joined();
  joined->set_run(run_);
  *joined->mutable_layout() = layout_->ToProto();
  joined->set_layout_hash(layout_->hash());
  joined->set_heartbeat_ms(HeartbeatMillis());
  joined->set_committed_round(last_round_);
  joined->set_answers_inquiries(true);
  // What fits into its stream's window is here before anybody could be told to wait.
  if (!child.aggregator) joined->set_offer_above_bytes(limits_.stream_window_bytes);
  const auto counted = last_rounds_.find(id);
  const bool async_client = async_ != nullptr && !child.aggregator;
  if (async_client) {
    // What is not as old as that may still count, whatever has been committed since.
    const uint64_t bound = async_spec_.asynchronous().max_staleness();
    joined->set_committed_round(last_round_ > bound ? last_round_ - bound : 0);
  }
  if (last_round_ > 0 && (!async_client || counted != last_rounds_.end())) {
    v1::Outcome* outcome = joined->mutable_last_outcome();
    outcome->set_round(async_client ? counted->second : last_round_);
    outcome->set_committed(true);
    const auto last = last_children_.find(id);
    outcome->set_included(last != last_children_.end());
    if (!async_client && !child.aggregator &&
        outcomes_.Of(id, last_round_) == aggregation::Fate::kCounted) {
      outcome->set_included(true);  // through an aggregator that it was with before
    }
    if (child.aggregator && outcome->included()) outcome->set_parts(last->second);
  }
  if (child.aggregator) {
    for (const LinkPlace& place : tier_->places()) {
      v1::LinkEndpoint* link = joined->add_links();
      link->set_transport(place.transport);
      link->set_address(place.address);
    }
  }
  child.session->Send(std::move(response));
  if (stopped_.has_value()) {
    auto stop = std::make_shared<v1::SessionResponse>();
    *stop->mutable_stop() = *stopped_;
    child.session->Send(std::move(stop));
    child.session->Finish();
    return;
  }
  if (async_ != nullptr) {
    ActAsync(async_->Joined({id, child.aggregator, child.epoch}, loop_->Now()));
  }
  if (machine_ != nullptr) Enter(id, child);
  callbacks_.members_changed();
}

void Collector::Message(const std::shared_ptr<Session>& session,
                        const v1::SessionRequest& message) {
  const auto it = children_.find(session->join().id());
  if (it == children_.end() || it->second.session != session)
    return;  // a superseded stream's last words
  Child& child = it->second;
  if (message.has_heartbeat()) {
    const bool changed = child.clients != message.heartbeat().clients() ||
                         child.examples != message.heartbeat().examples();
    child.clients = message.heartbeat().clients();
    child.examples = message.heartbeat().examples();
    if (changed) callbacks_.members_changed();
    if (changed && machine_ != nullptr && child.aggregator) {
      Act(machine_->Census(it->first, child.epoch, child.clients, loop_->Now()));
    }
    if (buffering_ && child.aggregator && message.heartbeat().round() == async_spec_.round()) {
      ActAsync(async_->Buffered(it->first, child.epoch, async_spec_.base_version(),
                                message.heartbeat().buffered(), loop_->Now()));
    }
  } else if (message.has_report()) {
    Report(it->first, child, message.report());
  } else if (message.has_offer()) {
    Offered(it->first, child, message.offer());
  } else if (message.has_claims()) {
    if (child.aggregator) ClaimedBelow(it->first, child, message.claims());
  } else if (message.has_inquiry()) {
    Inquired(it->first, child, message.inquiry());
  } else if (message.has_leave()) {
    spdlog::info("\"{}\" leaves: {}", it->first, Words(message.leave().reason()));
    session->Finish();
    // A rack's clients may be with it again in its next life, as after a kill.
    End(session, !child.aggregator);
  }
}

void Collector::Report(const std::string& id, Child& child, const v1::Report& report) {
  // Only racks have anybody whom they refuse.
  std::map<std::string, uint64_t> below;
  for (const auto& entry : report.rejected()) {
    if (child.aggregator) below[entry.reason()] += entry.count();
  }
  const uint64_t late = child.aggregator ? report.late() : 0;
  if (async_ != nullptr && report.kind() == v1::TRAIN) {
    if (!report.declined().empty())
      spdlog::info("\"{}\" sits version {} out: {}", id, report.round(), Words(report.declined()));
    // A client's task may be of an older version; a rack's answer is of this one or of no use.
    if (child.aggregator && report.round() != async_spec_.round()) return;
    async_->CountBelow(below, late);
    ActAsync(async_->Declined(id, child.epoch, loop_->Now()));
    return;
  }
  if (machine_ == nullptr || report.round() != spec_.round() || report.kind() != spec_.kind())
    return;
  if (!report.declined().empty()) {
    spdlog::info("\"{}\" sits round {} out: {}", id, report.round(), Words(report.declined()));
  }
  machine_->CountBelow(below, late);
  uint64_t clients = 0;
  if (spec_.kind() == v1::EVALUATE && report.declined().empty()) {
    if (machine_->AnswerOf(id) != Answer::kAwaited) return;  // said already: a metric counts once
    const absl::Status status = aggregation::MergeMetrics(report.metrics(), &metrics_);
    if (status.ok()) {
      clients = child.aggregator ? report.contributors() : 1;
    } else {
      spdlog::warn("metrics of \"{}\" for round {} dropped: {}", id, report.round(), Text(status));
    }
  }
  Act(machine_->Reported(id, child.epoch, clients, loop_->Now()));
}

void Collector::End(const std::shared_ptr<Session>& session, bool for_good) {
  std::erase(waiting_joins_, session);
  const auto it = children_.find(session->join().id());
  if (it == children_.end() || it->second.session != session) return;
  const std::string id = it->first;
  const uint64_t epoch = it->second.epoch;
  if (it->second.aggregator) --aggregators_here_;
  if (it->second.aggregator && tier_ != nullptr) tier_->Drop(id, epoch);
  // It asks again wherever it is next.
  if (const auto own = questions_.find(id); own != questions_.end()) {
    own->second.askers.erase(id);
    if (own->second.askers.empty()) questions_.erase(own);
  }
  EndOfferOf(id);
  children_.erase(it);
  spdlog::debug("session of \"{}\" ended", id);
  if (async_ != nullptr) ActAsync(async_->Left(id, epoch, loop_->Now()));
  if (machine_ != nullptr) Act(machine_->Left(id, epoch, loop_->Now(), for_good));
  callbacks_.members_changed();
}

void Collector::StopAll(v1::Stop::Kind kind, const std::string& reason, uint64_t retry_after_ms) {
  stopped_.emplace();
  stopped_->set_kind(kind);
  stopped_->set_reason(reason);
  stopped_->set_retry_after_ms(retry_after_ms);
  auto response = std::make_shared<v1::SessionResponse>();
  *response->mutable_stop() = *stopped_;
  for (auto& [id, child] : children_) {
    child.session->Send(response);
    child.session->Finish();
  }
  for (auto& session : waiting_joins_) {
    session->Send(response);
    session->Finish();
  }
  v1::UploadResponse answer;
  answer.set_status(v1::UploadResponse::RETRY_ELSEWHERE);
  answer.set_reason("shutdown");
  answer.set_message("this aggregator is shutting down");
  for (auto& [ticket, entry] : tickets_) {
    if (entry.upload != nullptr) entry.upload->Reply(answer);
  }
  for (const auto& upload : held_) upload->Reply(answer);
  held_.clear();
}

}  // namespace tributary::server
