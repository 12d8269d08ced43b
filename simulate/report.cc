// Text and figures of a simulation.
#include "simulate/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tributary::simulate {
namespace {

const char* Rests(const std::string& transport) {
  return transport == "tcp" ? "simulated; tcp as windows of 10..64 segments, 200 ms time-out, no "
                              "fast retransmit, no CPU cost"
                            : "simulated; roce as receiver credit, nothing dropped for want of "
                              "room, no CPU cost";
}

// Updates in committed models for each virtual second.
double Rate(const ArmResult& r) {
  return r.virtual_s > 0 ? static_cast<double>(r.accepted) / r.virtual_s : 0;
}

}  // namespace

double QuantileOf(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(values.size()) * (1 - 1e-12));
  const size_t index = std::clamp<size_t>(static_cast<size_t>(rank), 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

std::string Table(const std::vector<ArmResult>& results) {
  std::string out = absl::StrFormat("%-9s %-5s %9s %9s %9s %9s %7s %7s %7s %9s  %s\n", "policy",
                                    "link", "p50 s", "p90 s", "p99 s", "max s", "in %", "late %",
                                    "failed", "updates/s", "what the figures rest on");
  for (const ArmResult& r : results) {
    const auto share = [&](uint64_t part) {
      return r.asked == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(r.asked);
    };
    absl::StrAppendFormat(&out, "%-9s %-5s %9.2f %9.2f %9.2f %9.2f %7.1f %7.1f %7d %9.2f  %s\n",
                          r.policy, r.transport, QuantileOf(r.round_s, 0.5),
                          QuantileOf(r.round_s, 0.9), QuantileOf(r.round_s, 0.99),
                          QuantileOf(r.round_s, 1), share(r.accepted), share(r.carried), r.failed,
                          Rate(r), Rests(r.transport));
    if (r.staleness > 0) {
      absl::StrAppendFormat(&out,
                            "%-15s versions in place of rounds; updates are %.1f versions old "
                            "(mean, simulated)\n",
                            "", r.staleness);
    }
  }
  return out;
}

std::string Assumptions(const Config& c) {
  std::string out = "assumed (everything above is simulated, nothing of it measured):\n";
  const auto line = [&out](const std::string& text) { absl::StrAppend(&out, "  ", text, "\n"); };
  line(
      absl::StrFormat("%d clients behind %d racks, %d rounds, seed %d; %d parameters, %.3g B each "
                      "in an update, %.3g B in a partial sum",
                      c.clients.count, c.racks.count, c.rounds, c.seed, c.parameters,
                      c.update_bytes_per_parameter, c.partial_bytes_per_parameter));
  line(absl::StrFormat(
      "training: log-normal, median %.3g s, sigma %.3g between clients and %.3g "
      "between rounds%s",
      c.clients.train_s, c.clients.train_sigma, c.clients.round_sigma,
      c.clients.pareto_alpha > 0 ? absl::StrFormat(", times Pareto(%.3g)", c.clients.pareto_alpha)
                                 : ""));
  line(
      absl::StrFormat("%.3g %% of the clients %.3g times slower in training and sending; %.3g %% "
                      "die in each round and are back for the next; availability falls by %.3g %% "
                      "over a day of %.3g s, clients' hours within %.3g %% of it",
                      100 * c.clients.slow_share, c.clients.slow_factor, 100 * c.clients.dropout,
                      100 * c.clients.diurnal_amplitude, c.clients.diurnal_period_s,
                      100 * c.clients.diurnal_spread));
  line(absl::StrFormat(
      "clients' links: %.3g Mbit/s up, %.3g down (median; sigma %.3g), %.3g ms; at "
      "a rack's door they queue for %.3g Gbit/s each way, as a fluid, without loss",
      c.clients.up_bytes_per_s / 1.25e5, c.clients.down_bytes_per_s / 1.25e5, c.clients.rate_sigma,
      1e3 * c.clients.latency_s, c.racks.ingress_bytes_per_s / 1.25e8));
  line(
      absl::StrFormat("tiers: one switch, racks %.3g Gbit/s, root %.3g Gbit/s, %.3g us, %d KiB of "
                      "buffer at a port, segment loss %.3g; one flow a rack",
                      c.racks.uplink_bytes_per_s / 1.25e8, c.root.down_bytes_per_s / 1.25e8,
                      1e6 * c.racks.latency_s, c.root.switch_buffer_bytes >> 10, c.root.loss));
  line(
      absl::StrFormat("a rack folds %.3g GB/s of updates; the root applies %.3g GB/s and commits "
                      "%.3g GB/s of model",
                      c.racks.fold_bytes_per_s / 1e9, c.root.apply_bytes_per_s / 1e9,
                      c.root.commit_bytes_per_s / 1e9));
  line(
      "production: round machines, cohorts, deadlines, pacer, slow-member tracking of root and "
      "racks; modelled: everything else");
  return out;
}

std::vector<SimFigure> Figures(const std::vector<ArmResult>& results) {
  std::vector<SimFigure> out;
  for (const ArmResult& r : results) {
    const std::string base = absl::StrCat("simulate.", r.policy, ".", r.transport, ".");
    const std::string note = Rests(r.transport);
    for (const auto& [name, share] : {std::pair("p50_s", 0.5), {"p90_s", 0.9}, {"p99_s", 0.99}}) {
      out.push_back({base + name, QuantileOf(r.round_s, share), "s", note});
    }
    const auto asked = static_cast<double>(std::max<uint64_t>(r.asked, 1));
    out.push_back({base + "in_share", static_cast<double>(r.accepted) / asked, "", note});
    out.push_back({base + "updates_per_s", Rate(r), "1/s", note});
  }
  return out;
}

}  // namespace tributary::simulate
