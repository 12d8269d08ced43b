// Safetensors files: the data part, and the system calls.
#include "models/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/safetensors_header.h"

namespace tributary::models {
namespace {

using aggregation::ModelLayout;

// One call moves at most this much: Linux caps a read or write at 2 GiB.
constexpr size_t kMaxTransfer = size_t{1} << 30;

absl::Status ErrnoError(const std::string& path, const char* verb) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", verb, " ", path));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  int Close() { return close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

absl::Status WriteAll(const File& file, const std::string& path, std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(file.fd(), bytes.data(), std::min(bytes.size(), kMaxTransfer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(path, "write");
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status ReadAll(const File& file, const std::string& path, uint64_t offset, uint8_t* out,
                     uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t n =
        pread(file.fd(), out, std::min<uint64_t>(bytes, kMaxTransfer), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(path, "read");
    if (n == 0)
      return absl::InvalidArgumentError(absl::StrCat(path, " became shorter while it was read"));
    out += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

// An open file whose header has been read and checked.
struct OpenFile {
  explicit OpenFile(int fd) : file(fd) {}
  File file;
  uint64_t data_offset = 0;
  std::vector<HeaderEntry> entries;
};

// What is wrong with the file's outer form is found before memory is taken for it.
absl::StatusOr<std::unique_ptr<OpenFile>> OpenSafetensors(const std::string& path) {
  auto out = std::make_unique<OpenFile>(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (out->file.fd() < 0) return ErrnoError(path, "open");
  if (fstat(out->file.fd(), &info) != 0) return ErrnoError(path, "stat");
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a safetensors file: it has ", size, " bytes"));
  }
  uint64_t length = 0;
  RETURN_IF_ERROR(ReadAll(out->file, path, 0, reinterpret_cast<uint8_t*>(&length), 8));
  if (length > kMaxHeaderBytes || length > size - 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a safetensors file: it claims a header of ", length,
                     " bytes, but has ", size, " bytes, and the format allows ", kMaxHeaderBytes));
  }
  std::string json(length, '\0');
  RETURN_IF_ERROR(ReadAll(out->file, path, 8, reinterpret_cast<uint8_t*>(json.data()), length));
  out->data_offset = 8 + length;
  auto entries = ParseHeader(json, size - out->data_offset);
  if (!entries.ok()) return Annotate(entries.status(), path);
  out->entries = *std::move(entries);
  return out;
}

// The file's tensors in data order.
absl::StatusOr<std::shared_ptr<const ModelLayout>> LayoutOf(const OpenFile& open,
                                                            const std::string& path) {
  std::vector<aggregation::TensorSpec> specs;
  specs.reserve(open.entries.size());
  for (const HeaderEntry& entry : open.entries) specs.push_back(entry.spec);
  auto layout = ModelLayout::Create(std::move(specs));
  if (!layout.ok()) return Annotate(layout.status(), path);
  return layout;
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, const ModelLayout& layout,
                              std::span<const uint8_t> bytes,
                              const std::map<std::string, std::string>& metadata) {
  if (bytes.size() != layout.model_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the model has ", bytes.size(),
                                                   " bytes, its layout ", layout.model_bytes()));
  }
  const absl::StatusOr<std::string> header = MakeHeader(layout, metadata);
  if (!header.ok()) return Annotate(header.status(), path);
  File file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (file.fd() < 0) return ErrnoError(path, "create");
  RETURN_IF_ERROR(
      WriteAll(file, path, {reinterpret_cast<const uint8_t*>(header->data()), header->size()}));
  RETURN_IF_ERROR(WriteAll(file, path, bytes));
  if (fsync(file.fd()) != 0) return ErrnoError(path, "fsync");
  if (file.Close() != 0) return ErrnoError(path, "close");
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ModelLayout>> ReadSafetensorsLayout(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<OpenFile> open, OpenSafetensors(path));
  return LayoutOf(*open, path);
}

absl::StatusOr<Model> ReadSafetensors(const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<OpenFile> open, OpenSafetensors(path));
  Model model;
  ASSIGN_OR_RETURN(model.layout, LayoutOf(*open, path));
  model.bytes.resize(model.layout->model_bytes());
  // The entries cover the data in this very order.
  RETURN_IF_ERROR(
      ReadAll(open->file, path, open->data_offset, model.bytes.data(), model.bytes.size()));
  return model;
}

absl::StatusOr<Model> ReadSafetensorsAs(const std::string& path,
                                        std::shared_ptr<const ModelLayout> layout) {
  ASSIGN_OR_RETURN(const std::unique_ptr<OpenFile> open, OpenSafetensors(path));
  const auto wrong = [&](const std::string& name, const char* what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", name, "\" ", what,
                                                   "; the file was written from another model"));
  };
  std::unordered_map<std::string, const HeaderEntry*> found;
  for (const HeaderEntry& entry : open->entries) found.emplace(entry.spec.name, &entry);
  for (const aggregation::TensorSpec& spec : layout->tensors()) {
    const auto entry = found.find(spec.name);
    if (entry == found.end()) return wrong(spec.name, "is missing");
    if (entry->second->spec.dtype != spec.dtype)
      return wrong(spec.name, "has another dtype than the run's layout");
    if (entry->second->spec.shape != spec.shape)
      return wrong(spec.name, "has another shape than the run's layout");
  }
  if (open->entries.size() != layout->tensors().size()) {
    for (const aggregation::TensorSpec& spec : layout->tensors()) found.erase(spec.name);
    return wrong(found.begin()->first, "is not in the run's layout");
  }
  Model model{.layout = layout, .bytes = {}};
  model.bytes.resize(layout->model_bytes());
  for (uint32_t t = 0; t < layout->tensors().size(); ++t) {
    const HeaderEntry& entry = *found.at(layout->tensors()[t].name);
    RETURN_IF_ERROR(ReadAll(open->file, path, open->data_offset + entry.begin,
                            model.bytes.data() + layout->TensorByteOffset(t),
                            entry.end - entry.begin));
  }
  return model;
}

}  // namespace tributary::models
