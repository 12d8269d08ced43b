// Pending and committed residuals.
#include "client/internal/residuals.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/checksum.h"

namespace tributary::client::internal {
namespace {

// The file: this line, the CRC32C of what follows; the identity's length and bytes; the pending
// round and whether there is one; the committed and the pending vectors (one of each of Kept's
// kinds a tensor, all of a kind together): their number, and for each its length and floats.
// Integers are u64, little-endian.
constexpr std::string_view kMagic = "tributary residuals 5\n";
// Of earlier releases, with fewer kinds: they are read as if the others were empty.
struct Format {
  std::string_view magic;
  size_t kinds;
};
constexpr size_t kBeforeWide = 6;  // kinds, of formats whose residuals and estimates were floats
constexpr Format kFormats[] = {{kMagic, kKeptKinds},
                               {"tributary residuals 4\n", kBeforeWide},
                               {"tributary residuals 3\n", 5},
                               {"tributary residuals 2\n", 4}};

template <class T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Reads from the front of what is left; false where that is too short.
struct Reader {
  std::string_view left;
  bool Take(void* to, size_t n) {
    if (left.size() < n) return false;
    if (n > 0) std::memcpy(to, left.data(), n);  // `to` is null for no elements
    left.remove_prefix(n);
    return true;
  }
  bool Take(uint64_t* value) { return Take(value, sizeof *value); }
  bool Take(std::vector<std::vector<float>>* tensors) {
    uint64_t count = 0;
    if (!Take(&count) || count > left.size() / 8) return false;
    tensors->assign(count, {});
    for (std::vector<float>& tensor : *tensors) {
      uint64_t elements = 0;
      if (!Take(&elements) || elements > left.size() / sizeof(float)) return false;
      tensor.resize(elements);
      if (!Take(tensor.data(), elements * sizeof(float))) return false;
    }
    return true;
  }
};

Kept LowerOf(Kept kind) {
  return kind == Kept::kEstimate ? Kept::kEstimateLower : Kept::kResidualLower;
}

uint32_t ChecksumOf(std::string_view bytes) {
  return Crc32c({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

}  // namespace

std::string ResidualStore::Bind(const std::string& run, const std::string& layout_hash) {
  const std::string identity = absl::StrCat(run, std::string(1, '\0'), layout_hash);
  std::string note;
  if (!std::exchange(read_, true) && !path_.empty()) {
    std::ifstream in(path_, std::ios::binary);
    if (in) {
      const std::string bytes((std::istreambuf_iterator<char>(in)), {});
      if (!Parse(bytes)) note = absl::StrCat("residual file ", path_, " is damaged");
    }
  }
  const bool held = !committed_.empty() || has_pending_;
  if (held && identity_ != identity) {
    note = absl::StrCat("residuals were of another run or model layout, now ",
                        absl::BytesToHexString(layout_hash.substr(0, 8)));
  }
  if (identity_ != identity) {
    committed_.clear();
    pending_.clear();
    has_pending_ = false;
    identity_ = identity;
  }
  return note.empty() ? note : absl::StrCat(note, "; error feedback starts again from zero");
}

std::string ResidualStore::Serialized() const {
  // One buffer: it is as large as all that is kept, several times a model.
  size_t bytes = kMagic.size() + identity_.size() + 6 * sizeof(uint64_t);
  for (const Tensors* tensors : {&committed_, &pending_}) {
    for (const std::vector<float>& tensor : *tensors) {
      bytes += sizeof(uint64_t) + tensor.size() * sizeof(float);
    }
  }
  std::string all(kMagic);
  all.reserve(bytes);
  Append(uint64_t{0}, &all);  // the checksum, below
  const size_t body = all.size();
  Append(uint64_t{identity_.size()}, &all);
  all += identity_;
  Append(round_, &all);
  Append(uint64_t{has_pending_}, &all);
  for (const Tensors* tensors : {&committed_, &pending_}) {
    Append(uint64_t{tensors->size()}, &all);
    for (const std::vector<float>& tensor : *tensors) {
      Append(uint64_t{tensor.size()}, &all);
      all.append(reinterpret_cast<const char*>(tensor.data()), tensor.size() * sizeof(float));
    }
  }
  const uint64_t checksum = ChecksumOf(std::string_view(all).substr(body));
  std::memcpy(all.data() + kMagic.size(), &checksum, sizeof checksum);
  return all;
}

void ResidualStore::Widen(Tensors* tensors) {
  for (uint32_t t = 0; t < tensors->size() / kKeptKinds; ++t) {
    for (const Kept kind : {Kept::kResidual, Kept::kEstimate}) {
      std::vector<float>& upper = (*tensors)[Slot(t, kind, tensors->size())];
      std::vector<float>& lower = (*tensors)[Slot(t, LowerOf(kind), tensors->size())];
      lower.resize(upper.size());
      const Wide<float> wide{upper, lower};
      for (size_t i = 0; i < upper.size(); ++i) wide.Set(i, static_cast<double>(upper[i]));
    }
  }
}

bool ResidualStore::Parse(const std::string& bytes) {
  Reader reader{bytes};
  size_t kinds = 0;
  for (const Format& format : kFormats) {
    if (reader.left.starts_with(format.magic)) kinds = format.kinds;
  }
  if (kinds == 0) return false;
  reader.left.remove_prefix(kMagic.size());  // all are as long
  uint64_t checksum = 0, length = 0, round = 0, has_pending = 0;
  if (!reader.Take(&checksum) || ChecksumOf(reader.left) != checksum || !reader.Take(&length) ||
      length > reader.left.size()) {
    return false;
  }
  const std::string identity(reader.left.substr(0, length));
  reader.left.remove_prefix(length);
  Tensors committed, pending;
  if (!reader.Take(&round) || !reader.Take(&has_pending) || !reader.Take(&committed) ||
      !reader.Take(&pending) || committed.size() % kinds != 0 || pending.size() % kinds != 0) {
    return false;
  }
  for (Tensors* tensors : {&committed, &pending}) {
    tensors->resize(tensors->size() / kinds * kKeptKinds);  // new kinds are the last
    if (kinds <= kBeforeWide) Widen(tensors);
  }
  identity_ = identity;
  round_ = round;
  has_pending_ = has_pending != 0;
  committed_ = std::move(committed);
  pending_ = std::move(pending);
  return true;
}

absl::Status ResidualStore::Save() const {
  if (path_.empty()) return absl::OkStatus();
  const std::string bytes = Serialized();
  const std::string beside = path_ + ".new";
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool good = fd >= 0;
  for (size_t at = 0; good && at < bytes.size();) {
    const ssize_t n = write(fd, bytes.data() + at, bytes.size() - at);
    good = n > 0 || (n < 0 && errno == EINTR);
    if (n > 0) at += static_cast<size_t>(n);
  }
  good = good && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (good && rename(beside.c_str(), path_.c_str()) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("residual file ", path_, ": ",
                                             std::strerror(good ? errno : error),
                                             "; give [client] state_directory room and rights"));
}

void ResidualStore::AddTo(uint32_t tensor, std::span<float> delta, float factor, Kept kind) const {
  const std::span<const float> kept = Committed(tensor, kind);
  if (kept.size() != delta.size()) return;
  for (size_t i = 0; i < delta.size(); ++i) delta[i] += factor * kept[i];
}

void ResidualStore::Begin(uint64_t round, size_t tensors) {
  pending_.assign(kKeptKinds * tensors, {});
  round_ = round;
  has_pending_ = true;
}

std::span<float> ResidualStore::Pending(uint32_t tensor, size_t elements, Kept kind) {
  std::vector<float>& kept = pending_[Slot(tensor, kind, pending_.size())];
  kept.assign(elements, 0.0f);
  return kept;
}

Wide<float> ResidualStore::PendingWide(uint32_t tensor, size_t elements, Kept kind) {
  return {Pending(tensor, elements, kind), Pending(tensor, elements, LowerOf(kind))};
}

Wide<const float> ResidualStore::CommittedWide(uint32_t tensor, size_t elements, Kept kind) const {
  const Wide<const float> kept{Committed(tensor, kind), Committed(tensor, LowerOf(kind))};
  if (kept.upper.size() != elements || kept.lower.size() != elements) return {};
  return kept;
}

void ResidualStore::Commit(uint64_t round) {
  if (!has_pending_ || round != round_) return;
  committed_ = std::exchange(pending_, {});
  has_pending_ = false;
}

void ResidualStore::Rollback(uint64_t round) {
  if (!has_pending_ || round != round_) return;
  pending_.clear();
  has_pending_ = false;
}

}  // namespace tributary::client::internal
