// The client's config file: what it sets, and that each mistake is named with its place and mend.
#include "client/trainer/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/base/annotated.h"
#include "tests/base/certificates.h"
#include "tests/base/replaced.h"

namespace tributary::client::trainer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kWhole[] = R"([client]
id = "phone-7"
endpoints = ["a.example:7070", "b.example:7080"]
run = "spring"
threads = 3
[data]
dataset = "digits"
split = "dirichlet"
alpha = 0.3
clients = 20
index = 19
seed = 9
[model]
name = "mlp-digits"
[log]
level = "debug"
format = "json"
)";

constexpr char kLeast[] =
    "[client]\nid = \"a\"\nendpoints = \"h:1\"\n[data]\ndataset = \"digits\"\n"
    "[model]\nname = \"mlp-digits\"\n";

// The findings on a text, "" where it has none.
std::string Findings(const std::string& text, const ConfigOverrides& overrides = {}) {
  const auto config = ParseClientConfig(text, "c.toml", overrides);
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return Text(config.status());
}

TEST(ClientConfig, ReadsEveryKey) {
  const auto config = ParseClientConfig(kWhole, "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->id, "phone-7");
  EXPECT_THAT(config->endpoints, ElementsAre("a.example:7070", "b.example:7080"));
  EXPECT_EQ(config->run, "spring");
  EXPECT_EQ(config->threads, 3);
  EXPECT_EQ(config->dataset, "digits");
  EXPECT_EQ(config->split.kind, SplitKind::kDirichlet);
  EXPECT_EQ(config->split.alpha, 0.3);
  EXPECT_EQ(config->split.clients, 20);
  EXPECT_EQ(config->index, 19);
  EXPECT_EQ(config->split.seed, 9);
  EXPECT_EQ(config->model, "mlp-digits");
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->log_format, "json");
}

