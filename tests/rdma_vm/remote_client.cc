// The calling side of a remote fabric.
#include <unistd.h>

#include <mutex>
#include <utility>

#include "tests/rdma_vm/remote.h"
#include "tests/rdma_vm/words.h"

namespace tributary::transport {
namespace {

// Connections to the server, one for each call that is under way.
class Caller {
 public:
  explicit Caller(std::string server) : server_(std::move(server)) {}
  ~Caller() {
    for (const int fd : idle_) close(fd);
  }
  // The answer without its status words.
  absl::StatusOr<Words> Call(const Words& words) {
    const int fd = Take();
    if (fd < 0 || !WriteWords(fd, words)) return absl::InternalError("the remote server is gone");
    std::optional<Words> answer = ReadWords(fd);
    if (!answer.has_value()) return absl::InternalError("the remote server is gone");
    {
      std::lock_guard lock(mutex_);
      idle_.push_back(fd);
    }
    const auto code = static_cast<absl::StatusCode>(NumberOf((*answer)[0]));
    if (code != absl::StatusCode::kOk) return absl::Status(code, (*answer)[1]);
    answer->erase(answer->begin(), answer->begin() + 2);
    return std::move(*answer);
  }

 private:
  int Take() {
    {
      std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        const int fd = idle_.back();
        idle_.pop_back();
        return fd;
      }
    }
    return ConnectTcp(server_);
  }

  const std::string server_;
  std::mutex mutex_;
  std::vector<int> idle_;
};

// A lease whose bytes are a copy of the remote ones.
class RemoteLease final : public ChunkOwner {
 public:
  RemoteLease(std::shared_ptr<Caller> caller, std::string id, std::string bytes)
      : caller_(std::move(caller)), id_(std::move(id)), bytes_(std::move(bytes)) {}
  void Return(uint32_t) override {
    (void)caller_->Call({"return", id_});
    delete this;
  }
  Chunk Lend() {
    return Chunk(this, 0, reinterpret_cast<uint8_t*>(bytes_.data()), bytes_.size(),
                 MemoryKind::kHost);
  }
  const std::string& id() const { return id_; }

 private:
  const std::shared_ptr<Caller> caller_;
  const std::string id_;
  std::string bytes_;
};

class RemoteLink final : public Link, private ChunkOwner {
 public:
  RemoteLink(std::shared_ptr<Caller> caller, Words accepted)
      : caller_(std::move(caller)), words_(std::move(accepted)) {}
  ~RemoteLink() override { (void)caller_->Call({"destroy", words_[0]}); }

  absl::StatusOr<Chunk> Borrow(Deadline deadline) override {
    auto got = caller_->Call({"borrow", words_[0], DeadlineWord(deadline)});
    if (!got.ok()) return got.status();
    return (new RemoteLease(caller_, (*got)[0], std::string(chunk_bytes(), '\0')))->Lend();
  }
  absl::Status Send(Chunk chunk) override {
    auto* lease = const_cast<RemoteLease*>(dynamic_cast<const RemoteLease*>(OwnerOf(chunk)));
    if (lease == nullptr) return absl::InvalidArgumentError("not a chunk of a remote link");
    const std::string bytes(reinterpret_cast<const char*>(chunk.data()), chunk.size());
    Release(chunk);
    const absl::Status status =
        caller_->Call({"send", words_[0], lease->id(), TagWord(chunk.tag()), bytes}).status();
    delete lease;
    return status;
  }
  absl::StatusOr<Chunk> Receive(Deadline deadline) override {
    auto got = caller_->Call({"receive", words_[0], DeadlineWord(deadline)});
    if (!got.ok()) return got.status();
    const size_t size = (*got)[2].size();
    Chunk chunk = (new RemoteLease(caller_, (*got)[0], std::move((*got)[2])))->Lend();
    chunk.set_size(size);
    chunk.tag() = TagOf((*got)[1]);
    return chunk;
  }
  absl::Status Close(Deadline deadline) override {
    return caller_->Call({"close", words_[0], DeadlineWord(deadline)}).status();
  }
  void Cancel(const std::string& why) override { (void)caller_->Call({"cancel", words_[0], why}); }
  absl::Status status() const override { return caller_->Call({"status", words_[0]}).status(); }
  size_t chunk_bytes() const override { return static_cast<size_t>(NumberOf(words_[4])); }
  std::string peer() const override { return words_[1]; }
  std::string hello() const override { return words_[2]; }
  std::string_view transport() const override { return words_[3]; }
  LinkStats stats() const override {
    LinkStats stats;
    auto got = caller_->Call({"stats", words_[0]});
    if (!got.ok()) return stats;
    stats.bytes_sent = static_cast<uint64_t>(NumberOf((*got)[0]));
    stats.bytes_received = static_cast<uint64_t>(NumberOf((*got)[1]));
    stats.chunks_sent = static_cast<uint64_t>(NumberOf((*got)[2]));
    stats.chunks_received = static_cast<uint64_t>(NumberOf((*got)[3]));
    return stats;
  }

 private:
  void Return(uint32_t) override {}
  const std::shared_ptr<Caller> caller_;
  const Words words_;  // id, peer, hello, transport, chunk_bytes
};

class RemoteListener final : public Listener {
 public:
  RemoteListener(std::shared_ptr<Caller> caller, Words made)
      : caller_(std::move(caller)), words_(std::move(made)) {}
  ~RemoteListener() override { (void)caller_->Call({"drop listener", words_[0]}); }
  absl::StatusOr<std::unique_ptr<Link>> Accept(Deadline deadline) override {
    auto got = caller_->Call({"accept", words_[0], DeadlineWord(deadline)});
    if (!got.ok()) return got.status();
    return std::make_unique<RemoteLink>(caller_, std::move(*got));
  }
  std::string address() const override { return words_[1]; }
  void Cancel() override { (void)caller_->Call({"cancel listener", words_[0]}); }
  uint64_t refused() const override {
    auto got = caller_->Call({"refused", words_[0]});
    return got.ok() ? static_cast<uint64_t>(NumberOf((*got)[0])) : 0;
  }

 private:
  const std::shared_ptr<Caller> caller_;
  const Words words_;  // id, address
};

class RemoteFabric final : public Fabric {
 public:
  RemoteFabric(const std::string& server, std::string transport)
      : caller_(std::make_shared<Caller>(server)), transport_(std::move(transport)) {}
  std::string_view name() const override { return transport_; }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address,
                                                   const LinkOptions& options) override {
    auto got = caller_->Call({"listen", transport_, address, options.name, options.hello,
                              absl::StrCat(options.chunk_bytes), absl::StrCat(options.slots),
                              absl::StrCat(options.lanes),
                              absl::StrCat(absl::ToInt64Milliseconds(options.connect_timeout)),
                              absl::StrCat(absl::ToInt64Milliseconds(options.heartbeat)),
                              absl::StrCat(options.heartbeats_missed)});
    if (!got.ok()) return got.status();
    return std::make_unique<RemoteListener>(caller_, std::move(*got));
  }
  absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string&, const LinkOptions&) override {
    return absl::UnimplementedError("a remote fabric only listens");
  }

 private:
  const std::shared_ptr<Caller> caller_;
  const std::string transport_;
};

}  // namespace

std::unique_ptr<Fabric> MakeRemoteFabric(const std::string& server, const std::string& transport) {
  return std::make_unique<RemoteFabric>(server, transport);
}

}  // namespace tributary::transport
