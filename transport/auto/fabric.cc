// The auto fabric: one listener over many, and connecting by what fits.
#include <spdlog/spdlog.h>
#include <algorithm>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/deadline.h"
#include "base/status.h"
#include "transport/auto.h"
#include "transport/internal/hello.h"
#include "transport/shm.h"
#include "transport/tcp.h"

namespace tributary::transport {
namespace {

// Links waiting for Accept. Beyond that the inner listeners hold them, and then refuse.
constexpr size_t kMaxReady = 64;

class AutoListener final : public Listener {
 public:
  explicit AutoListener(std::vector<std::unique_ptr<Listener>> inner, std::string address)
      : inner_(std::move(inner)), address_(std::move(address)) {}
  ~AutoListener() override {
    Cancel();
    for (std::thread& thread : threads_) thread.join();
  }

  // May throw std::system_error, as std::thread does.
  void Start() {
    for (auto& listener : inner_) {
      threads_.emplace_back([this, from = listener.get()] { Forward(*from); });
    }
  }

  absl::StatusOr<std::unique_ptr<Link>> Accept(Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const bool ready =
        deadline.Wait(changed_, lock, [this] { return cancelled_ || !ready_.empty(); });
    if (cancelled_) return absl::CancelledError("accepting links was cancelled");
    if (!ready) return absl::DeadlineExceededError("no link came in time");
    std::unique_ptr<Link> link = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return link;
  }
  std::string address() const override { return address_; }
  void Cancel() override {
    {
      std::lock_guard lock(mutex_);
      cancelled_ = true;
    }
    changed_.notify_all();
    for (auto& listener : inner_) listener->Cancel();
  }
  uint64_t refused() const override {
    uint64_t sum = 0;
    for (const auto& listener : inner_) sum += listener->refused();
    return sum;
  }

 private:
  void Forward(Listener& from) {
    while (true) {
      absl::StatusOr<std::unique_ptr<Link>> link = from.Accept(Deadline::Infinite());
      if (!link.ok()) {
        if (!absl::IsCancelled(link.status())) {
          spdlog::error("links on {}: {}", from.address(), Text(link.status()));
        }
        return;
      }
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return cancelled_ || ready_.size() < kMaxReady; });
      if (cancelled_) return;
      ready_.push_back(*std::move(link));
      changed_.notify_all();
    }
  }

  const std::vector<std::unique_ptr<Listener>> inner_;
  const std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Link>> ready_;  // guarded by mutex_
  bool cancelled_ = false;                   // guarded by mutex_
  std::vector<std::thread> threads_;
};

class AutoFabric final : public Fabric {
 public:
  explicit AutoFabric(std::vector<AutoCandidate> candidates) : candidates_(std::move(candidates)) {}
  std::string_view name() const override { return "auto"; }

