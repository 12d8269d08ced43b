// Starting, watching and ending the clients of one process.
#include "client/trainer/internal/fleet.h"

#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "client/trainer/dataset.h"
#include "client/trainer/internal/label_trainer.h"
#include "client/trainer/internal/logging_trainer.h"

namespace tributary::client::trainer {
namespace {

// Where the signal handler, which gets no argument, finds its descriptor.
std::atomic<int> handler_fd{-1};

void OnSignal(int number) {
  const int before = errno;
  const auto byte = static_cast<char>(number);
  // Full only after thousands of signals that nobody looked at.
  [[maybe_unused]] const ssize_t written = write(handler_fd.load(), &byte, 1);
  errno = before;
}

// A handler and not a blocked mask with a signalfd: it does its work in whichever thread a signal
// ends up in, and libraries start threads of their own.
absl::Status CatchSignals(int write_fd) {
  handler_fd.store(write_fd);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM}) {
    sigaddset(&signals, number);
    if (sigaction(number, &action, nullptr) != 0) return absl::InternalError("sigaction failed");
  }
  // They were held back since the start: one that has come meanwhile is delivered here.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  return absl::OkStatus();
}

int SlotCount(const ClientConfig& config, bool simulate) {
  if (!simulate) return 1;
  const uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  const uint32_t wished = config.threads == 0 ? cores : config.threads;
  return static_cast<int>(std::min(wished, config.split.clients));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(const ClientConfig& config,
                                                     const FleetOptions& options) {
  std::unique_ptr<Fleet> fleet(new Fleet);
  if (pipe2(fleet->signals_, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::ResourceExhaustedError("no file descriptor is left; raise ulimit -n");
  }
  fleet->finished_ = eventfd(0, EFD_CLOEXEC);
  if (fleet->finished_ < 0) {
    return absl::ResourceExhaustedError("no file descriptor is left; raise ulimit -n");
  }
  RETURN_IF_ERROR(CatchSignals(fleet->signals_[1]));
  UseOneTorchThread();
  RETURN_IF_ERROR(fleet->MakeTls(config));
  RETURN_IF_ERROR(fleet->AddMembers(config, options));
  return fleet;
}

Fleet::~Fleet() {
  // It is ending already: a signal must not turn its exit code into another.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_IGN);
  for (const int fd : {signals_[0], signals_[1], finished_}) {
    if (fd >= 0) close(fd);
  }
}

absl::Status Fleet::MakeTls(const ClientConfig& config) {
  if (!config.tls.has_value()) return absl::OkStatus();
  ASSIGN_OR_RETURN(tls_, TlsSettings::Create(*config.tls));
  return absl::OkStatus();
}

absl::Status Fleet::AddMembers(const ClientConfig& config, const FleetOptions& options) {
  ASSIGN_OR_RETURN(const auto pool,
                   NetworkPool::Create(config.model, SlotCount(config, options.simulate)));
  ASSIGN_OR_RETURN(const ImageFormat format, FormatOf(config.dataset));
  RETURN_IF_ERROR(pool->CheckInput(format));
  ASSIGN_OR_RETURN(const Dataset dataset, LoadDataset(config.dataset, config.directory));
  ASSIGN_OR_RETURN(const Parts train, SplitTraining(dataset.train.labels, config.split));
  ASSIGN_OR_RETURN(const Parts test,
                   SplitTest(dataset.test.size(), config.split.clients, config.split.seed));
  const uint32_t first = options.simulate ? options.part_first : config.index;
  uint32_t end = options.simulate ? config.split.clients : config.index + 1;
  if (options.part_count > 0) end = std::min(end, first + options.part_count);
  for (uint32_t i = first; i < end; ++i) {
    TorchTrainer::Data data{.format = dataset.format,
                            .train = Gather(dataset.train, dataset.format, train[i]),
                            .test = Gather(dataset.test, dataset.format, test[i])};
    RETURN_IF_ERROR(AddMember(config, options, i, pool, std::move(data)));
  }
  return absl::OkStatus();
}

absl::Status Fleet::AddMember(const ClientConfig& config, const FleetOptions& fleet, uint32_t index,
                              const std::shared_ptr<NetworkPool>& pool, TorchTrainer::Data data) {
  const bool simulate = fleet.simulate;
  const std::string id = simulate ? absl::StrFormat("%s-%03d", config.id, index) : config.id;
  ClientOptions options;
  options.endpoints = config.endpoints;
  options.id = id;
  options.run = config.run;
  options.state_directory = config.state_directory;
  options.examples = data.train.size();
  options.own_connection = !simulate;
  options.tls = tls_;
  spdlog::log(simulate ? spdlog::level::debug : spdlog::level::info,
              "{}: {} training and {} test examples of {}, model {}, aggregators {}", id,
              data.train.size(), data.test.size(), config.dataset, config.model,
              absl::StrJoin(config.endpoints, ", "));
  const std::vector<uint8_t> labels = data.train.labels;
  const auto classes = static_cast<int>(data.format.classes);
  std::unique_ptr<Trainer> trainer;
  ASSIGN_OR_RETURN(trainer, TorchTrainer::Create(pool, id, std::move(data)));
  if (config.report_labels) {
    ASSIGN_OR_RETURN(trainer, MakeLabelTrainer(labels, classes, std::move(trainer)));
  }
  trainer = MakePacedTrainer(fleet.pace, index, std::move(trainer));
  Member member{.id = id,
                .trainer = MakeLoggingTrainer(id, std::move(trainer), simulate),
                .client = nullptr,
                .result = absl::OkStatus()};
  ASSIGN_OR_RETURN(member.client, Client::Create(std::move(options), member.trainer.get()));
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

void Fleet::RunMember(Member* member) const {
  member->result = member->client->Run();
  eventfd_write(finished_, 1);
}

bool Fleet::Watch() {
  bool asked = false;
  for (size_t finished = 0; finished < members_.size();) {
    pollfd fds[2] = {{.fd = signals_[0], .events = POLLIN, .revents = 0},
                     {.fd = finished_, .events = POLLIN, .revents = 0}};
    if (poll(fds, 2, -1) < 0) continue;  // interrupted
    eventfd_t ended = 0;
    if ((fds[1].revents & POLLIN) != 0 && eventfd_read(finished_, &ended) == 0) finished += ended;
    if ((fds[0].revents & POLLIN) == 0) continue;
    char number = 0;
    if (read(signals_[0], &number, 1) != 1) continue;
    const char* const name = number == SIGINT ? "SIGINT" : "SIGTERM";
    if (asked) {
      spdlog::error("a second {}: ending at once", name);
      spdlog::default_logger()->flush();
      std::_Exit(1);
    }
    asked = true;
    spdlog::info("{}: leaving", name);
    for (const Member& member : members_) member.client->Shutdown();
  }
  return asked;
}

absl::Status Fleet::Run() {
  std::vector<std::thread> threads;
  for (Member& member : members_) threads.emplace_back([this, &member] { RunMember(&member); });
  const bool asked = Watch();
  for (std::thread& thread : threads) thread.join();
  absl::Status first;
  for (const Member& member : members_) {
    if (member.result.ok() || (asked && absl::IsCancelled(member.result))) continue;
    spdlog::error("{}: {}", member.id, Text(member.result));
    first.Update(Annotate(member.result, member.id));
  }
  if (first.ok()) spdlog::info(asked ? "left, as asked" : "the run is finished");
  return first;
}

}  // namespace tributary::client::trainer
