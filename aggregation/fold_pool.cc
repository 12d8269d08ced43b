// The fold workers: a queue each, everything that waits taken at once.
#include "aggregation/fold_pool.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace tributary::aggregation {
namespace {

// After so many elements of a pass, what is folded of the updates is released: often enough to
// matter, and work enough in between that the telling costs nothing.
constexpr uint64_t kReleaseElements = uint64_t{1} << 20;

int64_t ThreadCpuNanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void Check(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "FoldPool: %s\n", promise);
  std::abort();
}

}  // namespace

struct FoldPool::State {
  using Clock = std::chrono::steady_clock;

  // One contribution, shared by the workers that fold its ranges.
  struct Item {
    std::shared_ptr<const EncodedUpdate> update;   // one of the two, or, for a fence,
    std::shared_ptr<const PackedPartial> partial;  // neither
    bool subtract = false;                         // the partial sum
    std::function<void()> done;
    std::function<void(uint64_t)> released;  // null: nobody asks
    std::atomic<int> ranges_left{0};
  };
  using Work = std::shared_ptr<Item>;

  struct Worker {
    std::mutex mutex;  // of queue, stop and flush_at
    std::condition_variable wake;
    std::deque<Work> queue;
    bool stop = false;
    // The first worker's: when what is gathered has waited long enough.
    std::optional<Clock::time_point> flush_at;
    ElementRange range;  // written by Target, while nothing is in flight
    std::thread thread;
  };

  explicit State(const Options& options)
      : updates_per_pass(static_cast<size_t>(std::max(options.updates_per_pass, 1))),
        gather_bytes(options.gather_bytes),
        gather_time(std::chrono::duration_cast<Clock::duration>(
            std::chrono::duration<double>(options.gather_seconds))),
        workers(std::clamp(options.workers, 1, 256)) {}

  void HandIn(const Work& item);
  void Gather(const Work& item);
  void Flush();
  void FlushUnlocked(std::unique_lock<std::mutex>* worker_lock);
  void Deal(const Work& item);
  bool Concerns(const Item& item, ElementRange range) const;
  void Run(Worker* worker);
  void AwaitWork(Worker* worker, std::unique_lock<std::mutex>* lock);
  void Process(const std::vector<Work>& batch, ElementRange range);
  void FoldUpdates(const std::vector<Work>& batch, ElementRange range);
  void FinishRange(const Work& item);

  const size_t updates_per_pass;
  const uint64_t gather_bytes;
  const Clock::duration gather_time;
  std::vector<Worker> workers;

  std::mutex target_mutex;  // of the next seven; before a worker's mutex
  std::condition_variable idle;
  ExactAccumulator* accumulator = nullptr;
  size_t active_workers = 0;   // those with a range: the first ones
  uint64_t unfolded = 0;       // handed in, not folded by all
  uint64_t uncalled = 0;       // handed in, their callback not returned from
  std::vector<Work> gathered;  // updates that no worker has been given yet
  uint64_t gathered_bytes = 0;

  std::atomic<int64_t> busy_nanoseconds{0};
};

FoldPool::FoldPool(const Options& options) : state_(std::make_unique<State>(options)) {
  for (State::Worker& worker : state_->workers) {
    worker.thread = std::thread([this, &worker] { state_->Run(&worker); });
  }
}

FoldPool::~FoldPool() {
  Wait();
  for (State::Worker& worker : state_->workers) {
    {
      const std::lock_guard lock(worker.mutex);
      worker.stop = true;
    }
    worker.wake.notify_one();
    worker.thread.join();
  }
}

void FoldPool::Target(ExactAccumulator* accumulator) {
  const std::lock_guard lock(state_->target_mutex);
  Check(state_->unfolded == 0, "Target was called while work is in flight; call Wait first");
  state_->accumulator = accumulator;
  state_->active_workers = 0;
  if (accumulator == nullptr) return;
  for (const ElementRange range : accumulator->Split(static_cast<int>(state_->workers.size()))) {
    state_->workers[state_->active_workers++].range = range;
  }
}

