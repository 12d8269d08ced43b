// The fixture of the conformance suite, what every fabric promises, and chunks that show where they
// come from.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/transport/harness.h"
#include "transport/link.h"

namespace tributary::transport {

struct Pair {
  std::unique_ptr<Link> server;
  std::unique_ptr<Link> client;
};

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { harness_ = MakeHarness(GetParam()); }

  Pair Make(LinkOptions server = SmallOptions("server"),
            LinkOptions client = SmallOptions("client")) {
    auto listener = harness_->server().Listen(harness_->listen_address(), server);
    EXPECT_TRUE(listener.ok()) << listener.status();
    return Make(**listener, client);
  }
  Pair Make(Listener& listener, const LinkOptions& options) {
    Pair pair;
    auto connected = harness_->client().Connect(listener.address(), options);
    EXPECT_TRUE(connected.ok()) << connected.status();
    auto accepted = listener.Accept(Soon());
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    pair.server = std::move(accepted).value();
    pair.client = std::move(connected).value();
    return pair;
  }
  Deadline Soon() const { return harness_->In(absl::Seconds(30)); }
  Deadline Shortly() const { return harness_->In(absl::Milliseconds(50)); }

  std::unique_ptr<Harness> harness_;
};

// Byte j of chunk i: a pattern that shows a chunk out of place and a byte out of place.
inline uint8_t Pattern(uint64_t i, size_t j) {
  return static_cast<uint8_t>(i * 131 + j * 7 + (j >> 8));
}

inline absl::Status SendPattern(Link& link, uint64_t i, size_t bytes, Deadline deadline) {
  auto chunk = link.Borrow(deadline);
  if (!chunk.ok()) return chunk.status();
  for (size_t j = 0; j < bytes; ++j) chunk->data()[j] = Pattern(i, j);
  chunk->set_size(bytes);
  chunk->tag() = {.stream = 7, .index = i, .a = ~i, .b = i << 32};
  return link.Send(std::move(*chunk));
}

// True where the chunk is number i, of this size, with the pattern and the tag of SendPattern.
inline bool IsPattern(const Chunk& chunk, uint64_t i, size_t bytes) {
  if (chunk.size() != bytes) return false;
  const ChunkTag& tag = chunk.tag();
  if (tag.stream != 7 || tag.index != i || tag.a != ~i || tag.b != i << 32) return false;
  for (size_t j = 0; j < bytes; ++j) {
    if (chunk.data()[j] != Pattern(i, j)) return false;
  }
  return true;
}

}  // namespace tributary::transport
