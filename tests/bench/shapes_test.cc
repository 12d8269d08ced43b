// What links are measured with: what their transport needs for it is there.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "bench/transport_runs.h"
#include "transport/roce.h"

namespace tributary::bench {
namespace {

constexpr uint64_t kGigabyte = uint64_t{1} << 30;

// A slot is a chunk and 64 bytes of header, in whole pages; a link has as many to send as to
// receive (transport/roce.h).
uint64_t NeededBytes(const Shape& shape) {
  return uint64_t{2} * shape.slots * ((shape.size + 64 + 4095) / 4096 * 4096);
}

TEST(BenchShapes, EachSizeAndNumberOfSlotsFitsTheMemoryThatIsRegisteredForIt) {
  for (const size_t size : {size_t{64}, size_t{4} << 10, size_t{64} << 10, size_t{1} << 20,
                            size_t{64} << 20, size_t{256} << 20}) {
    for (const uint32_t slots : {0U, 1U, 8U, 256U}) {  // 0: as many as the size gives
      Shape shape = ShapeFor("roce", size, /*lanes=*/2, kGigabyte);
      if (slots > 0) shape.slots = slots;
      EXPECT_GE(RoceOptionsOf(shape).arena_bytes, NeededBytes(shape)) << size << " x " << slots;
    }
  }
}

TEST(BenchShapes, MemoryOfOrdinaryLinksIsWhatLinksHaveByDefault) {
  const Shape shape = ShapeFor("roce", size_t{1} << 20, /*lanes=*/2, kGigabyte);
  EXPECT_EQ(shape.slots, 8U);
  EXPECT_EQ(RoceOptionsOf(shape).arena_bytes, transport::RoceOptions().arena_bytes);
}

}  // namespace
}  // namespace tributary::bench
