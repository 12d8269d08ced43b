// Error and congestion counters of an RDMA port and its network device: what moved during a test,
// and what that says. Pure but for reading /sys.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/sys_files.h"
#include "doctor/report.h"

namespace tributary::doctor {

using Counters = std::map<std::string, uint64_t>;

// counters/ and hw_counters/ of a port.
Counters ReadPortCounters(const SysFiles& files, const std::string& device, uint32_t port);

struct CounterMeaning {
  const char* name;  // as in /sys or in `ethtool -S`; "*" stands for a priority's number
  bool loss;         // packets were lost or refused; else: congestion was signalled
  const char* meaning;
};
const std::vector<CounterMeaning>& KnownCounters();

// `before` and `after` of one test. Losses during it warn; congestion signals are told; values that
// stand since boot are told without alarm. The finding's name is left to the caller.
Finding JudgeCounters(const Counters& before, const Counters& after);

}  // namespace tributary::doctor
