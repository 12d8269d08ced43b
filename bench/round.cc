// `tributary bench round`: whole rounds by real processes, without training, against a bare gRPC
// sink.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "bench/async.h"
#include "bench/commands.h"
#include "bench/figures.h"
#include "bench/incast.h"
#include "bench/recovery.h"
#include "bench/round_runs.h"
#include "bench/simulated.h"
#include "bench/stragglers.h"
#include "models/builtin.h"

namespace tributary::bench {
namespace {

constexpr uint32_t kFewClients = 20;  // that the growth of memory is measured from

RoundSetup SetupOf(const RoundOptions& o) {
  return {.clients = o.clients,
          .model = o.model,
          .codec = o.codec,
          .racks = o.topology == "flat" ? 0 : o.racks,
          .rounds = o.rounds,
          .sender_processes = o.sender_processes,
          .inflight_mb = o.inflight_mb,
          .out = std::filesystem::absolute(o.out)};
}

std::string CodecName(const std::string& spec) { return spec.substr(0, spec.find('(')); }

// Ceilings and rounds in turn, since a shared machine's speed moves from minute to minute.
struct IngestRuns {
  std::vector<double> rate, sink_rate, plain_rate;  // bytes a second
  std::vector<double> cpu, sink_cpu;                // seconds a GB
  double peak_rss = 0;
  RealResult last{};
};

absl::StatusOr<IngestRuns> RunIngest(const RoundSetup& setup, uint32_t repetitions) {
  IngestRuns runs;
  for (uint32_t i = 0; i < std::max(1u, repetitions); ++i) {
    ASSIGN_OR_RETURN(const RawResult sink, RunSink(setup, /*default_windows=*/false));
    ASSIGN_OR_RETURN(const RawResult plain, RunSink(setup, /*default_windows=*/true));
    ASSIGN_OR_RETURN(runs.last, RunReal(setup));
    runs.rate.push_back(runs.last.bytes_per_second);
    runs.sink_rate.push_back(sink.bytes_per_second);
    runs.plain_rate.push_back(plain.bytes_per_second);
    runs.cpu.push_back(runs.last.cpu_seconds_per_gb);
    runs.sink_cpu.push_back(sink.cpu_seconds_per_gb);
    runs.peak_rss = std::max(runs.peak_rss, runs.last.peak_rss);
  }
  return runs;
}

std::string EachInGb(const std::vector<double>& rates) {
  return absl::StrJoin(rates, ", ", [](std::string* out, double rate) {
    absl::StrAppendFormat(out, "%.2f", rate / 1e9);
  });
}

std::vector<Figure> SpeedFigures(const RoundOptions& o, const IngestRuns& runs) {
  const bool flat = o.topology == "flat";
  const std::string ingest = absl::StrCat("round.ingest.", CodecName(o.codec), ".");
  const std::string name = absl::StrCat(ingest, flat ? "flat" : "two_tier");
  const double rate = Median(runs.rate) / 1e9;
  const double cpu = Median(runs.cpu), sink_cpu = Median(runs.sink_cpu);
  return {
      {.name = name,
       .value = rate,
       .unit = "GB/s",
       .ceiling = Median(runs.sink_rate) / 1e9,
       .note = absl::StrCat("encoded bytes folded; ceiling: the same senders into a gRPC sink with "
                            "the front door's windows; medians of ",
                            EachInGb(runs.rate), " and ", EachInGb(runs.sink_rate))},
      {.name = name + ".default_windows",
       .value = rate,
       .unit = "GB/s",
       .ceiling = Median(runs.plain_rate) / 1e9,
       .note = "the same; ceiling: that sink with gRPC's own windows"},
      {.name = absl::StrCat(ingest, "extra_cpu_s_per_gb", flat ? "" : ".two_tier"),
       .value = cpu - sink_cpu,
       .unit = "s/GB",
       .ceiling = std::nullopt,
       .note = absl::StrFormat("aggregators %.3f, sink %.3f; start, apply and checkpoint included",
                               cpu, sink_cpu)}};
}

absl::StatusOr<std::vector<Figure>> MemoryFigures(const RoundOptions& o, const RoundSetup& setup,
                                                  const IngestRuns& runs) {
  ASSIGN_OR_RETURN(auto layout, models::BuiltinLayout(o.model));
  const double limit =
      16.0 * static_cast<double>(layout->elements()) + static_cast<double>(setup.inflight_mb << 20);
  std::vector<Figure> figures = {{.name = "round.memory.aggregator_rss_mb",
                                  .value = runs.peak_rss / 1e6,
                                  .unit = "MB",
                                  .ceiling = std::nullopt,
                                  .note = "peak of the largest aggregator, of all runs"},
                                 {.name = "round.memory.limit_mb",
                                  .value = limit / 1e6 + 150,
                                  .unit = "MB",
                                  .ceiling = std::nullopt,
                                  .note = "8 B x parameters x 2 + in-flight budget + 150 MB"}};
  if (!o.memory || o.clients <= kFewClients) return figures;
  // As many updates in all, so that both peaks are the highest of as many moments.
  RoundSetup small = setup;
  small.clients = kFewClients;
  small.rounds = setup.rounds * (setup.clients / kFewClients);
  ASSIGN_OR_RETURN(const RealResult few, RunReal(small));
  figures.push_back(
      {.name = "round.memory.growth_20_to_200",
       .value = runs.last.peak_rss / few.peak_rss,
       .unit = "x",
       .ceiling = std::nullopt,
       .note = absl::StrFormat("%.0f MB with %d clients, as many updates in %d rounds",
                               few.peak_rss / 1e6, kFewClients, small.rounds)});
  return figures;
}

absl::StatusOr<std::vector<Figure>> Ingest(const RoundOptions& o) {
  const RoundSetup setup = SetupOf(o);
  ASSIGN_OR_RETURN(const IngestRuns runs, RunIngest(setup, o.repetitions));
  std::vector<Figure> figures = SpeedFigures(o, runs);
  figures.push_back(
      {.name = absl::StrCat("round.root_ingress_bytes.", setup.racks == 0 ? "flat" : "two_tier"),
       .value = runs.last.root_ingress,
       .unit = "B",
       .ceiling = std::nullopt,
       .note =
           absl::StrCat("a round, ", setup.clients, " clients, transport ", runs.last.transport)});
  ASSIGN_OR_RETURN(const std::vector<Figure> memory, MemoryFigures(o, setup, runs));
  figures.insert(figures.end(), memory.begin(), memory.end());
  return figures;
}

absl::StatusOr<std::vector<Figure>> Overhead(const RoundOptions& o) {
  std::vector<Figure> figures;
  for (const bool flat : {true, false}) {
    RoundSetup setup = SetupOf(o);
    setup.clients = 100;
    setup.model = "synthetic:1000";
    setup.rounds = 50;
    setup.racks = flat ? 0 : o.racks;
    ASSIGN_OR_RETURN(const RealResult real, RunReal(setup));
    std::vector<double> steady(real.round_seconds.begin() + 1, real.round_seconds.end());
    figures.push_back({.name = flat ? "round.overhead.flat_ms" : "round.overhead.two_tier_ms",
                       .value = Median(steady) * 1e3,
                       .unit = "ms",
                       .ceiling = std::nullopt,
                       .note = absl::StrFormat(
                           "median of %d rounds; worst %.1f ms", static_cast<int>(steady.size()),
                           *std::max_element(steady.begin(), steady.end()) * 1e3)});
  }
  return figures;
}

// Live sessions: what a thousand cost in memory, and a round of them.
absl::StatusOr<std::vector<Figure>> Sessions(const RoundOptions& o) {
  RoundSetup setup = SetupOf(o);
  setup.racks = 0;
  setup.model = "synthetic:1000";
  setup.rounds = 5;
  setup.sender_processes = std::max<uint32_t>(2, o.clients / 1000);
  setup.joins_per_s = 500;  // 10,000 handshakes at once would measure two cores' patience
  RoundSetup few = setup;
  few.clients = 1;
  ASSIGN_OR_RETURN(const RealResult one, RunReal(few));
  ASSIGN_OR_RETURN(const RealResult many, RunReal(setup));
  std::vector<double> steady(many.round_seconds.begin() + 1, many.round_seconds.end());
  return std::vector<Figure>{
      {.name = "round.sessions.rss_kb",
       .value = (many.peak_rss - one.peak_rss) / 1024 / (setup.clients - 1),
       .unit = "KB",
       .ceiling = std::nullopt,
       .note = absl::StrFormat("a session, peak over %d rounds with %d live clients", setup.rounds,
                               setup.clients)},
      {.name = "round.sessions.round_ms",
       .value = Median(steady) * 1e3,
       .unit = "ms",
       .ceiling = std::nullopt,
       .note = absl::StrFormat("median round with %d clients", setup.clients)}};
}

uint32_t DefaultClients(const std::string& scenario) {
  if (scenario == "incast") return 1000;
  return scenario == "stragglers" || scenario == "async" ? 100 : 200;
}

absl::StatusOr<std::vector<Figure>> Run(const RoundOptions& o) {
  if (o.scenario == "overhead") return Overhead(o);
  if (o.scenario == "sessions") return Sessions(o);
  if (o.scenario == "incast") return Incast(o.out, o.clients, o.inflight_mb);
  if (o.scenario == "stragglers") return StragglersAgainstWaiting(o.out);
  if (o.scenario == "recovery") return Recovery(o.out);
  if (o.scenario == "simulated") return SimulatedAgainstReal(o.out);
  if (o.scenario == "async") return AsyncAgainstSync(o.out, o.clients);
  return Ingest(o);
}

}  // namespace

int Round(const RoundOptions& given) {
  RoundOptions options = given;
  if (options.clients == 0) options.clients = DefaultClients(options.scenario);
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  const auto figures = Run(options);
  absl::Status status = figures.status();
  if (figures.ok()) {
    Print(*figures);
    status = WriteJson(
        options.json, *figures,
        {options.scenario, options.model, options.codec, options.topology,
         absl::StrCat("clients=", options.clients), absl::StrCat("rounds=", options.rounds)});
  }
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", Text(status).c_str());
  return 1;
}

}  // namespace tributary::bench
