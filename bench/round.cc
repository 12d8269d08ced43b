// `tributary bench round`: whole rounds by real processes, without training, against a bare gRPC
// sink.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/process.h"
#include "base/status.h"
#include "bench/async.h"
#include "bench/commands.h"
#include "bench/figures.h"
#include "bench/recovery.h"
#include "bench/simulated.h"
#include "models/builtin.h"

namespace tributary::bench {
namespace {

using nlohmann::json;

std::string Self() { return SelfDirectory() + "/tributary"; }

// Reads whole lines until the writer ends.
std::vector<json> ReadLines(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(fd, buffer, sizeof(buffer))) > 0) text.append(buffer, static_cast<size_t>(n));
  std::vector<json> out;
  for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    json parsed = json::parse(std::string(line), nullptr, false);
    if (!parsed.is_discarded()) out.push_back(std::move(parsed));
  }
  return out;
}

std::vector<json> ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::vector<json> out;
  std::string line;
  while (std::getline(file, line)) {
    json parsed = json::parse(line, nullptr, false);
    if (!parsed.is_discarded()) out.push_back(std::move(parsed));
  }
  return out;
}

struct Setup {
  uint32_t clients;
  std::string model;
  std::string codec;
  uint32_t racks;  // 0: flat
  uint32_t rounds;
  uint32_t sender_processes;
  uint64_t inflight_mb;
  uint32_t joins_per_s = 0;  // of all sender processes together; 0: all at once
  std::filesystem::path out;
};

absl::StatusOr<std::vector<Process>> StartSenders(const Setup& setup,
                                                  const std::vector<std::string>& endpoints) {
  std::vector<Process> out;
  const uint32_t processes = std::min(setup.sender_processes, setup.clients);
  uint32_t first = 0;
  for (uint32_t i = 0; i < processes; ++i) {
    const uint32_t count = setup.clients / processes + (i < setup.clients % processes ? 1 : 0);
    std::vector<std::string> argv = {Self(),
                                     "bench",
                                     "senders",
                                     "--first",
                                     std::to_string(first),
                                     "--count",
                                     std::to_string(count),
                                     "--model",
                                     setup.model,
                                     "--codec",
                                     setup.codec};
    if (setup.joins_per_s > 0) {
      argv.insert(argv.end(),
                  {"--joins-per-s", std::to_string(std::max(1u, setup.joins_per_s / processes))});
    }
    for (const std::string& endpoint : endpoints) argv.insert(argv.end(), {"--endpoint", endpoint});
    ASSIGN_OR_RETURN(
        Process process,
        Process::Start(argv,
                       {.log_file = (setup.out / absl::StrCat("senders-", i, ".log")).string()}));
    out.push_back(std::move(process));
    first += count;
  }
  return out;
}

struct RawResult {
  double bytes_per_second = 0;  // best round
  double cpu_seconds_per_gb = 0;
};

absl::StatusOr<RawResult> RunSink(const Setup& setup, bool default_windows) {
  ASSIGN_OR_RETURN(const int port, FreePort());
  std::vector<std::string> argv = {Self(),
                                   "bench",
                                   "sink",
                                   "--port",
                                   std::to_string(port),
                                   "--clients",
                                   std::to_string(setup.clients),
                                   "--rounds",
                                   std::to_string(setup.rounds),
                                   "--model",
                                   setup.model,
                                   "--codec",
                                   setup.codec};
  if (default_windows) argv.push_back("--default-windows");
  ASSIGN_OR_RETURN(
      Process sink,
      Process::Start(argv, {.log_file = (setup.out / "sink.log").string(), .pipe_stdout = true}));
  ASSIGN_OR_RETURN(auto senders, StartSenders(setup, {absl::StrCat("127.0.0.1:", port)}));
  const std::vector<json> lines = ReadLines(sink.stdout_fd());
  RETURN_IF_ERROR(sink.Wait(absl::Seconds(30)).status());
  const double cpu = sink.cpu_seconds();
  if (lines.size() != setup.rounds)
    return absl::AbortedError(
        absl::StrCat("the sink failed; see ", (setup.out / "sink.log").string()));
  RawResult result;
  double bytes = 0;
  for (const json& line : lines) {
    bytes += line["bytes"].get<double>();
    result.bytes_per_second = std::max(result.bytes_per_second,
                                       line["bytes"].get<double>() / line["seconds"].get<double>());
  }
  result.cpu_seconds_per_gb = cpu / (bytes / 1e9);
  for (Process& process : senders) RETURN_IF_ERROR(process.Wait(absl::Seconds(30)).status());
  return result;
}

struct RealResult {
  double bytes_per_second = 0;  // best round
  double cpu_seconds_per_gb = 0;
  double peak_rss = 0;      // of the largest aggregator
  double root_ingress = 0;  // bytes a round
  std::vector<double> round_seconds;
  std::string transport;
};

class RealRun {
 public:
  explicit RealRun(const Setup& setup) : setup_(setup) {}

