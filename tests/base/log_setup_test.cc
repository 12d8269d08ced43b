// The log: in JSON each line is one object, whatever a message holds.
#include "base/log_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace tributary {
namespace {

class LogSetupTest : public testing::Test {
 protected:
  LogSetupTest() : before_(spdlog::default_logger()) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tributary-log-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~LogSetupTest() override {
    spdlog::set_default_logger(before_);
    std::filesystem::remove_all(dir_);
  }
  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    std::ifstream file(dir_ + "/log");
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  std::string dir_;

 private:
  std::shared_ptr<spdlog::logger> before_;
};

TEST_F(LogSetupTest, JsonLinesAreEscapedAsRfc8259Says) {
  ASSERT_TRUE(SetUpLog({.name = "test", .format = "json", .file = dir_ + "/log"}).ok());
  spdlog::info("client \"a\\b\" says\nhello\t\x01 é \xff!");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1u) << "a newline in a message is no end of the line";
  EXPECT_THAT(lines[0], testing::HasSubstr(
                            R"("level":"info","message":"client \"a\\b\" says\nhello\t\u0001 é )"));
  const auto json = nlohmann::json::parse(lines[0], nullptr, false);
  ASSERT_TRUE(json.is_object()) << lines[0];
  EXPECT_EQ(json["message"], "client \"a\\b\" says\nhello\t\x01 é \xEF\xBF\xBD!");
}

TEST_F(LogSetupTest, WhatIsBelowTheLevelIsNotWritten) {
  ASSERT_TRUE(SetUpLog({.name = "test", .level = "warn", .file = dir_ + "/log"}).ok());
  spdlog::info("quiet");
  spdlog::warn("loud");
  spdlog::default_logger()->flush();
  ASSERT_EQ(Lines().size(), 1u);
  EXPECT_THAT(Lines()[0], testing::EndsWith(" loud"));
}

TEST_F(LogSetupTest, AFileThatCannotBeWrittenIsAnErrorThatNamesIt) {
  const absl::Status status = SetUpLog({.name = "test", .file = dir_ + "/none/log"});
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(dir_ + "/none/log"));
}

}  // namespace
}  // namespace tributary
