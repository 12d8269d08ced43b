// --peer: the route, and RoCE's port.
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "doctor/address.h"
#include "doctor/internal/exam.h"
#include "doctor/peer.h"

namespace tributary::doctor::internal {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(3);

void CheckRoce(const Exam& exam, const Inventory& inventory, const std::string& address) {
  std::optional<CmAnswer> cm;
  std::string trouble;
  if (inventory.any_active()) {
    const auto table = exam.env.rdma_cm();
    const auto answer = table.ok() ? ProbeCm(**table, address, kPatience)
                                   : absl::StatusOr<CmAnswer>(table.status());
    if (answer.ok()) {
      cm = *answer;
    } else {
      trouble = absl::StrCat("; ", Text(answer.status()));
    }
  }
  Finding finding = JudgePeer(cm, exam.env.udp(address, absl::Seconds(1)), address, exam.Bad());
  finding.name = "rdma.udp_4791";
  finding.seen += trouble;
  exam.report.Add(std::move(finding));
}

}  // namespace

void CheckPeer(const Exam& exam, const Inventory& inventory) {
  if (exam.peer.empty()) {
    if (exam.wish != RdmaWish::kNone)
      exam.report.Skip("rdma.udp_4791", "no --peer HOST was given to try");
    return;
  }
  const auto route = exam.env.route(exam.peer);
  if (!route.ok()) {
    exam.Add("peer.route", Verdict::kFail, Text(route.status()),
             absl::StrCat("getent ahosts ", exam.peer, "; ip route get ", exam.peer));
    return;
  }
  exam.report.Ok("peer.route",
                 absl::StrCat(exam.peer, " is ", route->peer, ", from ", route->source,
                              route->interface.empty() ? "" : " on " + route->interface,
                              route->mtu > 0 ? absl::StrCat(", path MTU ", route->mtu) : ""));
  if (exam.wish != RdmaWish::kNone) CheckRoce(exam, inventory, route->peer);
}

}  // namespace tributary::doctor::internal
