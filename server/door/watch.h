// What a peer could keep here for as long as it likes: the calls that are looked at now and then,
// and cut where nothing has come of them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/time/time.h"

namespace tributary::server::door {

struct Patience {
  absl::Duration session;   // for a Join, for the last word to be taken, for an upload's header
  absl::Duration progress;  // for a part of a model that is not the current one any more
};

class Watched {
 public:
  virtual ~Watched() = default;
  virtual void CutIfSilent(absl::Duration now, const Patience& patience) = 0;
};

// Thread-safe.
class Watch {
 public:
  void Add(const std::shared_ptr<Watched>& call) {
    std::lock_guard lock(mu_);
    calls_[call.get()] = call;
  }
  void Remove(const Watched* call) {
    std::lock_guard lock(mu_);
    calls_.erase(call);
  }
  void CutSilent(absl::Duration now, const Patience& patience) const {
    // gRPC may call back within a cut: not under the lock.
    std::vector<std::shared_ptr<Watched>> calls;
    {
      std::lock_guard lock(mu_);
      for (const auto& [key, call] : calls_) {
        if (auto alive = call.lock()) calls.push_back(std::move(alive));
      }
    }
    for (const auto& call : calls) call->CutIfSilent(now, patience);
  }

 private:
  mutable std::mutex mu_;
  std::map<const Watched*, std::weak_ptr<Watched>> calls_;  // guarded by mu_
};

}  // namespace tributary::server::door
