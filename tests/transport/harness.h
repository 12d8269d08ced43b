// What a conformance test needs of a fabric: two ends of it, deadlines in its time, threads that it
// knows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "transport/link.h"

namespace tributary::transport {

// A running thread of a test.
class TestThread {
 public:
  virtual ~TestThread() = default;
  virtual void Join() = 0;
};

class PlainThread final : public TestThread {
 public:
  explicit PlainThread(std::function<void()> body) : thread_(std::move(body)) {}
  ~PlainThread() override { Join(); }
  void Join() override {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
};

class Harness {
 public:
  virtual ~Harness() = default;
  virtual Fabric& server() = 0;
  virtual Fabric& client() = 0;
  virtual std::string listen_address() const = 0;
  // An address at which nobody listens.
  virtual std::string nobody() const = 0;
  virtual Deadline In(absl::Duration wait) const = 0;
  virtual std::unique_ptr<TestThread> Spawn(std::function<void()> body) {
    return std::make_unique<PlainThread>(std::move(body));
  }
  // The link's name for its transport.
  virtual std::string transport() const = 0;
  // Queue pairs, registrations and the like, where the transport has them and they can be counted.
  virtual size_t live_objects() const { return 0; }
};

// What the conformance tests of this binary run against, by name.
std::vector<std::string> FabricsUnderTest();
std::unique_ptr<Harness> MakeHarness(const std::string& name);

std::unique_ptr<Harness> MakeTcpHarness();
std::unique_ptr<Harness> MakeDecoratedTcpHarness();
std::unique_ptr<Harness> MakeShmHarness();
std::unique_ptr<Harness> MakeAutoHarness();
// Over fake verbs, whose account is checked at its end; the arena of each side, as pages are
// touched.
std::unique_ptr<Harness> MakeRoceHarness(size_t arena_bytes = size_t{64} << 20);
std::unique_ptr<Harness> MakeSimHarness();

// Options small enough for thousands of chunks a second under a sanitizer.
inline LinkOptions SmallOptions(const std::string& name) {
  LinkOptions options;
  options.name = name;
  options.chunk_bytes = 64 * 1024;
  options.slots = 4;
  options.lanes = 3;
  return options;
}

}  // namespace tributary::transport
