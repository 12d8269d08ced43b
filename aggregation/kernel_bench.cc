// The packing bench: kernel and ceiling take turns over sums larger than the caches.
#include "aggregation/kernel_bench.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "aggregation/internal/block_pack.h"
#include "base/philox.h"

namespace tributary::aggregation {
namespace {

using internal::kBlockValues;
using internal::kBytesPerBit;

constexpr size_t kWidth = 42;
constexpr size_t kPackedBytes = kWidth * kBytesPerBit;
constexpr size_t kPackedWords = kPackedBytes / sizeof(uint64_t);

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

compression::KernelFigure Compare(std::string name, double bytes, int repetitions,
                                  const std::function<void()>& kernel,
                                  const std::function<void()>& ceiling) {
  double best_kernel = std::numeric_limits<double>::infinity();
  double best_ceiling = best_kernel;
  for (int turn = 0; turn <= repetitions; ++turn) {
    const double c = Seconds(ceiling);
    const double k = Seconds(kernel);
    if (turn == 0) continue;  // warms up
    best_ceiling = std::min(best_ceiling, c);
    best_kernel = std::min(best_kernel, k);
  }
  compression::KernelFigure figure{std::move(name), bytes / best_kernel / 1e9, "GB/s",
                                   bytes / best_ceiling / 1e9, 0};
  figure.ratio = figure.value / figure.ceiling;
  return figure;
}

// Reads a block of sums and writes as many bytes as its packed form has.
void MoveOut(const int64_t* values, uint8_t* packed) {
  auto* words = reinterpret_cast<int64_t*>(packed);
  for (size_t i = 0; i < kPackedWords; ++i) words[i] = values[i];
  int64_t rest = 0;
  for (size_t i = kPackedWords; i < kBlockValues; ++i) rest |= values[i];
  words[0] |= rest;
}

// Reads a packed block's bytes and adds something to each of the block's sums.
void MoveIn(const uint8_t* packed, int64_t* values) {
  const auto* words = reinterpret_cast<const int64_t*>(packed);
  for (size_t i = 0; i < kPackedWords; ++i) values[i] += words[i] & 1;
  for (size_t i = kPackedWords; i < kBlockValues; ++i) values[i] += 1;
}

}  // namespace

std::vector<compression::KernelFigure> RunPackBench(const PackBenchOptions& options) {
  const size_t blocks = std::max<size_t>(1, options.elements / kBlockValues);
  std::vector<int64_t> sums(blocks * kBlockValues);
  PhiloxStream random(1);
  for (int64_t& sum : sums) sum = static_cast<int64_t>(random.Next64()) >> (64 - kWidth);
  // As words, so that the ceiling may write it as words.
  std::vector<uint64_t> packed_words(blocks * kPackedWords);
  auto* packed = reinterpret_cast<uint8_t*>(packed_words.data());
  std::vector<int64_t> into(sums.size());
  const auto each_block = [&](auto work) {
    return [&, work] {
      for (size_t b = 0; b < blocks; ++b) work(b * kBlockValues, packed + b * kPackedBytes);
    };
  };
  const double bytes = static_cast<double>(sums.size()) * sizeof(int64_t);
  std::vector<compression::KernelFigure> figures;
  figures.push_back(Compare(
      "kernels.pack.write", bytes, options.repetitions, each_block([&](size_t at, uint8_t* out) {
        internal::PackBlock(&sums[at], std::min(kWidth, internal::BlockWidth(&sums[at])), out);
      }),
      each_block([&](size_t at, uint8_t* out) { MoveOut(&sums[at], out); })));
  each_block([&](size_t at, uint8_t* out) { internal::PackBlock(&sums[at], kWidth, out); })();
  figures.push_back(Compare(
      "kernels.pack.merge", bytes, options.repetitions,
      each_block([&](size_t at, uint8_t* in) { internal::UnpackAddBlock(in, kWidth, &into[at]); }),
      each_block([&](size_t at, uint8_t* in) { MoveIn(in, &into[at]); })));
  return figures;
}

}  // namespace tributary::aggregation
