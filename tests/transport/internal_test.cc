// The pure parts of links: credits, grants, hellos, frames, the rules of LinkState.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "transport/internal/credit.h"
#include "transport/internal/frame.h"
#include "transport/internal/hello.h"
#include "transport/internal/link_state.h"
#include "transport/internal/slot_pool.h"

namespace tributary::transport::internal {
namespace {

using ::testing::HasSubstr;

std::string Golden(const std::string& name) {
  std::ifstream in(std::string(TRIBUTARY_SOURCE_DIR) + "/tests/golden/link/" + name,
                   std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

ByteSpan Span(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Words(const absl::Status& status) { return std::string(status.message()); }

// --- credits ---

TEST(CreditLedger, RepeatedLateAndForeignGrantsMintNothing) {
  CreditLedger ledger(/*epoch=*/9, /*granted=*/2);
  EXPECT_TRUE(ledger.Take());
  EXPECT_TRUE(ledger.Take());
  EXPECT_FALSE(ledger.Take());
  EXPECT_EQ(ledger.OnGrant(9, 5), CreditLedger::Grant::kRaised);
  EXPECT_EQ(ledger.available(), 3u);
  EXPECT_EQ(ledger.OnGrant(9, 5), CreditLedger::Grant::kOld);
  EXPECT_EQ(ledger.OnGrant(9, 3), CreditLedger::Grant::kOld);
  EXPECT_EQ(ledger.OnGrant(8, 100), CreditLedger::Grant::kWrongEpoch);
  EXPECT_EQ(ledger.available(), 3u);
}

TEST(CreditLedger, UnusedCreditCanBeGivenBack) {
  CreditLedger ledger(1, 1);
  EXPECT_TRUE(ledger.Take());
  ledger.GiveBack();
  EXPECT_TRUE(ledger.Take());
  EXPECT_FALSE(ledger.Take());
}

TEST(GrantLedger, NeverPromisesMoreThanSlotsThatAreFree) {
  // Whatever the order of arrivals and returns: announced - returned is at most the slots.
  for (uint32_t slots : {1u, 2u, 3u, 8u, 64u}) {
    std::mt19937 random(slots);
    GrantLedger grants(slots);
    uint64_t arrived = 0, returned = 0;
    for (int step = 0; step < 10000; ++step) {
      if (random() % 2 == 0 && arrived < grants.announced()) {
        grants.OnArrival();
        ++arrived;
      } else if (returned < arrived) {
        grants.OnReturn();
        ++returned;
      }
      if (grants.Due()) grants.Announce();
      ASSERT_LE(grants.announced(), slots + returned);
      EXPECT_TRUE(grants.Admits(grants.announced() - 1));
      EXPECT_FALSE(grants.Admits(grants.announced()));
    }
  }
}

TEST(GrantLedger, SenderWithoutCreditIsNeverLeftWaitingForReturnedSlots) {
  for (uint32_t slots : {1u, 2u, 3u, 4u, 5u, 8u, 1024u}) {
    GrantLedger grants(slots);
    for (uint32_t i = 0; i < slots; ++i) grants.OnArrival();  // all of it used
    grants.OnReturn();
    EXPECT_TRUE(grants.Due()) << slots;
  }
}

// --- hellos ---

v1::LinkHello SampleHello() {
  LinkOptions options;
  options.name = "rack0";
  options.hello = std::string("\0\xffhi", 4);
  std::string id;
  for (char c = 0; c < 16; ++c) id.push_back(c);
  return ControlHello(options, id, 0x0123456789abcdef);
}

TEST(Hello, BytesOfVersionOneNeverChange) {
  EXPECT_EQ(EncodeHello(SampleHello()), Golden("hello_v1.bin"));
  const std::string bytes = Golden("hello_v1.bin");
  auto length = DecodePrefix(Span(bytes.substr(0, kHelloPrefixBytes)));
  ASSERT_TRUE(length.ok()) << length.status();
  EXPECT_EQ(*length, bytes.size() - kHelloPrefixBytes);
  auto hello = DecodeHello(Span(bytes.substr(kHelloPrefixBytes)));
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(hello->name(), "rack0");
  EXPECT_EQ(hello->epoch(), 0x0123456789abcdefu);
  EXPECT_EQ(hello->chunk_bytes(), (1u << 20) + 4096);
  EXPECT_EQ(hello->slots(), 8u);
  EXPECT_EQ(hello->lanes(), 2u);
  EXPECT_EQ(hello->heartbeat_ms(), 1000u);
}

TEST(Hello, AnswerOfVersionOneIsStillUnderstood) {
  auto reply = DecodeReply(Span(Golden("reply_v1.bin").substr(kHelloPrefixBytes)));
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->hello().name(), "global");
  EXPECT_EQ(reply->hello().slots(), 16u);
  EXPECT_EQ(EncodeReply(*reply), Golden("reply_v1.bin"));
}

TEST(Hello, RefusalArrivesWithItsCodeAndWords) {
  const std::string bytes = EncodeRefusal(absl::FailedPreconditionError("no, because"));
  const absl::Status status = DecodeReply(Span(bytes.substr(kHelloPrefixBytes))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Words(status), HasSubstr("no, because"));
}

TEST(Hello, LengthsBeyondTheLimitAreRefusedBeforeAnythingIsAllocated) {
  std::string prefix("TRIBLINK\0\0\0\0\0\0\0\x80", 16);  // 2^63
  EXPECT_THAT(Words(DecodePrefix(Span(prefix)).status()), HasSubstr("9223372036854775808"));
  prefix = std::string("TRIBLINK\x01\x10\x01\0\0\0\0\0", 16);  // 64 KiB + 4 KiB + 1
  EXPECT_FALSE(DecodePrefix(Span(prefix)).ok());
  prefix = std::string("TRIBLINK\x00\x10\x01\0\0\0\0\0", 16);
  EXPECT_TRUE(DecodePrefix(Span(prefix)).ok());
}

TEST(Hello, OtherProtocolsAreCalledByTheirName) {
  EXPECT_THAT(Words(DecodePrefix(Span("GET / HTTP/1.1\r\n")).status()), HasSubstr("HTTP"));
  EXPECT_THAT(
      Words(DecodePrefix(Span(std::string("\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03...ab", 16)))
                .status()),
      HasSubstr("TLS"));
  EXPECT_THAT(AnswerToGarbage("GET / HTTP/1.1\r\n", absl::InvalidArgumentError("no link")),
              HasSubstr("400 Bad Request"));
}

TEST(Hello, EveryFieldOutOfRangeIsNamed) {
  const auto refusal = [](auto change) {
    v1::LinkHello hello = SampleHello();
    change(hello);
    const absl::Status status = DecodeHello(Span(hello.SerializeAsString())).status();
    EXPECT_FALSE(status.ok());
    return Words(status);
  };
  EXPECT_THAT(refusal([](auto& h) { h.set_version(2); }), HasSubstr("version 2"));
  EXPECT_THAT(refusal([](auto& h) { h.set_version(0); }), HasSubstr("version 0"));
  EXPECT_THAT(refusal([](auto& h) { h.set_link_id("short"); }), HasSubstr("link id has 5"));
  EXPECT_THAT(refusal([](auto& h) { h.set_socket(17); }), HasSubstr("17"));
  EXPECT_THAT(refusal([](auto& h) { h.set_lanes(0); }), HasSubstr("lanes is 0"));
  EXPECT_THAT(refusal([](auto& h) { h.set_lanes(17); }), HasSubstr("lanes is 17"));
  EXPECT_THAT(refusal([](auto& h) { h.set_slots(0); }), HasSubstr("slots is 0"));
  EXPECT_THAT(refusal([](auto& h) { h.set_slots(4000000000); }), HasSubstr("slots is 4000000000"));
  EXPECT_THAT(refusal([](auto& h) { h.set_chunk_bytes(0); }), HasSubstr("chunk_bytes is 0"));
  EXPECT_THAT(refusal([](auto& h) { h.set_chunk_bytes(~0ull); }), HasSubstr("chunk_bytes"));
  EXPECT_THAT(refusal([](auto& h) { h.set_heartbeat_ms(0); }), HasSubstr("heartbeat_ms is 0"));
  EXPECT_THAT(refusal([](auto& h) { h.set_name(std::string(257, 'x')); }), HasSubstr("257"));
}

TEST(Hello, DamagedBytesAreRefusedAndNeverCrash) {
  const std::string good = SampleHello().SerializeAsString();
  std::mt19937 random(4);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (int flips = 0; flips < 3; ++flips) bad[random() % bad.size()] ^= 1 << random() % 8;
    bad.resize(random() % (bad.size() + 1));
    const auto hello = DecodeHello(Span(bad));
    if (hello.ok()) {
      EXPECT_EQ(hello->link_id().size(), 16u);
    }
  }
}

// --- frames ---

TEST(Frame, BytesOfAChunkHeaderNeverChange) {
  const std::string golden = Golden("chunk_v1.bin");
  ChunkHeaderBytes bytes;
  std::copy_n(golden.begin(), bytes.size(), bytes.begin());
  auto header = DecodeChunkHeader(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->payload_bytes, 9u);
  EXPECT_EQ(header->sequence, 5u);
  EXPECT_EQ(header->tag.stream, 7u);
  EXPECT_EQ(header->tag.index, 3u);
  EXPECT_EQ(header->tag.a, ~uint64_t{0});
  EXPECT_EQ(header->tag.b, uint64_t{1} << 40);
  EXPECT_EQ(header->payload_crc32c, 0xe3069283u);
  EXPECT_EQ(EncodeChunkHeader(*header), bytes);
}

TEST(Frame, EverySingleBitFlipInAChunkHeaderIsFound) {
  ChunkHeader header;
  header.payload_bytes = 77;
  header.sequence = 3;
  const ChunkHeaderBytes good = EncodeChunkHeader(header);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    ChunkHeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    EXPECT_EQ(DecodeChunkHeader(bad).status().code(), absl::StatusCode::kDataLoss) << bit;
  }
}

TEST(Frame, ControlMessagesAreCutFromTheStreamByteByByte) {
  const std::string golden = Golden("control_v1.bin");
  ControlReader reader;
  std::vector<ControlMessage> messages;
  for (char byte : golden) {
    reader.Append(Span(std::string(1, byte)));
    auto next = reader.Next();
    ASSERT_TRUE(next.ok()) << next.status();
    if (next->has_value()) messages.push_back(**next);
  }
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].type, ControlType::kGrant);
  EXPECT_EQ(messages[0].a, 0x0123456789abcdefu);
  EXPECT_EQ(messages[0].b, 12u);
  EXPECT_EQ(messages[1].type, ControlType::kCancel);
  EXPECT_EQ(messages[1].text, "because");
  EXPECT_EQ(EncodeControl(messages[0]) + EncodeControl(messages[1]), golden);
}

