// Maps host memory, and GPU memory by whichever way the drivers have.
#include "transport/roce/arena_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "transport/internal/mapping.h"

namespace tributary::transport::roce {
namespace {

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

class HostMemory final : public ArenaMemory {
 public:
  explicit HostMemory(VerbsApi& api) : api_(api) { description_ = "host memory"; }
  absl::Status Map(size_t bytes) {
    memory_ = internal::Mapping::Anonymous(bytes);
    if (!memory_.valid()) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot map an RDMA arena of ", bytes,
                                                       " bytes: ", std::strerror(errno),
                                                       "; lower arena_bytes"));
    }
    host_ = memory_.data();
    bytes_ = bytes;
    // A child after fork(2) must not get copies of pages that the device writes to.
    madvise(host_, bytes, MADV_DONTFORK);
    return absl::OkStatus();
  }
  ibv_mr* Register(ibv_pd* pd, size_t offset, size_t bytes) override {
    return api_.RegMr(pd, host_ + offset, bytes, kAccess);
  }
  absl::Status ToDevice(size_t, size_t) override { return absl::OkStatus(); }
  absl::Status ToHost(size_t, size_t) override { return absl::OkStatus(); }

 private:
  VerbsApi& api_;
  internal::Mapping memory_;
};

class CudaMemory final : public ArenaMemory {
 public:
  CudaMemory(std::shared_ptr<CudaApi> cuda, VerbsApi& api) : cuda_(std::move(cuda)), api_(api) {}
  ~CudaMemory() override {
    if (context_ == nullptr) return;
    cuda_->CtxSetCurrent(context_);
    if (host_ != nullptr) cuda_->MemFreeHost(host_);
    if (allocation_ != 0) cuda_->MemFree(allocation_);
    cuda_->DevicePrimaryCtxRelease(gpu_);
  }

  absl::Status Allocate(size_t bytes) {
    constexpr int kFirstGpu = 0;
    RETURN_IF_ERROR(Check("cuInit", cuda_->Init()));
    RETURN_IF_ERROR(Check("cuDeviceGet", cuda_->DeviceGet(&gpu_, kFirstGpu)));
    RETURN_IF_ERROR(
        Check("cuDevicePrimaryCtxRetain", cuda_->DevicePrimaryCtxRetain(&context_, gpu_)));
    RETURN_IF_ERROR(Check("cuCtxSetCurrent", cuda_->CtxSetCurrent(context_)));
    // A page more, so that it begins on one.
    const CuResult got = cuda_->MemAlloc(&allocation_, bytes + kArenaPage);
    if (got != 0) return NoMemory("GPU memory", bytes, got);
    device_ = (allocation_ + kArenaPage - 1) / kArenaPage * kArenaPage;
    RETURN_IF_ERROR(Check("cuPointerSetAttribute", cuda_->SetSyncMemops(allocation_)));
    void* view = nullptr;
    if (const CuResult pinned = cuda_->MemHostAlloc(&view, bytes); pinned != 0) {
      return NoMemory("pinned host memory", bytes, pinned);
    }
    host_ = static_cast<uint8_t*>(view);
    bytes_ = bytes;
    return absl::OkStatus();
  }

  // Decides on the way of registration by trying the first page.
  void ChooseWay(ibv_pd* pd) {
    const absl::Status dmabuf = TryDmabuf(pd);
    if (dmabuf.ok()) return Settle(Way::kDmabuf, "CUDA memory, registered by dma-buf");
    const absl::Status peer = Try(Way::kPeer, pd);
    if (peer.ok()) {
      return Settle(Way::kPeer,
                    absl::StrCat("CUDA memory, registered by nvidia-peermem (not by dma-buf: ",
                                 dmabuf.message(), ")"));
    }
    Settle(Way::kStaged,
           absl::StrCat("CUDA memory, staged through pinned host memory (not by "
                        "dma-buf: ",
                        dmabuf.message(), "; not by nvidia-peermem: ", peer.message(), ")"));
  }

