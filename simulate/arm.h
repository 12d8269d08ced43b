// One policy over one transport, in virtual time: production round machines, deadlines and cohorts
// at the root and its racks, partial sums and models as segments over the simulated network,
// clients as a model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aggregation/deadline.h"
#include "aggregation/pace.h"
#include "aggregation/round.h"
#include "simulate/clients.h"
#include "simulate/config.h"
#include "transport/sim_core.h"

namespace tributary::simulate {

struct ArmResult {
  std::string policy;
  std::string transport;
  std::vector<double> round_s;  // announce to commit, of each round that was committed
  uint64_t failed = 0;          // rounds
  uint64_t asked = 0;           // tasks given to clients, all rounds
  uint64_t accepted = 0;        // updates in committed models
  uint64_t carried = 0;         // of them late ones
  uint64_t dropped = 0;   // trained for nothing: refused as late, or called away to a new task
  uint64_t degraded = 0;  // clients marked slow at the end
  double virtual_s = 0;   // until the last round ended
  double staleness = 0;   // asynchronous: versions, the mean over accepted updates
  transport::SimStats network;  // between the tiers
  uint64_t trace = 0;           // equal for equal runs
};

class Arm final : public transport::SimHandler {
 public:
  Arm(const Config& config, const Policy& policy, const std::string& transport);
  ~Arm() override;
  ArmResult Run();
  void OnSimEvent(uint64_t a, uint64_t b) override;

 private:
  struct Tier;  // a node's machine and its timer
  struct Rack;
  struct Client {  // its changing state
    uint32_t rack = 0;
    uint32_t epoch = 1;
    uint64_t task = 0;  // the round that it works on; 0: none
    uint64_t owes = 0;
    uint64_t ticket = 0;  // its upload under way; 0: none
  };

  // root.cc
  aggregation::RoundPlan BasePlan() const;
  void BeginRound();
  void RootAct(const std::vector<aggregation::Action>& actions);
  void RootClosed();
  void Committed(bool success);
  void PartialStarts(uint32_t rack);
  void PartialArrives(uint32_t rack, uint64_t round);
  bool EnoughPresent();

  // racks.cc
  void BuildRacks();
  void BeginRack(uint32_t rack, uint64_t round);
  void RackAct(Rack& rack, const std::vector<aggregation::Action>& actions);
  void StartClient(Rack& rack, uint32_t client);
  void Offer(uint32_t client, uint64_t round);
  void Whole(uint32_t client, uint64_t ticket);
  void Died(uint32_t client, uint64_t round);
  void RackClosed(Rack& rack);
  void FinishRack(Rack& rack);
  void Learn(const aggregation::RoundMachine& machine, absl::Duration elapsed,
             aggregation::AdaptiveDeadline* deadline, aggregation::PaceTracker* pace) const;
  void ArmTimer(Tier& tier, uint64_t which);

  enum class Kind : uint8_t {
    kTimer = 1,
    kModel,
    kOffer,
    kWhole,
    kDied,
    kEmpty,  // the rack's grace for clients on their way back is over
    kStarts,
    kArrives,
    kNext,
    kBegin
  };
  void After(double seconds, Kind kind, uint64_t a, uint64_t b);
  absl::Duration now() const { return core_.now(); }
  double now_s() const { return absl::ToDoubleSeconds(core_.now()); }

  const Config config_;
  const Policy policy_;
  ArmResult result_;
  transport::SimCore core_;
  ClientPopulation population_;
  std::vector<Client> clients_;
  std::vector<std::unique_ptr<Rack>> racks_;
  std::unique_ptr<Tier> root_;
  uint64_t round_ = 0;
  absl::Duration round_started_;
  double waited_s_ = 0;  // for clients to come, before the round that is to begin
  uint64_t update_bytes_, partial_bytes_, model_bytes_;
};

}  // namespace tributary::simulate
