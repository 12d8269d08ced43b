// A shared library by dlopen, and its functions by name: what VerbsApi, CmApi and CudaApi are
// filled with.
#pragma once

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace tributary::transport::roce {

// Loaded as long as the object lives; whoever calls its functions keeps it.
class Library {
 public:
  explicit Library(const char* name) : name_(name), handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) missing_ = dlerror();
  }
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // `version` is the symbol's, where the library has several of one name; null: whichever it has.
  template <typename Function>
  void Find(const char* name, const char* version, Function** to) {
    FindOptional(name, version, to);
    if (*to != nullptr || !missing_.empty()) return;
    missing_ = absl::StrCat(name_, " has no ", name);
    if (version != nullptr) absl::StrAppend(&missing_, " of version ", version);
  }
  template <typename Function>
  void FindOptional(const char* name, const char* version, Function** to) {
    if (handle_ == nullptr) return;
    void* found = version == nullptr ? dlsym(handle_, name) : dlvsym(handle_, name, version);
    *to = reinterpret_cast<Function*>(found);
  }
  // The first of what was looked for and is not there, in words; empty where all is.
  const std::string& missing() const { return missing_; }

 private:
  const char* const name_;
  void* const handle_;
  std::string missing_;
};

}  // namespace tributary::transport::roce
