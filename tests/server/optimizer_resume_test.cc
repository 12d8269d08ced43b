// Promise: a server optimizer's moments are in the checkpoint, and a restart does not change a bit.
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

std::string Config(const TempDir& dir, const std::string& model, const std::string& optimizer) {
  return absl::StrFormat(
      "[node]\nname = \"root\"\nlisten = \"127.0.0.1:0\"\n[run]\nname = \"r\"\nrounds = 3\n"
      "model = \"%s\"\nevaluate_every = 0\n[aggregation]\noptimizer = \"%s\"\n"
      "server_schedule = \"cosine\"\nserver_warmup_rounds = 2\n[checkpoint]\ndirectory = \"%s\"\n",
      model, optimizer, dir / "checkpoints");
}

// One client's update; returns the model's hash after the round.
std::string OneRound(TestNode& node, uint64_t epoch, uint64_t seed, size_t n) {
  RawClient client(node.endpoint(), "a", epoch);
  client.AwaitTask();
  EXPECT_EQ(client.Upload(EncodeTest(seed)).status(), v1::UploadResponse::ACCEPTED);
  return node.Round(n).model_sha256;
}

TEST(OptimizerResume, EndsInTheSameModelWhereTheRootIsRestartedAfterEachRound) {
  for (const char* optimizer : {"fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi"}) {
    TempDir dir;
    const std::string model = WriteTestModel(dir);
    std::vector<std::string> whole, restarted;
    {
      TempDir own;
      TestNode node(Config(own, model, optimizer));
      for (size_t r = 0; r < 3; ++r) whole.push_back(OneRound(node, r + 1, r + 1, r));
    }
    for (size_t r = 0; r < 3; ++r) {
      TestNode node(Config(dir, model, optimizer));
      restarted.push_back(OneRound(node, r + 1, r + 1, 0));
    }
    EXPECT_EQ(restarted, whole) << optimizer;
  }
}

TEST(OptimizerResume, RefusesToGoOnUnderAnotherOptimizerAndNamesTheFirst) {
  TempDir dir;
  const std::string model = WriteTestModel(dir);
  {
    TestNode node(Config(dir, model, "fedadam"));
    OneRound(node, 1, 1, 0);
  }
  const auto config = ParseConfig(Config(dir, model, "fedyogi"), "test.toml");
  ASSERT_TRUE(config.ok()) << config.status();
  const auto node = Node::Create({.config = *config, .on_round = {}});
  EXPECT_EQ(node.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(node.status().message().find("\"fedadam\""), std::string::npos) << node.status();
}

// What the refusal says where a run of the test model is begun, and gone on with under this config.
std::string RefusalToGoOn(const std::string& model_again, const std::string& more) {
  TempDir dir;
  {
    TestNode node(Config(dir, WriteTestModel(dir), "fedavg"));
    OneRound(node, 1, 1, 0);
  }
  const std::string model = model_again.empty() ? WriteTestModel(dir) : model_again;
  const auto config = ParseConfig(Config(dir, model, "fedavg") + more, "test.toml");
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) return "";
  const auto node = Node::Create({.config = *config, .on_round = {}});
  return node.ok() ? "" : std::string(node.status().message());
}

TEST(ModelResume, RefusesToGoOnWithAnotherModelThanTheConfigNames) {
  EXPECT_EQ(RefusalToGoOn("", ""), "");
  const std::string text = RefusalToGoOn("logreg", "");
  EXPECT_NE(text.find("[run] model"), std::string::npos) << text;
  EXPECT_NE(text.find("logreg"), std::string::npos) << text;
}

TEST(ModelResume, RefusesToGoOnUnderOtherPolicies) {
  const std::string text = RefusalToGoOn("", "[aggregation.policies]\ncounter = \"sum\"\n");
  EXPECT_NE(text.find("[aggregation.policies]"), std::string::npos) << text;
  EXPECT_NE(text.find("counter"), std::string::npos) << text;
}

TEST(OptimizerConfig, NamesKeysThatTheOptimizerDoesNotLookAt) {
  TempDir dir;
  const auto config = ParseConfig(
      Config(dir, WriteTestModel(dir), "fedavgm\"\nserver_tau = 1\nserver_beta1 = \"x"), "t.toml");
  ASSERT_FALSE(config.ok());
  const std::string text(config.status().message());
  EXPECT_NE(text.find("[aggregation] server_tau does nothing with \"fedavgm\""), std::string::npos)
      << text;
}

}  // namespace
}  // namespace tributary::server
