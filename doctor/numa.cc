// After Documentation/ABI/stable/sysfs-devices-node and proc(5).
#include "doctor/numa.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tributary::doctor {
namespace {

constexpr int kMostCpus = 1 << 16;  // a list from a file stays a small set
constexpr const char* kNodes = "/sys/devices/system/node/";

bool Within(const std::set<int>& inner, const std::set<int>& outer) {
  return std::includes(outer.begin(), outer.end(), inner.begin(), inner.end());
}

}  // namespace

std::set<int> ParseCpuList(const std::string& text) {
  std::set<int> out;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (!absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends.back(), &last)) return {};
    if (first < 0 || last >= kMostCpus) return {};
    for (int i = first; i <= last; ++i) out.insert(i);
  }
  return out;
}

NumaView ReadNumaView(const SysFiles& files, int node) {
  NumaView view;
  for (const std::string& name : files.List(kNodes)) {
    int number = 0;
    if (!name.starts_with("node") || !absl::SimpleAtoi(name.substr(4), &number)) continue;
    const auto cpus = files.Read(absl::StrCat(kNodes, name, "/cpulist"));
    view.cpus_of_node[number] = cpus.ok() ? ParseCpuList(*cpus) : std::set<int>();
  }
  if (const auto cpus = ReadProcessStatus(files, "Cpus_allowed_list"); cpus.ok())
    view.allowed_cpus = ParseCpuList(*cpus);
  if (const auto memory = ReadProcessStatus(files, "Mems_allowed_list"); memory.ok())
    view.allowed_memory = ParseCpuList(*memory);
  if (const auto text = files.Read(absl::StrCat(kNodes, "node", node, "/distance")); text.ok()) {
    const std::vector<std::string> numbers = absl::StrSplit(*text, ' ', absl::SkipEmpty());
    auto at = view.cpus_of_node.begin();
    for (size_t i = 0; i < numbers.size() && at != view.cpus_of_node.end(); ++i, ++at) {
      int distance = 0;
      if (absl::SimpleAtoi(numbers[i], &distance)) view.distances[at->first] = distance;
    }
  }
  return view;
}

Finding JudgeNuma(const NumaView& view, int device_node, const std::string& file) {
  Finding f;
  if (view.cpus_of_node.size() <= 1) {
    f.seen = "one NUMA node: everything is near";
    return f;
  }
  const auto node = view.cpus_of_node.find(device_node);
  if (node == view.cpus_of_node.end()) {
    f.seen = absl::StrCat("the firmware does not say on which of ", view.cpus_of_node.size(),
                          " NUMA nodes it is");
    return f;
  }
  const std::set<int> only_this = {device_node};
  const bool cpus_near = Within(view.allowed_cpus, node->second);
  const bool memory_near = view.allowed_memory == only_this;
  f.seen = absl::StrCat("on NUMA node ", device_node, " of ", view.cpus_of_node.size());
  if (cpus_near && memory_near) {
    f.seen += ", and so are this process's CPUs and memory";
    return f;
  }
  int farthest = 0;
  for (const auto& [other, distance] : view.distances) {
    const auto& cpus = view.cpus_of_node.at(other);
    const bool may_run = std::any_of(cpus.begin(), cpus.end(),
                                     [&](int c) { return view.allowed_cpus.count(c) > 0; });
    if (may_run || view.allowed_memory.count(other) > 0) farthest = std::max(farthest, distance);
  }
  f.verdict = Verdict::kWarn;
  absl::StrAppend(&f.seen, "; this process may run on CPUs of other nodes or take memory there (",
                  "memory nodes ", absl::StrJoin(view.allowed_memory, ","));
  if (farthest > 0) absl::StrAppend(&f.seen, ", distance up to ", farthest, " where near is 10");
  f.seen += ")";
  f.mend = absl::StrCat("numactl --cpunodebind=", device_node, " --membind=", device_node,
                        " tributary serve ", file);
  return f;
}

}  // namespace tributary::doctor
