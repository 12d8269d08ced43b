// Files of /sys and /proc: small, unseekable, and each with an errno of its own.
#include "base/sys_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace tributary {
namespace {

constexpr size_t kMostBytes = 1 << 20;

absl::Status ErrnoOf(const std::string& path) {
  const int error = errno;
  return absl::Status(absl::ErrnoToStatusCode(error), absl::StrCat(path, ": ", strerror(error)));
}

uint64_t LimitOf(absl::string_view text) {
  uint64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? value : ProcessLimit::kUnlimited;
}

}  // namespace

absl::StatusOr<std::string> SysFiles::ReadBytes(const std::string& path) const {
  const int fd = open((prefix_ + path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoOf(path);
  std::string out;
  char buffer[4096];
  ssize_t n = 0;
  while (out.size() < kMostBytes && (n = read(fd, buffer, sizeof(buffer))) > 0)
    out.append(buffer, static_cast<size_t>(n));
  const absl::Status status = n < 0 ? ErrnoOf(path) : absl::OkStatus();
  close(fd);
  if (!status.ok()) return status;
  return out;
}

absl::StatusOr<std::string> SysFiles::Read(const std::string& path) const {
  ASSIGN_OR_RETURN(std::string text, ReadBytes(path));
  absl::StripTrailingAsciiWhitespace(&text);
  return text;
}

std::vector<std::string> SysFiles::List(const std::string& path) const {
  std::vector<std::string> names;
  DIR* dir = opendir((prefix_ + path).c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    const int order = strverscmp(a.c_str(), b.c_str());
    return order < 0;
  });
  return names;
}

absl::StatusOr<std::string> SysFiles::Resolve(const std::string& path) const {
  char root[PATH_MAX] = "";
  if (!prefix_.empty() && realpath(prefix_.c_str(), root) == nullptr) return ErrnoOf(prefix_);
  char real[PATH_MAX];
  if (realpath((prefix_ + path).c_str(), real) == nullptr) return ErrnoOf(path);
  const std::string whole = real;
  const size_t cut = strlen(root);
  return whole.compare(0, cut, root) == 0 ? whole.substr(cut) : whole;
}

absl::StatusOr<std::string> SysFiles::ReadLink(const std::string& path) const {
  char text[PATH_MAX];
  const ssize_t n = readlink((prefix_ + path).c_str(), text, sizeof(text));
  if (n < 0) return ErrnoOf(path);
  return std::string(text, static_cast<size_t>(n));
}

bool SysFiles::Exists(const std::string& path) const {
  return access((prefix_ + path).c_str(), F_OK) == 0;
}

std::optional<int64_t> SysFiles::ReadNumber(const std::string& path) const {
  const auto text = Read(path);
  if (!text.ok()) return std::nullopt;
  int64_t value = 0;
  const bool hex = text->starts_with("0x");
  if (hex ? absl::SimpleHexAtoi(*text, &value) : absl::SimpleAtoi(*text, &value)) return value;
  return std::nullopt;
}

absl::StatusOr<ProcessLimit> ReadProcessLimit(const SysFiles& files, const std::string& name) {
  ASSIGN_OR_RETURN(const std::string text, files.Read("/proc/self/limits"));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.substr(0, name.size()) != name) continue;
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line.substr(name.size()), ' ', absl::SkipEmpty());
    if (fields.size() < 2) break;
    return ProcessLimit{LimitOf(fields[0]), LimitOf(fields[1])};
  }
  return absl::NotFoundError(absl::StrCat("/proc/self/limits has no line \"", name, "\""));
}

absl::StatusOr<std::string> ReadProcessStatus(const SysFiles& files, const std::string& key) {
  ASSIGN_OR_RETURN(const std::string text, files.Read("/proc/self/status"));
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.substr(0, key.size()) != key || line.substr(key.size(), 1) != ":") continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(key.size() + 1)));
  }
  return absl::NotFoundError(absl::StrCat("/proc/self/status has no line \"", key, "\""));
}

std::string BytesText(uint64_t bytes) {
  if (bytes == ProcessLimit::kUnlimited) return "unlimited";
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  std::string text = absl::StrFormat("%.1f", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return absl::StrCat(text, " ", kUnits[unit]);
}

}  // namespace tributary
