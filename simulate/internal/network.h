// Private to simulate/: the network that both kinds of arm run over.
#pragma once

#include <string>

#include "simulate/config.h"
#include "transport/sim_core.h"

namespace tributary::simulate {

transport::SimOptions NetworkOptions(const Config& config, const std::string& transport);

}  // namespace tributary::simulate
