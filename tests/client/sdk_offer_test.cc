// Updates that are offered, and sent when granted.
#include "tests/client/sdk_fixture.h"

namespace tributary::client::testing {
namespace {

using ::testing::ElementsAre;

class OfferTest : public LargeModelTest {
 protected:
  OfferTest() { Ask(server_); }
  void Ask(FakeAggregator& server) {
    v1::Joined joined = JoinedMessage();
    joined.set_offer_above_bytes(1 << 16);
    server.SetJoined(joined);
  }
};

TEST_F(OfferTest, AnUpdateIsOfferedWithItsSizeAndSentOnceGranted) {
  RunningClient client = StartClient();
  const v1::Task task = Task(1, v1::TRAIN, false);
  server_.SendTask(task);
  ASSERT_TRUE(server_.WaitForOffers(1));
  const size_t heartbeats = server_.heartbeats().size();
  ASSERT_TRUE(server_.WaitForHeartbeats(heartbeats + 2, "upload"));  // it had the time to send
  EXPECT_TRUE(server_.uploads().empty());
  server_.SendGrant(1);
  ASSERT_TRUE(server_.WaitForUploads(1));
  const v1::Offer offer = server_.offers()[0];
  EXPECT_EQ(offer.round(), 1u);
  EXPECT_EQ(offer.encoded_bytes(), Expected(task).size());
  EXPECT_EQ(server_.uploads()[0].segments, Expected(task));
}

TEST_F(OfferTest, AGrantOfAnotherRoundIsNoGrant) {
  RunningClient client = StartClient();
  server_.SendTask(Task(2, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForOffers(1));
  server_.SendGrant(1);
  const size_t heartbeats = server_.heartbeats().size();
  ASSERT_TRUE(server_.WaitForHeartbeats(heartbeats + 2, "upload"));
  EXPECT_TRUE(server_.uploads().empty());
  server_.SendGrant(2);
  ASSERT_TRUE(server_.WaitForUploads(1));
}

TEST_F(OfferTest, AGrantServesOneAttemptTheNextIsOfferedAgain) {
  UploadScript script;
  script.break_after_messages = 2;
  server_.ScriptUpload(script);
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForOffers(1));
  server_.SendGrant(1);
  ASSERT_TRUE(server_.WaitForOffers(2));
  EXPECT_EQ(server_.uploads().size(), 1u);
  server_.SendGrant(1);
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_TRUE(server_.uploads()[1].whole);
}

TEST_F(OfferTest, WhoWaitsForAGrantLearnsThatTheRoundIsOverAndTakesTheNext) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForOffers(1));
  server_.SendOutcome(1, false, "its update came too late or not at all");
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  EXPECT_FALSE(trainer_.outcomes()[0].included);
  server_.SendTask(Task(2, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForOffers(2));
  server_.SendGrant(2);
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_EQ(server_.uploads()[0].header.round(), 2u);
}

TEST_F(OfferTest, AfterANewSessionItIsOfferedAgain) {
  RunningClient client = StartClient();
  server_.SetOpenTask(Task(1, v1::TRAIN, false));
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForOffers(1));
  server_.DropSession();
  ASSERT_TRUE(server_.WaitForOffers(2));
  server_.SendGrant(1);
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1u)) << "not trained for again";
}

TEST_F(OfferTest, WhoIsToldNotToOfferSendsAtOnce) {
  ClientOptions options = Options({server_.endpoint()});
  options.offer_updates = false;
  RunningClient client = StartClient(options);
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_TRUE(server_.offers().empty());
}

TEST_F(LargeModelTest, AnAggregatorThatKnowsNoGrantsIsSentToAtOnce) {
  RunningClient client = StartClient();
  server_.SendTask(Task(1, v1::TRAIN, false));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_TRUE(server_.offers().empty());
}

// 100 floats: 400 bytes.
TEST_F(SdkTest, AnUpdateThatIsNotLargerThanTheAggregatorSaysIsSentAtOnce) {
  v1::Joined joined = JoinedMessage();
  joined.set_offer_above_bytes(1 << 16);
  server_.SetJoined(joined);
  RunningClient client = StartClient();
  server_.SendTask(Task(1));
  ASSERT_TRUE(server_.WaitForUploads(1));
  EXPECT_TRUE(server_.offers().empty());
}

}  // namespace
}  // namespace tributary::client::testing
