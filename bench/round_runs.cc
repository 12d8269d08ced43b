// Starting nodes, senders and sinks, and reading what they report.
#include "bench/round_runs.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/json_lines.h"

namespace tributary::bench {
namespace {

using nlohmann::json;

// No name that a run of its own has in a folder: it is cleared away.
constexpr char kCheckpoints[] = "bench-checkpoints";

std::string Self() { return SelfDirectory() + "/tributary"; }

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

absl::StatusOr<std::vector<Process>> StartSenders(const RoundSetup& setup,
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
    if (!setup.offers) argv.push_back("--no-offers");
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

class RealRun {
 public:
  explicit RealRun(const RoundSetup& setup) : setup_(setup) {}

  absl::StatusOr<RealResult> Run() {
    RETURN_IF_ERROR(StartNodes());
    RealResult result;
    ASSIGN_OR_RETURN(auto senders, StartSenders(setup_, doors_));
    // The end of the root's progress is the end of the run.
    const std::vector<json> lines = JsonLines(nodes_[0].stdout_fd()).Rest();
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
      result.offers = line["wait"].value("offers", uint64_t{0});
      result.unused_grants += line["wait"].value("unused_grants", uint64_t{0});
      if (setup_.racks == 0) {
        result.goodput.push_back(line["bytes"]["from_clients"].get<double>() / Window(line));
      }
    }
    result.bytes_per_second = Ingest(lines);
    result.cpu_seconds_per_gb = cpu / (bytes / 1e9);
    return result;
  }

 private:
  // Seconds from the first upload seen to the last one folded.
  static double Window(const json& line) {
    return line["collect_seconds"].get<double>() - line["phases"]["announce"].get<double>() -
           line["phases"]["train_wait"].get<double>();
  }

  // Bytes taken in per second in that time; the best round.
  double Ingest(const std::vector<json>& root) const {
    double best = 0;
    if (setup_.racks == 0) {
      for (const json& line : root)
        best = std::max(best, line["bytes"]["from_clients"].get<double>() / Window(line));
      return best;
    }
    std::vector<double> bytes(setup_.rounds, 0), seconds(setup_.rounds, 0);
    for (uint32_t rack = 0; rack < setup_.racks; ++rack) {
      const auto lines = ReadFile((setup_.out / absl::StrCat("rack-", rack, ".jsonl")).string());
      for (size_t i = 0; i < lines.size() && i < bytes.size(); ++i) {
        bytes[i] += lines[i]["bytes"]["from_clients"].get<double>();
        seconds[i] = std::max(seconds[i], Window(lines[i]));
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
    std::filesystem::remove_all(setup_.out / kCheckpoints, ignored);
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
                      (setup_.out / kCheckpoints).string()),
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

  const RoundSetup setup_;
  std::vector<Process> nodes_;
  std::vector<std::string> doors_;
};

}  // namespace

absl::StatusOr<RawResult> RunSink(const RoundSetup& setup, bool default_windows) {
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
  const std::vector<json> lines = JsonLines(sink.stdout_fd()).Rest();
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

absl::StatusOr<RealResult> RunReal(const RoundSetup& setup) { return RealRun(setup).Run(); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace tributary::bench
