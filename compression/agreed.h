// The step of hq that a round agrees on: a spec's "step=auto" becomes a number.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tributary::compression {

class Codec;

// The metric by which a client reports its largest |element| (of what it encodes with hq: the delta
// with what error feedback added), so that the next round's step fits. Summed as all metrics are.
inline constexpr char kLargestMetric[] = "codec_largest";

// Whether it is hq, by itself or behind stages, which have names of their own.
bool IsHq(const Codec& codec);
bool WantsAgreedStep(std::string_view spec);
// The spec with each hq's step=auto replaced: by the smallest power of two of which the levels
// reach twice `largest`, the clients' mean (what lies beyond is cut off, and fed back); without
// it, or where it is 0, by hq's usual step.
std::string WithAgreedStep(std::string_view spec, std::optional<double> largest);

}  // namespace tributary::compression
