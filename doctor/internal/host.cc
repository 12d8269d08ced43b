// What every transport needs: descriptors, an address, ports.
#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "doctor/address.h"
#include "doctor/internal/exam.h"

namespace tributary::doctor::internal {
namespace {

// Log, checkpoints, epolls, listeners, libraries. A guess on the high side.
constexpr uint64_t kOwnDescriptors = 128;

void CheckDescriptors(const Exam& exam) {
  const auto limit = ReadProcessLimit(*exam.env.files, "Max open files");
  if (!limit.ok()) {
    exam.report.Skip("files", Text(limit.status()));
    return;
  }
  const uint64_t link = exam.config.transport.lanes + 1;
  const uint64_t own = kOwnDescriptors + kLinksToPlanFor * link;
  const uint64_t sessions = exam.config.limits.max_sessions;
  const uint64_t needed = own + sessions;
  std::string seen = absl::StrCat(
      limit->soft == ProcessLimit::kUnlimited ? "unlimited" : absl::StrCat(limit->soft),
      " open files; ", needed, " serve [limits] max_sessions = ", sessions);
  if (limit->soft >= needed) {
    exam.report.Ok("files", seen);
    return;
  }
  const uint64_t room = limit->soft > own ? limit->soft - own : 0;
  absl::StrAppend(&seen, ": there is room for ", room, " clients");
  // Too few for a round at all, or only for the most that the config lets in?
  const uint64_t least = exam.config.is_root() ? exam.config.cohort.minimum : 1;
  exam.Add("files", room < least ? Verdict::kFail : Verdict::kWarn,
           room < least ? absl::StrCat(seen, ", [cohort] minimum = ", least) : seen,
           absl::StrCat(limit->hard >= needed ? "shell: ulimit -n " : "shell, as root: ulimit -n ",
                        needed, " | systemd: LimitNOFILE=", needed,
                        " under [Service] | container: --ulimit nofile=", needed, ":", needed));
}

absl::StatusOr<Reachable> AddressOf(const Exam& exam, const std::string& host) {
  if (IsWildcard(host)) {
    const auto routes = exam.env.files->Read("/proc/net/route");
    return PickAddress(exam.env.interfaces(), routes.ok() ? DefaultRouteInterface(*routes) : "");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> addresses, exam.env.resolve(host));
  if (addresses.empty()) return absl::NotFoundError(absl::StrCat("\"", host, "\" has no address"));
  const bool numeric = addresses[0] == host;
  return Reachable{.address = addresses[0],
                   .why = numeric ? "as the config says" : absl::StrCat("of \"", host, "\""),
                   .loopback = IsLoopback(addresses[0])};
}

// `said`: the host that the config names; `key`: where it does.
void CheckAddress(const Exam& exam, const std::string& name, const std::string& key,
                  const std::string& said, const std::string& port, bool asked) {
  const HostPort target = {said, port};
  const auto reachable = AddressOf(exam, target.host);
  const std::string mend =
      absl::StrCat("hostname -I  # then ", key, " = \"ADDRESS:", port == "0" ? "PORT" : port, "\"");
  if (!reachable.ok()) {
    exam.Add(name, Verdict::kFail, Text(reachable.status()), mend);
    return;
  }
  const std::string at = port == "0" ? absl::StrCat(reachable->address, ", any free port")
                                     : absl::StrCat(reachable->address, " port ", port);
  if (reachable->loopback && reachable->address != target.host && target.host != "localhost") {
    // The name of this machine as /etc/hosts often has it.
    exam.Add(name, Verdict::kFail,
             absl::StrCat("\"", target.host, "\" is ", reachable->address,
                          ", loopback: no other machine can connect"),
             absl::StrCat("grep -n ", target.host,
                          " /etc/hosts  # name the machine's own address "
                          "there, or ",
                          key, " = \"ADDRESS:", port, "\""));
  } else if (reachable->loopback && !asked) {
    exam.Add(name, Verdict::kWarn,
             absl::StrCat(at,
                          " is loopback, but [node] listen serves other machines: their links "
                          "would not come"),
             mend);
  } else if (reachable->loopback) {
    exam.report.Ok(name, absl::StrCat(at,
                                      ": loopback, as the config asks; processes of this "
                                      "machine only"));
  } else if (reachable->link_local) {
    exam.Add(name, Verdict::kWarn,
             absl::StrCat(at, " (", reachable->why, ") is link-local: one network segment only"),
             mend);
  } else {
    exam.report.Ok(name, absl::StrCat(at, " (", reachable->why, ")"));
  }
}

// The host and port that children's links are told, as the config has it, and the key that says so.
struct LinkTarget {
  HostPort at;
  const char* key;
};
LinkTarget LinkTargetOf(const server::TransportConfig& config) {
  if (!config.advertise.empty()) return {SplitHostPort(config.advertise), "[transport] advertise"};
  return {SplitHostPort(config.listen), "[transport] listen"};
}

void CheckAddresses(const Exam& exam) {
  const HostPort node = SplitHostPort(exam.config.node.listen);
  CheckAddress(exam, "address.node", "[node] listen", node.host, node.port, true);
  if (exam.config.transport.kind == "shm") {
    exam.report.Skip("address.links", "shared memory: links have no address outside this machine");
    return;
  }
  const bool local = IsLoopback(node.host) || node.host == "localhost";
  const LinkTarget links = LinkTargetOf(exam.config.transport);
  CheckAddress(exam, "address.links", links.key, links.at.host, links.at.port, local);
}

// "tributary (pid 4711)": who listens on a TCP port, as far as this user may see.
std::string HolderOf(const SysFiles& files, const std::string& port) {
  uint64_t number = 0;
  if (!absl::SimpleAtoi(port, &number)) return "";
  std::vector<std::string> sockets;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    const auto text = files.Read(table);
    if (!text.ok()) continue;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(*text, '\n'))) {
      // sl local_address rem_address st … inode; 0A is LISTEN
      const std::vector<std::string> f = absl::StrSplit(line, ' ', absl::SkipEmpty());
      uint64_t here = 0;
      if (f.size() > 9 && f[3] == "0A" &&
          absl::SimpleHexAtoi(f[1].substr(f[1].rfind(':') + 1), &here) && here == number)
        sockets.push_back(absl::StrCat("socket:[", f[9], "]"));
    }
  }
  for (const std::string& pid : files.List("/proc")) {
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    for (const std::string& fd : files.List("/proc/" + pid + "/fd")) {
      const auto link = files.ReadLink(absl::StrCat("/proc/", pid, "/fd/", fd));
      if (!link.ok() || std::find(sockets.begin(), sockets.end(), *link) == sockets.end()) continue;
      const auto comm = files.Read("/proc/" + pid + "/comm");
      return absl::StrCat(comm.ok() ? *comm : "a process", " (pid ", pid, ")");
    }
  }
  return "";
}

