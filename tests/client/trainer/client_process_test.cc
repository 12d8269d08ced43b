// tributary-client as a process: what it refuses, with which exit code, and how it leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/process.h"

namespace tributary::client::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(120);  // a bound against hanging, no expectation

class ClientProcess : public ::testing::Test {
 protected:
  ClientProcess() {
    std::string name = (std::filesystem::temp_directory_path() / "client_process.XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~ClientProcess() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

  // A config whose aggregator is not there.
  std::string WriteConfig(const std::string& model = "mlp-digits",
                          const std::string& format = "human") const {
    const auto port = FreePort();
    EXPECT_TRUE(port.ok()) << port.status();
    std::ofstream(Path("client.toml"))
        << "[client]\nid = \"lonely\"\nendpoints = \"127.0.0.1:" << *port
        << "\"\n[data]\ndataset = \"digits\"\nclients = 5\n[model]\nname = \"" << model
        << "\"\n[log]\nlevel = \"debug\"\nformat = \"" << format << "\"\n";
    return Path("client.toml");
  }

  absl::StatusOr<Process> Start(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), absl::StrCat(SelfDirectory(), "/tributary-client"));
    return Process::Start(arguments, {.log_file = Path("log"), .pipe_stdout = false});
  }

  int Run(std::vector<std::string> arguments) const {
    auto process = Start(std::move(arguments));
    EXPECT_TRUE(process.ok()) << process.status();
    const auto code = process->Wait(kPatience);
    EXPECT_TRUE(code.ok()) << code.status();
    return code.value_or(-1);
  }

  std::string Log() const {
    std::ifstream file(Path("log"));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // Until the log has this text; false where that does not come, or the process ends.
  bool AwaitLog(Process& process, const std::string& text) const {
    const absl::Time end = absl::Now() + kPatience;
    while (Log().find(text) == std::string::npos) {
      if (absl::Now() > end) return false;
      if (!process.Running()) return Log().find(text) != std::string::npos;  // its last words
      absl::SleepFor(absl::Milliseconds(20));
    }
    return true;
  }

 private:
  std::string directory_;
};

TEST_F(ClientProcess, BadUsageExitsWith2) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(Run({WriteConfig(), "--frobnicate"}), 2);
  EXPECT_EQ(Run({WriteConfig(), "--threads", "2"}), 2);  // only with --simulate
  EXPECT_EQ(Run({WriteConfig(), "--simulate", "2", "--index", "1"}), 2);
  EXPECT_EQ(Run({"--help"}), 0);
}

TEST_F(ClientProcess, BadConfigExitsWith2AndSaysWhere) {
  EXPECT_EQ(Run({Path("none.toml")}), 2);
  EXPECT_THAT(Log(), HasSubstr("none.toml"));
  const std::string config = WriteConfig("mlp-digit");
  EXPECT_EQ(Run({config}), 2);
  EXPECT_THAT(Log(), AllOf(HasSubstr(absl::StrCat(config, ":8:")), HasSubstr("mlp-digits")));
}

TEST_F(ClientProcess, CheckReadsTheConfigAndStartsNothing) {
  EXPECT_EQ(Run({absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs/client.toml"), "--check"}), 0);
  EXPECT_THAT(Log(), HasSubstr("client.toml: ok (client \"client-0\")"));
  const std::string judge = absl::StrCat(TRIBUTARY_SOURCE_DIR, "/configs/evaluator.toml");
  EXPECT_EQ(Run({judge, "--evaluate", "--check"}), 0) << Log();
  EXPECT_EQ(Run({judge, "--check"}), 2) << "as a client it has no id and joins nobody";
  EXPECT_EQ(Run({WriteConfig("mlp-digit"), "--check"}), 2);
}

// A row for each codec of the list: its spec, bytes, ratio, error and time.
TEST_F(ClientProcess, ProbeCodecsPrintsATable) {
  EXPECT_EQ(Run({WriteConfig(), "--probe-codecs"}), 0) << Log();
  std::stringstream text(Log());
  int rows = 0;
  double smaller = 0, error = 0, ns = 0;
  unsigned long long bytes = 0;
  for (std::string line; std::getline(text, line);) {
    constexpr size_t kSpec = 28;  // characters of the first column
    if (line.size() < kSpec || std::sscanf(line.c_str() + kSpec, " %llu %lfx %lf %lf ns", &bytes,
                                           &smaller, &error, &ns) != 4) {
      continue;
    }
    ++rows;
    EXPECT_GT(ns, 0) << line;
    // All tensors of the model are small, and stay fp32.
    EXPECT_EQ(error, 0) << line;
    EXPECT_NEAR(smaller, 1, 0.1) << line;
  }
  EXPECT_GE(rows, 30) << Log();
  EXPECT_THAT(Log(), AllOf(HasSubstr("2410 of 2410 parameters are in tensors of one dimension"),
                           HasSubstr("\nsign(mode=vote, step=2^-10)"), HasSubstr("\nint8 | lz4 "),
                           HasSubstr("NMSE"), HasSubstr("yes: what is lost comes later")));
}

TEST_F(ClientProcess, ModelAndDataThatDoNotFitExitWith2) {
  EXPECT_EQ(Run({WriteConfig("2nn")}), 2);
  EXPECT_THAT(Log(), HasSubstr("takes images of 784 pixels, data set \"digits\" has 64"));
}

TEST_F(ClientProcess, ATermSignalEndsItPolitelyWithExitCode0) {
  for (const int signal : {SIGTERM, SIGINT}) {
    auto process = Start({WriteConfig()});
    ASSERT_TRUE(process.ok()) << process.status();
    ASSERT_TRUE(AwaitLog(*process, "lonely: 287 training and 72 test"))
        << Log();  // a fifth of each
    process->Signal(signal);
    const auto code = process->Wait(kPatience);
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 0);
    EXPECT_THAT(Log(), HasSubstr("left, as asked"));
    std::filesystem::remove(Path("log"));
  }
}

// As soon as its own code runs, which is long before LibTorch is loaded and the data read; before
// that the process is the dynamic linker's.
TEST_F(ClientProcess, ATermSignalFromTheVeryStartEndsItWithExitCode0) {
  for (int attempt = 0; attempt < 4; ++attempt) {
    auto process = Start({WriteConfig()});
    ASSERT_TRUE(process.ok()) << process.status();
    while (!process->Holds(SIGTERM)) ASSERT_TRUE(process->Running()) << Log();
    absl::SleepFor(absl::Milliseconds(attempt * 40));
    process->Signal(SIGTERM);
    const auto code = process->Wait(kPatience);
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 0) << Log();
    std::filesystem::remove(Path("log"));
  }
}

TEST_F(ClientProcess, ManyClientsInOneLeaveTogetherAndLogJson) {
  auto process = Start({WriteConfig("mlp-digits", "json"), "--simulate", "12", "--threads", "2"});
  ASSERT_TRUE(process.ok()) << process.status();
  ASSERT_TRUE(AwaitLog(*process, "lonely-011: ")) << Log();
  process->Signal(SIGTERM);
  const auto code = process->Wait(kPatience);
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 0);
  EXPECT_THAT(Log(), HasSubstr("\"level\":\"info\",\"message\":\"left, as asked\"}"));
}

}  // namespace
}  // namespace tributary::client::trainer