TEST(Frame, DamagedControlMessagesAreFound) {
  const std::string good =
      EncodeControl({.type = ControlType::kCancel, .a = 1, .b = 2, .text = "why"});
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    ControlReader reader;
    reader.Append(Span(bad));
    const auto next = reader.Next();
    // A longer announced text only makes the reader wait for more.
    if (next.ok()) {
      EXPECT_FALSE(next->has_value()) << bit;
    }
  }
}

TEST(Frame, LongReasonsAreCut) {
  const std::string bytes =
      EncodeControl({.type = ControlType::kCancel, .a = 0, .b = 0, .text = std::string(5000, 'x')});
  ControlReader reader;
  reader.Append(Span(bytes));
  auto next = reader.Next();
  ASSERT_TRUE(next.ok() && next->has_value());
  EXPECT_EQ((*next)->text.size(), ControlMessage::kMaxText);
}

// --- the rules of a link ---

LinkState MakeState() {
  return LinkState({.peer = "peer \"p\"",
                    .chunk_bytes = 100,
                    .send_slots = 2,
                    .receive_slots = 2,
                    .our_epoch = 1,
                    .peer_epoch = 2,
                    .peer_slots = 3});
}

TEST(LinkState, PeerThatSendsMoreThanItWasGrantedIsNamed) {
  LinkState state = MakeState();
  EXPECT_TRUE(state.Admit(0, 100).ok());
  EXPECT_TRUE(state.Admit(1, 100).ok());
  const absl::Status status = state.Admit(2, 100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Words(status), HasSubstr("peer \"p\""));
}

