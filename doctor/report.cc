// Text for people, JSON for programs.
#include "doctor/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tributary::doctor {

std::string_view VerdictText(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
    case Verdict::kSkipped:
      break;
  }
  return "skipped";
}

void Report::Ok(std::string name, std::string seen) {
  Add({.name = std::move(name), .verdict = Verdict::kOk, .seen = std::move(seen), .mend = ""});
}

void Report::Skip(std::string name, std::string reason) {
  Add({.name = std::move(name),
       .verdict = Verdict::kSkipped,
       .seen = std::move(reason),
       .mend = ""});
}

int Report::Count(Verdict verdict) const {
  return static_cast<int>(
      std::count_if(findings_.begin(), findings_.end(),
                    [verdict](const Finding& f) { return f.verdict == verdict; }));
}

std::string Report::ToText() const {
  size_t width = 0;
  for (const Finding& f : findings_) width = std::max(width, f.name.size());
  const int columns = static_cast<int>(width);
  std::string out = absl::StrCat(subject_, "\n");
  for (const Finding& f : findings_) {
    absl::StrAppendFormat(&out, "%-7s  %-*s  %s\n", std::string(VerdictText(f.verdict)), columns,
                          f.name, f.seen);
    if (!f.mend.empty()) absl::StrAppendFormat(&out, "%*s  mend: %s\n", columns + 9, "", f.mend);
  }
  absl::StrAppendFormat(&out, "%d ok, %d to look at, %d failed, %d skipped\n", Count(Verdict::kOk),
                        Count(Verdict::kWarn), Count(Verdict::kFail), Count(Verdict::kSkipped));
  return out;
}

std::string Report::ToJson() const {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& f : findings_) {
    nlohmann::ordered_json check = {
        {"name", f.name}, {"verdict", VerdictText(f.verdict)}, {"seen", f.seen}};
    if (!f.mend.empty()) check["mend"] = f.mend;
    checks.push_back(std::move(check));
  }
  nlohmann::ordered_json counts;
  for (const Verdict v : {Verdict::kOk, Verdict::kWarn, Verdict::kFail, Verdict::kSkipped})
    counts[std::string(VerdictText(v))] = Count(v);
  const nlohmann::ordered_json json = {{"subject", subject_},
                                       {"checks", std::move(checks)},
                                       {"counts", std::move(counts)},
                                       {"exit_code", exit_code()}};
  // Names come from the machine: bytes that are no UTF-8 are replaced, never thrown at the caller.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace tributary::doctor
