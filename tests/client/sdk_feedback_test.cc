// Error feedback through a whole client that ends between its upload and the outcome: what its next
// life sends says whether the round was taken for one that counted.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "compression/codec.h"
#include "compression/segment.h"
#include "tests/client/sdk_fixture.h"

namespace tributary::client::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kWeights = 64;
constexpr size_t kSent = 16;  // a quarter of them, and of one more

// Multiples of 2^-10: all that the recursions below make of them in three rounds is exact.
float DeltaAt(size_t i, uint64_t round) {
  const int v = static_cast<int>((i * 23 + round * 41) % 127) - 63;
  return static_cast<float>(v) / 1024;
}

// How a chain feeds back what topk(0.25) did not send (docs/codecs.md, "Error feedback").
struct Feedback {
  const char* name;
  const char* stage;
  double decay = 1, momentum = 0;
  bool estimate = false;
};

const Feedback kFeedbacks[] = {
    {.name = "Ef", .stage = ""},
    {.name = "DecayAndMomentum",
     .stage = " | ef(decay=0.5, momentum=0.5)",
     .decay = 0.5,
     .momentum = 0.5},
    {.name = "Ef21", .stage = " | ef21", .estimate = true},
};

// The recursion in binary64, by the document.
struct Kept {
  explicit Kept(size_t elements = kWeights) : e(elements), u(elements), g(elements) {}
  std::vector<double> e, u, g;
};

std::vector<double> Step(const Feedback& how, uint64_t round, Kept* kept) {
  const size_t n = kept->e.size();
  std::vector<double> x(n), sent(n);
  for (size_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(DeltaAt(i, round));
    kept->u[i] = how.momentum * kept->u[i] + d;
    x[i] = how.estimate ? d - kept->g[i] : kept->u[i] + how.decay * kept->e[i];
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  for (size_t k = 0; k < kSent; ++k) sent[order[k]] = x[order[k]];
  for (size_t i = 0; i < n; ++i) {
    kept->e[i] = x[i] - sent[i];
    kept->g[i] += sent[i];
    if (sent[i] != 0) kept->u[i] = 0;
  }
  return sent;
}

// What an aggregator decodes of the floats of an upload.
std::vector<double> Decoded(const ReceivedUpload& upload, size_t elements = kWeights) {
  std::vector<double> all(elements);
  const auto* data = reinterpret_cast<const uint8_t*>(upload.segments.data());
  const PiecedBytes bytes{ByteSpan(data, upload.segments.size())};
  ByteCursor cursor(bytes);
  while (!cursor.Contiguous().empty()) {
    const auto header = compression::ReadSegmentHeader(&cursor);
    PiecedBytes payload;
    if (!header.ok() || !cursor.Take(header->payload_bytes, &payload)) {
      ADD_FAILURE() << "the upload's segments do not read";
      return all;
    }
    if (header->tensor != 0) continue;
    const auto codec = *compression::CodecFromHeader(header->codec, header->parameter);
    EXPECT_TRUE(codec->Validate(payload, header->count, 4096).ok());
    std::vector<float> values(header->count);
    codec->Decode(payload, values);
    std::copy(values.begin(), values.end(), all.begin() + static_cast<ptrdiff_t>(header->first));
  }
  return all;
}

class FeedbackLives : public SdkTest {
 protected:
  FeedbackLives() : SdkTest(kWeights) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(First());
    trainer_.train = [](const TrainTask& task, const auto&) {
      TrainResult result;
      result.floats.resize(3);
      result.floats[0].resize(task.layout->TensorElements(0));
      for (size_t i = 0; i < result.floats[0].size(); ++i) {
        result.floats[0][i] = DeltaAt(i, task.spec.round());
      }
      result.ints = {{}, {0}, {}};
      return result;
    };
  }
  ~FeedbackLives() override { std::filesystem::remove_all(folder_); }

  std::string First() const { return folder_ + "/first"; }
  std::string Second() const { return folder_ + "/second"; }
  RunningClient Live(const std::string& state, uint64_t epoch) {
    ClientOptions options = Options({server_.endpoint()});
    options.state_directory = state;
    options.epoch = epoch;
    return StartClient(options);
  }
  v1::Task TaskWith(uint64_t round, const std::string& stage) const {
    v1::Task task = Task(round);
    const std::string chain = "topk(0.25)" + stage;
    task.mutable_spec()->set_codec(chain + "; small = " + chain);
    return task;
  }
  // Round 1 counts. Of round 2 the update comes in whole, and before it is answered the client is
  // as if it were killed: its next life has of it what was on disk then.
  void LiveUntilTheSecondUpload(const std::string& stage) {
    server_.ScriptUpload({});
    UploadScript snapshot;
    snapshot.before_answer = [this] {
      std::filesystem::copy(First(), Second(), std::filesystem::copy_options::recursive);
    };
    server_.ScriptUpload(snapshot);
    RunningClient client = Live(First(), 1);
    server_.SendTask(TaskWith(1, stage));
    ASSERT_TRUE(server_.WaitForUploads(1));
    server_.SendOutcome(1, true);
    ASSERT_TRUE(trainer_.WaitForOutcomes(1));
    server_.SendTask(TaskWith(2, stage));
    ASSERT_TRUE(server_.WaitForUploads(2));
    client.Stop().IgnoreError();
    ASSERT_TRUE(server_.WaitForNoSession());
  }
  // The one file that a life has kept.
  std::string StateFile(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      files.push_back(entry.path());
    }
    EXPECT_THAT(files, SizeIs(1));
    return files.at(0);
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "sdk_feedback_test_", getpid());
};

