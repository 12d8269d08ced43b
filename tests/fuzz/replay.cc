// Runs a fuzz target once over every file of the directories given, and over each file's
// beginnings: what a build without libFuzzer can do with a corpus.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  int files = 0;
  for (int a = 1; a < argc; ++a) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[a])) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::vector<uint8_t> bytes((std::istreambuf_iterator<char>(in)), {});
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      for (size_t cut = 1; cut < bytes.size(); cut += 1 + cut / 7) {
        const std::vector<uint8_t> part(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(cut));
        LLVMFuzzerTestOneInput(part.data(), part.size());
      }
      // And with each of the first bytes damaged, where heads are.
      for (size_t at = 0; at < bytes.size() && at < 96; ++at) {
        std::vector<uint8_t> bad = bytes;
        bad[at] = static_cast<uint8_t>(bad[at] ^ (1u << at % 8));
        LLVMFuzzerTestOneInput(bad.data(), bad.size());
      }
      ++files;
    }
  }
  std::printf("%d files\n", files);
  return files > 0 ? 0 : 1;
}
