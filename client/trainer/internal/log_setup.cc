// The log's patterns.
#include "client/trainer/internal/log_setup.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>

namespace tributary::client::trainer {
namespace {

// %J: the message, escaped for a JSON string (RFC 8259). Bytes above 127 pass as they are.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    for (const char c : message.payload) {
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(c);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        char escaped[8];
        std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
        for (const char* at = escaped; *at != '\0'; ++at) out.push_back(*at);
      } else {
        out.push_back(c);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

}  // namespace

void SetUpLog(const std::string& level, const std::string& format) {
  auto logger = std::make_shared<spdlog::logger>(
      "tributary-client", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessage>('J');
  formatter->set_pattern(format == "json"
                             ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":"%J"})"
                             : "%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace tributary::client::trainer