// How the second life hears of round 2.
enum class Word { kOnJoining, kAsked, kToldLater, kNobodyKnows };

struct End {
  const char* name;
  Word word;
  bool counted;
};

constexpr End kEnds[] = {
    {"CountedAndSaidOnJoining", Word::kOnJoining, true},
    {"CountedAndAskedFor", Word::kAsked, true},
    {"CountedAndToldLater", Word::kToldLater, true},
    {"LostAndSaidOnJoining", Word::kOnJoining, false},
    {"LostAndAskedFor", Word::kAsked, false},
    {"LostAndToldLater", Word::kToldLater, false},
    {"NobodyKnows", Word::kNobodyKnows, false},
};

class EndedBetweenUploadAndOutcome
    : public FeedbackLives,
      public ::testing::WithParamInterface<std::tuple<Feedback, End>> {
 protected:
  void Announce(const End& end) {
    v1::Joined joined = JoinedMessage();
    switch (end.word) {
      case Word::kOnJoining:
        joined.set_committed_round(2);
        joined.mutable_last_outcome()->set_round(2);
        joined.mutable_last_outcome()->set_committed(true);
        joined.mutable_last_outcome()->set_included(end.counted);
        if (!end.counted) server_.ScriptFate(2, false);  // it might have counted elsewhere
        break;
      case Word::kAsked:
        joined.set_committed_round(2);
        server_.ScriptFate(2, end.counted);
        break;
      case Word::kToldLater:
        break;
      case Word::kNobodyKnows:
        joined.set_committed_round(5);
        break;
    }
    server_.SetJoined(joined);
  }
};

