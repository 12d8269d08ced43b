// Fuzz target: any chunks as what a child's links bring its parent: headers of partial sums in
// pieces, packed chunks, trailers, over links that end and are replaced. What is taken must be in
// the sums exactly once, and of what is not nothing may stay there.
//
// The input is records: u8 flags, u32 stream, u8 index, u8 header chunks, u8 chunks, u16 bytes,
// then so many bytes of payload. Flag 1: the payload is the trailer of what has come (no fuzzer
// finds a SHA-256). Flag 2: the link ends behind it, and the next begins.
#include <google/protobuf/stubs/logging.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "aggregation/accumulator.h"
#include "aggregation/fold_pool.h"
#include "server/partial_fold.h"
#include "server/tier_child.h"
#include "transport/link.h"
#include "tributary/v1/tier_service.pb.h"

namespace {

using namespace tributary;  // NOLINT: a fuzz target's own file
using aggregation::ExactAccumulator;
using aggregation::FoldPool;
using transport::Chunk;

constexpr size_t kRecordBytes = 10;
constexpr uint64_t kMostPackedBytes = 1 << 24;  // that a header may claim

void Require(bool good) {
  if (!good) std::abort();
}

struct Record {
  uint8_t flags = 0;
  transport::ChunkTag tag;
  std::vector<uint8_t> payload;
};

std::deque<Record> Records(const uint8_t* data, size_t size) {
  std::deque<Record> records;
  while (size >= kRecordBytes) {
    Record record;
    uint32_t stream;
    uint16_t bytes;
    std::memcpy(&stream, data + 1, sizeof stream);
    std::memcpy(&bytes, data + 8, sizeof bytes);
    record.flags = data[0];
    record.tag = {.stream = stream, .index = data[5], .a = data[6], .b = data[7]};
    data += kRecordBytes;
    size -= kRecordBytes;
    const size_t there = std::min<size_t>(bytes, size);
    record.payload.assign(data, data + there);
    data += there;
    size -= there;
    records.push_back(std::move(record));
  }
  return records;
}

// The parent's side of all that its child sends. As server/collector_partials.cc: one partial sum
// at a time, its first chunks kept where it breaks off. Two chunks, of which the second has tensors
// that cannot be undone.
class Parent final : public server::TierHandler {
 public:
  Parent() {
    pool_.Target(sum_.get());
    hello_.set_id("rack-1");
    hello_.set_epoch(1);
  }

  const v1::TierHello& hello() const { return hello_; }

  void OnPartialStart(std::shared_ptr<server::IncomingPartial> partial) override {
    const v1::PartialSumHeader& header = partial->header();
    if (header.chunks() != sum_->chunk_count() || header.contributors().empty() ||
        header.packed_bytes() > kMostPackedBytes) {
      Forget(&half_);
      partial->Refuse("it is none of this layout");
      return;
    }
    if (half_ != nullptr && half_->SameSum(header)) {
      fold_ = std::exchange(half_, nullptr);
      fold_->Resume();
    } else {
      Forget(&half_);
      fold_ = std::make_shared<server::PartialFold>(header, sum_.get(), &pool_);
    }
    partial->Admit(fold_);
  }
  void OnPartialComplete(std::shared_ptr<server::IncomingPartial> partial) override {
    Require(fold_ != nullptr && latest_.size() >= sum_->chunk_count());
    std::exchange(fold_, nullptr)->Settle([] {});
    for (uint64_t i = 0; i < sum_->chunk_count(); ++i) {
      Require(wanted_->ValidateChunk(i, latest_[i]).ok());
      wanted_->MergeChunk(i, latest_[i], partial->header().contributors(0),
                          {0, layout_->elements()});
    }
    partial->Taken();
  }
  void OnPartialBroken(std::shared_ptr<server::IncomingPartial>, absl::Status) override {
    Require(fold_ != nullptr);
    fold_->Seal();
    half_ = std::exchange(fold_, nullptr);
  }
  void OnPartialBad(const std::string& id, uint64_t epoch, std::shared_ptr<server::IncomingPartial>,
                    absl::Status) override {
    Require(id == hello_.id() && epoch == hello_.epoch());
    Forget(&fold_);
    Forget(&half_);
  }

  // On the receiving thread: a chunk is about to be taken.
  void Coming(uint64_t data_chunk, const std::vector<uint8_t>& payload) {
    latest_[data_chunk] = payload;
  }
  std::string Trailer() const {
    v1::PartialSumTrailer trailer;
    if (fold_ != nullptr) trailer.set_digest(fold_->digest());
    return trailer.SerializeAsString();
  }

