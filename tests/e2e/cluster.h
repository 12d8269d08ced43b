// What the end-to-end tests share: a run of real processes in a folder of its own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "base/process.h"
#include "models/safetensors.h"

namespace tributary {

inline constexpr absl::Duration kPatience = absl::Seconds(120);

inline std::string Read(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// One run in a folder of its own: aggregators by config text, clients by id.
class Cluster {
 public:
  Cluster() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tributary-e2e-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~Cluster() {
    if (testing::Test::HasFailure()) ShowLogs();  // the folder stays
    processes_.clear();
    std::error_code ignored;
    if (!testing::Test::HasFailure()) std::filesystem::remove_all(dir_, ignored);
  }

  int Port() {
    const auto port = FreePort();
    EXPECT_TRUE(port.ok());
    return port.ok() ? *port : 0;
  }
  // Of the aggregators started from here on.
  void Transport(const std::string& kind) { kind_ = kind; }
  void Model(const std::string& name) { model_ = name; }  // of roots started from here on
  void Root(int port, const std::string& more, int rounds, int minimum) {
    Write("global",
          absl::StrFormat(
              "[node]\nname = \"global\"\nlisten = \"127.0.0.1:%d\"\n[transport]\nkind = \"%s\"\n"
              "listen = \"127.0.0.1:0\"\n"
              "[run]\nname = \"e2e\"\nrounds = %d\nmodel = \"%s\"\nstartup_limit_s = 60\n"
              "[cohort]\nminimum = %d\n[straggler]\ndeadline = \"fixed\"\ndeadline_s = "
              "60\nrejoin_grace_s = "
              "20\n[checkpoint]\n"
              "directory = \"%s\"\n%s",
              port, kind_, rounds, model_, minimum, dir_ + "/checkpoints", more));
    Serve("global");
  }
  void Rack(const std::string& name, int port, int parent, const std::string& more = "") {
    Write(name, absl::StrFormat(
                    "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:%d\"\nparent = \"127.0.0.1:%d\"\n"
                    "[transport]\nkind = \"%s\"\nlisten = \"127.0.0.1:0\"\n%s",
                    name, port, parent, kind_, more));
    Serve(name);
  }
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ + "/" + name + ".toml") << text;
  }
  void Serve(const std::string& name) {
    std::vector<std::string> argv = {Binary("tributary"), "serve", dir_ + "/" + name + ".toml"};
    argv.insert(argv.end(), next_serve_.begin(), next_serve_.end());
    next_serve_.clear();
    Start(name, argv);
  }
  // More arguments for the aggregator that is started next, and for that one alone.
  void NextServe(std::vector<std::string> arguments) { next_serve_ = std::move(arguments); }
  void Client(const std::string& id, const std::vector<int>& ports, int think_ms = 0) {
    std::vector<std::string> argv = {Binary("e2e_client"), id, std::to_string(think_ms)};
    for (const int port : ports) argv.push_back(absl::StrCat("127.0.0.1:", port));
    Start(id, argv);
  }
  void Start(const std::string& name, const std::vector<std::string>& argv) {
    auto process = Process::Start(argv, {.log_file = dir_ + "/" + name + ".log"});
    ASSERT_TRUE(process.ok()) << process.status();
    processes_[name] = std::make_unique<Process>(*std::move(process));
  }
  static std::string Binary(const std::string& name) { return SelfDirectory() + "/" + name; }

  // A root, a rack below it, and clients c0, c1, ...: two of them the rack's, the others the
  // root's.
  void RootAndRack(const std::string& more, int rounds, int clients, int think_ms = 0) {
    const int root = Port(), rack = Port();
    Root(root, more, rounds, clients);
    Rack("rack-0", rack, root);
    for (int i = 0; i < clients; ++i) {
      Client(absl::StrCat("c", i), {i < 2 ? rack : root}, think_ms);
    }
  }
  // With -9.
  void Kill(const std::string& name) {
    processes_.at(name)->Signal(SIGKILL);
    ASSERT_TRUE(processes_.at(name)->Wait(kPatience).ok()) << name;
  }
  // Kills an aggregator some way into whatever phase it is in then, and starts it again, so often
  // at most and while it runs; how often it was.
  int KillAtRandom(const std::string& name, int times, PhiloxStream* random) {
    int kills = 0;
    for (; kills < times && processes_.at(name)->Running(); ++kills) {
      absl::SleepFor(absl::Milliseconds(150 + static_cast<int64_t>(random->NextBelow(250))));
      Kill(name);
      Serve(name);
    }
    return kills;
  }

  Process& operator[](const std::string& name) { return *processes_.at(name); }
  int ExitCode(const std::string& name) {
    const auto code = processes_.at(name)->Wait(kPatience);
    EXPECT_TRUE(code.ok()) << name << " does not end; its log:\n" << Log(name);
    return code.ok() ? *code : -1;
  }
  std::string Log(const std::string& name) const { return Read(dir_ + "/" + name + ".log"); }
  std::string RoundsFile() const { return dir_ + "/checkpoints/e2e/rounds.jsonl"; }
  std::vector<nlohmann::json> Rounds() const {
    std::vector<nlohmann::json> out;
    std::ifstream file(RoundsFile());
    std::string line;
    while (std::getline(file, line)) out.push_back(nlohmann::json::parse(line, nullptr, false));
    return out;
  }
  // Looks again every few milliseconds: there is no event to wait for in another process's file.
  bool AwaitRounds(size_t n) const {
    const absl::Time limit = absl::Now() + kPatience;
    while (Rounds().size() < n) {
      if (absl::Now() > limit) return false;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return true;
  }
  bool AwaitLog(const std::string& name, const std::string& text) const {
    const absl::Time limit = absl::Now() + kPatience;
    while (Log(name).find(text) == std::string::npos) {
      if (absl::Now() > limit) return false;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return true;
  }
  // Until the process itself holds the signal back: its own code runs.
  bool AwaitHeldSignal(const std::string& name, int signal) const {
    const absl::Time limit = absl::Now() + kPatience;
    while (!processes_.at(name)->Holds(signal)) {
      if (absl::Now() > limit) return false;
    }
    return true;
  }
  std::string ModelHash(int round) const {
    auto model = models::ReadSafetensors(
        absl::StrFormat("%s/checkpoints/e2e/%08d/model.safetensors", dir_, round));
    EXPECT_TRUE(model.ok()) << model.status() << "\n" << Log("global");
    return model.ok() ? absl::BytesToHexString(Sha256Of(model->bytes)) : "";
  }
  const std::string& dir() const { return dir_; }

 private:
  // The end of what each process said, for where the folder itself is out of reach.
  void ShowLogs() const {
    constexpr size_t kTail = 4000;
    for (const auto& [name, process] : processes_) {
      const std::string log = Log(name);
      const size_t from = log.size() > kTail ? log.size() - kTail : 0;
      std::cerr << "-- the log of " << name << ":\n" << log.substr(from) << "\n";
    }
  }

  std::string dir_;
  std::string kind_ = "tcp";
  std::string model_ = "logreg";
  std::vector<std::string> next_serve_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

}  // namespace tributary
