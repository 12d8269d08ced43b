// Data sets: counts, first values, checksums, refusals. Expected numbers were taken from the same
// files by numpy, or are the data sets' published ones.
#include "client/trainer/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "absl/strings/escaping.h"
#include "base/status.h"
#include "client/trainer/internal/gzip.h"

namespace tributary::client::trainer {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> ClassCounts(const Examples& examples) {
  std::vector<int> counts(10);
  for (const uint8_t label : examples.labels) ++counts.at(label);
  return counts;
}

uint64_t PixelSum(const Examples& examples) {
  return std::accumulate(examples.pixels.begin(), examples.pixels.end(), uint64_t{0});
}

// A fresh directory, removed with what is in it.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "dataset_test.XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Scratch() { std::filesystem::remove_all(path_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const Dataset& FashionMnist() {
  static const auto* const dataset =
      new absl::StatusOr<Dataset>(LoadDataset("fashion-mnist"));  // once: it takes a second
  EXPECT_TRUE(dataset->ok()) << dataset->status();
  return dataset->value();
}

TEST(FashionMnist, Has60000And10000ImagesInTenEqualClasses) {
  EXPECT_EQ(FashionMnist().train.size(), 60000);
  EXPECT_EQ(FashionMnist().test.size(), 10000);
  EXPECT_EQ(FashionMnist().train.pixels.size(), 60000 * 784);
  EXPECT_EQ(FashionMnist().test.pixels.size(), 10000 * 784);
  EXPECT_THAT(ClassCounts(FashionMnist().train), Each(6000));
  EXPECT_THAT(ClassCounts(FashionMnist().test), Each(1000));
}

TEST(FashionMnist, HasTheValuesThatNumpyReads) {
  const Dataset& data = FashionMnist();
  const auto train = std::vector<int>(data.train.labels.begin(), data.train.labels.begin() + 5);
  const auto test = std::vector<int>(data.test.labels.begin(), data.test.labels.begin() + 5);
  EXPECT_THAT(train, ElementsAre(9, 0, 0, 3, 0));
  EXPECT_THAT(test, ElementsAre(9, 2, 1, 1, 6));
  EXPECT_EQ(data.train.pixels[10 * 28 + 14], 228);
  EXPECT_EQ(PixelSum(data.train), 3431114169u);
  const auto first = data.test.pixels.begin();
  EXPECT_EQ(std::accumulate(first, first + 784, 0), 33456);
  EXPECT_EQ(std::accumulate(data.test.pixels.end() - 784, data.test.pixels.end(), 0), 24390);
}

TEST(FashionMnist, NormalisedHasMeanZeroAndDeviationOne) {
  const std::vector<float> values = Normalise(FashionMnist().train, FashionMnist().format);
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const double mean = sum / static_cast<double>(values.size());
  EXPECT_NEAR(mean, 0, 2e-4);  // the constants have four digits
  EXPECT_NEAR(squares / static_cast<double>(values.size()) - mean * mean, 1, 5e-4);
}

TEST(Digits, HasThePublishedCountsInTheFilesOrder) {
  const auto data = LoadDataset("digits");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train.size(), 1437);
  EXPECT_EQ(data->test.size(), 360);
  std::vector<int> all = ClassCounts(data->train);
  const std::vector<int> test = ClassCounts(data->test);
  EXPECT_THAT(all, ElementsAre(143, 146, 142, 146, 144, 145, 144, 143, 141, 143));
  for (size_t i = 0; i < all.size(); ++i) all[i] += test[i];
  EXPECT_THAT(all, ElementsAre(178, 182, 177, 183, 181, 182, 181, 179, 174, 180));
  EXPECT_EQ(PixelSum(data->train), 449372);
  EXPECT_EQ(PixelSum(data->test), 112346);
  EXPECT_EQ(data->test.labels.back(), 8);
}

