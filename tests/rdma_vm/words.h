// Calls and answers as lists of byte strings over a blocking TCP socket: tests only, trusted peers.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "transport/link.h"

namespace tributary::transport {

using Words = std::vector<std::string>;

// A blocking socket connected to, or listening at, "10.7.0.2:9001"; -1 where that fails.
int ConnectTcp(const std::string& address);
int ListenTcp(const std::string& address);

inline bool WriteBytes(int fd, const void* from, size_t bytes) {
  const auto* at = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}
inline bool ReadBytes(int fd, void* to, size_t bytes) {
  return recv(fd, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

inline bool WriteWords(int fd, const Words& words) {
  std::string out;
  const auto number = [&out](size_t value) {
    const auto narrow = static_cast<uint32_t>(value);
    out.append(reinterpret_cast<const char*>(&narrow), sizeof(narrow));
  };
  number(words.size());
  for (const std::string& word : words) {
    number(word.size());
    out += word;
  }
  return WriteBytes(fd, out.data(), out.size());
}
inline std::optional<Words> ReadWords(int fd) {
  uint32_t count = 0;
  if (!ReadBytes(fd, &count, sizeof(count))) return std::nullopt;
  Words words(count);
  for (std::string& word : words) {
    uint32_t bytes = 0;
    if (!ReadBytes(fd, &bytes, sizeof(bytes))) return std::nullopt;
    word.resize(bytes);
    if (bytes > 0 && !ReadBytes(fd, word.data(), bytes)) return std::nullopt;
  }
  return words;
}

inline int64_t NumberOf(const std::string& word) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(word, &value)) std::abort();
  return value;
}
// Clocks of two hosts differ: a deadline travels as what is left of it, -1 without end.
inline std::string DeadlineWord(Deadline deadline) {
  return deadline.infinite() ? "-1" : absl::StrCat(absl::ToInt64Milliseconds(deadline.Left()));
}
inline Deadline DeadlineOf(const std::string& word) {
  const int64_t millis = NumberOf(word);
  return millis < 0 ? Deadline::Infinite() : Deadline::After(absl::Milliseconds(millis));
}
inline std::string TagWord(const ChunkTag& tag) {
  return std::string(reinterpret_cast<const char*>(&tag), sizeof(tag));
}
inline ChunkTag TagOf(const std::string& word) {
  ChunkTag tag;
  std::memcpy(&tag, word.data(), sizeof(tag));
  return tag;
}

}  // namespace tributary::transport
