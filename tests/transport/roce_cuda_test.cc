// Arenas in GPU memory, over a fake GPU and fake verbs: each way of registering them, what is said
// about it, and that payloads are where they are said to be.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "tests/transport/fake_cuda.h"
#include "tests/transport/roce_fixture.h"

namespace tributary::transport {
namespace {

using roce::FakeCuda;

// Of a device and a GPU's driver: what they can do, and what is then to be said.
struct Way {
  std::string name;
  bool dmabuf = false;
  bool peer_memory = false;
  std::string says;
  bool on_device() const { return dmabuf || peer_memory; }
};

class RoceCuda : public Roce {
 protected:
  ~RoceCuda() override {
    client_.reset();
    server_.reset();
    listener_.reset();
    fabric_.reset();
    EXPECT_EQ(cuda_->live, 0);
  }
  void Use(bool dmabuf, bool peer_memory) {
    verbs_->dmabuf_errno = dmabuf ? EBADF : EOPNOTSUPP;
    verbs_->dmabuf_registers = dmabuf;
    verbs_->peer_memory = peer_memory;
    verbs_->translate = FakeCuda::Memory;
    libraries_.cuda = cuda_;
  }
  static RoceOptions OnGpu() {
    RoceOptions options = SmallArena();
    options.arena_memory = MemoryKind::kCuda;
    options.arena_bytes = size_t{4} << 20;
    return options;
  }
  // The line about the arena.
  std::string OpenLine() {
    const LogCapture log;
    EXPECT_EQ(Open(OnGpu()), absl::OkStatus());
    const std::string text = log.text();
    return text.substr(std::min(text.find("arena of"), text.size()));
  }

  std::shared_ptr<FakeCuda> cuda_ = std::make_shared<FakeCuda>();
};

class EachWay : public RoceCuda, public ::testing::WithParamInterface<Way> {};

TEST_P(EachWay, IsTakenWhereItWorksAndTheLogSaysWhyNoneBeforeIt) {
  Use(GetParam().dmabuf, GetParam().peer_memory);
  EXPECT_THAT(OpenLine(), HasSubstr(GetParam().says));
  EXPECT_EQ(cuda_->sync_memops, 1);
}

TEST_P(EachWay, AReceivedPayloadIsBothOnTheGpuAndInTheCpusView) {
  Use(GetParam().dmabuf, GetParam().peer_memory);
  ASSERT_EQ(Open(OnGpu()), absl::OkStatus());
  ASSERT_EQ(Link(), absl::OkStatus());
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{64} << 10}) {
    ASSERT_EQ(SendOne(static_cast<uint8_t>(bytes + 7), bytes), absl::OkStatus());
    const auto chunk = server_->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    EXPECT_EQ(chunk->memory_kind(), MemoryKind::kCuda);
    const std::string expected(bytes, static_cast<char>(bytes + 7));
    ASSERT_EQ(chunk->size(), bytes);
    EXPECT_EQ(std::memcmp(chunk->data(), expected.data(), bytes), 0);
    ASSERT_NE(chunk->device_address() & FakeCuda::kTag, 0u);
    EXPECT_EQ(std::memcmp(FakeCuda::Memory(chunk->device_address()), expected.data(), bytes), 0);
  }
  // What a NIC wrote to the GPU is flushed before it is copied.
  EXPECT_EQ(cuda_->flushes > 0, GetParam().on_device());
}