  absl::StatusOr<RealResult> Run() {
    RETURN_IF_ERROR(StartNodes());
    RealResult result;
    ASSIGN_OR_RETURN(auto senders, StartSenders(setup_, doors_));
    // The end of the root's progress is the end of the run.
    const std::vector<json> lines = ReadLines(nodes_[0].stdout_fd());
    double cpu = 0;
    for (Process& node : nodes_) {
      RETURN_IF_ERROR(node.Wait(absl::Seconds(60)).status());
      cpu += node.cpu_seconds();
      result.peak_rss = std::max(result.peak_rss, static_cast<double>(node.peak_resident_bytes()));
    }
    for (Process& process : senders) RETURN_IF_ERROR(process.Wait(absl::Seconds(60)).status());
    if (lines.size() < setup_.rounds) {
      return absl::AbortedError(
          absl::StrCat("the run ended early; see ", (setup_.out / "global.log").string()));
    }
    double bytes = 0;
    for (const json& line : lines) {
      if (!line.value("committed", false)) {
        return absl::AbortedError(absl::StrCat("a round failed: ", line.value("why_not", "")));
      }
      bytes += line["bytes"]["updates_below"].get<double>();
      result.round_seconds.push_back(line["seconds"].get<double>());
      result.root_ingress = line["bytes"]["from_clients"].get<double>() +
                            line["bytes"]["from_aggregators"].get<double>();
      result.transport = line.value("transport", "");
    }
    result.bytes_per_second = Ingest(lines);
    result.cpu_seconds_per_gb = cpu / (bytes / 1e9);
    return result;
  }

 private:
  // Bytes taken in per second from the first upload seen to the last one folded; the best round.
  double Ingest(const std::vector<json>& root) const {
    const auto window = [](const json& line) {
      return line["collect_seconds"].get<double>() - line["phases"]["announce"].get<double>() -
             line["phases"]["train_wait"].get<double>();
    };
    double best = 0;
    if (setup_.racks == 0) {
      for (const json& line : root)
        best = std::max(best, line["bytes"]["from_clients"].get<double>() / window(line));
      return best;
    }
    std::vector<double> bytes(setup_.rounds, 0), seconds(setup_.rounds, 0);
    for (uint32_t rack = 0; rack < setup_.racks; ++rack) {
      const auto lines = ReadFile((setup_.out / absl::StrCat("rack-", rack, ".jsonl")).string());
      for (size_t i = 0; i < lines.size() && i < bytes.size(); ++i) {
        bytes[i] += lines[i]["bytes"]["from_clients"].get<double>();
        seconds[i] = std::max(seconds[i], window(lines[i]));
      }
    }
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (seconds[i] > 0) best = std::max(best, bytes[i] / seconds[i]);
    }
    return best;
  }

  absl::Status StartNode(const std::string& name, const std::string& parent,
                         const std::string& extra, int* port) {
    ASSIGN_OR_RETURN(*port, FreePort());
    const std::string file = (setup_.out / (name + ".toml")).string();
    std::ofstream(file) << absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:%d\"\n%s\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n\n"
        "[limits]\ninflight_bytes = %d\nfold_workers = 1\n\n%s",
        name, *port, parent.empty() ? "" : absl::StrFormat("parent = \"%s\"\n", parent),
        setup_.inflight_mb << 20, extra);
    ASSIGN_OR_RETURN(
        Process process,
        Process::Start(
            {Self(), "serve", file, "--progress", parent.empty() ? "json" : "none"},
            {.log_file = (setup_.out / (name + ".log")).string(), .pipe_stdout = parent.empty()}));
    nodes_.push_back(std::move(process));
    return absl::OkStatus();
  }

  absl::Status StartNodes() {
    std::error_code ignored;
    std::filesystem::remove_all(setup_.out / "checkpoints", ignored);
    for (uint32_t i = 0; i < 64; ++i)
      std::filesystem::remove(setup_.out / absl::StrCat("rack-", i, ".jsonl"), ignored);
    int root_port = 0;
    RETURN_IF_ERROR(
        StartNode("global", "",
                  absl::StrFormat(
                      "[run]\nname = \"bench\"\nrounds = %d\nmodel = \"%s\"\nevaluate_every = 0\n\n"
                      "[cohort]\nminimum = %d\n\n[straggler]\ndeadline = \"fixed\"\ndeadline_s = "
                      "1800\n\n[compression]\ncodec = \"%s\"\n\n"
                      "[aggregation]\nmax_round_weight = 16777216\n\n[checkpoint]\ndirectory = "
                      "\"%s\"\nkeep = 1\n",
                      setup_.rounds, setup_.model, setup_.clients, setup_.codec,
                      (setup_.out / "checkpoints").string()),
                  &root_port));
    const std::string root = absl::StrCat("127.0.0.1:", root_port);
    doors_ = {root};
    if (setup_.racks > 0) doors_.clear();
    for (uint32_t i = 0; i < setup_.racks; ++i) {
      int port = 0;
      RETURN_IF_ERROR(
          StartNode(absl::StrCat("rack-", i), root,
                    absl::StrFormat("[metrics]\nrounds_file = \"%s\"\n",
                                    (setup_.out / absl::StrCat("rack-", i, ".jsonl")).string()),
                    &port));
      doors_.push_back(absl::StrCat("127.0.0.1:", port));
    }
    return absl::OkStatus();
  }

  const Setup setup_;
  std::vector<Process> nodes_;
  std::vector<std::string> doors_;
};