TEST(LinkState, ChunkLongerThanASlotOrSentTwiceIsRefused) {
  LinkState state = MakeState();
  EXPECT_EQ(state.Admit(0, 101).status().code(), absl::StatusCode::kDataLoss);
  auto slot = state.Admit(0, 100);
  ASSERT_TRUE(slot.ok());
  state.OnArrived({.slot = *slot, .bytes = 100, .sequence = 0, .tag = {}});
  EXPECT_EQ(state.Admit(0, 100).status().code(), absl::StatusCode::kDataLoss);
}

TEST(LinkState, ChunksThatOvertookEachOtherAreHandedOutInOrder) {
  LinkState state = MakeState();
  const uint32_t one = *state.Admit(1, 10);
  state.OnArrived({.slot = one, .bytes = 10, .sequence = 1, .tag = {}});
  EXPECT_FALSE(state.Receive().has_value());
  const uint32_t zero = *state.Admit(0, 10);
  state.OnArrived({.slot = zero, .bytes = 10, .sequence = 0, .tag = {}});
  EXPECT_EQ((*state.Receive())->slot, zero);
  EXPECT_EQ((*state.Receive())->slot, one);
}

TEST(LinkState, EndOfStreamWaitsForEveryChunkOfTheGoodbye) {
  LinkState state = MakeState();
  ASSERT_TRUE(state.OnGoodbye(1).ok());
  EXPECT_FALSE(state.Receive().has_value());
  const uint32_t slot = *state.Admit(0, 10);
  state.OnArrived({.slot = slot, .bytes = 10, .sequence = 0, .tag = {}});
  EXPECT_TRUE((*state.Receive()).ok());
  EXPECT_EQ((*state.Receive()).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(state.OnGoodbye(0).code(), absl::StatusCode::kDataLoss);
}

TEST(LinkState, ArrivedChunksComeBeforeThePeersErrorButNotBeforeOurCancel) {
  for (bool local : {false, true}) {
    LinkState state = MakeState();
    const uint32_t slot = *state.Admit(0, 10);
    state.OnArrived({.slot = slot, .bytes = 10, .sequence = 0, .tag = {}});
    EXPECT_TRUE(state.Fail(absl::UnavailableError("first"), local));
    EXPECT_FALSE(state.Fail(absl::UnavailableError("second"), false));
    EXPECT_EQ((*state.Receive()).ok(), !local);
    EXPECT_EQ((*state.Receive()).status(), absl::UnavailableError("first"));
    EXPECT_EQ(state.SendStatus(), absl::UnavailableError("first"));
  }
}

TEST(LinkState, BorrowingIsBoundByOwnSlotsAndByThePeersGrants) {
  LinkState state = MakeState();
  const uint32_t a = state.Borrow();
  state.Borrow();
  EXPECT_FALSE(state.CanBorrow());
  EXPECT_THAT(Words(state.BorrowTimeout()), HasSubstr("2 send slots"));
  state.OnSent(state.Queue(a, 10, {}));
  EXPECT_TRUE(state.CanBorrow());
  state.OnSent(state.Queue(state.Borrow(), 10, {}));
  EXPECT_FALSE(state.CanBorrow());
  EXPECT_THAT(Words(state.BorrowTimeout()), HasSubstr("granted no credit"));
  EXPECT_FALSE(state.OnGrant(1, 4));  // our own epoch is not theirs
  EXPECT_TRUE(state.OnGrant(2, 4));
  EXPECT_TRUE(state.CanBorrow());
}

TEST(Arena, SlotsAreApartAndWritable) {
  auto arena = Arena::Map(5000, 3);
  ASSERT_TRUE(arena.ok()) << arena.status();
  for (uint32_t i = 0; i < 3; ++i) std::fill_n(arena->slot(i), 5000, static_cast<uint8_t>(i));
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(arena->slot(i)[0], i);
    EXPECT_EQ(arena->slot(i)[4999], i);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->slot(i)) % 4096, 0u);
  }
}

}  // namespace
}  // namespace tributary::transport::internal
