// Runs over TLS, with certificates made by the lines of docs/operations.md: they end in the model
// of a run without, and whoever does not fit in is told why while the others go on.
#include <gmock/gmock.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "tests/base/certificates.h"
#include "tests/e2e/cluster.h"

namespace tributary {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRounds = 3;

// The first shell block of the documentation's section on TLS.
std::string DocumentedLines() {
  const std::string text = Read(absl::StrCat(TRIBUTARY_SOURCE_DIR, "/docs/operations.md"));
  const std::string opening = "```sh\n";
  const size_t section = text.find("\n## TLS\n");
  const size_t begin = text.find(opening, section);
  const size_t end = text.find("```", begin + opening.size());
  EXPECT_NE(end, std::string::npos);
  return text.substr(begin + opening.size(), end - begin - opening.size());
}

enum class Kind { kNone, kTls, kMutual };

// A root and a rack, and certificates beside their configs.
class TlsRun : public Cluster {
 public:
  explicit TlsRun(Kind kind, const std::string& model = "logreg")
      : tls_(kind), root_(Port()), rack_(Port()) {
    std::ofstream(dir() + "/make.sh") << "set -e\ncd " << dir() << "\n" << DocumentedLines();
    Start("make", {"/bin/sh", dir() + "/make.sh"});
    EXPECT_EQ(ExitCode("make"), 0) << Log("make");
    Model(model);
    Root(root_, Door(), kRounds, 2);
    Write("rack-0",
          absl::StrFormat("[node]\nname = \"rack-0\"\nlisten = \"127.0.0.1:%d\"\nparent = "
                          "\"127.0.0.1:%d\"\n[transport]\nlisten = \"127.0.0.1:0\"\n%s%s",
                          rack_, root_, Door(),
                          tls_ == Kind::kNone ? "" : Line("parent_ca", "ca.pem")));
    Serve("rack-0");
  }

  std::string File(const std::string& name) const { return absl::StrCat(dir(), "/", name); }
  std::string Line(const std::string& key, const std::string& file) const {
    return absl::StrCat(key, " = \"", File(file), "\"\n");
  }
  // [tls] of a front door.
  std::string Door() const {
    if (tls_ == Kind::kNone) return "";
    return absl::StrCat("[tls]\n", Line("cert", "rack-0.pem"), Line("key", "rack-0.key"),
                        tls_ == Kind::kMutual ? Line("client_ca", "ca.pem") : "");
  }
  // A client with these arguments of TLS.
  void Join(const std::string& id, int port, std::vector<std::string> tls) {
    std::vector<std::string> argv = {Binary("e2e_client"), id, "0"};
    argv.insert(argv.end(), tls.begin(), tls.end());
    argv.push_back(absl::StrCat("127.0.0.1:", port));
    Start(id, argv);
  }
  std::vector<std::string> Trusting() const { return {"--ca=" + File("ca.pem")}; }
  std::vector<std::string> Known() const {
    return {"--ca=" + File("ca.pem"), "--cert=" + File("client.pem"),
            "--key=" + File("client.key")};
  }
  // The two that make a round, one at the root and one at the rack.
  void JoinTwo() {
    const auto tls = tls_ == Kind::kNone  ? std::vector<std::string>()
                     : tls_ == Kind::kTls ? Trusting()
                                          : Known();
    Join("c0", root_, tls);
    Join("c1", rack_, tls);
  }
  std::string Finish() {
    for (const char* name : {"global", "rack-0", "c0", "c1"})
      EXPECT_EQ(ExitCode(name), 0) << name << "\n" << Log(name);
    return ModelHash(kRounds);
  }
  // Who was kept out goes on trying until it is told to end.
  void EndOutsider(const std::string& id) {
    (*this)[id].Signal(SIGTERM);
    EXPECT_EQ(ExitCode(id), 0) << Log(id);
  }
  int root() const { return root_; }
  int rack() const { return rack_; }

