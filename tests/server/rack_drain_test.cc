// A rack that is told to end: what its clients have sent counts, where the round can finish within
// the grace time.
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

class RackDrainTest : public NodeTest {
 protected:
  std::string Root(int minimum, double grace_s = 10) {
    return absl::StrFormat(
        "[node]\nname = \"global\"\nlisten = \"127.0.0.1:0\"\n[transport]\nlisten = "
        "\"127.0.0.1:0\"\n[run]\nname = \"test\"\nrounds = 2\nmodel = \"%s\"\nevaluate_every = 0\n"
        "[cohort]\nminimum = %d\n[limits]\nshutdown_grace_s = %g\n[straggler]\ndeadline = "
        "\"fixed\"\n[checkpoint]\ndirectory = "
        "\"%s\"\n",
        WriteTestModel(dir_), minimum, grace_s, dir_ / "checkpoints");
  }
  static std::string Rack(const TestNode& root, double grace_s) {
    return absl::StrFormat(
        "[node]\nname = \"rack-0\"\nlisten = \"127.0.0.1:0\"\nparent = \"%s\"\n[transport]\n"
        "listen = \"127.0.0.1:0\"\n[limits]\nshutdown_grace_s = %g\n",
        root.endpoint(), grace_s);
  }
};

TEST_F(RackDrainTest, TheRunningRoundFinishesAndCountsBeforeTheRackEnds) {
  TestNode root(Root(2));
  TestNode rack(Rack(root, 60));
  RawClient a(rack.endpoint(), "a"), b(rack.endpoint(), "b");
  a.AwaitTask();
  b.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  rack.Shutdown();
  EXPECT_EQ(b.Upload(EncodeTest(2)).status(), v1::UploadResponse::ACCEPTED);
  const RoundReport report = root.Round(0);
  EXPECT_TRUE(report.committed) << report.why_not;
  EXPECT_EQ(report.collected.result.clients, 2u);
  EXPECT_TRUE(a.AwaitOutcome().included());
  EXPECT_EQ(a.AwaitStop().kind(), v1::Stop::GOING_AWAY);
  EXPECT_TRUE(rack.End().ok());
}

TEST_F(RackDrainTest, ARoundThatDoesNotFinishEndsAtTheGrace) {
  TestNode root(Root(2));
  TestNode rack(Rack(root, 0.3));
  RawClient a(rack.endpoint(), "a"), silent(rack.endpoint(), "silent");
  a.AwaitTask();
  silent.AwaitTask();
  EXPECT_EQ(a.Upload(EncodeTest(1)).status(), v1::UploadResponse::ACCEPTED);
  const absl::Time asked = absl::Now();
  rack.Shutdown();
  EXPECT_EQ(silent.AwaitStop().kind(), v1::Stop::GOING_AWAY);
  EXPECT_TRUE(rack.End().ok());
  EXPECT_GE(absl::Now() - asked, absl::Milliseconds(300));
}

TEST_F(RackDrainTest, WithNobodyLeftInTheRoundItEndsAtOnce) {
  TestNode root(Root(1));
  TestNode rack(Rack(root, 3600));
  {
    RawClient a(rack.endpoint(), "a");
    a.AwaitTask();
    rack.Shutdown();
    v1::SessionRequest leave;
    leave.mutable_leave()->set_reason("test");
    a.Send(leave);
    a.Await([](const auto&) { return false; });  // until the stream ends
  }
  EXPECT_TRUE(rack.End().ok());  // which waits for a minute at most
}

TEST_F(RackDrainTest, AParentThatGoesAwayIsNotWaitedFor) {
  TestNode root(Root(1, 0.1));
  TestNode rack(Rack(root, 3600));
  RawClient silent(rack.endpoint(), "silent");
  silent.AwaitTask();
  rack.Shutdown();
  root.Shutdown();
  EXPECT_TRUE(rack.End().ok());  // which waits for a minute at most
}

}  // namespace
}  // namespace tributary::server