TEST(ClientConfig, HasDefaultsForAllThatIsNotRequired) {
  const auto config = ParseClientConfig(kLeast, "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->run, "");
  EXPECT_EQ(config->split.kind, SplitKind::kIid);
  EXPECT_EQ(config->split.clients, 1);
  EXPECT_EQ(config->index, 0);
  EXPECT_EQ(config->log_level, "info");
  EXPECT_EQ(config->log_format, "human");
}

TEST(ClientConfig, NamesEachRequiredKeyThatIsMissing) {
  EXPECT_THAT(
      Findings(""),
      AllOf(HasSubstr("[client] id is required"), HasSubstr("[client] endpoints is"),
            HasSubstr("[data] dataset is required"), HasSubstr("[model] name is required")));
}

TEST(ClientConfig, NamesPlaceAndNearestKeyOfAnUnknownOne) {
  EXPECT_THAT(Findings(Replaced(kWhole, "alpha", "alfa")),
              AllOf(HasSubstr("c.toml:9:1: "), HasSubstr("\"alfa\""), HasSubstr("\"alpha\"")));
  EXPECT_THAT(Findings(Replaced(kWhole, "[log]", "[lock]")),
              AllOf(HasSubstr("c.toml:15:"), HasSubstr("lock"), HasSubstr("log")));
}

TEST(ClientConfig, RefusesWrongTypesAndRanges) {
  EXPECT_THAT(Findings(Replaced(kWhole, "clients = 20", "clients = \"20\"")),
              HasSubstr("c.toml:10:"));
  EXPECT_THAT(Findings(Replaced(kWhole, "clients = 20", "clients = 0")), HasSubstr("c.toml:10:"));
  EXPECT_THAT(Findings(Replaced(kWhole, "alpha = 0.3", "alpha = 0")),
              AllOf(HasSubstr("c.toml:9:"), HasSubstr("out of range: 0.001 to")));
  EXPECT_THAT(Findings(Replaced(kWhole, "threads = 3", "threads = -1")), HasSubstr("c.toml:5:"));
  EXPECT_THAT(Findings(Replaced(kWhole, "id = \"phone-7\"", "id = \"\"")), HasSubstr("c.toml:2:"));
}

TEST(ClientConfig, NamesTheNearestAllowedWord) {
  EXPECT_THAT(Findings(Replaced(kWhole, "\"dirichlet\"", "\"dirichelt\"")),
              AllOf(HasSubstr("c.toml:8:"), HasSubstr("did you mean \"dirichlet\"?")));
  EXPECT_THAT(Findings(Replaced(kWhole, "\"digits\"", "\"mnist\"")),
              AllOf(HasSubstr("c.toml:7:"), HasSubstr("fashion-mnist")));
  EXPECT_THAT(Findings(Replaced(kWhole, "\"mlp-digits\"", "\"mlp-digit\"")),
              AllOf(HasSubstr("c.toml:14:"), HasSubstr("did you mean \"mlp-digits\"?")));
  EXPECT_THAT(Findings(Replaced(kWhole, "\"json\"", "\"xml\"")), HasSubstr("human, json"));
}

TEST(ClientConfig, RefusesImpossibleCombinations) {
  EXPECT_THAT(Findings(Replaced(kWhole, "index = 19", "index = 20")),
              AllOf(HasSubstr("c.toml:11:"), HasSubstr("not below clients = 20")));
  EXPECT_THAT(Findings(Replaced(kWhole, "\"dirichlet\"", "\"iid\"")),
              AllOf(HasSubstr("c.toml:9:"), HasSubstr("only for split = \"dirichlet\"")));
  EXPECT_THAT(Findings(Replaced(kWhole, "alpha = 0.3", "shards_per_client = 2")),
              HasSubstr("only for split = \"shards\""));
}

TEST(ClientConfig, RefusesEndpointsThatAreNoHostAndPort) {
  for (const char* bad : {"h", "h:", ":1", "h:0", "h:65536", "h:99999", "h:1x", "h:-1"}) {
    EXPECT_THAT(Findings(Replaced(kLeast, "\"h:1\"", absl::StrCat("\"", bad, "\""))),
                HasSubstr("c.toml:3:"))
        << bad;
  }
  EXPECT_EQ(Findings(Replaced(kLeast, "\"h:1\"", "[\"[::1]:65535\"]")), "");
}

TEST(ClientConfig, RefusesBenchModelsAndMissingFilesAndDirectories) {
  EXPECT_THAT(Findings(Replaced(kLeast, "\"mlp-digits\"", "\"synthetic:5\"")),
              HasSubstr("c.toml:7:"));
  EXPECT_THAT(Findings(Replaced(kLeast, "\"mlp-digits\"", "\"no/such.pt\"")),
              HasSubstr("neither a file nor known"));
  EXPECT_THAT(Findings(Replaced(kLeast, "[model]", "directory = \"no/such\"\n[model]")),
              AllOf(HasSubstr("c.toml:6:"), HasSubstr("no directory no/such")));
  EXPECT_EQ(LoadClientConfig("no/such.toml").status().code(), absl::StatusCode::kNotFound);
}

TEST(ClientConfig, TakesTheCommandLineOverTheFile) {
  const ConfigOverrides overrides{
      .id = "other", .index = 3, .seed = 4, .endpoints = {"x:5"}, .threads = 6, .simulate = {}};
  const auto config = ParseClientConfig(kWhole, "c.toml", overrides);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->id, "other");
  EXPECT_EQ(config->index, 3);
  EXPECT_EQ(config->split.seed, 4);
  EXPECT_THAT(config->endpoints, ElementsAre("x:5"));
  EXPECT_EQ(config->threads, 6);
  EXPECT_THAT(Findings(kWhole, {.index = 20}), HasSubstr("not below clients = 20"));
}

TEST(ClientConfig, EveryKeyIsAnnotatedInConfigs) {
  ExpectAnnotated(ClientConfigKeys(), {"client.toml", "evaluator.toml"});
}

