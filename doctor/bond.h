// Bonded network devices: their legs, and what that means for links. Reading /sys, and a pure
// judgement.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/sys_files.h"
#include "doctor/report.h"

namespace tributary::doctor {

struct BondLeg {
  std::string netdev;
  int speed_mbps = -1;  // -1: not known, as when the link is down
  bool up = false;
};

struct Bond {
  std::string netdev;       // "bond0"
  std::string mode;         // "802.3ad", "active-backup", ...
  std::string hash_policy;  // "layer3+4", ...
  std::vector<BondLeg> legs;
};

// The bond that a network device is, or belongs to.
std::optional<Bond> ReadBond(const SysFiles& files, const std::string& netdev);

// The finding's name is left to the caller. One queue pair (or lane) travels on one leg, whatever
// the bond's rate, so `lanes` bounds what a link can get.
Finding JudgeBond(const Bond& bond, uint32_t lanes);

}  // namespace tributary::doctor
