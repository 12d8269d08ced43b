// Reading packed data files.
#include "client/trainer/internal/gzip.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"

namespace tributary::client::trainer {
namespace {

absl::Status FileError(const std::string& path, const char* verb) {
  const std::string text = absl::StrCat("cannot ", verb, " ", path, ": ", std::strerror(errno));
  return errno == ENOENT || errno == ENOTDIR ? absl::NotFoundError(text)
                                             : absl::PermissionDeniedError(text);
}

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

absl::StatusOr<std::vector<uint8_t>> ReadWholeFile(const std::string& path) {
  const OpenFile file(path);
  struct stat info = {};
  if (file.fd() < 0 || fstat(file.fd(), &info) != 0) return FileError(path, "open");
  std::vector<uint8_t> bytes(static_cast<size_t>(info.st_size));
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = read(file.fd(), bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path, "read");
    if (n == 0) break;  // became shorter meanwhile
    at += static_cast<size_t>(n);
  }
  bytes.resize(at);
  return bytes;
}

absl::Status CheckSha256(const std::string& path, ByteSpan bytes, std::string_view sha256) {
  const std::string found = absl::BytesToHexString(Sha256Of(bytes));
  if (found == sha256) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, " has SHA-256 ", found, ", expected ",
                                          std::string(sha256),
                                          "; the file is damaged or another edition"));
}

absl::StatusOr<std::vector<uint8_t>> Gunzip(const std::string& path, ByteSpan packed,
                                            size_t limit) {
  // One byte more than allowed tells "exactly the limit" from "over it".
  std::vector<uint8_t> out(limit + 1);
  z_stream stream = {};
  constexpr int kGzipOnly = 16;  // added to the window bits: a gzip header, not zlib's
  if (inflateInit2(&stream, kGzipOnly + MAX_WBITS) != Z_OK) {
    return absl::ResourceExhaustedError("zlib has no memory");
  }
  stream.next_in = const_cast<Bytef*>(packed.data());
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = inflate(&stream, Z_FINISH);
  const size_t size = out.size() - stream.avail_out;
  inflateEnd(&stream);
  if (size > limit) {
    return absl::DataLossError(absl::StrCat(path, " unpacks to more than ", limit, " bytes"));
  }
  if (result != Z_STREAM_END) {
    return absl::DataLossError(absl::StrCat(path, " is not a whole gzip file"));
  }
  out.resize(size);
  return out;
}

}  // namespace tributary::client::trainer
