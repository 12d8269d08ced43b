// What a simulation prints: each figure with what it rests on.
#pragma once

#include <string>
#include <vector>

#include "simulate/arm.h"
#include "simulate/config.h"

namespace tributary::simulate {

// The smallest value that `share` of them do not exceed; 0 where there is none.
double QuantileOf(std::vector<double> values, double share);

// A line a policy and transport; each names what its transport's model leaves out.
std::string Table(const std::vector<ArmResult>& results);
// What all figures rest on, a line each.
std::string Assumptions(const Config& config);

struct SimFigure {
  std::string name;  // "simulate.<policy>.<transport>.p50_s"
  double value = 0;
  std::string unit;
  std::string note;
};
std::vector<SimFigure> Figures(const std::vector<ArmResult>& results);

}  // namespace tributary::simulate
