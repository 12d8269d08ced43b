// Who waits at racks for a run that has not begun: so that all can begin together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace tributary::bench {

// Clients that have joined the racks "rack-0" to "rack-<racks - 1>", which know no run yet: they
// say so in their logs, `folder`/rack-<i>.log, at level debug. Each client is one, however often it
// came.
size_t AtTheDoors(const std::filesystem::path& folder, uint32_t racks);

}  // namespace tributary::bench
