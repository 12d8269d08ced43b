// Start, end, and the report of a node.
#include "server/node_base.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "base/status.h"

namespace tributary::server {
namespace {
constexpr absl::Duration kHangupTime = absl::Seconds(2);  // for members to read the last word
}

NodeBase::NodeBase(Options options) : options_(std::move(options)) {
  collector_ = std::make_unique<Collector>(
      &loop_, options_.config.limits,
      Collector::Callbacks{
          .members_changed =
              [this] {
                if (!ending_) MembersChanged();
              },
          .closed = [this](CollectedRound round) { RoundClosed(std::move(round)); },
          .passed =
              [this](const char* phase) {
                // Models are mostly fetched to be evaluated, and late updates come meanwhile; all
                // else of an evaluation is no phase.
                const v1::RoundSpec& spec = collector_->spec();
                const std::string_view name = phase;
                const bool always = name == "download" || name == "hold";
                if (spec.kind() == v1::TRAIN || always) Passed(spec.round(), phase);
              },
          .buffered = [this](uint64_t clients) { Buffered(clients); },
          .claim = options_.config.is_root() ? std::function<void(const v1::Claims&)>()
                                             : [this](const v1::Claims& claims) { Claim(claims); },
          .inquire = options_.config.is_root()
                         ? std::function<void(const v1::Inquiry&)>()
                         : [this](const v1::Inquiry& inquiry) { Inquire(inquiry); }});
}

NodeBase::~NodeBase() {
  // Whoever calls the collector goes first.
  door_.reset();
  tier_.reset();
}

std::string NodeBase::Where(const std::string& key) const {
  const auto it = options_.config.where.find(key);
  return it == options_.config.where.end() ? key : it->second;
}

absl::Status NodeBase::OpenPorts() {
  const Config& config = options_.config;
  auto rounds_file = RoundsFile::Open(config.metrics.rounds_file);
  if (!rounds_file.ok()) return Annotate(rounds_file.status(), Where("metrics.rounds_file"));
  rounds_file_ = *std::move(rounds_file);
  auto fabrics = MakeFabrics(config.transport, config.is_root());
  if (!fabrics.ok()) return Annotate(fabrics.status(), Where("transport.listen"));
  to_parent_ = std::move(fabrics->to_parent);
  auto tier = TierLinks::StartOver(std::move(fabrics->to_children), config.transport,
                                   config.node.name, collector_.get());
  if (!tier.ok()) return Annotate(tier.status(), Where("transport.listen"));
  tier_ = *std::move(tier);
  collector_->AttachTier(tier_.get());
  auto door = FrontDoor::Start({.listen = config.node.listen,
                                .max_sessions = config.limits.max_sessions,
                                .stream_window_bytes = config.limits.stream_window_bytes,
                                .tls = config.tls},
                               collector_.get(), collector_->shelf());
  if (!door.ok()) return Annotate(door.status(), Where("node.listen"));
  door_ = *std::move(door);
  collector_->AttachDoor(door_.get());
  const char* const tls = config.tls.cert_pem.empty()        ? ""
                          : config.tls.client_ca_pem.empty() ? ", TLS"
                                                             : ", mutual TLS";
  spdlog::info("\"{}\" listens on {} (port {}{}), links over {} on {}", config.node.name,
               config.node.listen, door_->port(), tls, tier_->kind(),
               tier_->places().front().address);
  return absl::OkStatus();
}

absl::Status NodeBase::Run() {
  loop_.Post([this] { Begin(); });
  loop_.Run();
  door_->Shutdown(absl::Milliseconds(100));
  return result_;
}

void NodeBase::Shutdown() {
  if (++shutdowns_ == 1) {
    loop_.Post([this] {
      if (!ending_) ShutdownAsked();
    });
  } else {
    loop_.Post([this] { loop_.Stop(); });
  }
}

void NodeBase::End(v1::Stop::Kind kind, const std::string& reason, absl::Status result) {
  if (ending_) return;
  ending_ = true;
  result_ = std::move(result);
  WriteParticipation();
  collector_->StopAll(kind, reason, kind == v1::Stop::GOING_AWAY ? 500 : 0);
  Hangup(loop_.Now() + kHangupTime);
}

// Beside rounds.jsonl, where there is one.
void NodeBase::WriteParticipation() const {
  std::string path = options_.config.metrics.rounds_file;
  if (path.empty()) return;
  if (absl::EndsWith(path, ".jsonl")) path.resize(path.size() - 6);
  path += "-participation.csv";
  std::ofstream out(path, std::ios::trunc);
  out << (options_.config.is_root() ? tree_ : collector_->participation()).Csv();
  out.close();
  if (!out) spdlog::error("cannot write {}; the disk may be full", path);
}

void NodeBase::Hangup(absl::Duration until) {
  if (collector_->session_count() == 0 || loop_.Now() >= until) {
    loop_.Stop();
    return;
  }
  loop_.PostAfter(absl::Milliseconds(10), [this, until] { Hangup(until); });
}

uint64_t NodeBase::LinkRetransmits() const {
  return tier_ == nullptr ? 0 : tier_->stats().retransmits;
}

void NodeBase::Publish(RoundReport report) {
  report.node = options_.config.node.name;
  const bool root = options_.config.is_root();
  if (root && report.committed) tree_.ObserveRound(report.collected.result.contributors);
  report.participation = root ? tree_.Summary() : collector_->participation().Summary();
  const uint64_t retransmits = LinkRetransmits();
  // A connection that has ended may tell nothing any more.
  report.link_retransmits = retransmits - std::min(retransmits, retransmits_told_);
  retransmits_told_ = std::max(retransmits_told_, retransmits);
  if (const absl::Status status = rounds_file_->Append(report); !status.ok())
    spdlog::error("{}", Text(status));
  if (options_.on_round) options_.on_round(report);
}

absl::StatusOr<std::unique_ptr<Node>> Node::Create(Options options) {
  PrepareGrpc();
  return options.config.is_root() ? CreateRoot(std::move(options)) : CreateRack(std::move(options));
}

}  // namespace tributary::server
