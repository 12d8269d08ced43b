// `tributary bench transport`: links between two processes of this machine, each figure beside what
// the machine gives without a link, measured in turn.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log_setup.h"
#include "base/status.h"
#include "bench/commands.h"
#include "bench/figures.h"
#include "bench/transport_perftest.h"
#include "bench/transport_runs.h"
#include "compression/codec.h"

namespace tributary::bench {
namespace {

constexpr size_t kFigureSize = size_t{1} << 20;  // the protocol's chunks: the named figures
constexpr uint32_t kPingRounds = 2000;

// "64", "4K", "1M", "2G": powers of 1024.
absl::StatusOr<uint64_t> ParseSize(const std::string& text) {
  const size_t unit = text.empty() ? 0 : std::string("KMG").find(text.back()) + 1;
  uint64_t value = 0;
  if (!absl::SimpleAtoi(unit == 0 ? text : text.substr(0, text.size() - 1), &value) || value == 0 ||
      value > uint64_t{1} << 40 >> (10 * unit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no size; write 64, 4K, 1M or 2G"));
  }
  return value << (10 * unit);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <typename Result>
double MedianOf(const std::vector<Result>& results,
                const std::function<double(const Result&)>& of) {
  std::vector<double> values;
  values.reserve(results.size());
  for (const Result& result : results) values.push_back(of(result));
  return Median(std::move(values));
}

std::string SizeText(size_t size) {
  if (size % (1 << 20) == 0) return absl::StrCat(size >> 20, "M");
  if (size % (1 << 10) == 0) return absl::StrCat(size >> 10, "K");
  return absl::StrCat(size);
}

// fp32 onto the grid, as a receiver of updates does it.
class Folder {
 public:
  explicit Folder(size_t bytes) : sums_(bytes / sizeof(float)) {}
  void Fold(ByteSpan payload) {
    codec_->Fold(PiecedBytes(payload), 0, payload.size() / sizeof(float), {}, sums_.data());
  }

 private:
  std::shared_ptr<const compression::Codec> codec_ = compression::MakeCodec("fp32").value();
  std::vector<int64_t> sums_;
};

// Bytes per second of folding alone, over as many buffers as a link has slots.
double FoldCeiling(const Shape& shape) {
  std::vector<uint8_t> memory(shape.slots * shape.size);
  auto* floats = reinterpret_cast<float*>(memory.data());
  std::fill(floats, floats + memory.size() / sizeof(float), 0.015625F);
  Folder folder(shape.size);
  const uint64_t chunks = shape.bytes / shape.size;
  const double start = WallSeconds();
  for (uint64_t i = 0; i < chunks; ++i) {
    folder.Fold({memory.data() + (i % shape.slots) * shape.size, shape.size});
  }
  return static_cast<double>(chunks * shape.size) / (WallSeconds() - start);
}

class Bench {
 public:
  explicit Bench(int repetitions) : repetitions_(repetitions) {}

  // A link's stream and its ceiling, in turn.
  absl::Status Stream(const Shape& shape, const std::string& suffix) {
    std::vector<StreamResult> link, bare;
    for (int i = 0; i < repetitions_; ++i) {
      RETURN_IF_ERROR(AddBare(Bare(shape), shape.kind, &bare));
      ASSIGN_OR_RETURN(const StreamResult l, LinkStream(shape, {}));
      link.push_back(l);
    }
    AddStream(shape, suffix, link, bare);
    stream_ = MedianOf<StreamResult>(link, [](const auto& r) { return r.rate; });
    return absl::OkStatus();
  }

  // How much of a tcp stream's lead over plain sockets is its send buffer: theirs bounded alike.
  absl::Status BoundedSockets(Shape shape, const std::string& suffix) {
    shape.send_buffer = 256 << 10;
    std::vector<StreamResult> bare;
    for (int i = 0; i < repetitions_; ++i) {
      ASSIGN_OR_RETURN(const StreamResult b, SocketStream(shape));
      bare.push_back(b);
    }
    Add("transport.tcp.stream_bounded" + suffix, stream_ / 1e9, "GB/s",
        MedianOf<StreamResult>(bare, [](const auto& r) { return r.rate; }) / 1e9,
        "the same stream; ceiling: plain sockets with the link's own send buffer of 256 KiB");
    return absl::OkStatus();
  }

  // What the comparison of shared memory with tcp needs: the same work on the sender's side. tcp's
  // `stream` makes its chunks in their slots and shm's copies them in; this is the other way.
  absl::Status OtherPayload(const Shape& shape) {
    const bool copied = shape.kind == "tcp";
    std::vector<double> rates;
    for (int i = 0; i < repetitions_; ++i) {
      ASSIGN_OR_RETURN(const StreamResult result,
                       LinkStream(shape, {}, copied ? Payload::kCopied : Payload::kInPlace));
      rates.push_back(result.rate);
    }
    const double rate = Median(rates);
    Add(absl::StrCat("transport.", shape.kind, copied ? ".stream_filled" : ".stream_in_place"),
        rate / 1e9, "GB/s", std::nullopt,
        copied ? "each chunk copied in from 128 MiB, as transport.shm.stream does it"
               : "each chunk made in its slot, as transport.tcp.stream does it");
    if (copied) {
      tcp_copied_ = rate, tcp_in_place_ = stream_;
    } else if (tcp_copied_ > 0) {
      Add("transport.shm.over_tcp", rate / tcp_in_place_, "times", std::nullopt,
          "streams whose chunks are made in their slots");
      Add("transport.shm.over_tcp.filled", stream_ / tcp_copied_, "times", std::nullopt,
          "streams whose chunks are copied in from 128 MiB");
    }
    return absl::OkStatus();
  }

  // Received and folded onto the grid, beside the slower of the two alone, in turn with both.
  absl::Status StreamFold(const Shape& shape) {
    std::vector<double> rates, folds, streams;
    for (int i = 0; i < repetitions_; ++i) {
      folds.push_back(FoldCeiling(shape));
      ASSIGN_OR_RETURN(const StreamResult alone, LinkStream(shape, {}));
      streams.push_back(alone.rate);
      Folder folder(shape.size);
      ASSIGN_OR_RETURN(const StreamResult result,
                       LinkStream(shape, [&](const auto& chunk) { folder.Fold(chunk.bytes()); }));
      rates.push_back(result.rate);
    }
    const double fold = Median(folds);
    Add(absl::StrCat("transport.", shape.kind, ".stream_fold"), Median(rates) / 1e9, "GB/s",
        std::min(fold, Median(streams)) / 1e9,
        absl::StrFormat("ceiling: the smaller of the stream and folding alone (%.2f GB/s)",
                        fold / 1e9));
    return absl::OkStatus();
  }

  absl::Status Ping(const Shape& shape) {
    std::vector<PingResult> link, bare;
    for (int i = 0; i < repetitions_; ++i) {
      RETURN_IF_ERROR(AddBare(BarePing(shape), shape.kind, &bare));
      ASSIGN_OR_RETURN(const PingResult l, LinkPing(shape));
      link.push_back(l);
    }
    const std::string name =
        absl::StrCat("transport.", shape.kind, ".rtt_", SizeText(shape.size), "_us");
    AddPing(name, link, bare,
            shape.kind == "shm" ? "p50; beside it two flags in shared memory, both sides spinning"
            : shape.kind == "tcp"
                ? "p50; beside it a plain socket ping-pong; less is better"
                : absl::StrCat("p50; beside it twice ib_send_lat's typical", PerftestTrouble()),
            [](const auto& r) { return r.p50_us; });
    AddPing(name + ".p95", link, bare, "", [](const auto& r) { return r.p95_us; });
    AddPing(name + ".p99", link, bare, "", [](const auto& r) { return r.p99_us; });
    return absl::OkStatus();
  }

  const std::vector<Figure>& figures() const { return figures_; }

 private:
  void AddStream(const Shape& shape, const std::string& suffix,
                 const std::vector<StreamResult>& link, const std::vector<StreamResult>& bare) {
    const auto add = [&](const char* name, const char* unit, std::string note, bool ceiling,
                         const std::function<double(const StreamResult&)>& of) {
      Add(absl::StrCat("transport.", shape.kind, ".", name, suffix),
          MedianOf<StreamResult>(link, of), unit,
          ceiling && !bare.empty() ? std::optional(MedianOf<StreamResult>(bare, of)) : std::nullopt,
          std::move(note));
    };
    std::string beside = "ceiling: plain blocking sockets, as many, no checksum";
    if (shape.kind == "shm") beside = "ceiling: copied in and out of shared memory, no checksum";
    if (shape.kind == "roce") beside = absl::StrCat("ceiling: ib_write_bw", PerftestTrouble());
    add("stream", "GB/s", absl::StrCat(beside, "; ", shape.lanes, " lanes"), true,
        [](const auto& r) { return r.rate / 1e9; });
    add("cpu_s_per_gb", "s/GB", "both sides; less is better", true,
        [](const auto& r) { return r.cpu_s_per_gb(); });
    add("sender_cpu_s_per_gb", "s/GB", "", true, [](const auto& r) { return r.sender_cpu; });
    add("receiver_cpu_s_per_gb", "s/GB", "", true, [](const auto& r) { return r.receiver_cpu; });
    if (shape.kind == "roce") {
      add("open_ms", "ms", "cold: devices opened, arenas registered", false,
          [](const auto& r) { return r.open_ms; });
    }
    add("connect_ms", "ms", "cold", false, [](const auto& r) { return r.connect_ms; });
    add("first_chunk_ms", "ms", "cold", false, [](const auto& r) { return r.first_ms; });
    if (shape.kind == "tcp") {
      add("retransmits", "", "", false,
          [](const auto& r) { return static_cast<double>(r.retransmits); });
    }
  }
  void AddPing(const std::string& name, const std::vector<PingResult>& link,
               const std::vector<PingResult>& bare, std::string note,
               const std::function<double(const PingResult&)>& of) {
    const double beside = bare.empty() ? 0 : MedianOf<PingResult>(bare, of);
    // perftest tells no p95.
    Add(name, MedianOf<PingResult>(link, of), "us",
        beside > 0 ? std::optional(beside) : std::nullopt, std::move(note));
  }
  static absl::StatusOr<StreamResult> Bare(const Shape& shape) {
    if (shape.kind == "roce") return PerftestStream(shape);
    return shape.kind == "shm" ? SharedStream(shape) : SocketStream(shape);
  }
  static absl::StatusOr<PingResult> BarePing(const Shape& shape) {
    if (shape.kind == "roce") return PerftestPing(shape);
    return shape.kind == "shm" ? SharedPing(shape) : SocketPing(shape);
  }
  // perftest may be missing: RoCE is then measured without a ceiling, and the note says why.
  template <typename Result>
  absl::Status AddBare(absl::StatusOr<Result> result, const std::string& kind,
                       std::vector<Result>* out) {
    if (result.ok()) {
      out->push_back(*std::move(result));
      return absl::OkStatus();
    }
    if (kind != "roce") return result.status();
    perftest_ = result.status();
    return absl::OkStatus();
  }
  std::string PerftestTrouble() const {
    return perftest_.ok() ? "" : absl::StrCat("; none: ", perftest_.message());
  }
  void Add(std::string name, double value, std::string unit, std::optional<double> ceiling,
           std::string note) {
    figures_.push_back({.name = std::move(name),
                        .value = value,
                        .unit = std::move(unit),
                        .ceiling = ceiling,
                        .note = std::move(note)});
  }

  const int repetitions_;
  absl::Status perftest_;
  // Bytes per second: of the last Stream, and of tcp's by where its chunks come from.
  double stream_ = 0, tcp_in_place_ = 0, tcp_copied_ = 0;
  std::vector<Figure> figures_;
};

absl::Status RunAll(const TransportOptions& options, Bench* bench) {
  ASSIGN_OR_RETURN(const uint64_t bytes, ParseSize(options.bytes));
  std::vector<uint64_t> sizes;
  for (const std::string& text : options.sizes) {
    ASSIGN_OR_RETURN(const uint64_t size, ParseSize(text));
    if (size > uint64_t{1} << 28) {
      return absl::InvalidArgumentError("chunks of more than 256M are more than a bench needs");
    }
    sizes.push_back(size);
  }
  for (const std::string& kind : options.transports) {
    for (const uint64_t size : sizes) {
      for (size_t i = 0; i < options.lanes.size(); ++i) {
        // Shared memory has no lanes: it is measured once.
        if (kind == "shm" && i > 0) continue;
        const uint32_t lanes = kind == "shm" ? 1 : options.lanes[i];
        Shape shape = ShapeFor(kind, size, lanes, bytes);
        if (options.slots > 0) shape.slots = options.slots;
        shape.listen = kind == "shm" ? "@" : options.listen;
        std::string suffix = size == kFigureSize ? "" : absl::StrCat(".", SizeText(size));
        if (i > 0) absl::StrAppend(&suffix, ".lanes_", lanes);
        RETURN_IF_ERROR(bench->Stream(shape, suffix));
        if (size == kFigureSize && i == 0) RETURN_IF_ERROR(bench->StreamFold(shape));
        if (size == kFigureSize && i == 0 && kind != "roce")
          RETURN_IF_ERROR(bench->OtherPayload(shape));
        if (size == kFigureSize && kind == "tcp")
          RETURN_IF_ERROR(bench->BoundedSockets(shape, suffix));
        if (i == 0) RETURN_IF_ERROR(bench->Ping(shape));
      }
    }
  }
  return absl::OkStatus();
}

// Standard output is for figures, and for the peer's report: what links log goes beside it.
absl::Status LogBeside() { return SetUpLog({.name = "bench"}); }

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", Text(status).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace

Shape ShapeFor(const std::string& kind, size_t size, uint32_t lanes, uint64_t bytes) {
  Shape shape;
  shape.kind = kind;
  shape.size = size;
  shape.lanes = lanes;
  // 8 MiB under way, as the default of links has it, within what their slots allow.
  shape.slots = static_cast<uint32_t>(std::clamp<size_t>((size_t{8} << 20) / size, 2, 256));
  // Small chunks cost by the piece: a stream of them is cut to what takes about as long.
  shape.bytes = std::max<uint64_t>(std::min<uint64_t>(bytes, size << 18), 4 * size);
  shape.rounds = size > kFigureSize ? 20 : size > 65536 ? 300 : kPingRounds;
  return shape;
}

int Transport(const TransportOptions& options) {
  Bench bench(options.repetitions);
  absl::Status status = LogBeside();
  if (status.ok()) status = RunAll(options, &bench);
  // What was measured before a failure is worth showing all the same.
  if (!bench.figures().empty()) Print(bench.figures());
  if (!status.ok()) return Report(status);
  std::string lanes;
  for (const uint32_t n : options.lanes) absl::StrAppend(&lanes, lanes.empty() ? "" : ",", n);
  return Report(
      WriteJson(options.json, bench.figures(),
                {"transport", absl::StrCat("lanes=", lanes), absl::StrCat("bytes=", options.bytes),
                 absl::StrCat("repetitions=", options.repetitions)}));
}

int TransportPeer(const TransportPeerOptions& options) {
  if (const absl::Status status = LogBeside(); !status.ok()) return Report(status);
  const std::pair<const char*, absl::StatusOr<std::string> (*)(const TransportPeerOptions&)>
      parts[] = {{"link-stream", LinkStreamPeer},
                 {"link-ping", LinkPingPeer},
                 {"link-filled-stream", LinkFilledStreamPeer},
                 {"link-in-place-stream", LinkInPlaceStreamPeer},
                 {"socket-stream", SocketStreamPeer},
                 {"socket-ping", SocketPingPeer},
                 {"shared-stream", SharedStreamPeer},
                 {"shared-ping", SharedPingPeer}};
  for (const auto& [name, run] : parts) {
    if (options.what != name) continue;
    const absl::StatusOr<std::string> report = run(options);
    if (!report.ok()) return Report(report.status());
    std::printf("%s\n", report->c_str());
    return 0;
  }
  return Report(absl::InvalidArgumentError(absl::StrCat("no part \"", options.what, "\"")));
}

}  // namespace tributary::bench