  ibv_mr* Register(ibv_pd* pd, size_t offset, size_t bytes) override {
    return RegisterBy(way_, pd, offset, bytes);
  }
  absl::Status ToDevice(size_t offset, size_t bytes) override {
    RETURN_IF_ERROR(Check("cuCtxSetCurrent", cuda_->CtxSetCurrent(context_)));
    return Check("cuMemcpyHtoD", cuda_->MemcpyHtoD(device_ + offset, host_ + offset, bytes));
  }
  absl::Status ToHost(size_t offset, size_t bytes) override {
    RETURN_IF_ERROR(Check("cuCtxSetCurrent", cuda_->CtxSetCurrent(context_)));
    if (wire_on_device_) {
      RETURN_IF_ERROR(Check("cuFlushGPUDirectRDMAWrites", cuda_->FlushRdmaWrites()));
    }
    return Check("cuMemcpyDtoH", cuda_->MemcpyDtoH(host_ + offset, device_ + offset, bytes));
  }

 private:
  enum class Way { kDmabuf, kPeer, kStaged };

  absl::Status Check(const char* call, CuResult result) const {
    if (result == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(call, " failed: ", cuda_->ErrorName(result)));
  }
  absl::Status NoMemory(const char* what, size_t bytes, CuResult result) const {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes of ", what,
                                                     ": ", cuda_->ErrorName(result),
                                                     "; lower arena_bytes"));
  }
  void Settle(Way way, std::string description) {
    way_ = way;
    wire_on_device_ = way != Way::kStaged;
    description_ = std::move(description);
  }

  ibv_mr* RegisterBy(Way way, ibv_pd* pd, size_t offset, size_t bytes) {
    if (way == Way::kStaged) return api_.RegMr(pd, host_ + offset, bytes, kAccess);
    const uint64_t at = device_ + offset;
    if (way == Way::kPeer) {
      auto* const on_gpu = reinterpret_cast<void*>(at);  // NOLINT: CUDA gives addresses as integers
      return api_.RegMr(pd, on_gpu, bytes, kAccess);
    }
    int fd = -1;
    if (cuda_->CtxSetCurrent(context_) != 0 ||
        cuda_->MemGetHandleForAddressRange(&fd, at, bytes) != 0) {
      errno = ENOTSUP;
      return nullptr;
    }
    ibv_mr* mr = api_.RegDmabufMr(pd, /*offset=*/0, bytes, at, fd, kAccess);
    const int error = errno;
    close(fd);  // the registration holds the memory by itself
    errno = error;
    return mr;
  }

  absl::Status Try(Way way, ibv_pd* pd) {
    errno = 0;
    ibv_mr* mr = RegisterBy(way, pd, 0, kArenaPage);
    if (mr == nullptr) return absl::UnavailableError(std::strerror(errno));
    api_.DeregMr(mr);
    return absl::OkStatus();
  }
  absl::Status TryDmabuf(ibv_pd* pd) {
    RETURN_IF_ERROR(ProbeDmabuf(api_, pd));
    int supported = 0;
    RETURN_IF_ERROR(Check("cuDeviceGetAttribute", cuda_->DmaBufSupported(&supported, gpu_)));
    if (supported == 0) {
      return absl::UnavailableError("the GPU's driver does not export memory by dma-buf");
    }
    return Try(Way::kDmabuf, pd);
  }

  const std::shared_ptr<CudaApi> cuda_;
  VerbsApi& api_;
  CuDevice gpu_ = 0;
  CuContext context_ = nullptr;
  CuPointer allocation_ = 0;
  Way way_ = Way::kStaged;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ArenaMemory>> MapHostMemory(VerbsApi& api, size_t bytes) {
  auto memory = std::make_unique<HostMemory>(api);
  RETURN_IF_ERROR(memory->Map(bytes));
  return memory;
}

absl::StatusOr<std::unique_ptr<ArenaMemory>> MapCudaMemory(std::shared_ptr<CudaApi> cuda,
                                                           VerbsApi& api, ibv_pd* pd,
                                                           size_t bytes) {
  auto memory = std::make_unique<CudaMemory>(std::move(cuda), api);
  RETURN_IF_ERROR(memory->Allocate(bytes));
  memory->ChooseWay(pd);
  return memory;
}

absl::Status ProbeDmabuf(VerbsApi& api, ibv_pd* pd) {
  errno = 0;
  ibv_mr* mr = api.RegDmabufMr(pd, 0, kArenaPage, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  const int error = errno;
  if (mr != nullptr) api.DeregMr(mr);  // no kernel should take descriptor -1
  if (mr != nullptr || error == EBADF) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the network device does not register memory by dma-buf (", std::strerror(error), ")"));
}

}  // namespace tributary::transport::roce
