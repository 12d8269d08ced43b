// After Documentation/networking/bonding.rst: /sys/class/net/<bond>/bonding, and `master` of a leg.
#include "doctor/bond.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tributary::doctor {
namespace {

std::string FirstWord(const absl::StatusOr<std::string>& text) {
  return text.ok() ? text->substr(0, text->find(' ')) : "";
}

std::string LegText(const BondLeg& leg) {
  const std::string rate =
      leg.speed_mbps > 0 ? absl::StrCat(leg.speed_mbps / 1000.0, " Gbit/s") : "rate unknown";
  return absl::StrCat(leg.netdev, " ", leg.up ? rate : "down");
}

}  // namespace

std::optional<Bond> ReadBond(const SysFiles& files, const std::string& netdev) {
  std::string name = netdev;
  const std::string net = "/sys/class/net/";
  if (const auto master = files.ReadLink(net + netdev + "/master"); master.ok())
    name = master->substr(master->rfind('/') + 1);
  const std::string base = net + name + "/bonding";
  const auto slaves = files.Read(base + "/slaves");
  if (!slaves.ok()) return std::nullopt;
  Bond bond;
  bond.netdev = name;
  bond.mode = FirstWord(files.Read(base + "/mode"));
  bond.hash_policy = FirstWord(files.Read(base + "/xmit_hash_policy"));
  for (const std::string& leg :
       std::vector<std::string>(absl::StrSplit(*slaves, ' ', absl::SkipEmpty()))) {
    // `speed` fails with EINVAL while there is no carrier.
    const auto speed = files.ReadNumber(net + leg + "/speed");
    const auto state = files.Read(net + leg + "/operstate");
    bond.legs.push_back({.netdev = leg,
                         .speed_mbps = static_cast<int>(speed.value_or(-1)),
                         .up = state.ok() && *state == "up"});
  }
  return bond;
}

Finding JudgeBond(const Bond& bond, uint32_t lanes) {
  std::vector<std::string> texts, down;
  int slowest = 0, fastest = 0, total = 0;
  uint32_t up = 0;
  for (const BondLeg& leg : bond.legs) {
    texts.push_back(LegText(leg));
    if (!leg.up) {
      down.push_back(leg.netdev);
      continue;
    }
    ++up;
    if (leg.speed_mbps <= 0) continue;
    slowest = slowest == 0 ? leg.speed_mbps : std::min(slowest, leg.speed_mbps);
    fastest = std::max(fastest, leg.speed_mbps);
    total += leg.speed_mbps;
  }
  Finding f;
  f.seen = absl::StrCat(bond.netdev, " (", bond.mode,
                        "): ", texts.empty() ? "no legs" : absl::StrJoin(texts, ", "));
  const auto bad = [&f](Verdict verdict, const std::string& seen, const std::string& mend) {
    f.verdict = verdict;
    absl::StrAppend(&f.seen, "; ", seen);
    f.mend = mend;
  };
  if (up == 0) {
    bad(Verdict::kFail, "no leg is up",
        absl::StrCat("ip link set ", bond.legs.empty() ? bond.netdev : bond.legs[0].netdev, " up"));
  } else if (!down.empty()) {
    bad(Verdict::kWarn, absl::StrCat("without ", absl::StrJoin(down, ", "), " the rate is lower"),
        absl::StrCat("ip link set ", down[0], " up; ethtool ", down[0]));
  } else if (slowest != fastest) {
    bad(Verdict::kWarn, "the legs differ in rate: whoever is hashed onto the slow one waits",
        absl::StrCat("ethtool ", bond.legs[0].netdev,
                     " | grep -i speed  # give all legs one rate"));
  } else if (bond.mode == "active-backup") {
    absl::StrAppend(&f.seen, "; one leg carries all, the others stand by");
  } else if (up > lanes) {
    bad(Verdict::kWarn,
        absl::StrCat("each lane stays on one leg, and [transport] lanes = ", lanes,
                     " fills at most ", lanes, " of ", up, " legs of ", slowest / 1000.0,
                     " Gbit/s"),
        absl::StrCat("[transport] lanes = ", up * 2));
  } else {
    absl::StrAppend(&f.seen, "; ", total / 1000.0, " Gbit/s together, a lane on one leg gets ",
                    slowest / 1000.0);
  }
  return f;
}

}  // namespace tributary::doctor
