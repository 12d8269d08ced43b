// `tributary`: the aggregator and its tools.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string_view>

#include "absl/synchronization/mutex.h"
#include "base/early_signals.h"
#include "bench/commands.h"
#include "server/cli/commands.h"

TRIBUTARY_HOLD_END_SIGNALS_FROM_THE_START;

namespace {

using namespace tributary;

// Options of `bench` and its subcommands, bound to storage that outlives parsing.
struct Bench {
  bench::KernelsOptions kernels;
  bench::RoundOptions round;
  bench::SinkOptions sink;
  bench::SendersOptions senders;
  bench::TransportOptions transport;
  bench::TransportPeerOptions peer;

  void Add(CLI::App& app, int* code) {
    auto* command =
        app.add_subcommand("bench", "benchmarks, each with the ceiling of the same run");
    command->require_subcommand(1);
    auto* k = command->add_subcommand("kernels", "codec kernels");
    k->add_option("--json", kernels.json, "write the figures to this file");
    k->add_option("--codec", kernels.codec, "this codec's figures alone");
    k->callback([this, code] { *code = bench::Kernels(kernels); });

    AddTransport(*command, code);
    auto* r = command->add_subcommand("round", "whole rounds by real processes, without training");
    r->add_option("--scenario", round.scenario)
        ->check(CLI::IsMember({"ingest", "overhead", "sessions", "incast", "stragglers",
                               "simulated", "async", "recovery"}))
        ->capture_default_str();
    r->add_option("--clients", round.clients, "default: 200; incast 1000, stragglers and async 100")
        ->check(CLI::Range(1, 100000));
    r->add_option("--model", round.model)->capture_default_str();
    r->add_option("--codec", round.codec)->capture_default_str();
    r->add_option("--topology", round.topology)
        ->check(CLI::IsMember({"flat", "two-tier"}))
        ->capture_default_str();
    r->add_option("--racks", round.racks)->check(CLI::Range(1, 64))->capture_default_str();
    r->add_option("--rounds", round.rounds)->check(CLI::Range(1, 1000))->capture_default_str();
    r->add_option("--repetitions", round.repetitions, "ingest: sink and rounds in turn; medians")
        ->check(CLI::Range(1, 100))
        ->capture_default_str();
    r->add_option("--sender-processes", round.sender_processes)
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    r->add_option("--inflight-mb", round.inflight_mb, "the aggregators' budget")
        ->capture_default_str();
    r->add_flag("!--no-memory", round.memory, "leave out the second run with 20 clients");
    r->add_option("--out", round.out)->capture_default_str();
    r->add_option("--json", round.json, "write the figures to this file");
    r->callback([this, code] { *code = bench::Round(round); });

    auto* s = command->add_subcommand("sink", "internal: the bare gRPC sink")->group("");
    s->add_option("--port", sink.port);
    s->add_option("--clients", sink.clients);
    s->add_option("--rounds", sink.rounds);
    s->add_option("--model", sink.model);
    s->add_option("--codec", sink.codec);
    s->add_flag("--default-windows", sink.default_windows);
    s->callback([this, code] { *code = bench::Sink(sink); });

    auto* c = command->add_subcommand("senders", "internal: clients that send a prepared update")
                  ->group("");
    c->add_option("--endpoint", senders.endpoints)->required();
    c->add_option("--first", senders.first);
    c->add_option("--count", senders.count);
    c->add_option("--joins-per-s", senders.joins_per_s);
    c->add_option("--model", senders.model);
    c->add_option("--codec", senders.codec);
    c->add_option("--modelled", senders.modelled);
    c->add_flag("--no-offers", senders.no_offers);
    c->callback([this, code] { *code = bench::Senders(senders); });
  }

