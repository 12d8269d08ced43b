// Promises of the reader of what benchmarks' processes report.
#include "bench/json_lines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string_view>

namespace tributary::bench {
namespace {

class JsonLinesTest : public testing::Test {
 protected:
  JsonLinesTest() { EXPECT_EQ(pipe(ends_), 0); }
  ~JsonLinesTest() override {
    close(ends_[0]);
    End();
  }
  void Write(std::string_view text) const {
    ASSERT_EQ(write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void End() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }
  int reader() const { return ends_[0]; }

 private:
  int ends_[2] = {-1, -1};
};

TEST_F(JsonLinesTest, GivesWholeLinesInOrderAndPassesOverWhatIsNotJson) {
  JsonLines lines(reader());
  Write("{\"n\":1}\nno json\n{\"n\":");
  EXPECT_EQ((*lines.Next())["n"], 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(lines.Next(Deadline::Now()).status()));
  Write("2}\n");
  EXPECT_EQ((*lines.Next(Deadline::Now()))["n"], 2) << "it is there";
}

TEST_F(JsonLinesTest, EndsWithItsWriter) {
  JsonLines lines(reader());
  Write("{\"n\":1}\n{\"n\":2}\n{\"n\":3");
  End();
  EXPECT_EQ(lines.Rest().size(), 2u) << "the third is cut";
  EXPECT_TRUE(absl::IsOutOfRange(lines.Next().status()));
}

}  // namespace
}  // namespace tributary::bench
