// Writing beside, fsync, rename; and picking the newest that its hashes vouch for.
#include "server/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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
constexpr char kPublishedFile[] = "published.safetensors";
constexpr char kUnfinished[] = ".unfinished";  // suffix of what is being written

absl::Status FileError(const std::string& what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool ok = fd >= 0 && fsync(fd) == 0;
  absl::Status status = ok ? absl::OkStatus() : FileError("fsync", path);
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
      absl::Status status = FileError("write", path);
      close(fd);
      return status;
    }
    at += static_cast<size_t>(n);
  }
  const bool synced = fsync(fd) == 0;
  absl::Status status = synced ? absl::OkStatus() : FileError("fsync", path);
  close(fd);
  return status;
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return FileError("open", path);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return absl::DataLossError(absl::StrCat("cannot read ", path));
  return bytes;
}

absl::StatusOr<std::string> HashFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("open", path);
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

// A round that is saved again goes beside the first, under the other of its two names, so that the
// one which MANIFEST names is never touched.
constexpr char kOther[] = "-2";

std::vector<std::string> NamesIn(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The round in the name of a checkpoint's directory; nothing for any other name.
std::optional<uint64_t> RoundOf(std::string name) {
  if (name.ends_with(kOther)) name.resize(name.size() - std::strlen(kOther));
  uint64_t round = 0;
  const bool digits = name.find_first_not_of("0123456789") == std::string::npos;
  if (name.size() < 8 || !digits || !absl::SimpleAtoi(name, &round)) return std::nullopt;
  return round;
}

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
  std::vector<std::pair<uint64_t, std::string>> found;
  for (const std::string& name : NamesIn(run_path)) {
    if (const std::optional<uint64_t> round = RoundOf(name)) found.emplace_back(*round, name);
  }
  std::sort(found.begin(), found.end());
  v1::CheckpointManifest manifest;
  manifest.set_format(1);
  for (const auto& [round, name] : found) {
    auto* entry = manifest.add_entries();
    entry->set_round(round);
    entry->set_directory(name);
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

absl::StatusOr<std::vector<uint8_t>> LoadPublished(
    const std::string& directory, const v1::CheckpointManifest::Entry& entry,
    const v1::CheckpointState& state,
    const std::shared_ptr<const aggregation::ModelLayout>& layout) {
  const std::string path = directory + "/" + kPublishedFile;
  RETURN_IF_ERROR(CheckHash(path, entry.published_file_sha256()));
  ASSIGN_OR_RETURN(models::Model model, models::ReadSafetensorsAs(path, layout));
  if (Sha256Of(model.bytes) == state.published_sha256()) return std::move(model.bytes);
  return absl::DataLossError(
      absl::StrCat(path, " is damaged: its tensors are not those of state.pb"));
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
  auto layout = aggregation::ModelLayout::FromProto(out.state.layout());
  if (!layout.ok()) return Annotate(layout.status(), state_path);
  ASSIGN_OR_RETURN(out.model, models::ReadSafetensorsAs(model_path, *layout));
  if (Sha256Of(out.model.bytes) != out.state.model_sha256()) {
    return absl::DataLossError(
        absl::StrCat(model_path, " is damaged: its tensors are not those of state.pb"));
  }
  if (!out.state.published_sha256().empty()) {
    ASSIGN_OR_RETURN(out.published, LoadPublished(directory, entry, out.state, *layout));
  }
  return out;
}

// Writes the files of a checkpoint into a new directory and makes them durable. The entry for
// MANIFEST, without its directory's name.
absl::StatusOr<v1::CheckpointManifest::Entry> WriteDirectory(const std::string& path,
                                                             const v1::CheckpointState& state,
                                                             const aggregation::ModelLayout& layout,
                                                             std::span<const uint8_t> model,
                                                             std::span<const uint8_t> published) {
  if (mkdir(path.c_str(), 0755) != 0) return FileError("create", path);
  const std::map<std::string, std::string> metadata = {{"run", state.run()},
                                                       {"round", absl::StrCat(state.round())}};
  const std::string model_path = path + "/" + kModelFile;
  const std::string published_path = path + "/" + kPublishedFile;
  RETURN_IF_ERROR(models::WriteSafetensors(model_path, layout, model, metadata));
  if (!published.empty()) {
    RETURN_IF_ERROR(models::WriteSafetensors(published_path, layout, published, metadata));
  }
  const std::string bytes = state.SerializeAsString();
  RETURN_IF_ERROR(WriteFile(path + "/" + kStateFile, bytes));
  RETURN_IF_ERROR(SyncDirectory(path));
  v1::CheckpointManifest::Entry entry;
  entry.set_round(state.round());
  ASSIGN_OR_RETURN(*entry.mutable_model_file_sha256(), HashFile(model_path));
  if (!published.empty()) {
    ASSIGN_OR_RETURN(*entry.mutable_published_file_sha256(), HashFile(published_path));
  }
  entry.set_state_file_sha256(
      Sha256Of({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  return entry;
}

absl::Status WriteManifest(const std::string& run_path, const v1::CheckpointManifest& manifest) {
  const std::string path = run_path + "/" + kManifest;
  RETURN_IF_ERROR(WriteFile(path + kUnfinished, manifest.SerializeAsString()));
  if (rename((path + kUnfinished).c_str(), path.c_str()) != 0) return FileError("rename to", path);
  return SyncDirectory(run_path);
}

bool Names(const v1::CheckpointManifest& manifest, const std::string& directory) {
  return std::any_of(manifest.entries().begin(), manifest.entries().end(),
                     [&](const auto& entry) { return entry.directory() == directory; });
}

void RemoveUnfinished(const std::string& run_path) {
  std::error_code ignored;
  for (const std::string& name : NamesIn(run_path)) {
    if (name.ends_with(kUnfinished)) fs::remove_all(fs::path(run_path) / name, ignored);
  }
}

// Deletes the checkpoints that the manifest does not name. What cannot be deleted now is tried
// again at the next save: it is no reason for this one to fail.
void RemoveUnnamed(const std::string& run_path, const v1::CheckpointManifest& manifest) {
  std::error_code ignored;
  for (const std::string& name : NamesIn(run_path)) {
    if (RoundOf(name) && !Names(manifest, name)) fs::remove_all(fs::path(run_path) / name, ignored);
  }
}

absl::Status CheckState(const v1::CheckpointState& state, const aggregation::ModelLayout& layout) {
  const auto described = aggregation::ModelLayout::FromProto(state.layout());
  if (described.ok() && (*described)->hash() == layout.hash()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "checkpoint of round ", state.round(), ": its state describes another model: ",
      described.ok() ? (*described)->DescribeDifference(layout) : Text(described.status())));
}

// The open lock file of a run, its lock held; its content is the holder's pid, for the message
// only.
absl::StatusOr<int> TakeLock(const std::string& run_path) {
  const std::string path = run_path + "/LOCK";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("open", path);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const auto holder = ReadWhole(path);
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat(run_path, " is held by process ", holder.ok() ? *holder : "?",
                     "; stop it, or give this run another [run] name"));
  }
  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) < 0) {
    absl::Status status = FileError("write", path);
    close(fd);
    return status;
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const Options& options) {
  const std::string& run = options.run;
  if (run.empty() || run == "." || run == ".." || run.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "run name \"", run, "\" cannot name a directory; use letters, digits and '-'"));
  }
  auto store = std::unique_ptr<CheckpointStore>(new CheckpointStore());
  store->options_ = options;
  store->path_ = options.directory + "/" + run;
  std::error_code error;
  fs::create_directories(store->path_, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot create [checkpoint] directory ", store->path_, ": ", error.message()));
  }
  RETURN_IF_ERROR(SyncDirectory(options.directory));
  ASSIGN_OR_RETURN(store->lock_fd_, TakeLock(store->path_));
  RemoveUnfinished(store->path_);
  auto manifest = ReadManifest(store->path_);
  // Each life that is killed between naming its checkpoint and this would leave one more.
  if (manifest.ok()) RemoveUnnamed(store->path_, *manifest);
  store->manifest_ = manifest.ok() ? *std::move(manifest) : Scan(store->path_);
  return store;
}

