// What a trainer of a test returns that is to send something and always the same.
#pragma once

#include <cstdint>

#include "aggregation/layout.h"
#include "base/philox.h"
#include "client/client.h"

namespace tributary::client::testing {

// Small deltas that depend on the seed alone, and ones in the tensors of integers. No weight.
inline TrainResult RandomResult(const aggregation::ModelLayout& layout, uint64_t seed) {
  TrainResult result;
  result.floats.resize(layout.tensors().size());
  result.ints.resize(layout.tensors().size());
  for (uint32_t t = 0; t < layout.tensors().size(); ++t) {
    PhiloxStream random(seed, t);
    if (aggregation::IsFloat(layout.tensors()[t].dtype)) {
      result.floats[t].resize(layout.TensorElements(t));
      for (float& x : result.floats[t]) x = static_cast<float>(random.NextDouble() - 0.5) * 0.1f;
    } else {
      result.ints[t].assign(layout.TensorElements(t), 1);
    }
  }
  return result;
}

}  // namespace tributary::client::testing
