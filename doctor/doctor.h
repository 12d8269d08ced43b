// `tributary doctor`: is this machine fit for a config? Each check says what it saw and, where
// something is wrong, the line that mends it. Changes nothing on the machine; for the short RDMA
// test it registers 128 KiB for a moment, and sends 16 MiB through the device to itself.
#pragma once

#include <string>

#include "doctor/environment.h"
#include "doctor/report.h"
#include "server/config.h"

namespace tributary::doctor {

struct Options {
  const server::Config* config = nullptr;  // null: the defaults, whatever the transport
  std::string file;                        // the config's name, for the report
  std::string peer;                        // a host to try to reach; empty: none
};

// Checks of RDMA are left out, in one skipped finding, where the config's transport uses none; they
// fail where it is "roce", and only warn where it is "auto" or there is no config.
Report Examine(const Options& options, const Environment& environment);

}  // namespace tributary::doctor
