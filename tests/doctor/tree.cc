// Laying a recorded tree out.
#include "tests/doctor/tree.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tributary::doctor {
namespace {

class RefusingFiles final : public SysFiles {
 public:
  RefusingFiles(const std::string& root, std::map<std::string, int> refused)
      : SysFiles(root), refused_(std::move(refused)) {}
  absl::StatusOr<std::string> ReadBytes(const std::string& path) const override {
    const auto real = Resolve(path);
    const auto it = refused_.find(real.ok() ? *real : path);
    if (it == refused_.end()) return SysFiles::ReadBytes(path);
    return absl::Status(absl::ErrnoToStatusCode(it->second),
                        absl::StrCat(path, ": ", strerror(it->second)));
  }

 private:
  const std::map<std::string, int> refused_;
};

}  // namespace

RecordedTree::RecordedTree(const std::string& name) {
  std::string pattern = (std::filesystem::temp_directory_path() / "tributary-tree-XXXXXX").string();
  root_ = mkdtemp(pattern.data());
  std::map<std::string, std::string> variables;
  Load(name, &variables);
}

RecordedTree::~RecordedTree() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

std::shared_ptr<const SysFiles> RecordedTree::files() const {
  return std::make_shared<RefusingFiles>(root_, refused_);
}

void RecordedTree::Write(const std::string& path, const std::string& bytes) const {
  const std::filesystem::path file = root_ + path;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << bytes;
}

void RecordedTree::Load(const std::string& name, std::map<std::string, std::string>* variables) {
  std::ifstream in(absl::StrCat(TRIBUTARY_SOURCE_DIR "/tests/doctor/trees/", name, ".tree"));
  ASSERT_TRUE(in) << "no tree " << name;
  for (std::string line; std::getline(in, line);) {
    absl::StripTrailingAsciiWhitespace(&line);
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("include ")) {
      Load(line.substr(8), variables);
    } else {
      Line(line, variables);
    }
  }
}

void RecordedTree::Line(const std::string& line, std::map<std::string, std::string>* variables) {
  const size_t space = line.find(' ');
  ASSERT_NE(space, std::string::npos) << line;
  std::string path = line.substr(0, space);
  const size_t value_at = line.find(' ', space + 1);
  const std::string sign = line.substr(space + 1, value_at - space - 1);
  const std::string value = value_at == std::string::npos ? "" : line.substr(value_at + 1);
  if (path[0] == '$') {
    const size_t slash = path.find('/');
    if (slash == std::string::npos) {
      (*variables)[path] = value;
      return;
    }
    ASSERT_TRUE(variables->contains(path.substr(0, slash))) << line;
    path = (*variables)[path.substr(0, slash)] + path.substr(slash);
  }
  const std::filesystem::path file = root_ + path;
  std::filesystem::create_directories(file.parent_path());
  if (sign == "->") {
    std::filesystem::create_symlink(value, file);
    return;
  }
  Write(path, absl::StrReplaceAll(value, {{"\\n", "\n"}, {"\\t", "\t"}}) + "\n");
  if (sign == "!") {
    ASSERT_TRUE(value == "EINVAL" || value == "EACCES") << line;
    Refuse(path, value == "EINVAL" ? EINVAL : EACCES);
  } else {
    ASSERT_EQ(sign, "=") << line;
  }
}

}  // namespace tributary::doctor