  void AddTransport(CLI::App& command, int* code) {
    auto* t = command.add_subcommand("transport",
                                     "links between two processes, against sockets and copies");
    t->add_option("--transport", transport.transports)
        ->delimiter(',')
        ->check(CLI::IsMember({"tcp", "shm", "roce"}))
        ->capture_default_str();
    t->add_option("--sizes", transport.sizes, "of chunks: 64, 4K, 1M, ...")
        ->delimiter(',')
        ->capture_default_str();
    t->add_option("--lanes", transport.lanes)
        ->delimiter(',')
        ->check(CLI::Range(1, 16))
        ->capture_default_str();
    t->add_option("--listen", transport.listen, "for roce the address of an RDMA device")
        ->capture_default_str();
    t->add_option("--bytes", transport.bytes, "streamed in each repetition")->capture_default_str();
    t->add_option("--repetitions", transport.repetitions)
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    t->add_option("--slots", transport.slots, "under way; 0: as many as hold 8 MiB")
        ->check(CLI::Range(0, 1024))
        ->capture_default_str();
    t->add_option("--json", transport.json, "write the figures to this file");
    t->callback([this, code] { *code = bench::Transport(transport); });

    auto* p = command.add_subcommand("transport-peer", "internal: the other process")->group("");
    p->add_option("--what", peer.what)->required();
    p->add_option("--kind", peer.kind);
    p->add_option("--address", peer.address)->required();
    p->add_option("--size", peer.size)->check(CLI::PositiveNumber);
    p->add_option("--lanes", peer.lanes)->check(CLI::Range(1, 16));
    p->add_option("--slots", peer.slots)->check(CLI::Range(1, 1024));
    p->add_option("--bytes", peer.bytes);
    p->add_option("--rounds", peer.rounds);
    p->add_option("--send-buffer", peer.send_buffer);
    p->callback([this, code] { *code = bench::TransportPeer(peer); });
  }
};

int Main(int argc, char** argv) {
  using namespace tributary::cli;
  // Those two wait for the signals and end in order; all else just ends.
  const std::string_view command = argc > 1 ? argv[1] : "";
  if (command != "serve" && command != "demo") tributary::ReleaseEndSignals();
  CLI::App app("Tributary: hierarchical federated-learning aggregation");
  app.require_subcommand(1);
  int code = 0;

  ServeOptions serve;
  auto* serve_command = app.add_subcommand("serve", "run an aggregator");
  serve_command->add_option("file", serve.file, "its config (TOML)")->required();
  serve_command->add_option("--progress", serve.progress, "a line a round on standard output")
      ->check(CLI::IsMember({"none", "human", "json"}));
  serve_command->add_option("--die-after", serve.die_after, "internal: PHASE:ROUND")->group("");
  serve_command->callback([&] { code = Serve(serve); });

  std::vector<std::string> files;
  auto* check_command =
      app.add_subcommand("check", "check aggregators' config files without starting");
  check_command->add_option("files", files, "config files")->required();
  check_command->callback([&] { code = Check(files); });

  app.add_subcommand("codecs", "list the codecs and what each can promise")->callback([&] {
    code = ListCodecs();
  });

  SimulateOptions simulate;
  auto* simulate_command = app.add_subcommand(
      "simulate", "rounds in virtual time: production policies, modelled clients and network");
  simulate_command->add_option("file", simulate.file, "the model (configs/simulate.toml)")
      ->required();
  simulate_command->add_option("--json", simulate.json, "write the figures to this file");
  simulate_command->callback([&] { code = Simulate(simulate); });

  DoctorOptions doctor;
  auto* doctor_command = app.add_subcommand(
      "doctor", "is this machine fit: RDMA, memory, descriptors, addresses, ports; with the mends");
  doctor_command->add_option("file", doctor.file, "the config to be fit for");
  doctor_command->add_option("--peer", doctor.peer, "a host that links would go to");
  doctor_command->add_flag("--json", doctor.json, "JSON on standard output");
  doctor_command->callback([&] { code = Doctor(doctor); });

  Bench bench;
  bench.Add(app, &code);

  DemoOptions demo;
  auto* demo_command =
      app.add_subcommand("demo", "every tier on this machine, real training, a report");
  demo_command->add_option("--clients", demo.clients)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  demo_command->add_option("--racks", demo.racks)->check(CLI::Range(1, 100))->capture_default_str();
  demo_command->add_option("--rounds", demo.rounds)
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  demo_command->add_option("--topology", demo.topology)
      ->check(CLI::IsMember({"flat", "two-tier", "three-tier"}))
      ->capture_default_str();
  demo_command->add_option("--codec", demo.codec, "fp32, fp16, bf16, int8, int8(block=64), ...")
      ->capture_default_str();
  demo_command->add_flag("--error-feedback", demo.error_feedback,
                         "what encoding loses goes into a client's next update");
  demo_command->add_option("--model", demo.model)->capture_default_str();
  demo_command->add_option("--alpha", demo.alpha, "Dirichlet; smaller is less equal")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  demo_command->add_option("--seed", demo.seed)->capture_default_str();
  demo_command->add_option("--out", demo.out, "where configs, logs, checkpoints go")
      ->capture_default_str();
  demo_command->callback([&] { code = Demo(demo); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return 2;
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  // Debian builds Abseil, and so gRPC's locks, with its search for deadlocks on: a search at every
  // lock taken, some 2 % of a busy aggregator.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {  // of the command line's library, or no memory
    std::fprintf(stderr, "tributary: %s\n", error.what());
    return 1;
  }
}
