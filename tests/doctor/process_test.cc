// `tributary doctor` as a process: exit codes, JSON, and a port that is really taken.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/process.h"

namespace tributary {
namespace {

using ::testing::HasSubstr;

struct Ran {
  int exit_code = -1;
  std::string out;
};

Ran Doctor(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SelfDirectory() + "/tributary", "doctor"});
  auto process = Process::Start(arguments, {.log_file = "", .pipe_stdout = true});
  if (!process.ok()) return {};
  Ran ran;
  char bytes[4096];
  for (ssize_t n; (n = read(process->stdout_fd(), bytes, sizeof(bytes))) > 0;)
    ran.out.append(bytes, static_cast<size_t>(n));
  const auto code = process->Wait(absl::Seconds(30));
  ran.exit_code = code.ok() ? *code : -1;
  return ran;
}

class DoctorProcess : public ::testing::Test {
 protected:
  DoctorProcess() {
    std::string pattern = (std::filesystem::temp_directory_path() / "doctor-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~DoctorProcess() override { std::filesystem::remove_all(dir_); }
  std::string Config(const std::string& listen, const std::string& more = "") {
    const std::string file = dir_ + "/rack.toml";
    std::ofstream(file) << "[node]\nname = \"rack-7\"\nparent = \"127.0.0.1:1\"\nlisten = \""
                        << listen
                        << "\"\n[transport]\nkind = \"tcp\"\nlisten = \"127.0.0.1:0\"\n[limits]\n"
                        << "max_sessions = 100\n"
                        << more;
    return file;
  }
  std::string dir_;
};

TEST_F(DoctorProcess, AFitMachineExitsWithZeroAndJsonSaysTheSame) {
  const Ran ran = Doctor({Config("127.0.0.1:0"), "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out;
  const auto json = nlohmann::json::parse(ran.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << ran.out;
  EXPECT_EQ(json["exit_code"], 0);
  EXPECT_THAT(json["subject"].get<std::string>(), HasSubstr("rack \"rack-7\", links over tcp"));
}

TEST_F(DoctorProcess, APortThatIsTakenExitsWithOneAndNamesThisProcess) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const Ran ran = Doctor({Config(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)))});
  close(fd);
  EXPECT_EQ(ran.exit_code, 1) << ran.out;
  EXPECT_THAT(ran.out, HasSubstr(absl::StrCat("(pid ", getpid(), ")")));
}

TEST_F(DoctorProcess, ABadConfigAndABadOptionExitWithTwo) {
  EXPECT_EQ(Doctor({Config("127.0.0.1:0", "no_such_key = 1\n")}).exit_code, 2);
  EXPECT_EQ(Doctor({dir_ + "/missing.toml"}).exit_code, 2);
  EXPECT_EQ(Doctor({"--no-such-option"}).exit_code, 2);
}

}  // namespace
}  // namespace tributary