  // The address is not read: each candidate has its own.
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& /*address*/,
                                                   const LinkOptions& options) override {
    RETURN_IF_ERROR(internal::CheckLinkOptions(options));
    std::vector<std::unique_ptr<Listener>> listeners;
    std::vector<AutoOffer> offers;
    std::vector<std::string> failed;
    for (AutoCandidate& candidate : candidates_) {
      AutoOffer offer = Offer(candidate);
      auto listener = candidate.fabric->Listen(candidate.listen, options);
      if (!listener.ok()) {
        failed.push_back(absl::StrCat(offer.kind, ": ", listener.status().message()));
        spdlog::warn("links over {} are not offered: {}", offer.kind, Text(listener.status()));
        continue;
      }
      offer.address = (*listener)->address();
      offers.push_back(std::move(offer));
      listeners.push_back(*std::move(listener));
    }
    if (listeners.empty()) {
      return absl::UnavailableError(
          absl::StrCat("no transport can listen: ", absl::StrJoin(failed, "; ")));
    }
    auto out = std::make_unique<AutoListener>(std::move(listeners), EncodeOffers(offers));
    try {
      out->Start();
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start the threads that accept links: ", error.what()));
    }
    return out;
  }

  absl::StatusOr<std::unique_ptr<Link>> Connect(const std::string& address,
                                                const LinkOptions& options) override {
    RETURN_IF_ERROR(internal::CheckLinkOptions(options));
    const auto deadline = Deadline::After(options.connect_timeout);
    ASSIGN_OR_RETURN(const std::vector<AutoOffer> theirs, DecodeOffers(address));
    std::vector<AutoOffer> ours;
    for (const AutoCandidate& candidate : candidates_) ours.push_back(Offer(candidate));
    std::vector<std::string> reasons;
    absl::Status first;  // what the best candidate that was tried said
    const std::vector<AutoVerdict> ranked = RankOffers(ours, theirs, Fits());
    auto untried = std::count_if(ranked.begin(), ranked.end(),
                                 [](const AutoVerdict& verdict) { return verdict.fits.ok(); });
    for (const AutoVerdict& verdict : ranked) {
      if (!verdict.fits.ok()) {
        reasons.push_back(absl::StrCat(verdict.kind, ": ", verdict.fits.message()));
        continue;
      }
      LinkOptions left = options;
      if (!deadline.infinite()) {
        // An even share: one whose port is filtered, and so never answers, is not to take the time
        // of those behind it.
        left.connect_timeout = deadline.Left() / untried;
      }
      --untried;
      if (left.connect_timeout <= absl::ZeroDuration()) {
        reasons.push_back(absl::StrCat(verdict.kind, ": no time was left to try it"));
        break;
      }
      const std::string at = AddressOf(theirs, verdict.kind);
      auto link = Find(verdict.kind)->fabric->Connect(at, left);
      if (link.ok()) {
        Say(*Find(verdict.kind), at, ranked, reasons);
        return link;
      }
      if (first.ok()) first = link.status();
      reasons.push_back(absl::StrCat(verdict.kind, ": ", link.status().message()));
    }
    const absl::StatusCode code = first.ok() ? absl::StatusCode::kUnavailable : first.code();
    return absl::Status(code, absl::StrCat("link to ", address, ": no transport reaches the peer: ",
                                           absl::StrJoin(reasons, "; ")));
  }

 private:
  static AutoOffer Offer(const AutoCandidate& candidate) {
    return {.kind = std::string(candidate.fabric->name()),
            .preference = candidate.preference,
            .self = candidate.self,
            .address = ""};
  }
  const AutoCandidate* Find(const std::string& kind) const {
    for (const AutoCandidate& candidate : candidates_) {
      if (candidate.fabric->name() == kind) return &candidate;
    }
    return nullptr;
  }
  FitsFunction Fits() const {
    return [this](const std::string& kind, const std::string& ours, const std::string& theirs) {
      const AutoCandidate* candidate = Find(kind);
      if (candidate == nullptr || !candidate->fits) return absl::OkStatus();
      return candidate->fits(ours, theirs);
    };
  }
  static std::string AddressOf(const std::vector<AutoOffer>& offers, const std::string& kind) {
    for (const AutoOffer& offer : offers) {
      if (offer.kind == kind) return offer.address;
    }
    return "";
  }
  // Why this one: what better ones failed on, and what was left untried behind it.
  static void Say(const AutoCandidate& chosen, const std::string& at,
                  const std::vector<AutoVerdict>& ranked, const std::vector<std::string>& failed) {
    std::vector<std::string> why = failed;
    bool behind = false;
    for (const AutoVerdict& verdict : ranked) {
      if (behind && verdict.fits.ok()) {
        why.push_back(absl::StrCat(verdict.kind, ": fits too, ranks lower"));
      }
      if (behind && !verdict.fits.ok()) {
        why.push_back(absl::StrCat(verdict.kind, ": ", verdict.fits.message()));
      }
      behind |= verdict.kind == chosen.fabric->name();
    }
    if (why.empty()) why.push_back("nothing else is offered");
    spdlog::info("auto: link over {} to {} ({})", chosen.fabric->name(), at,
                 absl::StrJoin(why, "; "));
  }

  std::vector<AutoCandidate> candidates_;
};

}  // namespace

AutoCandidate ShmCandidate() {
  // Without an identity it fits nobody, and says so.
  return {.fabric = MakeShmFabric(),
          .listen = std::string(1, '@'),
          .preference = 300,
          .self = HostIdentity().value_or(std::string()),
          .fits = SameHost};
}

AutoCandidate TcpCandidate(const std::string& listen) {
  return {.fabric = MakeTcpFabric(), .listen = listen, .preference = 100, .self = {}, .fits = {}};
}

std::unique_ptr<Fabric> MakeAutoFabric(std::vector<AutoCandidate> candidates) {
  return std::make_unique<AutoFabric>(std::move(candidates));
}

}  // namespace tributary::transport
