// Checkpoints: what was committed survives kill -9 at any moment (docs/wire-format.md,
// "Checkpoint").
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/builtin.h"
#include "tributary/v1/checkpoint.pb.h"

namespace tributary::server {

struct Checkpoint {
  v1::CheckpointState state;
  models::Model model;
  // What clients were given where that is another than the model (server/downlink.h); else empty.
  std::vector<uint8_t> published;
};

// One run's directory, <dir>/<run>/. Not thread-safe; one process at a time (a lock file says who
// holds it).
class CheckpointStore {
 public:
  struct Options {
    std::string directory;  // <dir>; created if absent
    std::string run;
    int keep = 3;  // checkpoints kept, the newest; at least 1
  };
  // FAILED_PRECONDITION, naming the pid, where another live process holds the lock.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const Options& options);
  ~CheckpointStore();

  // Writes <round, 8 digits>/ (or, where the manifest names that of an earlier save of this round,
  // <round>-2/) beside (model.safetensors, state.pb), fsyncs files and directory,
  // renames, then replaces MANIFEST the same way, then deletes what is older than `keep`. After OK
  // it survives anything. `published`: as Checkpoint's, in published.safetensors;
  // state.published_sha256 is its hash.
  absl::Status Save(const v1::CheckpointState& state, const aggregation::ModelLayout& layout,
                    std::span<const uint8_t> model, std::span<const uint8_t> published = {});

  // The newest good checkpoint. Damaged ones (missing files, wrong SHA-256, unreadable) are
  // skipped, a line each in `warnings`. NOT_FOUND where there is none: the run starts afresh.
  // DATA_LOSS where there are some and none is good: a run must not start afresh in silence.
  absl::StatusOr<Checkpoint> Load(std::vector<std::string>* warnings);

  const std::string& path() const { return path_; }  // <dir>/<run>
  // The newest checkpoint's model.safetensors; "" where there is none.
  std::string model_file() const;

 private:
  CheckpointStore() = default;
  Options options_;
  std::string path_;
  int lock_fd_ = -1;
  v1::CheckpointManifest manifest_;
};

}  // namespace tributary::server
