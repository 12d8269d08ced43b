// The log's sinks and patterns.
#include "base/log_setup.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tributary {
namespace {

// %J: the message as a JSON string, in its quotes.
class JsonMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const nlohmann::json text(std::string(message.payload.data(), message.payload.size()));
    const std::string quoted = text.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    out.append(quoted.data(), quoted.data() + quoted.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonMessage>();
  }
};

absl::StatusOr<spdlog::sink_ptr> MakeSink(const std::string& file) {
  if (file.empty()) return std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  // spdlog would throw.
  std::FILE* probe = std::fopen(file.c_str(), "a");
  if (probe == nullptr)
    return absl::PermissionDeniedError(absl::StrCat("cannot append to [log] file ", file));
  std::fclose(probe);
  return std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
}

}  // namespace

absl::Status SetUpLog(const LogOptions& options) {
  auto sink = MakeSink(options.file);
  if (!sink.ok()) return sink.status();
  auto logger = std::make_shared<spdlog::logger>(options.name, *std::move(sink));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<JsonMessage>('J');
  formatter->set_pattern(options.format == "json"
                             ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":%J})"
                             : "%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace tributary
