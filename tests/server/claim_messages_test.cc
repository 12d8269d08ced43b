// However many clients are claimed, no message is larger than a session takes.
#include "server/claim_messages.h"

#include <gmock/gmock.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "aggregation/round.h"
#include "tests/server/node_fixture.h"

namespace tributary::server {
namespace {

using ::testing::ElementsAreArray;
using ::testing::SizeIs;

constexpr size_t kMostBytes = size_t{2} << 20;

// As long as ids may be, and no two alike.
std::vector<std::string> LongIds(size_t count) {
  std::vector<std::string> ids;
  for (size_t i = 0; i < count; ++i) {
    ids.push_back(absl::StrCat(i, "-"));
    ids.back().resize(aggregation::kMostIdBytes, 'x');
  }
  return ids;
}

v1::Claims ClaimsOf(const std::vector<std::string>& ids) {
  v1::Claims claims;
  claims.set_round(~uint64_t{0});  // what takes the most room
  claims.set_done(~uint64_t{0});
  claims.set_late(true);
  claims.set_open(true);
  claims.set_blank(true);
  claims.mutable_clients()->Assign(ids.begin(), ids.end());
  return claims;
}

size_t OnASession(const v1::Claims& claims) {
  v1::SessionRequest request;
  *request.mutable_claims() = claims;
  return request.ByteSizeLong();
}

size_t OnASession(const v1::ClaimsAnswer& answer) {
  v1::SessionResponse response;
  *response.mutable_claims() = answer;
  return response.ByteSizeLong();
}

// As many as fit into one message.
constexpr size_t kFit = kMostIdsInMessage / (aggregation::kMostIdBytes + kBesideAnId);

TEST(ClaimMessages, AsManyAsFitGoInOneAndTheNextInAnother) {
  const std::vector<std::string> ids = LongIds(kFit + 1);
  const auto one = InMessages(ClaimsOf({ids.begin(), ids.end() - 1}));
  ASSERT_THAT(one, SizeIs(1));
  EXPECT_LE(OnASession(one[0]), kMostBytes);
  EXPECT_GT(OnASession(one[0]), kMostBytes - 8192) << "it is not cut sooner than need be";
  const auto two = InMessages(ClaimsOf(ids));
  ASSERT_THAT(two, SizeIs(2));
  EXPECT_LE(OnASession(two[0]), kMostBytes);
  EXPECT_THAT(two[1].clients(), ElementsAreArray({ids.back()}));
}

TEST(ClaimMessages, EachHasAllThatIsSaidBesideTheIds) {
  for (const v1::Claims& claims : InMessages(ClaimsOf(LongIds(2 * kFit)))) {
    v1::Claims beside = claims;
    beside.clear_clients();
    EXPECT_EQ(beside.SerializeAsString(), ClaimsOf({}).SerializeAsString());
  }
}

TEST(ClaimMessages, WithoutIdsAreOneAllTheSame) {
  const auto messages = InMessages(ClaimsOf({}));
  ASSERT_THAT(messages, SizeIs(1));
  EXPECT_EQ(messages[0].SerializeAsString(), ClaimsOf({}).SerializeAsString());
}

TEST(ClaimMessages, NameEachClientOnceInOrder) {
  const std::vector<std::string> ids = LongIds(3 * kFit + 5);
  std::vector<std::string> named;
  for (const v1::Claims& claims : InMessages(ClaimsOf(ids))) {
    EXPECT_LE(OnASession(claims), kMostBytes);
    named.insert(named.end(), claims.clients().begin(), claims.clients().end());
  }
  EXPECT_EQ(named, ids);
}

TEST(ClaimMessages, AnswersAreCutWhereverTheirListsEnd) {
  const std::vector<std::string> ids = LongIds(4 * kFit);
  v1::ClaimsAnswer answer;
  answer.set_round(7);
  answer.mutable_granted()->Assign(ids.begin(), ids.begin() + kFit / 2);
  answer.mutable_taken()->Assign(ids.begin() + kFit / 2, ids.begin() + 2 * kFit);
  answer.mutable_refused()->Assign(ids.begin() + 2 * kFit, ids.end());
  const auto messages = InMessages(answer);
  EXPECT_THAT(messages, SizeIs(4));
  v1::ClaimsAnswer together;
  for (const v1::ClaimsAnswer& message : messages) {
    EXPECT_LE(OnASession(message), kMostBytes);
    EXPECT_EQ(message.round(), 7u);
    together.MergeFrom(message);
  }
  EXPECT_EQ(together.SerializeAsString(), answer.SerializeAsString());
  EXPECT_THAT(InMessages(v1::ClaimsAnswer()), SizeIs(0));
}

// ---- Over a session

class ClaimsOverASession : public NodeTest {
 protected:
  // Two clients are below it, as it says; more than its bound of claims allows it does not name.
#ifdef __SANITIZE_THREAD__
  // Two messages: tsan looks up a suppression of gRPC's buffers for each id that is copied into
  // one.
  static constexpr size_t kClaims = 9000;
#else
  static constexpr size_t kClaims = aggregation::kFewClaims;
#endif

  void Join(const std::string& endpoint) {
    stub_ =
        v1::Aggregator::NewStub(grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()));
    context_.set_deadline(std::chrono::system_clock::now() +
                          absl::ToChronoSeconds(10 * kPatience));  // under tsan it takes minutes
    stream_ = stub_->Session(&context_);
    v1::SessionRequest request;
    v1::Join* join = request.mutable_join();
    join->set_protocol(1);
    join->set_id("rack");
    join->set_role(v1::AGGREGATOR);
    join->set_epoch(kEpoch);
    join->set_clients(2);
    join->set_examples(20);
    stream_->Write(request);
  }
  ~ClaimsOverASession() override {
    context_.TryCancel();
    v1::SessionResponse response;
    while (stream_->Read(&response)) {
    }
    (void)stream_->Finish();
  }

  std::unique_ptr<v1::Aggregator::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SessionRequest, v1::SessionResponse>> stream_;
};

// 17 MB of ids each way. In one message they would end the session.
TEST_F(ClaimsOverASession, AsManyAsOneAggregatorMayHaveAreAskedForAndAnswered) {
  TestNode node(Config("[limits]\nsession_timeout_s = 600\n"));  // this rack sends no heartbeats
  Join(node.endpoint());
  v1::SessionResponse response;
  while (stream_->Read(&response) && !response.has_task()) {
  }
  ASSERT_TRUE(response.has_task());
  v1::Claims claims;
  claims.set_round(response.task().spec().round());
  for (std::string& id : LongIds(kClaims)) claims.add_clients(std::move(id));
  for (v1::Claims& message : InMessages(std::move(claims))) {
    v1::SessionRequest request;
    *request.mutable_claims() = std::move(message);
    ASSERT_TRUE(stream_->Write(request));
  }
  size_t granted = 0;
  while (granted < kClaims && stream_->Read(&response)) {
    EXPECT_LE(response.ByteSizeLong(), kMostBytes);
    granted += static_cast<size_t>(response.claims().granted_size());
  }
  EXPECT_EQ(granted, kClaims);
}

}  // namespace
}  // namespace tributary::server
