// Private to client/trainer: tributary-client's log.
#pragma once

#include <string>

namespace tributary::client::trainer {

// The process's default spdlog logger, to standard error: for people, or one JSON object a line.
void SetUpLog(const std::string& level, const std::string& format);

}  // namespace tributary::client::trainer
