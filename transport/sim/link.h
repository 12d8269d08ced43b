// One end of a simulated link.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "transport/internal/link_core.h"
#include "transport/internal/link_state.h"
#include "transport/sim/world.h"

namespace tributary::transport::sim {

class SimLinkCore final : public internal::LinkCore {
 public:
  // Both ends of a link between two nodes; `world` is locked. RESOURCE_EXHAUSTED where memory runs
  // out.
  struct Ends {
    std::unique_ptr<Link> connecting;
    std::unique_ptr<Link> accepting;
  };
  static absl::StatusOr<Ends> MakePair(const std::shared_ptr<World>& world, SimNode connecting,
                                       const LinkOptions& connecting_options, SimNode accepting,
                                       const LinkOptions& accepting_options);

  absl::StatusOr<Chunk> Borrow(Deadline deadline) override;
  absl::Status Send(Chunk chunk) override;
  absl::StatusOr<Chunk> Receive(Deadline deadline) override;
  absl::Status Close(Deadline deadline) override;
  void Cancel(const std::string& why) override;
  absl::Status status() const override;
  size_t chunk_bytes() const override { return options_.chunk_bytes; }
  std::string peer() const override { return peer_name_; }
  std::string hello() const override { return peer_hello_; }
  std::string_view transport() const override { return "sim"; }
  LinkStats stats() const override;
  void Shutdown() override;
  void Return(uint32_t slot) override;

  // Called by the world, locked.
  void OnEvent(WorldEvent kind, uint64_t b, const std::string& text);
  void OnNodeKilled(SimNode node);

 private:
  struct OnWire {
    internal::SlotChunk chunk;
    uint32_t crc32c;
  };
  SimLinkCore(std::shared_ptr<World> world, SimNode node, const LinkOptions& ours,
              SimNode peer_node, const LinkOptions& theirs, uint64_t id, uint64_t peer_id,
              internal::Arena arena);
  void OnData(uint64_t sequence);
  void Fail(absl::Status error, bool local, bool tell);
  void AnnounceGrant();
  void AnswerGoodbye();
  void Tell(WorldEvent kind, uint64_t b);
  Chunk Lend(uint32_t slot);

  const std::shared_ptr<World> world_;
  const LinkOptions options_;
  const SimNode node_;
  const SimNode peer_node_;
  const uint64_t id_;
  const uint64_t peer_id_;
  const std::string peer_name_;
  const std::string peer_hello_;
  const absl::Duration silence_limit_;
  const internal::Arena arena_;
  const SimFlow flow_;

  // Guarded by the world's mutex.
  internal::LinkState state_;
  std::deque<OnWire> on_wire_;
  bool goodbye_sent_ = false;
  bool goodbye_answered_ = false;
  bool peer_left_ = false;  // after its goodbye
  bool dead_ = false;       // its machine was killed: it sends nothing more
  WaitList can_send_;
  WaitList can_receive_;
};

}  // namespace tributary::transport::sim
