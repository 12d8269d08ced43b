// A machine for the doctor: a recorded tree, a fake RDMA device behind the table of libibverbs, and
// a fake connection manager.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "doctor/environment.h"
#include "doctor/verbs.h"
#include "tests/doctor/tree.h"

namespace tributary::doctor {

// What the fake libibverbs does; one at a time, since its functions are plain ones. Writes of a
// queue pair are done in memory at once.
struct FakeVerbs {
  FakeVerbs();
  ~FakeVerbs();
  std::shared_ptr<const VerbsTable> table() const;

  std::vector<std::string> devices;  // that the library lists
  std::set<std::string> unopenable;  // EACCES
  ibv_mtu active_mtu = IBV_MTU_4096;
  std::map<uint32_t, uint32_t> gid_types;  // by index, IBV_GID_TYPE_…; absent: not told
  ibv_fork_status fork_status = IBV_FORK_UNNEEDED;
  int reg_mr_errno = 0;
  int modify_qp_errno = 0;  // of the step to RTR
  ibv_wc_status write_status = IBV_WC_SUCCESS;
  bool damage_writes = false;
  bool lose_completions = false;
  int live_objects = 0;  // contexts, domains, regions, queues not given back
  uint64_t writes = 0;
};

// A connection manager that hands out these events in order, then none.
struct FakeCm {
  FakeCm();
  ~FakeCm();
  std::shared_ptr<const RdmaCmTable> table() const;

  std::deque<rdma_cm_event_type> events;
  int status = 0;  // of every event
  bool has_device = true;
  int live_objects = 0;
};

// The recorded tree with answers that say: all is well. Tests change what they are about.
Environment FakeEnvironment(const RecordedTree& tree);

}  // namespace tributary::doctor