  // Nothing comes any more: what is whole is in the sums, and nothing else.
  void End() {
    Forget(&fold_);
    Forget(&half_);
    pool_.Wait();
    Require(std::ranges::equal(sum_->sums(), wanted_->sums()));
    sum_->Reset();
    wanted_->Reset();
    latest_.clear();
  }

 private:
  static std::unique_ptr<ExactAccumulator> Sums(
      const std::shared_ptr<const aggregation::ModelLayout>& layout) {
    return *ExactAccumulator::Create(layout, aggregation::Grid());
  }
  void Forget(std::shared_ptr<server::PartialFold>* fold) {
    if (*fold != nullptr) std::exchange(*fold, nullptr)->Undo([] {});
  }

  const std::shared_ptr<const aggregation::ModelLayout> layout_ = *aggregation::ModelLayout::Create(
      {{"w",
        {aggregation::kChunkElements + 700},
        aggregation::DType::kF32,
        aggregation::Policy::kMean},
       {"n", {3}, aggregation::DType::kI64, aggregation::Policy::kSum},
       {"most", {5}, aggregation::DType::kI64, aggregation::Policy::kMax},
       {"one", {600}, aggregation::DType::kF32, aggregation::Policy::kFirst}});
  const std::unique_ptr<ExactAccumulator> sum_ = Sums(layout_), wanted_ = Sums(layout_);
  FoldPool pool_{FoldPool::Options{.workers = 2}};
  v1::TierHello hello_;
  std::shared_ptr<server::PartialFold> fold_, half_;  // what is taken; what broke off
  std::map<uint64_t, std::vector<uint8_t>> latest_;   // of each data chunk, what came last
};

// Brings records up to the end of the link; what goes down it is dropped.
class FuzzLink final : public transport::Link, transport::ChunkOwner {
 public:
  FuzzLink(std::deque<Record>* records, Parent* parent) : records_(records), parent_(parent) {}

  absl::StatusOr<Chunk> Borrow(Deadline) override {
    return Chunk(this, 0, down_.data(), down_.size(), transport::MemoryKind::kHost);
  }
  absl::Status Send(Chunk) override { return absl::OkStatus(); }
  absl::StatusOr<Chunk> Receive(Deadline) override {
    if (records_->empty() || ended_) return absl::OutOfRangeError("the link has ended");
    record_ = std::move(records_->front());
    records_->pop_front();
    ended_ = (record_.flags & 2) != 0;
    if ((record_.flags & 1) != 0) {
      const std::string trailer = parent_->Trailer();
      record_.payload.assign(trailer.begin(), trailer.end());
    }
    const transport::ChunkTag& tag = record_.tag;
    if (tag.index == 0) header_chunks_ = tag.a;
    if (tag.index >= header_chunks_) parent_->Coming(tag.index - header_chunks_, record_.payload);
    Chunk chunk(this, 0, record_.payload.data(), record_.payload.size(),
                transport::MemoryKind::kHost);
    chunk.set_size(record_.payload.size());
    chunk.tag() = tag;
    return chunk;
  }
  absl::Status Close(Deadline) override { return absl::OkStatus(); }
  void Cancel(const std::string&) override {}
  absl::Status status() const override { return absl::OkStatus(); }
  size_t chunk_bytes() const override { return down_.size(); }
  std::string peer() const override { return parent_->hello().id(); }
  std::string hello() const override { return parent_->hello().SerializeAsString(); }
  std::string_view transport() const override { return "fuzz"; }
  transport::LinkStats stats() const override { return {}; }
  void Return(uint32_t) override {}

 private:
  std::deque<Record>* const records_;
  Parent* const parent_;
  Record record_;
  bool ended_ = false;
  uint64_t header_chunks_ = 0;
  std::vector<uint8_t> down_ = std::vector<uint8_t>(4096);  // for answers, the sender's alone
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto* parent = [] {
    spdlog::set_level(spdlog::level::off);
    google::protobuf::SetLogHandler(nullptr);  // it would tell of each header that does not parse
    return new Parent;
  }();
  std::deque<Record> records = Records(data, size);
  while (!records.empty()) {
    std::promise<void> over;
    server::ModelCounters counters;
    server::TierChild child(std::make_unique<FuzzLink>(&records, parent), parent->hello(), parent,
                            absl::InfiniteDuration(), &counters, [&over] { over.set_value(); });
    over.get_future().wait();
  }
  parent->End();
  return 0;
}