void CheckPort(const Exam& exam, const std::string& name, const std::string& key,
               const std::string& listen) {
  const std::string port = SplitHostPort(listen).port;
  const absl::Status status = exam.env.try_listen(listen);
  if (status.ok()) {
    exam.report.Ok(name, port == "0" ? absl::StrCat(listen,
                                                    ": any free port is taken, and told to "
                                                    "children; a firewall needs a fixed one")
                                     : absl::StrCat(listen, " is free"));
    return;
  }
  std::string seen = absl::StrCat(listen, ": ", Text(status));
  if (absl::IsAlreadyExists(status)) {
    if (const std::string holder = HolderOf(*exam.env.files, port); !holder.empty())
      absl::StrAppend(&seen, ", by ", holder);
  }
  exam.Add(name, Verdict::kFail, seen,
           absl::StrCat("ss -ltnp 'sport = :", port, "'  # end it, or change ", key));
}

}  // namespace

absl::StatusOr<Reachable> LinkAddress(const Exam& exam) {
  return AddressOf(exam, LinkTargetOf(exam.config.transport).at.host);
}

void CheckHost(const Exam& exam) {
  CheckDescriptors(exam);
  CheckAddresses(exam);
  CheckPort(exam, "ports.node", "[node] listen", exam.config.node.listen);
  if (exam.config.transport.kind != "shm")
    CheckPort(exam, "ports.links", "[transport] listen", exam.config.transport.listen);
}

}  // namespace tributary::doctor::internal