TEST_P(EndedBetweenUploadAndOutcome, TheNextUploadIsTheRecursionsWithOrWithoutTheRound) {
  const auto& [how, end] = GetParam();
  LiveUntilTheSecondUpload(how.stage);
  Announce(end);
  RunningClient client = Live(Second(), 2);
  if (end.word == Word::kToldLater) server_.SendOutcome(2, end.counted);
  server_.SendTask(TaskWith(3, how.stage));
  ASSERT_TRUE(server_.WaitForUploads(3));

  Kept kept;
  EXPECT_EQ(Decoded(server_.uploads()[0]), Step(how, 1, &kept));
  Kept without = kept;
  EXPECT_EQ(Decoded(server_.uploads()[1]), Step(how, 2, &kept));
  const std::vector<double> with = Step(how, 3, &kept);
  const std::vector<double> lost = Step(how, 3, &without);
  ASSERT_NE(with, lost) << "the upload would not tell";
  EXPECT_EQ(Decoded(server_.uploads()[2]), end.counted ? with : lost);
  EXPECT_THAT(trainer_.rounds(), ElementsAre(1, 2, 3)) << "nothing was trained again";
  EXPECT_THAT(trainer_.notices(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, EndedBetweenUploadAndOutcome,
                         ::testing::Combine(::testing::ValuesIn(kFeedbacks),
                                            ::testing::ValuesIn(kEnds)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param).name,
                                               std::get<1>(info.param).name);
                         });

TEST_F(FeedbackLives, ANewLifeUnderAnotherLayoutStartsFromZeroAndSaysSo) {
  LiveUntilTheSecondUpload("");
  layout_ = MakeLayout(kWeights + 1);
  model_ = MakeModel(*layout_);
  Serve(server_);
  RunningClient client = Live(Second(), 2);
  server_.SendTask(TaskWith(3, ""));
  ASSERT_TRUE(server_.WaitForUploads(3));
  EXPECT_THAT(trainer_.notices(),
              ElementsAre(AllOf(HasSubstr("another run or model layout"),
                                HasSubstr("error feedback starts again from zero"))));
  Kept nothing(kWeights + 1);
  EXPECT_EQ(Decoded(server_.uploads()[2], kWeights + 1), Step(kFeedbacks[0], 3, &nothing));
}

TEST_F(FeedbackLives, ALayoutThatChangesWhileItLivesStartsFromZeroAndIsSaidOnce) {
  RunningClient client = Live(First(), 1);
  server_.SendTask(TaskWith(1, ""));
  ASSERT_TRUE(server_.WaitForUploads(1));
  server_.SendOutcome(1, true);
  ASSERT_TRUE(trainer_.WaitForOutcomes(1));
  // The same number of elements, and not the same model: what was kept would fit.
  layout_ = *aggregation::ModelLayout::Create(
      {{"v", {kWeights}, aggregation::DType::kF32, aggregation::Policy::kMean},
       {"steps", {}, aggregation::DType::kI64, aggregation::Policy::kSum},
       {"fixed", {3}, aggregation::DType::kF32, aggregation::Policy::kSkip}});
  Serve(server_);
  server_.DropSession();
  ASSERT_TRUE(server_.WaitForJoins(2));
  server_.DropSession();
  ASSERT_TRUE(server_.WaitForJoins(3));
  server_.SendTask(TaskWith(2, ""));
  ASSERT_TRUE(server_.WaitForUploads(2));
  EXPECT_THAT(trainer_.notices(), ElementsAre(HasSubstr("another run or model layout")));
  Kept nothing;
  EXPECT_EQ(Decoded(server_.uploads()[1]), Step(kFeedbacks[0], 2, &nothing));
}

TEST_F(FeedbackLives, AFileThatIsDamagedIsSaidAndNothingOfItSent) {
  LiveUntilTheSecondUpload("");
  std::fstream file(StateFile(Second()), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x55');
  file.close();
  RunningClient client = Live(Second(), 2);
  server_.SendTask(TaskWith(3, ""));
  ASSERT_TRUE(server_.WaitForUploads(3));
  EXPECT_THAT(trainer_.notices(), ElementsAre(HasSubstr("is damaged")));
  Kept nothing;
  EXPECT_EQ(Decoded(server_.uploads()[2]), Step(kFeedbacks[0], 3, &nothing));
}

}  // namespace
}  // namespace tributary::client::testing
