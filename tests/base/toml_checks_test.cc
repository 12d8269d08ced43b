// Addresses in config files.
#include "base/toml_checks.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

TEST(ParseHostPortTest, TakesHostsAndPorts) {
  const auto plain = ParseHostPort("a.example:7070");
  ASSERT_TRUE(plain.has_value());
  EXPECT_EQ(plain->host, "a.example");
  EXPECT_EQ(plain->port, 7070);
  const auto v6 = ParseHostPort("[::1]:0");
  ASSERT_TRUE(v6.has_value());
  EXPECT_EQ(v6->host, "[::1]");
  EXPECT_EQ(v6->port, 0);
  EXPECT_EQ(ParseHostPort("h:65535")->port, 65535);
}

TEST(ParseHostPortTest, RefusesEverythingElse) {
  for (const char* bad : {"", "h", "h:", ":1", "h:65536", "h:99999999999999999999", "h:-1", "h:+1",
                          "h:1x", "h: 1", "h:1 ", "h:0x1"}) {
    EXPECT_FALSE(ParseHostPort(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace tributary
