// Promises of the fold workers: each contribution once, freed before its callback, no waiting
// forever.
#include "aggregation/fold_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "testing.h"

namespace tributary::aggregation {
namespace {

struct Fixture {
  testing::LayoutPtr layout = testing::MixedLayout();
  std::vector<testing::Recorded> recorded;

  explicit Fixture(int count) {
    for (int i = 0; i < count; ++i) {
      auto deltas = testing::RandomDeltas(*layout, i);
      recorded.push_back(testing::Record(*layout, {"bf16"}, absl::StrCat("c", i), 1 + i, deltas));
    }
  }
  testing::UpdatePtr Update(int i) const { return testing::Assemble(layout, Grid(), recorded[i]); }
  std::string Expected() const {
    auto sum = testing::MakeAccumulator(layout, Grid());
    for (size_t i = 0; i < recorded.size(); ++i)
      testing::FoldAll(sum.get(), {Update(static_cast<int>(i))});
    return testing::DigestOf(*sum);
  }
};

TEST(FoldPoolTest, FoldsEachUpdateOnceAndCallsBackOnce) {
  const Fixture fixture(9);
  const std::string expected = fixture.Expected();
  for (const int workers : {1, 2, 4}) {
    auto sum = testing::MakeAccumulator(fixture.layout, Grid());
    FoldPool pool({workers, 3});
    pool.Target(sum.get());
    std::array<std::atomic<int>, 9> calls{};
    for (int i = 0; i < 9; ++i) pool.Fold(fixture.Update(i), [&calls, i] { ++calls[i]; });
    pool.Wait();
    for (const auto& count : calls) EXPECT_EQ(count, 1);
    EXPECT_EQ(testing::DigestOf(*sum), expected);
    EXPECT_GT(pool.busy_seconds(), 0);
  }
}

TEST(FoldPoolTest, FreesAnUpdateBeforeItCallsBack) {
  const Fixture fixture(1);
  auto sum = testing::MakeAccumulator(fixture.layout, Grid());
  FoldPool pool({2, 16});
  pool.Target(sum.get());
  testing::UpdatePtr update = fixture.Update(0);
  const std::weak_ptr<const EncodedUpdate> alive = update;
  std::atomic<bool> freed = false;
  pool.Fold(std::move(update), [&] { freed = alive.expired(); });
  pool.Wait();
  EXPECT_TRUE(freed);
}

// Three million elements in segments of a MiB, four of which a pass folds between two releases.
struct Large {
  static constexpr uint64_t kElements = uint64_t{3} << 20;
  static constexpr uint64_t kSegmentBytes = compression::SegmentHeader::kBytes + (1u << 20);

  testing::LayoutPtr layout = testing::MakeLayout({{"w", {kElements}}});
  testing::Recorded recorded;
  std::vector<std::weak_ptr<const std::vector<uint8_t>>> alive;

