// Runs an independent Python reference from tests/reference/ and hands back what it printed.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace tributary::models {

// `arguments`: the script's name and its arguments. Standard output, or "exit N" when the script
// failed (its own message is on standard error then). The system's interpreter is taken: the one
// that has numpy.
inline std::string RunPython(const std::string& arguments) {
  const std::string command =
      "/usr/bin/python3 " TRIBUTARY_SOURCE_DIR "/tests/reference/" + arguments;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "cannot start /usr/bin/python3";
  std::string out;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) out.append(buffer, n);
  const int status = pclose(pipe);
  if (status != 0) return "exit " + std::to_string(WEXITSTATUS(status));
  return out;
}

}  // namespace tributary::models