 private:
  const Kind tls_;
  const int root_, rack_;
};

// Of a run without TLS; one is enough for all tests of a process.
std::string HashWithout() {
  static const std::string hash = [] {
    TlsRun run(Kind::kNone);
    run.JoinTwo();
    return run.Finish();
  }();
  return hash;
}

TEST(EndToEndTls, ARunOverTlsEndsInTheModelOfOneWithout) {
  TlsRun run(Kind::kTls);
  run.JoinTwo();
  EXPECT_EQ(run.Finish(), HashWithout());
  EXPECT_THAT(run.Log("global"), HasSubstr(", TLS)"));
}

TEST(EndToEndTls, WhoHasNoCertificateIsKeptOutOfARunOverMutualTls) {
  TlsRun run(Kind::kMutual);
  const TestCa other;
  const TestCertificate stranger = other.Issue("stranger");
  std::ofstream(run.File("stranger.pem")) << stranger.cert_pem;
  std::ofstream(run.File("stranger.key")) << stranger.key_pem;
  run.Join("nameless", run.root(), run.Trusting());
  run.Join("stranger", run.rack(),
           {"--ca=" + run.File("ca.pem"), "--cert=" + run.File("stranger.pem"),
            "--key=" + run.File("stranger.key")});
  EXPECT_TRUE(run.AwaitLog("nameless", "wants to see a certificate, and this side has none"))
      << run.Log("nameless");
  EXPECT_TRUE(run.AwaitLog("stranger", "does not take the certificate that this side shows"))
      << run.Log("stranger");
  run.JoinTwo();
  EXPECT_EQ(run.Finish(), HashWithout());
  EXPECT_THAT(run.Log("global"), AllOf(HasSubstr(", mutual TLS)"), Not(HasSubstr("nameless"))));
  EXPECT_THAT(run.Log("rack-0"), Not(HasSubstr("stranger")));
  run.EndOutsider("nameless");
  run.EndOutsider("stranger");
}

TEST(EndToEndTls, WhoTrustsAnotherCaOrHasNoTlsIsToldSoAndTheOthersGoOn) {
  TlsRun run(Kind::kTls);
  std::ofstream(run.File("other-ca.pem")) << TestCa().pem();
  run.Join("misled", run.root(), {"--ca=" + run.File("other-ca.pem")});
  run.Join("plain", run.rack(), {});
  EXPECT_TRUE(run.AwaitLog("misled", "does not convince")) << run.Log("misled");
  EXPECT_TRUE(run.AwaitLog("plain", "it speaks TLS, and this side does not")) << run.Log("plain");
  run.JoinTwo();
  EXPECT_EQ(run.Finish(), HashWithout());
  run.EndOutsider("misled");
  run.EndOutsider("plain");
}

TEST(EndToEndTls, WhoSpeaksTlsToARunWithoutIsToldSo) {
  TlsRun run(Kind::kNone);
  run.Join("wary", run.root(), run.Trusting());
  EXPECT_TRUE(run.AwaitLog("wary", "it does not speak TLS, and this side does")) << run.Log("wary");
  run.JoinTwo();
  EXPECT_EQ(run.Finish(), HashWithout());
  run.EndOutsider("wary");
}

TEST(EndToEndTls, ARackWithoutItIsToldThatItsParentWantsIt) {
  TlsRun run(Kind::kMutual);
  const auto rack = [&](const std::string& name, const std::string& tls) {
    run.Write(name, absl::StrFormat("[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = "
                                    "\"127.0.0.1:%d\"\n[transport]\nlisten = \"127.0.0.1:0\"\n%s",
                                    name, run.root(), tls));
    run.Serve(name);
  };
  rack("plain", "");
  rack("nameless", "[tls]\n" + run.Line("parent_ca", "ca.pem"));
  EXPECT_TRUE(run.AwaitLog("plain", "it speaks TLS, and this side does not")) << run.Log("plain");
  EXPECT_TRUE(run.AwaitLog("nameless", "wants to see a certificate, and this side has none"))
      << run.Log("nameless");
  run.JoinTwo();
  EXPECT_EQ(run.Finish(), HashWithout());
  run.EndOutsider("plain");
  run.EndOutsider("nameless");
}

TEST(EndToEndTls, TheTrainersClientsTakePartByTheirConfig) {
  if (!std::filesystem::exists(Cluster::Binary("tributary-client"))) {
    GTEST_SKIP() << "tributary-client is not built here (TRIBUTARY_TRAINER is off)";
  }
  TlsRun run(Kind::kMutual, "mlp-digits");
  run.Write("clients",
            absl::StrFormat("[client]\nid = \"c\"\nendpoints = [\"127.0.0.1:%d\", "
                            "\"127.0.0.1:%d\"]\n[data]\ndataset = \"digits\"\n[model]\nname = "
                            "\"mlp-digits\"\n[tls]\n%s%s%s",
                            run.rack(), run.root(), run.Line("ca", "ca.pem"),
                            run.Line("cert", "client.pem"), run.Line("key", "client.key")));
  run.Start("clients",
            {Cluster::Binary("tributary-client"), run.File("clients.toml"), "--simulate", "2"});
  for (const char* name : {"clients", "global", "rack-0"})
    EXPECT_EQ(run.ExitCode(name), 0) << name << "\n" << run.Log(name);
  ASSERT_EQ(run.Rounds().size(), static_cast<size_t>(kRounds));
  EXPECT_EQ(run.Rounds().back()["accepted"], 2);
}

TEST(EndToEndTls, AKeyThatDoesNotFitIsAMistakeOfTheConfig) {
  TlsRun run(Kind::kNone);
  run.Write("bad", absl::StrCat("[node]\nname = \"x\"\nparent = \"127.0.0.1:1\"\n[tls]\n",
                                run.Line("cert", "rack-0.pem"), run.Line("key", "client.key")));
  const std::string says =
      absl::StrCat(run.File("bad.toml"), ":6:7: [tls] key = \"", run.File("client.key"),
                   "\" is not the key of the certificate");
  for (const char* verb : {"check", "serve"}) {
    run.Start(verb, {Cluster::Binary("tributary"), verb, run.File("bad.toml")});
    EXPECT_EQ(run.ExitCode(verb), 2);
    EXPECT_THAT(run.Log(verb), HasSubstr(says));
  }
}

}  // namespace
}  // namespace tributary
