// What the doctor found: one finding a check, and the two forms it is shown in.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tributary::doctor {

enum class Verdict { kOk, kWarn, kFail, kSkipped };
std::string_view VerdictText(Verdict verdict);  // "ok", "warn", "fail", "skipped"

struct Finding {
  std::string name;  // dotted and stable: "rdma.gids mlx5_0/1", "ports.node"
  Verdict verdict = Verdict::kOk;
  std::string seen;  // what was seen; why it was skipped
  std::string mend;  // a line to paste, where the verdict is warn or fail
};

// In the order of the checks. Not thread-safe.
class Report {
 public:
  // `subject`: the first line of the text form; whose machine and config this is about.
  explicit Report(std::string subject) : subject_(std::move(subject)) {}

  void Add(Finding finding) { findings_.push_back(std::move(finding)); }
  void Ok(std::string name, std::string seen);
  void Skip(std::string name, std::string reason);

  const std::vector<Finding>& findings() const { return findings_; }
  int Count(Verdict verdict) const;
  // 0 where nothing fails, 1 where a check does.
  int exit_code() const { return Count(Verdict::kFail) > 0 ? 1 : 0; }

  std::string ToText() const;
  // {"subject", "checks": [{"name", "verdict", "seen", "mend"}], "counts": {…}, "exit_code"}; mend
  // only where there is one. Ends with a line feed.
  std::string ToJson() const;

 private:
  std::string subject_;
  std::vector<Finding> findings_;
};

}  // namespace tributary::doctor
