// A GPU without one: its memory is this process's, at addresses that no CPU can use, so that code
// which reads it by itself is found.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "transport/roce/cuda_api.h"

namespace tributary::transport::roce {

class FakeCuda final : public CudaApi {
 public:
  static constexpr CuResult kNoDevice = 100;
  static constexpr CuResult kOutOfMemory = 2;
  static constexpr CuResult kIllegalAddress = 700;
  // Not canonical on x86-64, and in no process's half elsewhere.
  static constexpr uint64_t kTag = uint64_t{1} << 62;
  static uint8_t* Memory(uint64_t at) { return reinterpret_cast<uint8_t*>(at & ~kTag); }

  // --- to order ---
  CuResult init_result = 0;
  CuResult alloc_result = 0;
  CuResult pin_result = 0;
  CuResult handle_result = 0;  // of exporting a dma-buf
  int dma_buf_supported = 1;
  std::atomic<CuResult> copy_result = 0;

  // --- what was seen ---
  int live = 0;  // contexts and allocations
  std::atomic<int> to_device = 0;
  std::atomic<int> to_host = 0;
  std::atomic<int> flushes = 0;
  int sync_memops = 0;

  CuResult Init() override { return init_result; }
  CuResult DeviceGet(CuDevice* device, int ordinal) override {
    *device = ordinal;
    return 0;
  }
  CuResult DmaBufSupported(int* supported, CuDevice) override {
    *supported = dma_buf_supported;
    return 0;
  }
  CuResult DevicePrimaryCtxRetain(CuContext* context, CuDevice) override {
    ++live;
    *context = this;
    return 0;
  }
  CuResult DevicePrimaryCtxRelease(CuDevice) override {
    --live;
    return 0;
  }
  CuResult CtxSetCurrent(CuContext context) override { return context == this ? 0 : kNoDevice; }
  CuResult MemAlloc(CuPointer* pointer, size_t bytes) override {
    if (alloc_result != 0) return alloc_result;
    // At an address that begins no page, as small allocations may.
    constexpr size_t kOdd = 512;
    auto memory = std::make_unique<uint8_t[]>(bytes + kOdd);
    *pointer = (reinterpret_cast<uint64_t>(memory.get()) + kOdd) | kTag;
    allocations_[*pointer] = std::move(memory);
    ++live;
    return 0;
  }
  CuResult MemFree(CuPointer pointer) override {
    --live;
    return allocations_.erase(pointer) == 1 ? 0 : kIllegalAddress;
  }
  CuResult SetSyncMemops(CuPointer pointer) override {
    ++sync_memops;
    return allocations_.count(pointer) == 1 ? 0 : kIllegalAddress;
  }
  CuResult MemHostAlloc(void** pointer, size_t bytes) override {
    if (pin_result != 0) return pin_result;
    *pointer = std::aligned_alloc(4096, bytes);
    ++live;
    return 0;
  }
  CuResult MemFreeHost(void* pointer) override {
    std::free(pointer);
    --live;
    return 0;
  }
  CuResult MemGetHandleForAddressRange(int* fd, CuPointer pointer, size_t bytes) override {
    if (handle_result != 0) return handle_result;
    if (pointer % 4096 != 0 || bytes % 4096 != 0) return kIllegalAddress;
    *fd = eventfd(0, EFD_CLOEXEC);
    return 0;
  }
  CuResult MemcpyHtoD(CuPointer to, const void* from, size_t bytes) override {
    ++to_device;
    if ((to & kTag) == 0) return kIllegalAddress;
    std::memcpy(Memory(to), from, bytes);
    return copy_result;
  }
  CuResult MemcpyDtoH(void* to, CuPointer from, size_t bytes) override {
    ++to_host;
    if ((from & kTag) == 0) return kIllegalAddress;
    std::memcpy(to, Memory(from), bytes);
    return copy_result;
  }
  CuResult FlushRdmaWrites() override {
    ++flushes;
    return 0;
  }
  const char* ErrorName(CuResult result) override {
    if (result == kNoDevice) return "CUDA_ERROR_NO_DEVICE";
    return result == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_ILLEGAL_ADDRESS";
  }

 private:
  std::map<CuPointer, std::unique_ptr<uint8_t[]>> allocations_;
};

}  // namespace tributary::transport::roce
