// libcuda by dlopen.
#include "transport/roce/cuda_api.h"

#include "absl/strings/str_cat.h"
#include "transport/roce/library.h"

namespace tributary::transport::roce {
namespace {

// Values of cuda.h's enumerations, which are part of the library's binary interface.
constexpr int kAttributeDmaBufSupported = 124;
constexpr int kPointerAttributeSyncMemops = 6;
constexpr unsigned int kHostAllocPortable = 1;
constexpr int kRangeHandleDmaBuf = 1;
constexpr int kFlushTargetCurrentContext = 0;
constexpr int kFlushToOwner = 100;
constexpr CuResult kNotSupported = 801;

class LoadedCuda final : public CudaApi {
 public:
  LoadedCuda() {
    Find("cuInit", &init_);
    Find("cuDeviceGet", &device_get_);
    Find("cuDeviceGetAttribute", &device_get_attribute_);
    Find("cuDevicePrimaryCtxRetain", &context_retain_);
    Find("cuDevicePrimaryCtxRelease_v2", &context_release_);
    Find("cuCtxSetCurrent", &context_set_current_);
    Find("cuMemAlloc_v2", &mem_alloc_);
    Find("cuMemFree_v2", &mem_free_);
    Find("cuPointerSetAttribute", &pointer_set_attribute_);
    Find("cuMemHostAlloc", &mem_host_alloc_);
    Find("cuMemFreeHost", &mem_free_host_);
    Find("cuMemcpyHtoD_v2", &memcpy_to_device_);
    Find("cuMemcpyDtoH_v2", &memcpy_to_host_);
    Find("cuGetErrorName", &get_error_name_);
    // Of CUDA 11.7, for dma-buf alone; and of 11.3.
    library_.FindOptional("cuMemGetHandleForAddressRange", nullptr, &get_handle_);
    library_.FindOptional("cuFlushGPUDirectRDMAWrites", nullptr, &flush_);
  }
  const std::string& missing() const { return library_.missing(); }

  CuResult Init() override { return init_(0); }
  CuResult DeviceGet(CuDevice* device, int ordinal) override {
    return device_get_(device, ordinal);
  }
  CuResult DmaBufSupported(int* supported, CuDevice device) override {
    *supported = 0;
    if (get_handle_ == nullptr) return 0;
    return device_get_attribute_(supported, kAttributeDmaBufSupported, device);
  }
  CuResult DevicePrimaryCtxRetain(CuContext* context, CuDevice device) override {
    return context_retain_(context, device);
  }
  CuResult DevicePrimaryCtxRelease(CuDevice device) override { return context_release_(device); }
  CuResult CtxSetCurrent(CuContext context) override { return context_set_current_(context); }
  CuResult MemAlloc(CuPointer* pointer, size_t bytes) override {
    return mem_alloc_(pointer, bytes);
  }
  CuResult MemFree(CuPointer pointer) override { return mem_free_(pointer); }
  CuResult SetSyncMemops(CuPointer pointer) override {
    const unsigned int on = 1;
    return pointer_set_attribute_(&on, kPointerAttributeSyncMemops, pointer);
  }
  CuResult MemHostAlloc(void** pointer, size_t bytes) override {
    return mem_host_alloc_(pointer, bytes, kHostAllocPortable);
  }
  CuResult MemFreeHost(void* pointer) override { return mem_free_host_(pointer); }
  CuResult MemGetHandleForAddressRange(int* fd, CuPointer pointer, size_t bytes) override {
    if (get_handle_ == nullptr) return kNotSupported;
    return get_handle_(fd, pointer, bytes, kRangeHandleDmaBuf, /*flags=*/0);
  }
  CuResult MemcpyHtoD(CuPointer to, const void* from, size_t bytes) override {
    return memcpy_to_device_(to, from, bytes);
  }
  CuResult MemcpyDtoH(void* to, CuPointer from, size_t bytes) override {
    return memcpy_to_host_(to, from, bytes);
  }
  CuResult FlushRdmaWrites() override {
    // Where the driver has no such call, the copy that follows is ordered behind the writes.
    return flush_ == nullptr ? 0 : flush_(kFlushTargetCurrentContext, kFlushToOwner);
  }
  const char* ErrorName(CuResult result) override {
    const char* name = nullptr;
    return get_error_name_(result, &name) == 0 && name != nullptr ? name : "unknown CUDA error";
  }

 private:
  template <typename Function>
  void Find(const char* name, Function** to) {
    library_.Find(name, nullptr, to);
  }

  Library library_{"libcuda.so.1"};
  CuResult (*init_)(unsigned int) = nullptr;
  CuResult (*device_get_)(CuDevice*, int) = nullptr;
  CuResult (*device_get_attribute_)(int*, int, CuDevice) = nullptr;
  CuResult (*context_retain_)(CuContext*, CuDevice) = nullptr;
  CuResult (*context_release_)(CuDevice) = nullptr;
  CuResult (*context_set_current_)(CuContext) = nullptr;
  CuResult (*mem_alloc_)(CuPointer*, size_t) = nullptr;
  CuResult (*mem_free_)(CuPointer) = nullptr;
  CuResult (*pointer_set_attribute_)(const void*, int, CuPointer) = nullptr;
  CuResult (*mem_host_alloc_)(void**, size_t, unsigned int) = nullptr;
  CuResult (*mem_free_host_)(void*) = nullptr;
  CuResult (*get_handle_)(void*, CuPointer, size_t, int, unsigned long long) = nullptr;
  CuResult (*memcpy_to_device_)(CuPointer, const void*, size_t) = nullptr;
  CuResult (*memcpy_to_host_)(void*, CuPointer, size_t) = nullptr;
  CuResult (*flush_)(int, int) = nullptr;
  CuResult (*get_error_name_)(CuResult, const char**) = nullptr;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CudaApi>> LoadCuda() {
  auto api = std::make_shared<LoadedCuda>();
  if (api->missing().empty()) return api;
  return absl::FailedPreconditionError(api->missing());
}

}  // namespace tributary::transport::roce
