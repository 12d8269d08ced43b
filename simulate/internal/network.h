// Private to simulate/: the network that both kinds of arm run over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulate/config.h"
#include "transport/sim_core.h"

namespace tributary::simulate {

transport::SimOptions NetworkOptions(const Config& config, const std::string& transport);

// Where a rack stands: between its share of the clients and the root.
struct RackPlace {
  uint32_t first = 0;  // its clients: first .. end - 1
  uint32_t end = 0;
  transport::SimFlow up = 0;
  transport::SimFlow down = 0;
};

// Adds the root and its racks, among whom the clients are divided.
std::vector<RackPlace> AddNodes(const Config& config, uint64_t clients, transport::SimCore* core);

}  // namespace tributary::simulate
