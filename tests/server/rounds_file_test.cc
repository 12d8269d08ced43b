// rounds.jsonl: whole lines, and lines again once a full disk has room.
#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "server/round_report.h"
#include "tests/server/checkpoint_fixture.h"

namespace tributary::server {
namespace {

class RoundsFileTest : public CheckpointTest {
 protected:
  std::string path() const { return root_ + "/rounds.jsonl"; }
  static RoundReport Of(uint64_t round) {
    RoundReport report;
    report.round = round;
    return report;
  }
  // The rounds that the file tells of; -1 for a line that is none.
  std::vector<int> Rounds() const {
    std::vector<int> rounds;
    std::ifstream file(path());
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      rounds.push_back(json.is_object() ? json["round"].get<int>() : -1);
    }
    return rounds;
  }
};

TEST_F(RoundsFileTest, AfterAFullDiskLinesAreWrittenAgainAndEachIsWhole) {
  const int code = InChild([&] {
    auto file = RoundsFile::Open(path());
    if (!file.ok() || !(*file)->Append(Of(1)).ok()) return 2;
    // Room for a part of the next line, as on a full disk.
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {std::filesystem::file_size(path()) + 20, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    const absl::Status status = (*file)->Append(Of(2));
    if (status.ok() || Text(status).find(path()) == std::string::npos) return 3;
    const rlimit lifted = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &lifted);
    return (*file)->Append(Of(3)).ok() ? 0 : 4;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(Rounds(), (std::vector<int>{1, 3}));
}

TEST_F(RoundsFileTest, ALineThatWasCutDoesNotTakeTheNextWithIt) {
  std::ofstream(path()) << ToJson(Of(1)) << "\n" << ToJson(Of(2)).substr(0, 30);
  auto file = RoundsFile::Open(path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Append(Of(3)).ok());
  EXPECT_EQ(Rounds(), (std::vector<int>{1, -1, 3}));
}

}  // namespace
}  // namespace tributary::server