Setup SetupOf(const RoundOptions& o) {
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

absl::StatusOr<std::vector<Figure>> Ingest(const RoundOptions& o) {
  const Setup setup = SetupOf(o);
  const std::string topology = setup.racks == 0 ? "flat" : "two_tier";
  const std::string name = absl::StrCat("round.ingest.", CodecName(o.codec), ".", topology);
  ASSIGN_OR_RETURN(const RawResult raw, RunSink(setup, /*default_windows=*/false));
  ASSIGN_OR_RETURN(const RawResult plain, RunSink(setup, /*default_windows=*/true));
  ASSIGN_OR_RETURN(const RealResult real, RealRun(setup).Run());
  std::vector<Figure> figures;
  figures.push_back({.name = name,
                     .value = real.bytes_per_second / 1e9,
                     .unit = "GB/s",
                     .ceiling = raw.bytes_per_second / 1e9,
                     .note = "encoded bytes folded; ceiling: the same senders into a gRPC sink "
                             "with the front door's windows"});
  figures.push_back({.name = name + ".default_windows",
                     .value = real.bytes_per_second / 1e9,
                     .unit = "GB/s",
                     .ceiling = plain.bytes_per_second / 1e9,
                     .note = "the same; ceiling: that sink with gRPC's own windows"});
  figures.push_back(
      {.name = absl::StrCat("round.ingest.", CodecName(o.codec), ".extra_cpu_s_per_gb",
                            setup.racks == 0 ? "" : ".two_tier"),
       .value = real.cpu_seconds_per_gb - raw.cpu_seconds_per_gb,
       .unit = "s/GB",
       .ceiling = std::nullopt,
       .note = absl::StrFormat("aggregators %.3f, sink %.3f; start, apply and checkpoint included",
                               real.cpu_seconds_per_gb, raw.cpu_seconds_per_gb)});
  figures.push_back(
      {.name = absl::StrCat("round.root_ingress_bytes.", topology),
       .value = real.root_ingress,
       .unit = "B",
       .ceiling = std::nullopt,
       .note = absl::StrCat("a round, ", setup.clients, " clients, transport ", real.transport)});
  figures.push_back({.name = "round.memory.aggregator_rss_mb",
                     .value = real.peak_rss / 1e6,
                     .unit = "MB",
                     .ceiling = std::nullopt,
                     .note = "peak of the largest aggregator"});
  ASSIGN_OR_RETURN(auto layout, models::BuiltinLayout(o.model));
  figures.push_back({.name = "round.memory.limit_mb",
                     .value = (16.0 * static_cast<double>(layout->elements()) +
                               static_cast<double>(setup.inflight_mb << 20)) /
                                  1e6 +
                              150,
                     .unit = "MB",
                     .ceiling = std::nullopt,
                     .note = "8 B x parameters x 2 + in-flight budget + 150 MB"});
  if (o.memory && o.clients > 20) {
    Setup small = setup;
    small.clients = 20;
    ASSIGN_OR_RETURN(const RealResult few, RealRun(small).Run());
    figures.push_back({.name = "round.memory.growth_20_to_200",
                       .value = real.peak_rss / few.peak_rss,
                       .unit = "x",
                       .ceiling = std::nullopt,
                       .note = absl::StrFormat("%.0f MB with 20 clients", few.peak_rss / 1e6)});
  }
  return figures;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

absl::StatusOr<std::vector<Figure>> Overhead(const RoundOptions& o) {
  std::vector<Figure> figures;
  for (const bool flat : {true, false}) {
    Setup setup = SetupOf(o);
    setup.clients = 100;
    setup.model = "synthetic:1000";
    setup.rounds = 50;
    setup.racks = flat ? 0 : o.racks;
    ASSIGN_OR_RETURN(const RealResult real, RealRun(setup).Run());
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
  Setup setup = SetupOf(o);
  setup.racks = 0;
  setup.model = "synthetic:1000";
  setup.rounds = 5;
  setup.sender_processes = std::max<uint32_t>(2, o.clients / 1000);
  setup.joins_per_s = 500;  // 10,000 handshakes at once would measure two cores' patience
  Setup few = setup;
  few.clients = 1;
  ASSIGN_OR_RETURN(const RealResult one, RealRun(few).Run());
  ASSIGN_OR_RETURN(const RealResult many, RealRun(setup).Run());
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

}  // namespace

int Round(const RoundOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  const auto figures = options.scenario == "overhead"    ? Overhead(options)
                       : options.scenario == "sessions"  ? Sessions(options)
                       : options.scenario == "simulated" ? SimulatedAgainstReal(options.out)
                       : options.scenario == "recovery"  ? Recovery(options.out)
                       : options.scenario == "async"
                           ? AsyncAgainstSync(options.out, std::min(options.clients, 100u))
                           : Ingest(options);
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