TEST_P(EachWay, APayloadMadeOnTheGpuIsSent) {
  Use(GetParam().dmabuf, GetParam().peer_memory);
  ASSERT_EQ(Open(OnGpu()), absl::OkStatus());
  ASSERT_EQ(Link(), absl::OkStatus());
  for (int i = 0; i < 20; ++i) {  // more than there are slots
    auto chunk = client_->Borrow(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    std::memset(chunk->data(), 0xee, 3000);  // what the CPU sees is old
    std::memset(FakeCuda::Memory(chunk->device_address()), i, 3000);
    chunk->set_size(3000);
    chunk->set_filled_on_device(true);
    ASSERT_EQ(client_->Send(std::move(*chunk)), absl::OkStatus());
    ExpectOne(static_cast<uint8_t>(i), 3000);
  }
}

TEST_P(EachWay, ACopyThatFailsEndsTheLinkInWords) {
  Use(GetParam().dmabuf, GetParam().peer_memory);
  ASSERT_EQ(Open(OnGpu()), absl::OkStatus());
  ASSERT_EQ(Link(), absl::OkStatus());
  cuda_->copy_result = FakeCuda::kIllegalAddress;
  const absl::Status sent = SendOne(1, 100);
  // Staged, nothing is copied until it has arrived; else the sender finds it at once.
  EXPECT_EQ(sent.ok(), !GetParam().on_device()) << sent;
  const absl::Status status = sent.ok() ? FirstError() : client_->status();
  EXPECT_THAT(Words(status), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_THAT(Words(status), HasSubstr("peer \"rack\""));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, EachWay,
    ::testing::Values(
        Way{"dmabuf", true, true, "of CUDA memory, registered by dma-buf in 1 registration"},
        Way{"peermem", false, true,
            "of CUDA memory, registered by nvidia-peermem (not by dma-buf: the network device "
            "does not register memory by dma-buf (Operation not supported))"},
        Way{"staged", false, false,
            "of CUDA memory, staged through pinned host memory (not by dma-buf: the network "
            "device does not register memory by dma-buf (Operation not supported); not by "
            "nvidia-peermem: Bad address)"}),
    [](const auto& info) { return info.param.name; });

TEST_F(RoceCuda, AGpuThatExportsNoDmabufIsTakenByTheNextWayWithItsReason) {
  Use(/*dmabuf=*/true, /*peer_memory=*/true);
  cuda_->dma_buf_supported = 0;
  EXPECT_THAT(OpenLine(), HasSubstr("nvidia-peermem (not by dma-buf: the GPU's driver does not "
                                    "export memory by dma-buf)"));
  cuda_->dma_buf_supported = 1;
  cuda_->handle_result = FakeCuda::kIllegalAddress;
  EXPECT_THAT(OpenLine(), HasSubstr("nvidia-peermem (not by dma-buf: "));
}

TEST_F(RoceCuda, AnArenaBeyondTheLargestRegistrationIsSplitOnTheGpuToo) {
  Use(/*dmabuf=*/true, /*peer_memory=*/false);
  verbs_->device_attributes.max_mr_size = size_t{1} << 20;
  EXPECT_THAT(OpenLine(), HasSubstr("in 4 registration(s)"));
  ASSERT_EQ(Link(), absl::OkStatus());
  ASSERT_EQ(SendOne(3, 60000), absl::OkStatus());
  ExpectOne(3, 60000);
}

TEST_F(RoceCuda, WithoutCudaTheOptionIsRefusedWithTheReason) {
  libraries_.cuda = absl::FailedPreconditionError("libcuda.so.1: cannot open shared object file");
  const absl::Status status = Open(OnGpu());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Words(status), HasSubstr("there is no CUDA here: libcuda.so.1: cannot open"));
  EXPECT_THAT(Words(status), HasSubstr("memory = \"host\""));
  EXPECT_EQ(verbs_->live_objects(), 0u);
}

TEST_F(RoceCuda, EachCallThatFailsAtTheStartIsAnErrorAndLeavesNothing) {
  Use(/*dmabuf=*/true, /*peer_memory=*/true);
  const auto refused = [&](roce::CuResult* which, roce::CuResult result) {
    *which = result;
    const absl::Status status = Open(OnGpu());
    *which = 0;
    EXPECT_EQ(verbs_->live_objects(), 0u) << status;
    EXPECT_EQ(cuda_->live, 0) << status;
    return Words(status);
  };
  EXPECT_THAT(refused(&cuda_->init_result, FakeCuda::kNoDevice),
              HasSubstr("cuInit failed: CUDA_ERROR_NO_DEVICE"));
  EXPECT_THAT(refused(&cuda_->alloc_result, FakeCuda::kOutOfMemory),
              HasSubstr("bytes of GPU memory: CUDA_ERROR_OUT_OF_MEMORY; lower arena_bytes"));
  EXPECT_THAT(refused(&cuda_->pin_result, FakeCuda::kOutOfMemory), HasSubstr("pinned host memory"));
  EXPECT_EQ(Open(OnGpu()), absl::OkStatus());
}

TEST(LoadCuda, SaysWhatIsMissingWhereThereIsNoDriver) {
  const auto cuda = roce::LoadCuda();
  if (!cuda.ok()) {
    EXPECT_THAT(Words(cuda.status()), HasSubstr("libcuda.so.1"));
  } else {
    EXPECT_NE(*cuda, nullptr);
  }
}

}  // namespace
}  // namespace tributary::transport
