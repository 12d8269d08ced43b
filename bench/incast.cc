// Three arms in one run, each an aggregator of its own.
#include "bench/incast.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/round_runs.h"

namespace tributary::bench {
namespace {

constexpr uint32_t kFew = 10;
constexpr uint64_t kParameters = 4'000'000;  // fp32: 16 MB an update

struct Arm {
  double goodput = 0;  // bytes a second; the median of the rounds after the first
  RealResult run;
};

absl::StatusOr<Arm> Run(RoundSetup setup, const std::string& name) {
  setup.out /= name;
  std::error_code ignored;
  std::filesystem::create_directories(setup.out, ignored);
  Arm arm;
  ASSIGN_OR_RETURN(arm.run, RunReal(setup));
  // The first finds no page touched and no connection used.
  arm.goodput = Median({arm.run.goodput.begin() + 1, arm.run.goodput.end()});
  return arm;
}

}  // namespace

absl::StatusOr<std::vector<Figure>> Incast(const std::string& out, uint32_t clients,
                                           uint64_t inflight_mb) {
  RoundSetup setup;
  setup.model = absl::StrCat("synthetic:", kParameters);
  setup.codec = "fp32";
  setup.sender_processes = 2;
  setup.inflight_mb = inflight_mb;
  setup.out = std::filesystem::absolute(out) / "incast";
  setup.clients = kFew;
  setup.rounds = 11;
  ASSIGN_OR_RETURN(const Arm few, Run(setup, "few"));
  setup.clients = clients;
  setup.rounds = 4;
  ASSIGN_OR_RETURN(const Arm many, Run(setup, "many"));
  setup.offers = false;
  ASSIGN_OR_RETURN(const Arm unasked, Run(setup, "unasked"));
  // As round.memory.limit_mb, and what a session may cost.
  const double limit =
      16e-6 * kParameters + static_cast<double>(inflight_mb << 20) / 1e6 + 150 + 0.2 * clients;
  const auto figure = [](const std::string& name, double value, const std::string& unit,
                         std::optional<double> ceiling, const std::string& note) {
    return Figure{.name = name, .value = value, .unit = unit, .ceiling = ceiling, .note = note};
  };
  return std::vector<Figure>{
      figure("incast.goodput_ratio", many.goodput / few.goodput, "", std::nullopt,
             absl::StrFormat("%d clients ready at once, each with 16 MB: %.2f GB/s; %d clients: "
                             "%.2f GB/s; medians of %d and %d rounds, loopback",
                             clients, many.goodput / 1e9, kFew, few.goodput / 1e9,
                             many.run.goodput.size() - 1, few.run.goodput.size() - 1)),
      figure("incast.peak_rss_mb", many.run.peak_rss / 1e6, "MB", limit,
             absl::StrFormat("the aggregator's; %.0f MB with %d clients; ceiling: 16 B a parameter "
                             "+ %d MiB in flight + 150 MB + 0.2 MB a session",
                             few.run.peak_rss / 1e6, kFew, inflight_mb)),
      figure("incast.offers", static_cast<double>(many.run.offers), "", std::nullopt,
             absl::StrFormat("of the last round; %d grants were not used", many.run.unused_grants)),
      figure("incast.unasked.goodput_ratio", unasked.goodput / few.goodput, "", std::nullopt,
             absl::StrFormat("as many clients that open their uploads at once: %.2f GB/s",
                             unasked.goodput / 1e9)),
      figure("incast.unasked.peak_rss_mb", unasked.run.peak_rss / 1e6, "MB", limit,
             "the aggregator's, with those")};
}

}  // namespace tributary::bench
