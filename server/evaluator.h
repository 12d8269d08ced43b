// The root's own evaluation: a program of the operator's, started once, that is told each model's
// file and answers with numbers.
//
// The program reads one path of a model.safetensors a line on its standard input and writes, for
// each, one line with a JSON object on its standard output: its numbers are the evaluation
// ("loss", "accuracy", "count", ...); {"error": "..."} says why there is none. It ends at the end
// of its input. `tributary-client --evaluate FILE` is one.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/process.h"

namespace tributary::server {

// Not thread-safe. The program dies with the thread that first calls Evaluate.
class Evaluator {
 public:
  // `command`: program and arguments. A program without '/' is looked for beside this executable,
  // then in PATH. Nothing is started yet.
  // `clock` outlives it.
  Evaluator(std::vector<std::string> command, const Clock* clock);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // The finite numbers of the answer, 1 to 32 of them. Blocks until they are there.
  // DEADLINE_EXCEEDED after `limit`, UNAVAILABLE where the program cannot be started or ended,
  // INVALID_ARGUMENT where its answer is none, ABORTED with its own "error". After any but the last
  // the program is killed, and started anew for the next model.
  absl::StatusOr<std::map<std::string, double>> Evaluate(const std::string& model_file,
                                                         absl::Duration limit);
  // From any thread: the Evaluate that runs, and every later one, ends at once with CANCELLED.
  void Cancel();

 private:
  absl::Status Start();
  void Stop();
  // Deadlines are of the clock's Monotonic.
  absl::Status Await(int fd, int16_t events, absl::Duration deadline) const;
  absl::Status Send(const std::string& line, absl::Duration deadline);
  absl::StatusOr<std::string> Receive(absl::Duration deadline);

  const std::vector<std::string> command_;
  const Clock* const clock_;
  std::optional<Process> process_;
  int input_ = -1;      // our end of its standard input, a socket
  std::string unread_;  // of its standard output
  int cancelled_ = -1;  // an eventfd: readable from Cancel on
};

// Where Start would find the program; NOT_FOUND says where it was looked for.
absl::StatusOr<std::string> FindProgram(const std::string& program);

}  // namespace tributary::server