  Large() {
    auto deltas = testing::RandomDeltas(*layout, 1);
    recorded = testing::Record(*layout, {"fp32"}, "c", 3, deltas);
  }
  testing::UpdatePtr Update() {
    UpdateAssembler assembler(layout, Grid(), "c", 3, recorded.size());
    alive.clear();
    for (const auto& segment : recorded.segments) {
      const auto owned = std::make_shared<const std::vector<uint8_t>>(segment);
      alive.push_back(owned);
      EXPECT_TRUE(assembler.Add(PiecedBytes(*owned), owned)) << assembler.refusal().message;
    }
    return assembler.Finish(recorded.size(), recorded.crc());
  }
  size_t Freed() const {
    return static_cast<size_t>(
        std::count_if(alive.begin(), alive.end(), [](const auto& one) { return one.expired(); }));
  }
};

TEST(FoldPoolTest, ReleasesAnUpdatePieceByPieceAsThePassGoesOverIt) {
  Large large;
  auto sum = testing::MakeAccumulator(large.layout, Grid());
  FoldPool pool({1, 16});
  pool.Target(sum.get());
  std::vector<uint64_t> released;
  std::vector<size_t> freed;
  testing::UpdatePtr update = large.Update();
  ASSERT_EQ(large.alive.size(), 12u);
  pool.Fold(std::move(update), nullptr, [&](uint64_t bytes) {
    released.push_back(bytes);
    freed.push_back(large.Freed());
  });
  pool.Wait();
  EXPECT_EQ(released, std::vector<uint64_t>(3, 4 * Large::kSegmentBytes));
  EXPECT_EQ(freed, (std::vector<size_t>{4, 8, 12}));
  auto expected = testing::MakeAccumulator(large.layout, Grid());
  testing::FoldAll(expected.get(), {large.Update()});
  EXPECT_EQ(testing::DigestOf(*sum), testing::DigestOf(*expected));
}

// A pass stops every 2^20 elements to let go of what it has folded: within tiles and segments,
// where tensors do not begin at a multiple of 2^15.
TEST(FoldPoolTest, StopsOfAPassWithinTilesLoseNothing) {
  const auto layout =
      testing::MakeLayout({{"a", {100}},
                           {"packed", {(uint64_t{2} << 20) + 5}},
                           {"count", {(uint64_t{1} << 20) + 7}, DType::kI64, Policy::kSum},
                           {"sparse", {uint64_t{2} << 20}}});
  const std::vector<std::string> codecs = {"fp32", "fp32 | zstd", "fp32",
                                           "topk(0.01, values=ternary)"};
  std::vector<testing::UpdatePtr> updates;
  std::vector<int64_t> expected(layout->elements());
  for (int i = 0; i < 3; ++i) {
    auto deltas = testing::RandomDeltas(*layout, 40 + i);
    const auto recorded = testing::Record(*layout, codecs, absl::StrCat("c", i), 1 + i, deltas);
    updates.push_back(testing::Assemble(layout, Grid(), recorded));
    // What decoders make of it, by the definition of the grid.
    for (const EncodedUpdate::Segment& segment : updates.back()->segments()) {
      int64_t* const to =
          expected.data() + layout->TensorElementOffset(segment.tensor) + segment.first;
      if (segment.codec == nullptr) {
        for (uint64_t k = 0; k < segment.count; ++k) {
          to[k] += deltas.ints[segment.tensor][segment.first + k];
        }
        continue;
      }
      std::vector<float> values(segment.count);
      segment.codec->Decode(segment.payload, values);
      for (uint64_t k = 0; k < segment.count; ++k) {
        to[k] += (1 + i) * std::llrint(std::ldexp(values[k], Grid().fraction_bits));
      }
    }
  }
  for (const int workers : {1, 3}) {
    auto sum = testing::MakeAccumulator(layout, Grid());
    FoldPool pool({workers, 16});
    pool.Target(sum.get());
    for (const auto& update : updates) pool.Fold(update, nullptr);
    pool.Wait();
    EXPECT_TRUE(std::ranges::equal(sum->sums(), expected)) << workers;
    pool.Target(nullptr);
  }
}

// Of five ranges some end within a segment: that one goes at the end, with the update.
TEST(FoldPoolTest, EachWorkerReleasesWhatIsWhollyItsOwn) {
  Large large;
  auto sum = testing::MakeAccumulator(large.layout, Grid());
  uint64_t whole = 0;
  for (const ElementRange range : sum->Split(5)) {
    const uint64_t first = (range.begin + (1u << 18) - 1) >> 18, last = range.end >> 18;
    whole += last - first;
  }
  ASSERT_EQ(whole, 8u);
  FoldPool pool({5, 16});
  pool.Target(sum.get());
  std::atomic<uint64_t> released = 0;
  std::atomic<uint64_t> at_end = 0;
  std::atomic<size_t> freed = 0;
  pool.Fold(
      large.Update(),
      [&] {
        at_end = released.load();
        freed = large.Freed();
      },
      [&](uint64_t bytes) { released += bytes; });
  pool.Wait();
  EXPECT_EQ(at_end, whole * Large::kSegmentBytes) << "all is said before the end";
  EXPECT_EQ(freed, 12u);
  auto expected = testing::MakeAccumulator(large.layout, Grid());
  testing::FoldAll(expected.get(), {large.Update()});
  EXPECT_EQ(testing::DigestOf(*sum), testing::DigestOf(*expected));
}

TEST(FoldPoolTest, MergesPartialSumsAmongUpdatesHandedInFromManyThreads) {
  const Fixture fixture(8);
  const std::string expected = fixture.Expected();
  auto sum = testing::MakeAccumulator(fixture.layout, Grid());
  FoldPool pool({3, 4});
  pool.Target(sum.get());
  std::atomic<int> calls = 0;
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      if (i % 2 == 0) return pool.Fold(fixture.Update(i), [&] { ++calls; });
      auto child = testing::MakeAccumulator(fixture.layout, Grid());
      testing::FoldAll(child.get(), {fixture.Update(i)});
      pool.Merge(testing::PackAll(*child, fixture.recorded[i].id), [&] { ++calls; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  pool.Wait();
  EXPECT_EQ(calls, 8);
  EXPECT_EQ(testing::DigestOf(*sum), expected);
}

TEST(FoldPoolTest, ACallbackMayGiveTheNextTargetAndMoreWork) {
  const Fixture fixture(2);
  auto first = testing::MakeAccumulator(fixture.layout, Grid());
  auto second = testing::MakeAccumulator(fixture.layout, Grid());
  FoldPool pool({2, 16});
  pool.Target(first.get());
  std::promise<void> all_done;
  pool.Fold(fixture.Update(0), [&] {
    pool.Target(second.get());
    pool.Fold(fixture.Update(1), [&] { all_done.set_value(); });
  });
  all_done.get_future().wait();
  pool.Wait();
  auto expected = testing::MakeAccumulator(fixture.layout, Grid());
  testing::FoldAll(expected.get(), {fixture.Update(1)});
  EXPECT_EQ(testing::DigestOf(*second), testing::DigestOf(*expected));
}

TEST(FoldPoolTest, CallsBackWhereThereIsNothingToFold) {
  const auto layout = testing::MakeLayout({{"none", {0}}});
  auto sum = testing::MakeAccumulator(layout, Grid());
  UpdateAssembler assembler(layout, Grid(), "c", 1, 0);
  FoldPool pool({4, 16});
  pool.Target(sum.get());
  std::atomic<int> calls = 0;
  pool.Fold(assembler.Finish(0, 0), [&] { ++calls; });
  pool.Merge(testing::PackAll(*sum, "c"), [&] { ++calls; });
  pool.Wait();
  EXPECT_EQ(calls, 2);
}

// A chunk each, as they come from a link.
std::vector<std::shared_ptr<const PackedPartial>> ChunkByChunk(const PackedPartial& whole) {
  std::vector<std::shared_ptr<const PackedPartial>> out;
  for (uint64_t i = 0; i < whole.chunks.size(); ++i) {
    out.push_back(std::make_shared<PackedPartial>(
        PackedPartial{.first_id = whole.first_id, .chunks = {whole.chunks[i]}, .first_chunk = i}));
  }
  return out;
}

TEST(FoldPoolTest, MergesChunkByChunkAndAFenceComesAfterThem) {
  const Fixture fixture(3);
  auto child = testing::MakeAccumulator(fixture.layout, Grid());
  for (int i = 0; i < 3; ++i) testing::FoldAll(child.get(), {fixture.Update(i)});
  const auto chunks = ChunkByChunk(*testing::PackAll(*child, "c0"));
  ASSERT_GT(chunks.size(), 1u);
  for (const int workers : {1, 2, 5}) {
    auto sum = testing::MakeAccumulator(fixture.layout, Grid());
    FoldPool pool({workers, 2});
    pool.Target(sum.get());
    std::atomic<int> calls = 0;
    for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk)
      pool.Merge(*chunk, [&] { ++calls; });
    std::promise<void> fenced;
    pool.Fence([&] { fenced.set_value(); });
    fenced.get_future().wait();
    EXPECT_EQ(testing::DigestOf(*sum), fixture.Expected());
    pool.Wait();
    EXPECT_EQ(calls, static_cast<int>(chunks.size()));
  }
}

TEST(FoldPoolTest, SubtractUndoesMergeAmongOtherWorkInWhateverOrder) {
  const auto layout = testing::AdditiveLayout();
  std::vector<testing::UpdatePtr> updates;
  for (int i = 0; i < 6; ++i) {
    auto deltas = testing::RandomDeltas(*layout, 40 + i);
    updates.push_back(testing::Assemble(
        layout, Grid(),
        testing::Record(*layout, {"fp32"}, absl::StrCat("c", i), 1 + 5 * i, deltas)));
  }
  auto child = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(child.get(), {updates[0], updates[1]});
  const auto chunks = ChunkByChunk(*testing::PackAll(*child, "c0"));
  auto expected = testing::MakeAccumulator(layout, Grid());
  testing::FoldAll(expected.get(), {updates.begin() + 2, updates.end()});

  auto sum = testing::MakeAccumulator(layout, Grid());
  FoldPool pool({3, 2});
  pool.Target(sum.get());
  pool.Fold(updates[2], nullptr);
  for (const auto& chunk : chunks) pool.Merge(chunk, nullptr);
  for (size_t i = 3; i < updates.size(); ++i) pool.Fold(updates[i], nullptr);
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk)
    pool.Subtract(*chunk, nullptr);
  pool.Subtract(chunks[0], nullptr);  // and once before it is there
  pool.Merge(chunks[0], nullptr);
  pool.Wait();
  EXPECT_EQ(testing::DigestOf(*sum), testing::DigestOf(*expected));
}

// Updates in a pool that gathers for longer than any test runs, unless told.
struct Gathering {
  explicit Gathering(FoldPool::Options options) : pool(options) { pool.Target(sum.get()); }
  void Fold(int i) {
    pool.Fold(fixture.Update(i), [this] {
      if (++calls == 3) three.set_value();
    });
  }

