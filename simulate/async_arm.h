// FedBuff over one transport, in virtual time: production buffer machines at the root and its
// racks, over the same modelled clients and the same simulated network as the rounds of arm.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aggregation/async.h"
#include "simulate/arm.h"
#include "simulate/clients.h"
#include "simulate/config.h"
#include "transport/sim_core.h"

namespace tributary::simulate {

// Times are from one version to the next. `asked` are trainings begun.
class AsyncArm final : public transport::SimHandler {
 public:
  AsyncArm(const Config& config, const std::string& transport);
  ~AsyncArm() override;
  ArmResult Run();
  void OnSimEvent(uint64_t a, uint64_t b) override;

 private:
  struct Node;
  struct Client {
    uint32_t rack = 0;
    uint32_t epoch = 1;
    uint64_t task = 0;  // counts its tasks: what was scheduled for an earlier one is void
    uint64_t base = 0;
    uint64_t ticket = 0;
  };
  enum class Kind : uint8_t {
    kTimer = 1,
    kModel,
    kOffer,
    kWhole,
    kDied,
    kAway,  // it has a task, and is not there
    kBack,
    kCollect,
    kBuffered,
    kSum,
    kNext
  };
  void After(double seconds, Kind kind, uint64_t a, uint64_t b);
  void Rearm(Node& node);
  void Open(Node& node, uint64_t version);
  void Act(Node& node, const aggregation::AsyncMachine::Actions& actions);
  void StartClient(Node& rack, uint32_t client);
  void Offer(uint32_t client);
  void Whole(uint32_t client);
  void Closed(Node& node);
  void SumArrives(Node& rack);
  void Finish(Node& node, bool included);
  absl::Duration now() const { return core_.now(); }
  double now_s() const { return absl::ToDoubleSeconds(core_.now()); }
  uint32_t IndexOf(const std::string& id) const;

  const Config config_;
  ArmResult result_;
  transport::SimCore core_;
  ClientPopulation population_;
  std::vector<Client> clients_;
  std::vector<std::unique_ptr<Node>> nodes_;  // racks, then the root
  absl::Duration opened_;
  uint64_t version_ = 0;
  uint64_t staleness_ = 0;  // summed
  bool done_ = false;
};

}  // namespace tributary::simulate
