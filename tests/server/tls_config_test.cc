// [tls] of an aggregator's config: what it reads, and each mistake with its place and its mend.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "server/config.h"
#include "server/uplink.h"
#include "tests/base/certificates.h"

namespace tributary::server {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TlsConfigTest : public testing::Test {
 protected:
  TlsConfigTest() : node_(ca_.Issue("node")) {
    std::string pattern = (fs::temp_directory_path() / "tributary-tls-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
    Write("ca.pem", ca_.pem());
    Write("node.pem", node_.cert_pem);
    Write("node.key", node_.key_pem);
  }
  ~TlsConfigTest() override { fs::remove_all(dir_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(absl::StrCat(dir_, "/", name)) << text;
  }
  // A line `key = "<dir>/file"`.
  std::string Key(const std::string& key, const std::string& file) const {
    return absl::StrCat(key, " = \"", dir_, "/", file, "\"\n");
  }
  std::string Door() const { return Key("cert", "node.pem") + Key("key", "node.key"); }
  // A rack's config; the keys begin in line 5.
  static absl::StatusOr<Config> Rack(const std::string& keys) {
    return ParseConfig(
        absl::StrCat("[node]\nname = \"rack-0\"\nparent = \"global:7070\"\n[tls]\n", keys),
        "bad.toml");
  }
  static std::string Findings(const std::string& keys) { return Text(Rack(keys).status()); }

  const TestCa ca_;
  const TestCertificate node_;
  std::string dir_;
};

TEST_F(TlsConfigTest, TheFilesAreReadForTheDoorAndForTheWayUp) {
  const auto config =
      Rack(absl::StrCat(Door(), Key("client_ca", "ca.pem"), Key("parent_ca", "ca.pem"),
                        "parent_server_name = \"global.internal\"\n"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->tls.cert_pem, node_.cert_pem);
  EXPECT_EQ(config->tls.key_pem, node_.key_pem);
  EXPECT_EQ(config->tls.client_ca_pem, ca_.pem());
  const auto up = TlsToParent(config->tls);
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->ca_pem, ca_.pem());
  EXPECT_EQ(up->cert_pem, node_.cert_pem);
  EXPECT_EQ(up->key_pem, node_.key_pem);
  EXPECT_EQ(up->server_name, "global.internal");
}

TEST_F(TlsConfigTest, EitherSideMayBeWithout) {
  const auto door = Rack(Door());
  ASSERT_TRUE(door.ok()) << door.status();
  EXPECT_FALSE(TlsToParent(door->tls).has_value());
  const auto up = Rack(Key("parent_ca", "ca.pem"));
  ASSERT_TRUE(up.ok()) << up.status();
  EXPECT_EQ(up->tls.cert_pem, "");
  EXPECT_TRUE(TlsToParent(up->tls).has_value());
}

TEST_F(TlsConfigTest, FilesThatAreNotWhatTheyShouldBeAreNamed) {
  Write("other.key", ca_.Issue("other").key_pem);
  Write("old.pem", ca_.Issue("old", {.seconds = -60}).cert_pem);
  Write("client.pem", ca_.Issue("c", {.usage = "clientAuth"}).cert_pem);
  Write("locked.key", TestCa::Encrypted(node_));
  Write("huge.pem", std::string((1 << 20) + 1, 'x'));
  struct Row {
    std::string keys;
    const char* place;
    const char* says;
  };
  for (const Row& row :
       {Row{Key("cert", "none.pem") + Key("key", "node.key"), "5:8", "is not there: correct the"},
        Row{Key("cert", "node.pem") + Key("key", ""), "6:7", "is no file: name one"},
        Row{Key("cert", "huge.pem") + Key("key", "node.key"), "5:8", "is larger than 1 MiB"},
        Row{Key("cert", "node.key") + Key("key", "node.key"), "5:8", "has a private key in it"},
        Row{Key("cert", "node.pem") + Key("key", "node.pem"), "6:7", "has a certificate in it"},
        Row{Key("cert", "node.pem") + Key("key", "other.key"), "6:7",
            "is not the key of the certificate"},
        Row{Key("cert", "node.pem") + Key("key", "locked.key"), "6:7", "has a passphrase"},
        Row{Key("cert", "old.pem") + Key("key", "node.key"), "5:8", "has expired, on "},
        Row{Key("cert", "client.pem") + Key("key", "node.key"), "5:8", "not for TLS servers"},
        Row{Door() + Key("client_ca", "node.key"), "7:13", "has a private key in it"},
        Row{Key("parent_ca", "none.pem"), "5:13", "is not there"}}) {
    const std::string findings = Findings(row.keys);
    SCOPED_TRACE(absl::StrCat(row.keys, findings));
    EXPECT_EQ(findings.find(absl::StrCat("bad.toml:", row.place, ": [tls] ")), 0u);
    EXPECT_THAT(findings, AllOf(HasSubstr(row.says), Not(HasSubstr("\n"))));
  }
}

TEST_F(TlsConfigTest, KeysThatDoNothingAloneAreRefused) {
  EXPECT_THAT(Findings(Key("cert", "node.pem")),
              HasSubstr("5:8: [tls] cert does nothing without key"));
  EXPECT_THAT(Findings(Key("key", "node.key")),
              HasSubstr("5:7: [tls] key does nothing without cert"));
  EXPECT_THAT(Findings(Key("client_ca", "ca.pem")),
              HasSubstr("5:13: [tls] client_ca does nothing without cert"));
  EXPECT_THAT(Findings("parent_server_name = \"x\"\n"),
              HasSubstr("5:22: [tls] parent_server_name does nothing without parent_ca"));
  EXPECT_THAT(Findings(""), HasSubstr("bad.toml:4:1: [tls] turns nothing on"));
  EXPECT_THAT(Findings("cert = 7\n" + Key("key", "node.key")),
              HasSubstr("bad.toml:5:8: [tls] cert must be a string"));
}

TEST_F(TlsConfigTest, UnknownKeysNameTheNearest) {
  EXPECT_THAT(Findings(Door() + Key("client_cs", "ca.pem")),
              AllOf(HasSubstr("bad.toml:7:1: unknown key \"client_cs\" in [tls]"),
                    HasSubstr("did you mean \"client_ca\"?")));
}

TEST_F(TlsConfigTest, ARootHasNoParentToTrust) {
  const auto config = ParseConfig(
      absl::StrCat("[node]\nname = \"global\"\n[run]\nname = \"r\"\nmodel = \"logreg\"\n"
                   "[checkpoint]\ndirectory = \"checkpoints\"\n[tls]\n",
                   Door(), Key("parent_ca", "ca.pem")),
      "bad.toml");
  EXPECT_THAT(
      Text(config.status()),
      AllOf(HasSubstr("bad.toml:11:13: [tls] parent_ca is about a parent"), Not(HasSubstr("\n"))));
}

}  // namespace
}  // namespace tributary::server
