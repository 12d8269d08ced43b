// Reading what the kernel tells under /sys, /proc and /dev, beneath a path prefix: tests put a
// recorded tree there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tributary {

// Paths are absolute, as on the machine ("/sys/class/net"); the prefix goes before them. Nothing is
// cached: each call asks the kernel. Thread-safe. Virtual, so that a test can refuse one file.
class SysFiles {
 public:
  explicit SysFiles(std::string prefix = "") : prefix_(std::move(prefix)) {}
  SysFiles(const SysFiles&) = delete;
  SysFiles& operator=(const SysFiles&) = delete;
  virtual ~SysFiles() = default;

  // The whole file as it is; at most 1 MiB is read. An error carries the path and the code of
  // errno: NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (EINVAL), ...
  virtual absl::StatusOr<std::string> ReadBytes(const std::string& path) const;
  // The same without the white space at its end.
  absl::StatusOr<std::string> Read(const std::string& path) const;
  // The names in a folder, sorted ("eth2" before "eth10"); empty where it cannot be read.
  virtual std::vector<std::string> List(const std::string& path) const;
  // The path with every symbolic link followed, as on the machine (without the prefix).
  virtual absl::StatusOr<std::string> Resolve(const std::string& path) const;
  // What a symbolic link says, unfollowed.
  virtual absl::StatusOr<std::string> ReadLink(const std::string& path) const;

  bool Exists(const std::string& path) const;
  // The file as a decimal number (or hexadecimal after "0x"); nothing where it is not one.
  std::optional<int64_t> ReadNumber(const std::string& path) const;
  const std::string& prefix() const { return prefix_; }

 private:
  std::string prefix_;
};

// A line "Max open files   1024   1048576   files" of /proc/<pid>/limits.
struct ProcessLimit {
  static constexpr uint64_t kUnlimited = UINT64_MAX;
  uint64_t soft = kUnlimited;
  uint64_t hard = kUnlimited;
};

// The limit of this process called `name` ("Max open files", "Max locked memory").
absl::StatusOr<ProcessLimit> ReadProcessLimit(const SysFiles& files, const std::string& name);

// The rest of the line of /proc/self/status that begins with `key` and a colon.
absl::StatusOr<std::string> ReadProcessStatus(const SysFiles& files, const std::string& key);

// Whole bytes as people write them: "64 KiB", "16.5 MiB", "3 GiB", "unlimited" for UINT64_MAX.
std::string BytesText(uint64_t bytes);

}  // namespace tributary