void FoldPool::Fold(std::shared_ptr<const EncodedUpdate> update, std::function<void()> done,
                    std::function<void(uint64_t)> released) {
  auto item = std::make_shared<State::Item>();
  item->update = std::move(update);
  item->done = std::move(done);
  item->released = std::move(released);
  state_->HandIn(item);
}

void FoldPool::Merge(std::shared_ptr<const PackedPartial> partial, std::function<void()> done) {
  auto item = std::make_shared<State::Item>();
  item->partial = std::move(partial);
  item->done = std::move(done);
  state_->HandIn(item);
}

void FoldPool::Subtract(std::shared_ptr<const PackedPartial> partial, std::function<void()> done) {
  auto item = std::make_shared<State::Item>();
  item->partial = std::move(partial);
  item->subtract = true;
  item->done = std::move(done);
  state_->HandIn(item);
}

void FoldPool::Flush() {
  const std::lock_guard lock(state_->target_mutex);
  state_->Flush();
}

bool FoldPool::Folding() const {
  const std::lock_guard lock(state_->target_mutex);
  return state_->unfolded > state_->gathered.size();
}

void FoldPool::Fence(std::function<void()> done) {
  auto item = std::make_shared<State::Item>();
  item->done = std::move(done);
  state_->HandIn(item);
}

void FoldPool::Wait() {
  std::unique_lock lock(state_->target_mutex);
  state_->Flush();
  state_->idle.wait(lock, [this] { return state_->uncalled == 0; });
}

double FoldPool::busy_seconds() const {
  return static_cast<double>(state_->busy_nanoseconds.load(std::memory_order_relaxed)) * 1e-9;
}

void FoldPool::State::HandIn(const Work& item) {
  const std::lock_guard lock(target_mutex);
  Check(accumulator != nullptr, "work was handed in before Target");
  ++unfolded;
  ++uncalled;
  if (gather_time > Clock::duration::zero() && item->update != nullptr) {
    Gather(item);
    return;
  }
  // A fence comes after all that was handed in before it.
  Flush();
  Deal(item);
}

// The next three with target_mutex held.
void FoldPool::State::Gather(const Work& item) {
  gathered.push_back(item);
  gathered_bytes += item->update->encoded_bytes();
  if (gathered.size() >= updates_per_pass || gathered_bytes >= gather_bytes) {
    Flush();
    return;
  }
  if (gathered.size() > 1) return;
  Worker& first = workers.front();
  {
    const std::lock_guard queue_lock(first.mutex);
    first.flush_at = Clock::now() + gather_time;
  }
  first.wake.notify_one();
}

void FoldPool::State::Flush() {
  for (const Work& item : gathered) Deal(item);
  gathered.clear();
  gathered_bytes = 0;
}

void FoldPool::State::Deal(const Work& item) {
  std::vector<Worker*> takers;
  for (size_t i = 0; i < active_workers; ++i) {
    if (Concerns(*item, workers[i].range)) takers.push_back(&workers[i]);
  }
  if (takers.empty()) takers.push_back(&workers.front());  // somebody has to call back
  item->ranges_left.store(static_cast<int>(takers.size()), std::memory_order_relaxed);
  for (Worker* worker : takers) {
    {
      const std::lock_guard queue_lock(worker->mutex);
      worker->queue.push_back(item);
    }
    worker->wake.notify_one();
  }
}

// A chunk of a partial sum is no reason to wake those who have nothing to do with it.
bool FoldPool::State::Concerns(const Item& item, ElementRange range) const {
  if (item.partial == nullptr) return true;
  const uint64_t begin = item.partial->first_chunk * kChunkElements;
  return begin < range.end && begin + item.partial->chunks.size() * kChunkElements > range.begin;
}

