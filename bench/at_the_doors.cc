// Reads the racks' logs.
#include "bench/at_the_doors.h"

#include <fstream>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tributary::bench {

size_t AtTheDoors(const std::filesystem::path& folder, uint32_t racks) {
  std::set<std::string> ids;
  for (uint32_t i = 0; i < racks; ++i) {
    std::ifstream file(folder / absl::StrCat("rack-", i, ".log"));
    for (std::string line; std::getline(file, line);) {
      if (!absl::StrContains(line, " waits for the run")) continue;
      const size_t id = line.find('"') + 1;
      ids.insert(line.substr(id, line.find('"', id) - id));
    }
  }
  return ids.size();
}

}  // namespace tributary::bench
