// The shared random vectors in a kernel. To compile this is most of the test: the header holds them
// against nvcc at compile time. Run, it needs a GPU, and exits with 77 where there is none.
#include <cstdio>

#include "random_vectors.h"

namespace {

__global__ void Check(uint64_t zero, int* line) {
  *line = tributary::compression::FirstWrongVector(zero);
}

int Fail(const char* what, cudaError_t error) {
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  return 1;
}

}  // namespace

int main() {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::printf("no GPU (%s): the kernel was compiled and not run\n", cudaGetErrorString(found));
    return 77;
  }
  int* line = nullptr;
  if (const auto error = cudaMallocManaged(&line, sizeof *line); error != cudaSuccess) {
    return Fail("cudaMallocManaged", error);
  }
  *line = -1;
  Check<<<1, 1>>>(0, line);
  if (const auto error = cudaDeviceSynchronize(); error != cudaSuccess) return Fail("Check", error);
  const int wrong = *line;
  cudaFree(line);
  if (wrong == 0) return 0;
  std::printf("line %d of tests/golden/random/vectors.inc is not what the GPU has\n", wrong);
  return 1;
}
