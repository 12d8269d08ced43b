// Checks the shared pieces against published vectors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "base/bytes.h"
#include "base/checksum.h"
#include "base/philox.h"
#include "base/process.h"

namespace tributary {
namespace {

ByteSpan Bytes(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

TEST(ChecksumTest, Crc32cMatchesRfc3720Vectors) {
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\0'))), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(Bytes(std::string(32, '\xff'))), 0x62A8AB43u);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
}

TEST(ChecksumTest, Sha256MatchesFips180Vector) {
  EXPECT_EQ(absl::BytesToHexString(Sha256Of(Bytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// Known answers published with Random123 (kat_vectors, philox4x32 10).
TEST(PhiloxTest, MatchesRandom123KnownAnswers) {
  EXPECT_THAT(Philox4x32(0, {0, 0, 0, 0}).word,
              testing::ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}).word,
              testing::ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}).word,
              testing::ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(PhiloxTest, PurposesDoNotShareNumbers) {
  EXPECT_NE(SeededHash(1, "cohort", "c1"), SeededHash(1, "codec", "c1"));
  EXPECT_NE(SeededHash(1, "cohort", "c1"), SeededHash(2, "cohort", "c1"));
}

TEST(ByteCursorTest, ReadsAcrossPiecesAndStopsAtTheEnd) {
  const std::string a = "abc", b = "d", c = "efgh";
  PiecedBytes bytes;
  for (const auto* s : {&a, &b, &c}) bytes.Append(Bytes(*s));
  ByteCursor cursor(bytes, 2);
  EXPECT_EQ(cursor.Remaining(), 6u);
  char out[4];
  ASSERT_TRUE(cursor.Read(out, 4));
  EXPECT_EQ(std::string(out, 4), "cdef");
  EXPECT_FALSE(cursor.Read(out, 3));
}

TEST(FreePortTest, LooksBelowTheKernelsOwnPortsWhereThatLeavesRoom) {
  for (const int first : {32768, 15000, 11240, 60000}) {
    EXPECT_EQ(FreePortRange(first).first, 10240);
    EXPECT_EQ(FreePortRange(first).end, first);
  }
  for (const int first : {0, 1024, 10240, 11239}) {
    EXPECT_EQ(FreePortRange(first).first, 10240);
    EXPECT_EQ(FreePortRange(first).end, 32768) << "the kernel's begin at " << first;
  }
}

// What is given out must still be free when a process that starts later binds it: never twice, and
// where this machine allows never from the range that the kernel serves others from meanwhile.
TEST(FreePortTest, GivesEachPortOnceAndFromItsRange) {
  int first_ephemeral = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_ephemeral;
  ASSERT_GT(first_ephemeral, 0);
  const PortRange range = FreePortRange(first_ephemeral);
  std::set<int> seen;
  for (int i = 0; i < 300; ++i) {
    const auto port = FreePort();
    ASSERT_TRUE(port.ok()) << port.status();
    EXPECT_GE(*port, range.first);
    EXPECT_LT(*port, range.end);
    EXPECT_TRUE(seen.insert(*port).second) << *port << " is given out twice";
  }
}

}  // namespace
}  // namespace tributary
