// Writing beside, fsync, rename; and picking the newest that its hashes vouch for.
#include "server/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "base/status.h"
#include "models/safetensors.h"

namespace tributary::server {
namespace {

namespace fs = std::filesystem;

constexpr char kManifest[] = "MANIFEST";
constexpr char kModelFile[] = "model.safetensors";
constexpr char kStateFile[] = "state.pb";
constexpr char kUnfinished[] = ".unfinished";  // suffix of what is being written

absl::Status FileError(const std::string& what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(errno)));
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool ok = fd >= 0 && fsync(fd) == 0;
  const absl::Status status = ok ? absl::OkStatus() : FileError("fsync", path);
  if (fd >= 0) close(fd);
  return status;
}

absl::Status WriteFile(const std::string& path, const std::string& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("create", path);
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = write(fd, bytes.data() + at, bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const absl::Status status = FileError("write", path);
      close(fd);
      return status;
    }
    at += static_cast<size_t>(n);
  }
  const bool synced = fsync(fd) == 0;
  const absl::Status status = synced ? absl::OkStatus() : FileError("fsync", path);
  close(fd);
  return status;
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, " is missing"));
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return absl::DataLossError(absl::StrCat("cannot read ", path));
  return bytes;
}

absl::StatusOr<std::string> HashFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(path, " is missing"));
  Sha256 hash;
  std::vector<uint8_t> buffer(1 << 20);
  ssize_t n = 0;
  while ((n = read(fd, buffer.data(), buffer.size())) > 0)
    hash.Update({buffer.data(), static_cast<size_t>(n)});
  close(fd);
  if (n < 0) return absl::DataLossError(absl::StrCat("cannot read ", path));
  return std::move(hash).Finish();
}

std::string DirectoryName(uint64_t round) { return absl::StrFormat("%08d", round); }

// What MANIFEST says, or why it cannot be read.
absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& run_path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(run_path + "/" + kManifest));
  v1::CheckpointManifest manifest;
  if (!manifest.ParseFromString(bytes) || manifest.format() != 1) {
    return absl::DataLossError(absl::StrCat(run_path, "/", kManifest, " is damaged"));
  }
  return manifest;
}

// Directories that look like checkpoints, for when MANIFEST is lost: their own hashes decide.
v1::CheckpointManifest Scan(const std::string& run_path) {
  std::vector<uint64_t> rounds;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run_path, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() >= 8 && name.find_first_not_of("0123456789") == std::string::npos) {
      rounds.push_back(std::stoull(name));
    }
  }
  std::sort(rounds.begin(), rounds.end());
  v1::CheckpointManifest manifest;
  manifest.set_format(1);
  for (const uint64_t round : rounds) {
    auto* entry = manifest.add_entries();
    entry->set_round(round);
    entry->set_directory(DirectoryName(round));
  }
  return manifest;
}

