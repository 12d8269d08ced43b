// A link over fake verbs, from one fabric to itself, and its account at the end.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "tests/transport/fake_verbs.h"
#include "tests/transport/harness.h"
#include "tests/transport/log_capture.h"
#include "transport/rdma/memlock.h"
#include "transport/roce.h"
#include "transport/roce/node.h"

namespace tributary::transport {

using roce::FakeVerbs;
using ::testing::HasSubstr;

inline const rdma::MemlockLimit kExempt{.bytes = 0, .exempt = true};

inline Deadline Soon() { return Deadline::After(absl::Seconds(30)); }
inline std::string Words(const absl::Status& status) { return std::string(status.message()); }

inline RoceOptions SmallArena() {
  RoceOptions options;
  options.arena_bytes = size_t{64} << 20;
  return options;
}

// All of a node's arenas, for links without a fabric.
inline roce::RocePart PartOf(const std::shared_ptr<roce::RoceNode>& node) {
  return {node, std::make_shared<roce::ArenaShare>(node->options().arena_bytes, 0)};
}

// A fabric over one fake device, and a link from it to itself.
class Roce : public ::testing::Test {
 protected:
  ~Roce() override {
    client_.reset();
    server_.reset();
    listener_.reset();
    fabric_.reset();
    EXPECT_EQ(verbs_->live_objects(), 0u);
    EXPECT_EQ(verbs_->unaccounted(), 0u);
    EXPECT_EQ(verbs_->unacknowledged(), 0u);
    EXPECT_EQ(verbs_->overflows(), 0u);
  }
  absl::Status Open(const RoceOptions& options = SmallArena()) {
    libraries_.verbs = verbs_;
    auto fabric = roce::MakeFabricOver(libraries_, options, kExempt);
    if (!fabric.ok()) return fabric.status();
    fabric_ = std::move(*fabric);
    return absl::OkStatus();
  }
  absl::Status Link(const LinkOptions& options = SmallOptions("rack")) {
    if (fabric_ == nullptr) {
      absl::Status opened = Open();
      if (!opened.ok()) return opened;
    }
    auto listener = fabric_->Listen("127.0.0.1:0", options);
    if (!listener.ok()) return listener.status();
    listener_ = std::move(*listener);
    auto client = fabric_->Connect(listener_->address(), options);
    if (!client.ok()) return client.status();
    client_ = std::move(*client);
    // The accepting side may fail when the connecting one is done: then this one's link ends.
    const Deadline limit = Soon();
    while (client_->status().ok() && !limit.Expired()) {
      auto server = listener_->Accept(Deadline::After(absl::Milliseconds(20)));
      if (absl::IsDeadlineExceeded(server.status())) continue;
      if (!server.ok()) return server.status();
      server_ = std::move(*server);
      return absl::OkStatus();
    }
    return client_->status().ok() ? absl::DeadlineExceededError("nobody was accepted")
                                  : client_->status();
  }
  absl::Status SendOne(uint8_t value, size_t bytes) {
    auto chunk = client_->Borrow(Soon());
    if (!chunk.ok()) return chunk.status();
    std::memset(chunk->data(), value, bytes);
    chunk->set_size(bytes);
    return client_->Send(std::move(*chunk));
  }
  void ExpectOne(uint8_t value, size_t bytes) {
    auto chunk = server_->Receive(Soon());
    ASSERT_TRUE(chunk.ok()) << chunk.status();
    ASSERT_EQ(chunk->size(), bytes);
    EXPECT_EQ(std::count(chunk->data(), chunk->data() + bytes, value), static_cast<long>(bytes));
  }
  absl::Status FirstError() {
    absl::Status status;
    while (status.ok()) status = server_->Receive(Soon()).status();
    return status;
  }

  std::shared_ptr<FakeVerbs> verbs_ = std::make_shared<FakeVerbs>();
  roce::Libraries libraries_;  // cm and cuda: as a test sets them, else not there
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<transport::Link> client_;
  std::unique_ptr<transport::Link> server_;
};

}  // namespace tributary::transport
