// Measures the codec kernels against a ceiling taken in the same run: `tributary bench kernels`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tributary::compression {

struct KernelFigure {
  std::string name;  // kernels.fold.<codec>, .fold16., .together., .validate., .encode.; stable
  double value = 0;
  std::string unit;    // "GB/s" of encoded bytes, "Gelem/s" for encode, "times", "ns"
  double ceiling = 0;  // in the same unit: the same bytes moved with the least arithmetic
  double ratio = 0;    // value / ceiling
  // Of fold, fold16 and encode: nanoseconds an element; 4 over this are GB/s of the same as fp32.
  double ns_an_element = 0;
};

struct KernelBenchOptions {
  // Encoded bytes that pass by in one repetition; more than the last-level cache holds. Less, 4,096
  // tiles of 32,768 elements, where codecs make them smaller than 16 KiB a tile.
  uint64_t update_bytes = uint64_t{64} << 20;
  // Kernel and ceiling take turns so often; the best of each counts.
  int repetitions = 9;
  std::string only = {};  // the figures of this codec alone; "": of all
};

// Every codec, on the calling thread, over 16 updates in segments as the encoders cut them. fold
// passes one update after the other over the sums of a model, which no cache holds (256 MiB of
// them, over again where the updates stand for more); fold16 folds all of them together, tile by
// tile of the same sums. Both count encoded bytes a second. The ceiling of a fold reads the same
// update bytes and loads, adds to and stores the same sums, in the same order. together is fold16 /
// fold; its ceiling is the same of what the machine could do at most: the lower of FoldMany with
// all it touches in the first-level cache (of sparse codecs: the second), which is the arithmetic's
// bound, and of reading the bytes from memory. nonzero, of top-k, is fold's nanoseconds a non-zero;
// its ceiling adds to as many sums of each tile, evenly apart, and reads no update. The ceiling of
// validate reads the bytes; that of encode reads the floats and writes as many bytes as the
// encoding has. Takes about a minute, 256 MiB and 5 * update_bytes of memory.
std::vector<KernelFigure> RunKernelBench(const KernelBenchOptions& options);

}  // namespace tributary::compression
