// `tributary`: the aggregator and its tools.
#include <CLI/CLI.hpp>

#include "server/cli/commands.h"

int main(int argc, char** argv) {
  using namespace tributary::cli;
  CLI::App app("Tributary: hierarchical federated-learning aggregation");
  app.require_subcommand(1);
  int code = 0;

  ServeOptions serve;
  auto* serve_command = app.add_subcommand("serve", "run an aggregator");
  serve_command->add_option("file", serve.file, "its config (TOML)")->required();
  serve_command->add_option("--progress", serve.progress, "a line a round on standard output")
      ->check(CLI::IsMember({"none", "human", "json"}));
  serve_command->callback([&] { code = Serve(serve); });

  std::vector<std::string> files;
  auto* check_command = app.add_subcommand("check", "check config files without starting");
  check_command->add_option("files", files, "config files")->required();
  check_command->callback([&] { code = Check(files); });

  app.add_subcommand("codecs", "list the codecs and what each can promise")->callback([&] { code = ListCodecs(); });

  DemoOptions demo;
  auto* demo_command = app.add_subcommand("demo", "every tier on this machine, real training, a report");
  demo_command->add_option("--clients", demo.clients)->check(CLI::Range(1, 1000))->capture_default_str();
  demo_command->add_option("--racks", demo.racks)->check(CLI::Range(1, 100))->capture_default_str();
  demo_command->add_option("--rounds", demo.rounds)->check(CLI::Range(1, 100000))->capture_default_str();
  demo_command->add_option("--topology", demo.topology)
      ->check(CLI::IsMember({"flat", "two-tier", "three-tier"}))
      ->capture_default_str();
  demo_command->add_option("--codec", demo.codec, "fp32, fp16, bf16, int8, int8(block=64), ...")->capture_default_str();
  demo_command->add_option("--model", demo.model)->capture_default_str();
  demo_command->add_option("--alpha", demo.alpha, "Dirichlet; smaller is less equal")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  demo_command->add_option("--seed", demo.seed)->capture_default_str();
  demo_command->add_option("--out", demo.out, "where configs, logs, checkpoints go")->capture_default_str();
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
