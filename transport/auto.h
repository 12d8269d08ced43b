// The best transport that both sides can do, found from what each says of itself.
//
// An auto listener listens with every candidate; its address carries an offer for each: kind,
// preference, what the other side must know to judge it, and where to connect. The connecting side
// lays its own offers beside them and tries what fits, best first, saying why in the log. The
// ranking is symmetric: both sides come to the same order. Link::transport tells what was really
// taken. A transport plugs in as one AutoCandidate.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/link.h"

namespace tributary::transport {

namespace roce {
class RoceNode;
}

struct AutoCandidate {
  std::unique_ptr<Fabric> fabric;
  std::string listen;  // the address to listen on with it
  int preference = 0;  // 0..1000; both sides' are added, the highest sum that fits is tried first
  std::string self;    // what the other side must know of this one, e.g. HostIdentity()
  // OK where a link between two sides that say this of themselves can work, else why not. Must say
  // the same with its arguments exchanged. Empty: always.
  std::function<absl::Status(const std::string& ours, const std::string& theirs)> fits;
};

// Shared memory where both are one user on one machine in one network namespace, before any
// network.
AutoCandidate ShmCandidate();
// RDMA after shared memory and before tcp, where both sides have it on a network in common:
// Ethernet with one family of addresses, or one InfiniBand subnet. Whether a path is there shows
// when it is tried. Arguments as MakeRoceFabric's (transport/roce.h).
AutoCandidate RoceCandidate(const std::shared_ptr<roce::RoceNode>& devices, size_t arena_bytes,
                            size_t kept_bytes, const std::string& listen);
// What always works, after everything else; listens on "host:port".
AutoCandidate TcpCandidate(const std::string& listen);

// `candidates` differ in kind (their fabric's name). A candidate that cannot listen is left out,
// with a warning; Listen fails where none can, Connect where none fits or answers, with every
// reason.
std::unique_ptr<Fabric> MakeAutoFabric(std::vector<AutoCandidate> candidates);

// --- pure parts, for tests and for whoever passes addresses on ---

struct AutoOffer {
  std::string kind;
  int preference = 0;
  std::string self;
  std::string address;  // empty on the connecting side
};
// One line of printable text, and back. INVALID_ARGUMENT where it is none.
std::string EncodeOffers(const std::vector<AutoOffer>& offers);
absl::StatusOr<std::vector<AutoOffer>> DecodeOffers(const std::string& text);
// `address` with `change` applied to it, or to each of its addresses where it carries offers.
std::string MapAddresses(const std::string& address,
                         const std::function<std::string(const std::string&)>& change);

struct AutoVerdict {
  std::string kind;
  int score = 0;
  absl::Status fits;  // not OK: why this kind is left out
};
using FitsFunction = std::function<absl::Status(const std::string& kind, const std::string& ours,
                                                const std::string& theirs)>;
// Every kind that either side has: those that fit first, best first; ties by name.
std::vector<AutoVerdict> RankOffers(const std::vector<AutoOffer>& ours,
                                    const std::vector<AutoOffer>& theirs, const FitsFunction& fits);

// Of this process: boot id, network namespace, user. `proc` is where procfs is, for tests.
absl::StatusOr<std::string> HostIdentity(const std::string& proc = "/proc");
// OK for two processes that can share memory; else FAILED_PRECONDITION with what differs.
absl::Status SameHost(const std::string& ours, const std::string& theirs);

}  // namespace tributary::transport
