// Strangers at every port of a running aggregator: nobody hangs, and the run is what it would be.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/e2e/cluster.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

// TCP ports that the process listens on, from /proc: its sockets' inodes against the table.
std::set<int> ListeningPorts(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code ignored;
  for (const auto& fd : fs::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), ignored)) {
    const std::string target = fs::read_symlink(fd.path(), ignored).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  std::set<int> ports;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/net/", table));
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, word, inode;
      words >> number >> local >> remote >> state;
      for (int i = 0; i < 6; ++i) words >> inode;  // the tenth column
      constexpr const char* kListen = "0A";
      if (state == kListen && inodes.contains(inode)) {
        ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
      }
    }
  }
  return ports;
}

// Says `words` and no more, and waits for the other side to end the connection.
void ExpectItEnds(int port, const std::string& words) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0) << port;
  const timeval patience{.tv_sec = 30, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  EXPECT_EQ(send(fd, words.data(), words.size(), MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
  shutdown(fd, SHUT_WR);
  char buffer[4096];
  ssize_t n = 0;
  while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
  }
  EXPECT_TRUE(n == 0 || errno == ECONNRESET)
      << "port " << port << " holds on to a stranger: " << std::strerror(errno);
  close(fd);
}

// The hash of a run of two clients, one of them behind a rack.
std::string HashAfter(bool strangers) {
  Cluster run;
  constexpr int kRounds = 3;
  const int root = run.Port(), rack = run.Port();
  run.Root(root, "", kRounds, 2);
  run.Rack("rack-0", rack, root);
  if (strangers) {
    for (const auto& [name, front_door] : {std::pair("global", root), std::pair("rack-0", rack)}) {
      // The front door, and the links' port.
      const absl::Time limit = absl::Now() + kPatience;
      std::set<int> ports;
      while ((ports = ListeningPorts(run[name].pid())).size() < 2 && absl::Now() < limit) {
        absl::SleepFor(absl::Milliseconds(5));  // another process's sockets: no event to wait for
      }
      EXPECT_THAT(ports, testing::Contains(front_door)) << run.Log(name);
      EXPECT_GE(ports.size(), 2u) << run.Log(name);
      for (const int port : ports) {
        ExpectItEnds(port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        ExpectItEnds(port, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) +
                               std::string(500, 'r'));
        ExpectItEnds(port, std::string("TRIBLINK\0\0\0\0\0\0\0\x80", 16));
        ExpectItEnds(port, std::string(64, '\xff'));
        ExpectItEnds(port, "");
      }
    }
  }
  run.Client("c0", {root});
  run.Client("c1", {rack});
  EXPECT_EQ(run.ExitCode("global"), 0) << run.Log("global");
  EXPECT_EQ(run.ExitCode("rack-0"), 0) << run.Log("rack-0");
  return run.ModelHash(kRounds);
}

TEST(EndToEnd, StrangersAtEveryPortChangeNothing) {
  EXPECT_EQ(HashAfter(/*strangers=*/true), HashAfter(/*strangers=*/false));
}

}  // namespace
}  // namespace tributary