TEST(Normalise, ScalesShiftsAndDividesEachPixel) {
  const ImageFormat format{.dataset = "x",
                           .height = 1,
                           .width = 3,
                           .classes = 2,
                           .pixel_max = 255,
                           .mean = 0.5,
                           .deviation = 0.25};
  const Examples examples{.pixels = {0, 51, 255}, .labels = {1}};
  const auto values = Normalise(examples, format);
  EXPECT_THAT(values, ElementsAre(-2.0f, -1.2f, 2.0f));  // 51 / 255 = 0.2
}

TEST(Gather, KeepsTheOrderAsked) {
  const ImageFormat format{.dataset = "x", .height = 1, .width = 2, .classes = 10};
  const Examples from{.pixels = {1, 2, 3, 4, 5, 6}, .labels = {7, 8, 9}};
  const Examples to = Gather(from, format, std::vector<uint32_t>{2, 0});
  EXPECT_THAT(to.pixels, ElementsAre(5, 6, 1, 2));
  EXPECT_THAT(to.labels, ElementsAre(9, 7));
}

TEST(LoadDataset, NamesWhatIsKnown) {
  const auto data = LoadDataset("mnist");
  EXPECT_EQ(data.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Text(data.status()),
              AllOf(HasSubstr("\"mnist\""), HasSubstr("fashion-mnist"), HasSubstr("digits")));
}

TEST(LoadDataset, NamesThePackageOfAMissingFile) {
  const Scratch empty;
  const auto fashion = LoadDataset("fashion-mnist", empty.path());
  EXPECT_EQ(fashion.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Text(fashion.status()), AllOf(HasSubstr(empty.path() + "/train-images-idx3-ubyte.gz"),
                                            HasSubstr("apt-get install dataset-fashion-mnist")));
  const auto digits = LoadDataset("digits", empty.path());
  EXPECT_EQ(digits.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Text(digits.status()), HasSubstr("apt-get install python3-sklearn"));
}

TEST(LoadDataset, RefusesAFileWhoseSha256IsNotThePinnedOne) {
  const Scratch scratch;
  const std::string path = scratch.path() + "/digits.csv.gz";
  std::filesystem::copy_file(*DefaultDirectoryOf("digits") + "/digits.csv.gz", path);
  ASSERT_TRUE(LoadDataset("digits", scratch.path()).ok());
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1000);
    file.put('\x55');
  }
  const auto data = LoadDataset("digits", scratch.path());
  EXPECT_EQ(data.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Text(data.status()),
              AllOf(HasSubstr(path), HasSubstr(std::string((*FilesOf("digits"))[0].sha256))));
}

// "tributary" through Python's gzip.compress(b"tributary", mtime=0).
std::vector<uint8_t> PackedWord() {
  const std::string bytes =
      absl::HexStringToBytes("1f8b08000000000002032b29ca4c2a2d492caa0400729c8b5609000000");
  return {bytes.begin(), bytes.end()};
}

TEST(Gunzip, UnpacksWhatPythonPacked) {
  const auto word = Gunzip("word.gz", PackedWord(), 9);
  ASSERT_TRUE(word.ok()) << word.status();
  EXPECT_EQ(std::string(word->begin(), word->end()), "tributary");
}

TEST(Gunzip, RefusesMoreThanTheLimit) {
  const auto word = Gunzip("word.gz", PackedWord(), 8);
  EXPECT_EQ(word.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Text(word.status()), HasSubstr("more than 8 bytes"));
}

TEST(Gunzip, RefusesTruncatedAndForeignBytes) {
  std::vector<uint8_t> cut = PackedWord();
  cut.resize(cut.size() - 5);
  EXPECT_EQ(Gunzip("cut.gz", cut, 100).status().code(), absl::StatusCode::kDataLoss);
  const std::vector<uint8_t> text = {'t', 'e', 'x', 't'};
  EXPECT_EQ(Gunzip("text.gz", text, 100).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Gunzip("empty.gz", {}, 100).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tributary::client::trainer
