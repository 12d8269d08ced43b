// NUMA nodes: which one a device hangs on, and where this process may run. Reading /sys and /proc,
// and a pure judgement.
#pragma once

#include <map>
#include <set>
#include <string>

#include "base/sys_files.h"
#include "doctor/report.h"

namespace tributary::doctor {

// "0-3,8" → {0, 1, 2, 3, 8}. What is no list of numbers gives the empty set.
std::set<int> ParseCpuList(const std::string& text);

struct NumaView {
  std::map<int, std::set<int>> cpus_of_node;
  std::set<int> allowed_cpus;    // of this process
  std::set<int> allowed_memory;  // nodes that it may take memory from
  std::map<int, int> distances;  // of the device's node to each node, 10 is itself
};

// `node`: the device's, whose distances are read.
NumaView ReadNumaView(const SysFiles& files, int node);

// Does this process run, and keep its memory, where the device is? `file`: for the mend. The
// finding's name is left to the caller.
Finding JudgeNuma(const NumaView& view, int device_node, const std::string& file);

}  // namespace tributary::doctor
