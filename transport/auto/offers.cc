// Offers as text, their ranking, and the identity of a host.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "transport/auto.h"

namespace tributary::transport {
namespace {

constexpr absl::string_view kPrefix = "auto;";
// More kinds than anybody has, fewer than would hurt.
constexpr size_t kMostOffers = 16;

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte >= 0x7f || c == '%' || c == ',' || c == ';') {
      absl::StrAppendFormat(&out, "%%%02x", byte);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

absl::StatusOr<std::string> Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size() || !std::isxdigit(static_cast<unsigned char>(text[i + 1])) ||
        !std::isxdigit(static_cast<unsigned char>(text[i + 2]))) {
      return absl::InvalidArgumentError("a % without two hexadecimal digits");
    }
    out += absl::HexStringToBytes(text.substr(i + 1, 2));
    i += 2;
  }
  return out;
}

absl::StatusOr<AutoOffer> DecodeOffer(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ',');
  AutoOffer offer;
  if (fields.size() != 4 || fields[0].empty() || !absl::SimpleAtoi(fields[1], &offer.preference) ||
      offer.preference < 0 || offer.preference > 1000) {
    return absl::InvalidArgumentError("not kind,preference,self,address");
  }
  ASSIGN_OR_RETURN(offer.kind, Unescape(fields[0]));
  ASSIGN_OR_RETURN(offer.self, Unescape(fields[2]));
  ASSIGN_OR_RETURN(offer.address, Unescape(fields[3]));
  return offer;
}

std::map<std::string, std::string> Facts(const std::string& identity) {
  std::map<std::string, std::string> out;
  for (const auto word : absl::StrSplit(identity, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> fact = absl::StrSplit(word, absl::MaxSplits('=', 1));
    out.insert(fact);
  }
  return out;
}

const AutoOffer* Find(const std::vector<AutoOffer>& offers, const std::string& kind) {
  const auto it = std::find_if(offers.begin(), offers.end(),
                               [&](const AutoOffer& offer) { return offer.kind == kind; });
  return it == offers.end() ? nullptr : &*it;
}

}  // namespace

std::string EncodeOffers(const std::vector<AutoOffer>& offers) {
  return absl::StrCat(kPrefix,
                      absl::StrJoin(offers, ";", [](std::string* out, const AutoOffer& offer) {
                        absl::StrAppend(out, Escape(offer.kind), ",", offer.preference, ",",
                                        Escape(offer.self), ",", Escape(offer.address));
                      }));
}

absl::StatusOr<std::vector<AutoOffer>> DecodeOffers(const std::string& text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kPrefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", absl::CHexEscape(text), "\" is no address of an auto listener; those start with \"",
        kPrefix, "\". Set the same [transport] kind on both sides"));
  }
  std::vector<AutoOffer> offers;
  for (const auto part : absl::StrSplit(rest, ';', absl::SkipEmpty())) {
    absl::StatusOr<AutoOffer> offer = DecodeOffer(part);
    if (!offer.ok() || offers.size() == kMostOffers) {
      return absl::InvalidArgumentError(absl::StrCat(
          "offer \"", absl::CHexEscape(part),
          "\" of an auto listener: ", offer.ok() ? "one too many" : offer.status().message()));
    }
    offers.push_back(*std::move(offer));
  }
  return offers;
}

std::string MapAddresses(const std::string& address,
                         const std::function<std::string(const std::string&)>& change) {
  absl::StatusOr<std::vector<AutoOffer>> offers = DecodeOffers(address);
  if (!offers.ok()) return change(address);
  for (AutoOffer& offer : *offers) offer.address = change(offer.address);
  return EncodeOffers(*offers);
}

std::vector<AutoVerdict> RankOffers(const std::vector<AutoOffer>& ours,
                                    const std::vector<AutoOffer>& theirs,
                                    const FitsFunction& fits) {
  std::vector<AutoVerdict> out;
  for (const AutoOffer& mine : ours) {
    const AutoOffer* other = Find(theirs, mine.kind);
    if (other == nullptr) {
      out.push_back(
          {mine.kind, mine.preference, absl::NotFoundError("the peer does not offer it")});
      continue;
    }
    out.push_back(
        {mine.kind, mine.preference + other->preference, fits(mine.kind, mine.self, other->self)});
  }
  for (const AutoOffer& other : theirs) {
    if (Find(ours, other.kind) != nullptr) continue;
    out.push_back(
        {other.kind, other.preference, absl::NotFoundError("this side does not offer it")});
  }
  std::sort(out.begin(), out.end(), [](const AutoVerdict& a, const AutoVerdict& b) {
    if (a.fits.ok() != b.fits.ok()) return a.fits.ok();
    return a.score != b.score ? a.score > b.score : a.kind < b.kind;
  });
  return out;
}

absl::StatusOr<std::string> HostIdentity(const std::string& proc) {
  std::string boot;
  std::ifstream(proc + "/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> net{};
  const std::string link = proc + "/self/ns/net";
  const ssize_t n = readlink(link.c_str(), net.data(), net.size() - 1);
  if (boot.empty() || n <= 0) {
    return absl::UnavailableError(absl::StrCat("cannot tell which host this is: ", proc,
                                               "/sys/kernel/random/boot_id or ", link,
                                               " cannot be read; is /proc mounted?"));
  }
  return absl::StrCat("boot=", boot, " net=", net.data(), " user=", geteuid());
}

absl::Status SameHost(const std::string& ours, const std::string& theirs) {
  const auto a = Facts(ours);
  const auto b = Facts(theirs);
  const std::pair<std::string, std::string> facts[] = {
      {"boot", "another machine (boot ids differ)"},
      {"net", "another network namespace (a container with a network of its own?)"},
      {"user", "another user"}};
  for (const auto& [key, difference] : facts) {
    const auto x = a.find(key);
    const auto y = b.find(key);
    if (x == a.end() || y == b.end()) {
      return absl::FailedPreconditionError("a side does not say which host it is on");
    }
    if (x->second != y->second) return absl::FailedPreconditionError(difference);
  }
  return absl::OkStatus();
}

}  // namespace tributary::transport
