// A machine's /sys, /proc and /dev out of one text file, laid out in a temporary folder.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/sys_files.h"

namespace tributary::doctor {

// tests/doctor/trees/<name>.tree, line by line ('#' begins a comment, only at a line's start):
//   include OTHER          the lines of trees/OTHER.tree first
//   $NAME = /some/path     $NAME at the start of a later path stands for it
//   /path = text           a file with that text; "\n" is a line feed, "\t" a tab
//   /path -> target        a symbolic link
//   /path ! ERRNO          reading it fails: EINVAL, EACCES
// A path given again replaces what stood there; parents are made as needed.
class RecordedTree {
 public:
  explicit RecordedTree(const std::string& name);
  ~RecordedTree();
  RecordedTree(const RecordedTree&) = delete;
  RecordedTree& operator=(const RecordedTree&) = delete;

  const std::string& root() const { return root_; }
  std::shared_ptr<const SysFiles> files() const;
  void Write(const std::string& path, const std::string& bytes) const;
  void Refuse(const std::string& path, int error) { refused_[path] = error; }

 private:
  void Load(const std::string& name, std::map<std::string, std::string>* variables);
  void Line(const std::string& line, std::map<std::string, std::string>* variables);

  std::string root_;
  std::map<std::string, int> refused_;  // by the path as resolved
};

}  // namespace tributary::doctor
