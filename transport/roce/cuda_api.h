// What arenas in GPU memory need of CUDA's driver interface, as a table: filled from libcuda with
// dlopen, so that one binary is built and started where no CUDA is, and from a fake in the tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace tributary::transport::roce {

// Of cuda.h (CUDA 11.7 and later), which is not needed to build this.
using CuResult = int;  // 0: success
using CuDevice = int;
using CuContext = void*;
using CuPointer = uint64_t;  // an address on the device

// Each method is the function of its name in libcuda: same arguments, same results. Thread-safe;
// the context is current for each thread by itself.
class CudaApi {
 public:
  virtual ~CudaApi() = default;
  virtual CuResult Init() = 0;
  virtual CuResult DeviceGet(CuDevice* device, int ordinal) = 0;
  // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.
  virtual CuResult DmaBufSupported(int* supported, CuDevice device) = 0;
  virtual CuResult DevicePrimaryCtxRetain(CuContext* context, CuDevice device) = 0;
  virtual CuResult DevicePrimaryCtxRelease(CuDevice device) = 0;
  virtual CuResult CtxSetCurrent(CuContext context) = 0;
  virtual CuResult MemAlloc(CuPointer* pointer, size_t bytes) = 0;
  virtual CuResult MemFree(CuPointer pointer) = 0;
  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: copies of ours wait for what a device wrote by itself.
  virtual CuResult SetSyncMemops(CuPointer pointer) = 0;
  virtual CuResult MemHostAlloc(void** pointer, size_t bytes) = 0;  // portable among contexts
  virtual CuResult MemFreeHost(void* pointer) = 0;
  // A dma-buf descriptor of whole host pages, which the caller closes.
  virtual CuResult MemGetHandleForAddressRange(int* fd, CuPointer pointer, size_t bytes) = 0;
  virtual CuResult MemcpyHtoD(CuPointer to, const void* from, size_t bytes) = 0;
  virtual CuResult MemcpyDtoH(void* to, CuPointer from, size_t bytes) = 0;
  // What a NIC wrote into the device's memory before is seen by what is asked of it after.
  virtual CuResult FlushRdmaWrites() = 0;
  virtual const char* ErrorName(CuResult result) = 0;
};

// libcuda.so.1. FAILED_PRECONDITION where it is missing or lacks a function.
absl::StatusOr<std::shared_ptr<CudaApi>> LoadCuda();

}  // namespace tributary::transport::roce