CheckpointStore::~CheckpointStore() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::Status CheckpointStore::Save(const v1::CheckpointState& state,
                                   const aggregation::ModelLayout& layout,
                                   std::span<const uint8_t> model,
                                   std::span<const uint8_t> published) {
  RETURN_IF_ERROR(CheckState(state, layout));
  v1::CheckpointManifest manifest = manifest_;
  manifest.set_format(1);
  std::string name = DirectoryName(state.round());
  if (!manifest.entries().empty()) {
    const auto& newest = *manifest.entries().rbegin();
    if (newest.round() > state.round()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "checkpoint of round ", state.round(), " would go behind that of round ", newest.round(),
          " in ", path_, "; load that one first, or give the run another name"));
    }
    if (newest.directory() == name) name += kOther;
    if (newest.round() == state.round()) manifest.mutable_entries()->RemoveLast();
  }

  const std::string unfinished = path_ + "/" + name + kUnfinished;
  const std::string path = path_ + "/" + name;
  // On a full disk, what was written so far must not keep the space: nor what is whole, but that no
  // manifest names.
  bool named = false;
  absl::Cleanup remove_rest = [&] {
    RemoveUnfinished(path_);
    if (named) return;
    if (const auto on_disk = ReadManifest(path_); on_disk.ok()) RemoveUnnamed(path_, *on_disk);
  };
  ASSIGN_OR_RETURN(v1::CheckpointManifest::Entry entry,
                   WriteDirectory(unfinished, state, layout, model, published));
  std::error_code ignored;
  fs::remove_all(path, ignored);  // damaged or never named: from an earlier life
  if (rename(unfinished.c_str(), path.c_str()) != 0) return FileError("rename to", path);
  // Before the manifest names it: its rename might reach the disk first.
  RETURN_IF_ERROR(SyncDirectory(path_));

  entry.set_directory(name);
  *manifest.add_entries() = std::move(entry);
  const int excess = manifest.entries_size() - std::max(options_.keep, 1);
  if (excess > 0) manifest.mutable_entries()->DeleteSubrange(0, excess);
  RETURN_IF_ERROR(WriteManifest(path_, manifest));
  named = true;
  manifest_ = std::move(manifest);
  RemoveUnnamed(path_, manifest_);
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
  if (manifest->entries().empty()) {
    return absl::NotFoundError(absl::StrCat("no checkpoint in ", path_));
  }
  while (!manifest->entries().empty()) {
    const auto& entry = *manifest->entries().rbegin();
    auto checkpoint = LoadEntry(path_, entry);
    if (checkpoint.ok()) {
      manifest_ = *std::move(manifest);  // rounds after this one are abandoned
      return checkpoint;
    }
    warnings->push_back(absl::StrCat("checkpoint of round ", entry.round(),
                                     " is passed over: ", checkpoint.status().message()));
    manifest->mutable_entries()->RemoveLast();
  }
  return absl::DataLossError(
      absl::StrCat("no checkpoint in ", path_, " can be read; move it away to start afresh"));
}

std::string CheckpointStore::model_file() const {
  if (manifest_.entries().empty()) return "";
  return absl::StrCat(path_, "/", manifest_.entries(manifest_.entries_size() - 1).directory(),
                      "/model.safetensors");
}

}  // namespace tributary::server