  Fixture fixture{3};
  std::unique_ptr<ExactAccumulator> sum = testing::MakeAccumulator(fixture.layout, Grid());
  std::atomic<int> calls = 0;
  std::promise<void> three;
  FoldPool pool;  // last: what it calls back outlives it
};
constexpr double kForever = 1e6;

TEST(FoldPoolTest, GathersUntilAPassIsFull) {
  Gathering g({.workers = 2, .updates_per_pass = 3, .gather_seconds = kForever});
  g.Fold(0);
  g.Fold(1);
  EXPECT_EQ(g.calls, 0);
  g.Fold(2);
  g.three.get_future().wait();
  g.pool.Wait();
  EXPECT_EQ(testing::DigestOf(*g.sum), g.fixture.Expected());
}

TEST(FoldPoolTest, GathersSoManyBytesAtMost) {
  const uint64_t bytes = Fixture(1).Update(0)->encoded_bytes();
  Gathering g({.workers = 2, .gather_seconds = kForever, .gather_bytes = 3 * bytes});
  g.Fold(0);
  g.Fold(1);
  EXPECT_EQ(g.calls, 0);
  g.Fold(2);
  g.three.get_future().wait();
  g.pool.Wait();
  EXPECT_EQ(testing::DigestOf(*g.sum), g.fixture.Expected());
}

TEST(FoldPoolTest, GathersNoLongerThanItMay) {
  Gathering g({.workers = 2, .gather_seconds = 0.001});
  for (int i = 0; i < 3; ++i) g.Fold(i);
  g.three.get_future().wait();
  g.pool.Wait();
  EXPECT_EQ(testing::DigestOf(*g.sum), g.fixture.Expected());
}

TEST(FoldPoolTest, WhatIsGatheredIsFoldedWhenFlushedFencedOrWaitedFor) {
  Gathering g({.workers = 2, .gather_seconds = kForever});
  g.Fold(0);
  std::promise<int> at_fence;
  g.pool.Fence([&] { at_fence.set_value(g.calls); });
  EXPECT_EQ(at_fence.get_future().get(), 1);
  g.Fold(1);
  g.pool.Wait();
  EXPECT_EQ(g.calls, 2);
  g.Fold(2);
  EXPECT_EQ(g.calls, 2);
  g.pool.Flush();
  g.three.get_future().wait();
  g.pool.Wait();
  EXPECT_EQ(testing::DigestOf(*g.sum), g.fixture.Expected());
}

TEST(FoldPoolTest, FinishesWhatWasHandedInBeforeItEnds) {
  const Fixture fixture(5);
  auto sum = testing::MakeAccumulator(fixture.layout, Grid());
  std::atomic<int> calls = 0;
  {
    FoldPool pool({2, 1});
    pool.Target(sum.get());
    for (int i = 0; i < 5; ++i) pool.Fold(fixture.Update(i), [&] { ++calls; });
  }
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(testing::DigestOf(*sum), fixture.Expected());
}

TEST(FoldPoolDeathTest, RefusesANewTargetWhileWorkIsInFlight) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Fixture fixture(1);
  EXPECT_DEATH(
      {
        auto sum = testing::MakeAccumulator(fixture.layout, Grid());
        FoldPool pool({1, 1});
        pool.Target(sum.get());
        std::promise<void> entered;
        std::promise<void> release;
        // The only worker is held in the first's callback, so the second stays in flight.
        pool.Fold(fixture.Update(0), [&] {
          entered.set_value();
          release.get_future().wait();
        });
        pool.Fold(fixture.Update(0), nullptr);
        entered.get_future().wait();
        pool.Target(nullptr);
      },
      "Target was called while work is in flight");
}

TEST(FoldPoolDeathTest, RefusesWorkWithoutATarget) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Fixture fixture(1);
  EXPECT_DEATH(
      {
        FoldPool pool({1, 1});
        pool.Fold(fixture.Update(0), nullptr);
      },
      "before Target");
}

}  // namespace
}  // namespace tributary::aggregation