TEST(ClientConfig, NeedsNoIdWhereTheCommandLineGivesOne) {
  EXPECT_EQ(Findings(Replaced(kLeast, "id = \"a\"\n", ""), {.id = "b"}), "");
}

TEST(ClientConfig, TellsItsLabelsOnlyWhereItIsToldTo) {
  EXPECT_FALSE(ParseClientConfig(kLeast, "c.toml")->report_labels);
  const auto config =
      ParseClientConfig(Replaced(kLeast, "[model]", "report_labels = true\n[model]"), "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->report_labels);
}

// ---- [tls]

class ClientTlsConfig : public ::testing::Test {
 protected:
  ClientTlsConfig() : own_(ca_.Issue("phone", {.usage = "clientAuth"})) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "tributary-tls-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
    for (const auto& [name, text] :
         {std::pair("ca.pem", ca_.pem()), std::pair("own.pem", own_.cert_pem),
          std::pair("own.key", own_.key_pem),
          std::pair("server.pem", ca_.Issue("s", {.usage = "serverAuth"}).cert_pem)}) {
      std::ofstream(absl::StrCat(dir_, "/", name)) << text;
    }
  }
  ~ClientTlsConfig() override { std::filesystem::remove_all(dir_); }
  // kLeast and a [tls], whose keys begin in line 9.
  std::string With(const std::vector<std::pair<std::string, std::string>>& files) const {
    std::string text = absl::StrCat(kLeast, "[tls]\n");
    for (const auto& [key, file] : files)
      absl::StrAppend(&text, key, " = \"", dir_, "/", file, "\"\n");
    return text;
  }

  const TestCa ca_;
  const TestCertificate own_;
  std::string dir_;
};

TEST_F(ClientTlsConfig, IsReadAndIsNotThereWithoutTheSection) {
  EXPECT_FALSE(ParseClientConfig(kLeast, "c.toml")->tls.has_value());
  const auto config = ParseClientConfig(
      absl::StrCat(With({{"ca", "ca.pem"}, {"cert", "own.pem"}, {"key", "own.key"}}),
                   "server_name = \"rack\"\n"),
      "c.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->tls.has_value());
  EXPECT_EQ(config->tls->ca_pem, ca_.pem());
  EXPECT_EQ(config->tls->cert_pem, own_.cert_pem);
  EXPECT_EQ(config->tls->key_pem, own_.key_pem);
  EXPECT_EQ(config->tls->server_name, "rack");
}

TEST_F(ClientTlsConfig, MistakesAreNamedWithTheirPlace) {
  EXPECT_THAT(Findings(With({})), HasSubstr("c.toml:8:1: [tls] ca is required"));
  EXPECT_THAT(Findings(With({{"ca", "none.pem"}})),
              AllOf(HasSubstr("c.toml:9:6: [tls] ca = "), HasSubstr("is not there")));
  EXPECT_THAT(Findings(With({{"ca", "ca.pem"}, {"cert", "own.pem"}})),
              HasSubstr("c.toml:10:8: [tls] cert does nothing without key"));
  EXPECT_THAT(Findings(With({{"ca", "ca.pem"}, {"cert", "server.pem"}, {"key", "own.key"}})),
              AllOf(HasSubstr("c.toml:10:8: "), HasSubstr("is not for TLS clients")));
  EXPECT_THAT(Findings(With({{"client_ca", "ca.pem"}, {"ca", "ca.pem"}})),
              HasSubstr("c.toml:9:1: unknown key \"client_ca\" in [tls]"));
}

TEST(ClientConfig, SimulationReplacesClientsAndIndex) {
  const auto config = ParseClientConfig(kWhole, "c.toml", {.simulate = 5});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->split.clients, 5);
  EXPECT_EQ(config->index, 0);
}

}  // namespace
}  // namespace tributary::client::trainer
