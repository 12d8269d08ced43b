// Shared memory for links on one machine: memory files, and what bounds them.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "doctor/internal/exam.h"
#include "transport/link.h"

namespace tributary::doctor::internal {
namespace {

// What this process's control group (version 2) may still take; unlimited where there is no limit.
uint64_t CgroupRoom(const SysFiles& files) {
  const auto self = files.Read("/proc/self/cgroup");
  if (!self.ok() || !self->starts_with("0::")) return ProcessLimit::kUnlimited;
  uint64_t room = ProcessLimit::kUnlimited;
  // A limit of any group above binds too.
  for (std::string path = self->substr(3); !path.empty(); path = path.substr(0, path.rfind('/'))) {
    const std::string base = "/sys/fs/cgroup" + (path == "/" ? "" : path);
    const auto most = files.ReadNumber(base + "/memory.max");  // "max" is no number
    const auto now = files.ReadNumber(base + "/memory.current");
    if (most.has_value() && now.has_value())
      room = std::min(room, static_cast<uint64_t>(std::max<int64_t>(0, *most - *now)));
  }
  return room;
}

void CheckMemfd(const Exam& exam, uint64_t one, uint64_t all) {
  const std::string name = "shm.memfd";
  const auto size = ReadProcessLimit(*exam.env.files, "Max file size");
  if (size.ok() && size->soft < one) {
    // Tried, it would end this process with SIGXFSZ.
    exam.Add(name, Verdict::kFail,
             absl::StrCat("this process may write files of ", BytesText(size->soft),
                          "; the ring of a link needs ", BytesText(one)),
             "ulimit -f unlimited");
    return;
  }
  if (const absl::Status status = exam.env.try_memfd(one); !status.ok()) {
    exam.Add(name, Verdict::kFail, Text(status),
             "sysctl vm.memfd_noexec; free -m  # and the memory limit of the container");
    return;
  }
  const uint64_t room = CgroupRoom(*exam.env.files);
  const std::string seen = absl::StrCat("a memory file of ", BytesText(one),
                                        " (the ring of one link) could be reserved");
  if (room < all) {
    exam.Add(name, Verdict::kWarn,
             absl::StrCat(seen, "; the control group has ", BytesText(room), " left, ",
                          kLinksToPlanFor, " links need ", BytesText(all)),
             absl::StrCat("systemctl set-property tributary MemoryMax=…  # or --memory of the "
                          "container, ",
                          BytesText(all), " more"));
    return;
  }
  exam.report.Ok(name,
                 room == ProcessLimit::kUnlimited
                     ? seen
                     : absl::StrCat(seen, "; the control group has ", BytesText(room), " left"));
}

}  // namespace

void CheckSharedMemory(const Exam& exam) {
  if (!exam.shm) {
    exam.report.Skip("shm", absl::StrCat("[transport] kind = \"", exam.config.transport.kind,
                                         "\" uses no shared memory"));
    return;
  }
  // Slots both ways, as a link registers them.
  const uint64_t one =
      uint64_t{2} * exam.config.transport.slots * transport::LinkOptions().chunk_bytes;
  CheckMemfd(exam, one, kLinksToPlanFor * one);
  const auto space = exam.env.space("/dev/shm");
  if (!space.ok()) {
    exam.Add("shm.dev_shm", Verdict::kWarn, Text(space.status()),
             "mount -t tmpfs tmpfs /dev/shm  # links use memory files and do not need it");
  } else {
    exam.report.Ok(
        "shm.dev_shm",
        absl::StrCat(BytesText(space->free_bytes), " free of ", BytesText(space->total_bytes),
                     "; links use memory files, which do not count against it"));
  }
}

}  // namespace tributary::doctor::internal
