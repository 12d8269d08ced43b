// Memory of an arena before it is registered: the process's own, or a GPU's with a pinned view of
// it for the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/roce/cuda_api.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

inline constexpr size_t kArenaPage = 4096;

// One range in up to two places: where the CPU sees it, and on a GPU. The network device reads and
// writes one of the two ("the wire's"); copying to the other is asked for explicitly. Thread-safe
// where ranges differ.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  ArenaMemory(const ArenaMemory&) = delete;
  ArenaMemory& operator=(const ArenaMemory&) = delete;

  size_t bytes() const { return bytes_; }
  uint8_t* host() const { return host_; }
  uint64_t device() const { return device_; }  // 0: no GPU has it
  // The address that registrations know the range by.
  uint64_t wire() const { return wire_on_device_ ? device_ : reinterpret_cast<uint64_t>(host_); }
  bool wire_on_device() const { return wire_on_device_; }
  const std::string& description() const { return description_; }  // for the log

  // Null with errno where the device refuses.
  virtual ibv_mr* Register(ibv_pd* pd, size_t offset, size_t bytes) = 0;
  // Between the two places; nothing where there is one.
  virtual absl::Status ToDevice(size_t offset, size_t bytes) = 0;
  virtual absl::Status ToHost(size_t offset, size_t bytes) = 0;

 protected:
  ArenaMemory() = default;
  size_t bytes_ = 0;
  uint8_t* host_ = nullptr;
  uint64_t device_ = 0;
  bool wire_on_device_ = false;
  std::string description_;
};

// RESOURCE_EXHAUSTED where it cannot be mapped. `api` must outlive it, as in the next one.
absl::StatusOr<std::unique_ptr<ArenaMemory>> MapHostMemory(VerbsApi& api, size_t bytes);

// On the first GPU, registered by the first way of these that works: as a dma-buf; as it is, by the
// kernel's nvidia-peermem; not at all, but staged through its pinned view. `description` says which
// and why not those before. FAILED_PRECONDITION where CUDA does not come up, RESOURCE_EXHAUSTED
// where the GPU has not so much memory.
absl::StatusOr<std::unique_ptr<ArenaMemory>> MapCudaMemory(std::shared_ptr<CudaApi> cuda,
                                                           VerbsApi& api, ibv_pd* pd, size_t bytes);

// Whether the device registers memory of other devices by dma-buf; else why not. The probe is a
// registration of file descriptor -1: EBADF says that the kernel got as far as looking at it.
absl::Status ProbeDmabuf(VerbsApi& api, ibv_pd* pd);

}  // namespace tributary::transport::roce
