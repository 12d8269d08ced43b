// Names after Documentation/ABI/stable/sysfs-class-infiniband and the drivers mlx5 and rxe.
#include "doctor/counters.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tributary::doctor {
namespace {

// "rx_prio*_pause" against "rx_prio3_pause"; one star stands for digits.
bool Matches(const std::string& pattern, const std::string& name) {
  const size_t star = pattern.find('*');
  if (star == std::string::npos) return pattern == name;
  const std::string head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  if (name.size() <= head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail))
    return false;
  const std::string middle = name.substr(head.size(), name.size() - head.size() - tail.size());
  return middle.find_first_not_of("0123456789") == std::string::npos;
}

const CounterMeaning* MeaningOf(const std::string& name) {
  for (const CounterMeaning& known : KnownCounters()) {
    if (Matches(known.name, name)) return &known;
  }
  return nullptr;
}

}  // namespace

const std::vector<CounterMeaning>& KnownCounters() {
  static const std::vector<CounterMeaning> known = {
      {"out_of_sequence", true, "packets arrived after a gap: some were lost on the way here"},
      {"packet_seq_err", true, "the peer asked again (NAK): packets were lost on the way there"},
      {"implied_nak_seq_err", true, "an answer came ahead of its turn: one was lost"},
      {"local_ack_timeout_err", true, "no acknowledgement in time: loss, or the peer is gone"},
      {"out_of_buffer", true, "packets found no receive buffer"},
      {"rnr_nak_retry_err", true, "the peer was not ready to receive, too often"},
      {"req_cqe_error", true, "a request ended in an error"},
      {"resp_cqe_error", true, "a response ended in an error"},
      {"roce_adp_retrans", true, "adaptive retransmissions"},
      {"rx_icrc_encapsulated", true, "packets with a bad checksum: a cable, or a middlebox"},
      {"out_of_seq_request", true, "requests arrived after a gap (rxe)"},
      {"rcvd_seq_err", true, "the peer asked again (rxe)"},
      {"retry_exceeded_err", true, "retries used up (rxe)"},
      {"completer_retry_err", true, "requests were sent again (rxe)"},
      {"send_err", true, "packets could not be sent (rxe)"},
      {"symbol_error", true, "bits were damaged on the cable"},
      {"link_error_recovery", true, "the link trained again"},
      {"link_downed", true, "the link went down"},
      {"port_rcv_errors", true, "packets arrived damaged"},
      {"port_xmit_discards", true, "packets were dropped before they left"},
      {"excessive_buffer_overrun_errors", true, "the port's buffers overran"},
      {"rx_prio*_discards", true, "packets of a priority were dropped: PFC is off for it"},
      {"np_cnp_sent", false, "congestion seen here, senders told (ECN works)"},
      {"np_ecn_marked_roce_packets", false, "switches marked packets (ECN)"},
      {"rp_cnp_handled", false, "this sender was told to slow down (ECN works)"},
      {"rx_prio*_pause", false, "the switch paused this port (PFC)"},
      {"tx_prio*_pause", false, "this port paused the switch (PFC)"},
      {"rx_pause_ctrl_phy", false, "the switch paused this port (global pause, not PFC)"},
      {"tx_pause_ctrl_phy", false, "this port paused the switch (global pause, not PFC)"},
  };
  return known;
}

Counters ReadPortCounters(const SysFiles& files, const std::string& device, uint32_t port) {
  Counters out;
  for (const char* folder : {"counters", "hw_counters"}) {
    const std::string base =
        absl::StrCat("/sys/class/infiniband/", device, "/ports/", port, "/", folder, "/");
    for (const std::string& name : files.List(base)) {
      uint64_t value = 0;
      const auto text = files.Read(base + name);
      if (text.ok() && absl::SimpleAtoi(*text, &value)) out[name] = value;
    }
  }
  return out;
}

Finding JudgeCounters(const Counters& before, const Counters& after) {
  std::vector<std::string> lost, signalled, since_boot;
  size_t known = 0;
  for (const auto& [name, value] : after) {
    const CounterMeaning* meaning = MeaningOf(name);
    if (meaning == nullptr) continue;
    ++known;
    const auto was = before.find(name);
    // A counter that went back was reset meanwhile: what it shows now is new.
    const uint64_t old = was == before.end() || was->second > value ? 0 : was->second;
    if (value > old) {
      (meaning->loss ? lost : signalled)
          .push_back(absl::StrCat(name, " +", value - old, " (", meaning->meaning, ")"));
    } else if (value > 0) {
      since_boot.push_back(absl::StrCat(name, " ", value));
    }
  }
  Finding f;
  if (known == 0) {
    f.verdict = Verdict::kSkipped;
    f.seen = "the driver shows none of the known error and congestion counters";
    return f;
  }
  f.seen = lost.empty() ? absl::StrCat("no loss during the test (", known, " counters)")
                        : absl::StrCat("during the test: ", absl::StrJoin(lost, "; "));
  if (!signalled.empty()) absl::StrAppend(&f.seen, "; ", absl::StrJoin(signalled, "; "));
  if (!since_boot.empty())
    absl::StrAppend(&f.seen, "; since boot: ", absl::StrJoin(since_boot, ", "));
  if (!lost.empty()) {
    f.verdict = Verdict::kWarn;
    f.mend =
        "mlnx_qos -i IFACE  # PFC on for the links' priority here and on every switch port; then "
        "ECN: /sys/class/net/IFACE/ecn/roce_np/enable/PRIO";
  }
  return f;
}

}  // namespace tributary::doctor
