// What the tests of the round's state machine share: a plan, members, and a machine to drive.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "aggregation/round.h"

namespace tributary::aggregation {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

inline absl::Duration At(int64_t seconds) { return absl::Seconds(1000 + seconds); }

inline RoundPlan Plan() {
  return {.round = 7,
          .seed = 7,
          .minimum = 1,
          .deadline = absl::Seconds(60),
          .rejoin_grace = absl::Seconds(5),
          .max_weight = 1000,
          .max_client_weight = 100};
}

inline RoundMachine::Member Client(const std::string& id, uint64_t epoch = 1) {
  return {.id = id, .aggregator = false, .epoch = epoch};
}
inline RoundMachine::Member Rack(const std::string& id, uint64_t epoch = 1) {
  return {.id = id, .aggregator = true, .epoch = epoch};
}

// "task a", "abort a", "closed": what a test compares.
inline std::vector<std::string> Text(const std::vector<Action>& actions) {
  std::vector<std::string> out;
  for (const Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::kTask:
        out.push_back("task " + action.member);
        break;
      case Action::Kind::kAbort:
        out.push_back("abort " + action.member);
        break;
      case Action::Kind::kClosed:
        out.push_back("closed");
        break;
      case Action::Kind::kClaims:
        out.push_back(absl::StrCat("claims ", action.member, " granted ",
                                   absl::StrJoin(action.granted, ","), " taken ",
                                   absl::StrJoin(action.taken, ",")));
        break;
      case Action::Kind::kCollect:
        out.push_back("collect " + action.member);
        break;
    }
  }
  return out;
}

class Round : public ::testing::Test {
 protected:
  void Start(const RoundPlan& plan, const std::vector<RoundMachine::Member>& members) {
    machine_.emplace(plan);
    machine_->Begin(members, At(0));
  }
  Admission Offer(const std::string& id, int64_t weight = 1,
                  const std::vector<std::string>& clients = {}, int64_t at = 1,
                  uint64_t epoch = 1) {
    return machine_->Offer(id, epoch, 7, weight, clients, At(at));
  }
  // Offers, which must be admitted.
  uint64_t Admit(const std::string& id, int64_t weight = 1,
                 const std::vector<std::string>& clients = {}, int64_t at = 1) {
    const Admission admission = Offer(id, weight, clients, at);
    EXPECT_EQ(admission.verdict, Verdict::kAdmit) << id << ": " << admission.message;
    EXPECT_NE(admission.ticket, 0u);
    return admission.ticket;
  }
  uint64_t Commit(const std::string& id, int64_t weight = 1,
                  const std::vector<std::string>& clients = {}) {
    const uint64_t ticket = Admit(id, weight, clients);
    EXPECT_TRUE(machine_->Commit(ticket)) << id;
    return ticket;
  }
  std::vector<std::string> Accept(const std::string& id, int64_t weight = 1,
                                  const std::vector<std::string>& clients = {}) {
    return Text(machine_->Folded(Commit(id, weight, clients), At(1)));
  }
  // Offers, which must be refused with this reason and be counted so.
  Admission Refused(const std::string& reason, const Admission& admission) {
    EXPECT_EQ(admission.verdict, Verdict::kReject);
    EXPECT_EQ(admission.reason, reason) << admission.message;
    EXPECT_FALSE(admission.message.empty());
    EXPECT_EQ(admission.ticket, 0u);
    return admission;
  }
  std::vector<std::string> Timer(int64_t at) { return Text(machine_->Timer(At(at))); }
  std::vector<std::string> Left(const std::string& id, int64_t at = 1, uint64_t epoch = 1) {
    return Text(machine_->Left(id, epoch, At(at)));
  }
  std::vector<std::string> LeftForGood(const std::string& id, int64_t at = 1) {
    return Text(machine_->Left(id, 1, At(at), true));
  }
  std::vector<std::string> Joined(const RoundMachine::Member& member, int64_t at = 1) {
    return Text(machine_->Joined(member, At(at)));
  }

  std::optional<RoundMachine> machine_;
};

}  // namespace tributary::aggregation