absl::Status CheckHash(const std::string& path, const std::string& expected) {
  if (expected.empty())
    return absl::OkStatus();  // from a scan: the state's own hash of the model decides
  ASSIGN_OR_RETURN(const std::string hash, HashFile(path));
  if (hash != expected)
    return absl::DataLossError(
        absl::StrCat(path, " is damaged: its SHA-256 is not the manifest's"));
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> LoadEntry(const std::string& run_path,
                                     const v1::CheckpointManifest::Entry& entry) {
  const std::string directory = run_path + "/" + entry.directory();
  const std::string model_path = directory + "/" + kModelFile;
  const std::string state_path = directory + "/" + kStateFile;
  RETURN_IF_ERROR(CheckHash(state_path, entry.state_file_sha256()));
  RETURN_IF_ERROR(CheckHash(model_path, entry.model_file_sha256()));
  Checkpoint out;
  ASSIGN_OR_RETURN(const std::string state, ReadWhole(state_path));
  if (!out.state.ParseFromString(state))
    return absl::DataLossError(absl::StrCat(state_path, " is damaged"));
  ASSIGN_OR_RETURN(auto layout, aggregation::ModelLayout::FromProto(out.state.layout()));
  ASSIGN_OR_RETURN(out.model, models::ReadSafetensorsAs(model_path, layout));
  if (Sha256Of(out.model.bytes) != out.state.model_sha256()) {
    return absl::DataLossError(
        absl::StrCat(model_path, " is damaged: its tensors are not those of state.pb"));
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const Options& options) {
  auto store = std::unique_ptr<CheckpointStore>(new CheckpointStore());
  store->options_ = options;
  store->path_ = options.directory + "/" + options.run;
  std::error_code error;
  fs::create_directories(store->path_, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot create [checkpoint] directory ", store->path_, ": ", error.message()));
  }
  const std::string lock_path = store->path_ + "/LOCK";
  store->lock_fd_ = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (store->lock_fd_ < 0) return FileError("open", lock_path);
  if (flock(store->lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    const auto holder = ReadWhole(lock_path);
    return absl::FailedPreconditionError(
        absl::StrCat("run \"", options.run, "\" in ", options.directory, " is held by process ",
                     holder.ok() ? *holder : "?", "; stop it, or give this run another name"));
  }
  const std::string pid = std::to_string(getpid());
  // The lock itself is the kernel's; the pid is only for the message above.
  if (ftruncate(store->lock_fd_, 0) != 0 ||
      pwrite(store->lock_fd_, pid.data(), pid.size(), 0) < 0) {
    return FileError("write", lock_path);
  }
  for (const auto& entry : fs::directory_iterator(store->path_, error)) {
    if (entry.path().string().ends_with(kUnfinished)) fs::remove_all(entry.path(), error);
  }
  if (auto manifest = ReadManifest(store->path_); manifest.ok())
    store->manifest_ = *std::move(manifest);
  return store;
}

CheckpointStore::~CheckpointStore() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::Status CheckpointStore::Save(const v1::CheckpointState& state,
                                   const aggregation::ModelLayout& layout,
                                   std::span<const uint8_t> model) {
  const std::string name = DirectoryName(state.round());
  const std::string final_path = path_ + "/" + name;
  const std::string fresh = final_path + kUnfinished;
  std::error_code error;
  fs::remove_all(fresh, error);
  fs::create_directories(fresh, error);
  if (error)
    return absl::UnavailableError(absl::StrCat("cannot create ", fresh, ": ", error.message()));
  RETURN_IF_ERROR(
      models::WriteSafetensors(fresh + "/" + kModelFile, layout, model,
                               {{"run", state.run()}, {"round", std::to_string(state.round())}}));
  const std::string state_bytes = state.SerializeAsString();
  RETURN_IF_ERROR(WriteFile(fresh + "/" + kStateFile, state_bytes));
  ASSIGN_OR_RETURN(const std::string model_hash, HashFile(fresh + "/" + kModelFile));
  RETURN_IF_ERROR(SyncDirectory(fresh));
  fs::remove_all(final_path, error);  // a damaged one of the same round, from an earlier life
  if (rename(fresh.c_str(), final_path.c_str()) != 0) return FileError("rename to", final_path);

  v1::CheckpointManifest manifest;
  manifest.set_format(1);
  for (const auto& entry : manifest_.entries()) {
    if (entry.round() < state.round()) *manifest.add_entries() = entry;
  }
  auto* entry = manifest.add_entries();
  entry->set_round(state.round());
  entry->set_directory(name);
  entry->set_model_file_sha256(model_hash);
  entry->set_state_file_sha256(
      Sha256Of({reinterpret_cast<const uint8_t*>(state_bytes.data()), state_bytes.size()}));
  std::vector<std::string> old;
  while (manifest.entries_size() > std::max(options_.keep, 1)) {
    old.push_back(manifest.entries(0).directory());
    manifest.mutable_entries()->DeleteSubrange(0, 1);
  }
  const std::string manifest_path = path_ + "/" + kManifest;
  RETURN_IF_ERROR(WriteFile(manifest_path + kUnfinished, manifest.SerializeAsString()));
  if (rename((manifest_path + kUnfinished).c_str(), manifest_path.c_str()) != 0) {
    return FileError("rename to", manifest_path);
  }
  RETURN_IF_ERROR(SyncDirectory(path_));
  manifest_ = std::move(manifest);
  for (const std::string& directory : old) fs::remove_all(path_ + "/" + directory, error);
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> CheckpointStore::Load(std::vector<std::string>* warnings) {
  auto manifest = ReadManifest(path_);
  if (!manifest.ok()) {
    v1::CheckpointManifest scanned = Scan(path_);
    if (scanned.entries().empty()) {
      return absl::NotFoundError(absl::StrCat("no checkpoint in ", path_));
    }
    warnings->push_back(
        absl::StrCat(Text(manifest.status()), "; the checkpoints beside it are tried"));
    manifest = std::move(scanned);
  }
  for (int i = manifest->entries_size() - 1; i >= 0; --i) {
    auto checkpoint = LoadEntry(path_, manifest->entries(i));
    if (checkpoint.ok()) return checkpoint;
    warnings->push_back(absl::StrCat("checkpoint of round ", manifest->entries(i).round(),
                                     " is passed over: ", checkpoint.status().message()));
  }
  if (manifest->entries().empty())
    return absl::NotFoundError(absl::StrCat("no checkpoint in ", path_));
  return absl::DataLossError(
      absl::StrCat("no checkpoint in ", path_, " can be read; move it away to start afresh"));
}

}  // namespace tributary::server
