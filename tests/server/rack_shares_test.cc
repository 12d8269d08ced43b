// What a round of all tiers needs and admits, split among racks.
#include <thread>

#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

class RackSharesTest : public NodeTest {
 protected:
  std::string Root(const std::string& cohort) {
    return absl::StrFormat(
        "[node]\nname = \"global\"\nlisten = \"127.0.0.1:0\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n[run]\nname = \"test\"\nrounds = 1\nmodel = \"%s\"\n"
        "evaluate_every = 0\n[cohort]\n%s\n[straggler]\ndeadline = \"fixed\"\n[checkpoint]\n"
        "directory = \"%s\"\n",
        WriteTestModel(dir_), cohort, dir_ / "checkpoints");
  }
  static std::string Rack(const std::string& name, const TestNode& root) {
    return absl::StrFormat(
        "[node]\nname = \"%s\"\nlisten = \"127.0.0.1:0\"\nparent = \"%s\"\n[transport]\n"
        "listen = \"127.0.0.1:0\"\n",
        name, root.endpoint());
  }
};

// Two racks of three clients, of whom four are there when the round begins. A rack that had all of
// the maximum to itself would take in three, and the sum of the later one would be refused whole.
TEST_F(RackSharesTest, OfAMaximumNoRackTakesInMoreThanTheRoundHasRoomFor) {
  TestNode root(Root("minimum = 4\nmaximum = 4"));
  TestNode one(Rack("rack-1", root)), two(Rack("rack-2", root));
  RawClient a(one.endpoint(), "a"), b(one.endpoint(), "b"), c(one.endpoint(), "c");
  RawClient d(two.endpoint(), "d"), e(two.endpoint(), "e"), f(two.endpoint(), "f");
  std::vector<RawClient*> clients = {&a, &b, &c, &d, &e, &f};
  for (RawClient* client : clients) client->AwaitTask();
  // Each by itself: who came when the round had begun may be answered when it is over.
  std::vector<std::thread> uploads;
  for (RawClient* client : clients) {
    uploads.emplace_back([client] { client->Upload(EncodeTest(1)); });
  }
  const RoundReport report = root.Round(0);
  EXPECT_TRUE(report.committed) << report.why_not;
  EXPECT_EQ(report.collected.result.clients, 4u);
  EXPECT_EQ(report.collected.wait.closed_by, "maximum");
  for (std::thread& upload : uploads) upload.join();
}

// Less what forwarding takes: half a second, as long as nothing is known.
TEST_F(RackSharesTest, ARacksDeadlineIsItsParentsLessTheTimeToForward) {
  TestNode root(Root("minimum = 2"));
  TestNode rack(Rack("rack-1", root));
  RawClient below(rack.endpoint(), "below"), beside(root.endpoint(), "beside");
  const uint64_t roots = beside.AwaitTask().spec().deadline_ms();
  const uint64_t racks = below.AwaitTask().spec().deadline_ms();
  EXPECT_LE(racks, uint64_t{600'000 - 500});
  EXPECT_GT(racks, uint64_t{500'000});
  EXPECT_GT(roots, racks);
}

}  // namespace
}  // namespace tributary::server
