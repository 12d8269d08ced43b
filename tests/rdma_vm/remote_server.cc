// The serving side of remote fabrics.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/status.h"
#include "tests/rdma_vm/remote.h"
#include "tests/rdma_vm/words.h"
#include "transport/roce.h"
#include "transport/tcp.h"

namespace tributary::transport {
namespace {

// Objects by number, each in use by several calls at once.
template <typename T>
class Table {
 public:
  std::string Add(std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    objects_[++last_] = std::move(object);
    return absl::StrCat(last_);
  }
  std::shared_ptr<T> Get(const std::string& id) {
    std::lock_guard lock(mutex_);
    return objects_.at(NumberOf(id));
  }
  std::shared_ptr<T> Remove(const std::string& id) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<T> object = std::move(objects_.at(NumberOf(id)));
    objects_.erase(NumberOf(id));
    return object;
  }

 private:
  std::mutex mutex_;
  int64_t last_ = 0;
  std::map<int64_t, std::shared_ptr<T>> objects_;
};

class Server {
 public:
  Words Handle(const Words& words) {
    absl::StatusOr<Words> answer = Dispatch(words);
    if (!answer.ok()) {
      return {absl::StrCat(static_cast<int>(answer.status().code())), Text(answer.status())};
    }
    answer->insert(answer->begin(), {"0", ""});
    return std::move(*answer);
  }

 private:
  absl::StatusOr<Words> Dispatch(const Words& w) {
    if (w[0] == "listen") return Listen(w);
    if (w[0] == "accept") return Accept(w);
    if (w[0] == "refused") return Words{absl::StrCat(listeners_.Get(w[1])->refused())};
    if (w[0] == "cancel listener") return Done([&] { listeners_.Get(w[1])->Cancel(); });
    if (w[0] == "drop listener") return Done([&] { listeners_.Remove(w[1]); });
    if (w[0] == "borrow") return Borrow(w);
    if (w[0] == "send") return Send(w);
    if (w[0] == "receive") return Receive(w);
    if (w[0] == "return") return Done([&] { leases_.Remove(w[1]); });
    if (w[0] == "close") return Outcome(links_.Get(w[1])->Close(DeadlineOf(w[2])));
    if (w[0] == "cancel") return Done([&] { links_.Get(w[1])->Cancel(w[2]); });
    if (w[0] == "status") return Outcome(links_.Get(w[1])->status());
    if (w[0] == "stats") return Stats(w);
    if (w[0] == "destroy") return Done([&] { links_.Remove(w[1]); });
    return absl::UnimplementedError(w[0]);
  }
  template <typename Body>
  static absl::StatusOr<Words> Done(Body body) {
    body();
    return Words{};
  }
  static absl::StatusOr<Words> Outcome(const absl::Status& status) {
    RETURN_IF_ERROR(status);
    return Words{};
  }

  absl::StatusOr<Words> Listen(const Words& w) {
    std::shared_ptr<Fabric> fabric;
    {
      std::lock_guard lock(mutex_);
      std::shared_ptr<Fabric>& known = fabrics_[w[1]];
      if (known == nullptr) {
        ASSIGN_OR_RETURN(known, MakeFabricNamed(w[1]));
      }
      fabric = known;
    }
    LinkOptions options;
    options.name = w[3];
    options.hello = w[4];
    options.chunk_bytes = static_cast<size_t>(NumberOf(w[5]));
    options.slots = static_cast<uint32_t>(NumberOf(w[6]));
    options.lanes = static_cast<uint32_t>(NumberOf(w[7]));
    options.connect_timeout = absl::Milliseconds(NumberOf(w[8]));
    options.heartbeat = absl::Milliseconds(NumberOf(w[9]));
    options.heartbeats_missed = static_cast<int>(NumberOf(w[10]));
    ASSIGN_OR_RETURN(std::shared_ptr<Listener> listener, fabric->Listen(w[2], options));
    const std::string address = listener->address();
    return Words{listeners_.Add(std::move(listener)), address};
  }
  absl::StatusOr<Words> Accept(const Words& w) {
    ASSIGN_OR_RETURN(std::shared_ptr<Link> link, listeners_.Get(w[1])->Accept(DeadlineOf(w[2])));
    Words answer = {"", link->peer(), link->hello(), std::string(link->transport()),
                    absl::StrCat(link->chunk_bytes())};
    answer[0] = links_.Add(std::move(link));
    return answer;
  }
  absl::StatusOr<Words> Borrow(const Words& w) {
    ASSIGN_OR_RETURN(Chunk chunk, links_.Get(w[1])->Borrow(DeadlineOf(w[2])));
    return Words{leases_.Add(std::make_shared<Chunk>(std::move(chunk)))};
  }
  absl::StatusOr<Words> Send(const Words& w) {
    const std::shared_ptr<Chunk> chunk = leases_.Remove(w[2]);
    chunk->tag() = TagOf(w[3]);
    std::memcpy(chunk->data(), w[4].data(), w[4].size());
    chunk->set_size(w[4].size());
    return Outcome(links_.Get(w[1])->Send(std::move(*chunk)));
  }
  absl::StatusOr<Words> Receive(const Words& w) {
    ASSIGN_OR_RETURN(Chunk chunk, links_.Get(w[1])->Receive(DeadlineOf(w[2])));
    Words answer = {"", TagWord(chunk.tag()),
                    std::string(reinterpret_cast<const char*>(chunk.data()), chunk.size())};
    answer[0] = leases_.Add(std::make_shared<Chunk>(std::move(chunk)));
    return answer;
  }
  absl::StatusOr<Words> Stats(const Words& w) {
    const LinkStats stats = links_.Get(w[1])->stats();
    return Words{absl::StrCat(stats.bytes_sent), absl::StrCat(stats.bytes_received),
                 absl::StrCat(stats.chunks_sent), absl::StrCat(stats.chunks_received)};
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Fabric>> fabrics_;  // guarded by mutex_
  Table<Listener> listeners_;
  Table<Link> links_;
  Table<Chunk> leases_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Fabric>> MakeFabricNamed(const std::string& transport) {
  if (transport == "tcp") return MakeTcpFabric();
  RoceOptions options;
  options.arena_bytes = size_t{48} << 20;
  if (transport == "roce-finite") options.retries = 6;
  return MakeRoceFabric(options);
}

absl::Status ServeRemoteFabrics(const std::string& address) {
  const int listening = ListenTcp(address);
  if (listening < 0) return absl::UnavailableError(absl::StrCat("cannot listen on ", address));
  std::printf("listening\n");
  std::fflush(stdout);
  Server server;
  while (true) {
    const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return absl::UnavailableError(std::strerror(errno));
    std::thread([fd, &server] {
      while (const std::optional<Words> words = ReadWords(fd)) {
        if (!WriteWords(fd, server.Handle(*words))) break;
      }
      close(fd);
    }).detach();
  }
}

}  // namespace tributary::transport