// Until there is work, or an end of it; the first worker looks after what is gathered meanwhile. A
// flush_at of what was flushed before is an early look at what came after it, and harmless.
void FoldPool::State::AwaitWork(Worker* worker, std::unique_lock<std::mutex>* lock) {
  while (!worker->stop && worker->queue.empty()) {
    if (!worker->flush_at.has_value()) {
      worker->wake.wait(*lock);
    } else if (Clock::now() < *worker->flush_at) {
      worker->wake.wait_until(*lock, *worker->flush_at);
    } else {
      worker->flush_at.reset();
      FlushUnlocked(lock);
    }
  }
}

// The target's mutex comes before a worker's.
void FoldPool::State::FlushUnlocked(std::unique_lock<std::mutex>* worker_lock) {
  worker_lock->unlock();
  {
    const std::lock_guard target_lock(target_mutex);
    Flush();
  }
  worker_lock->lock();
}

void FoldPool::State::Run(Worker* worker) {
  std::vector<Work> batch;
  while (true) {
    {
      std::unique_lock lock(worker->mutex);
      AwaitWork(worker, &lock);
      if (worker->queue.empty()) return;
      // Who begins a pass takes along all that is whole.
      FlushUnlocked(&lock);
      while (!worker->queue.empty() && batch.size() < updates_per_pass) {
        batch.push_back(std::move(worker->queue.front()));
        worker->queue.pop_front();
      }
    }
    const int64_t start = ThreadCpuNanoseconds();
    Process(batch, worker->range);
    busy_nanoseconds.fetch_add(ThreadCpuNanoseconds() - start, std::memory_order_relaxed);
    for (const Work& item : batch) FinishRange(item);
    batch.clear();
  }
}

// Whoever waits for memory need not wait for the end of the pass.
void FoldPool::State::FoldUpdates(const std::vector<Work>& batch, ElementRange range) {
  std::vector<const EncodedUpdate*> updates;
  for (const Work& item : batch) {
    if (item->update != nullptr) updates.push_back(item->update.get());
  }
  if (updates.empty()) return;
  for (uint64_t begin = range.begin; begin < range.end; begin += kReleaseElements) {
    const uint64_t end = std::min(begin + kReleaseElements, range.end);
    accumulator->Fold(updates, {begin, end});
    for (const Work& item : batch) {
      if (item->update == nullptr || item->released == nullptr) continue;
      const uint64_t bytes = item->update->Release({range.begin, end});
      if (bytes > 0) item->released(bytes);
    }
  }
}

// Updates share one pass; partial sums are merged (or subtracted) one by one. Integer addition does
// not mind the order.
void FoldPool::State::Process(const std::vector<Work>& batch, ElementRange range) {
  FoldUpdates(batch, range);
  if (range.begin == range.end) return;
  for (const Work& item : batch) {
    if (item->partial == nullptr) continue;
    const PackedPartial& partial = *item->partial;
    const uint64_t begin = std::max(partial.first_chunk, range.begin / kChunkElements);
    const uint64_t end =
        std::min(partial.first_chunk + partial.chunks.size(), (range.end - 1) / kChunkElements + 1);
    for (uint64_t chunk = begin; chunk < end; ++chunk) {
      const std::vector<uint8_t>& packed = partial.chunks[chunk - partial.first_chunk];
      if (item->subtract) {
        Check(accumulator->SubtractChunk(chunk, packed, range).ok(),
              "a chunk with max or first tensors cannot be subtracted");
      } else {
        accumulator->MergeChunk(chunk, packed, partial.first_id, range);
      }
    }
  }
}

// The last of an item's workers frees it and tells its owner.
void FoldPool::State::FinishRange(const Work& item) {
  if (item->ranges_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  item->update.reset();
  item->partial.reset();
  {
    // Before the callback: whoever it tells may give the pool its next target at once.
    const std::lock_guard lock(target_mutex);
    --unfolded;
  }
  if (item->done) item->done();
  item->done = nullptr;
  item->released = nullptr;
  const std::lock_guard lock(target_mutex);
  if (--uncalled == 0) idle.notify_all();
}

}  // namespace tributary::aggregation
