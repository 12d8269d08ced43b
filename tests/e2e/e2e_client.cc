// A real client process without LibTorch: its deltas depend on its id and the round alone, so that
// the model a run must end in does not depend on what happened on the way.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "base/status.h"
#include "client/client.h"
#include "tests/client/random_result.h"

namespace tributary {
namespace {

class SteadyTrainer final : public client::Trainer {
 public:
  SteadyTrainer(std::string id, int think_ms) : id_(std::move(id)), think_ms_(think_ms) {}

  absl::StatusOr<client::TrainResult> Train(const client::TrainTask& task,
                                            const std::function<bool()>& cancelled) override {
    // Stands for the time that training takes; ends early when the round is over.
    for (int waited = 0; waited < think_ms_ && !cancelled(); ++waited) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    client::TrainResult result =
        client::testing::RandomResult(*task.layout, SeededHash(task.spec.round(), "delta", id_));
    result.weight = 5 + static_cast<int64_t>(SeededHash(1, "weight", id_) % 20);
    return result;
  }
  void OnNotice(const std::string& what) override {
    std::fprintf(stderr, "%s: %s\n", id_.c_str(), what.c_str());
  }
  absl::StatusOr<std::vector<v1::Metric>> Evaluate(const client::TrainTask&) override {
    v1::Metric metric;
    metric.set_name("test_accuracy");
    metric.set_value(0.5);
    metric.set_weight(10);
    return std::vector<v1::Metric>{metric};
  }

 private:
  const std::string id_;
  const int think_ms_;
};

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

// True where `argument` is one of TLS.
bool TakeTls(const std::string& argument, TlsClientOptions* tls) {
  const size_t equals = argument.find('=');
  if (!argument.starts_with("--") || equals == std::string::npos) return false;
  const std::string key = argument.substr(2, equals - 2), path = argument.substr(equals + 1);
  if (key == "ca") tls->ca_pem = Read(path);
  if (key == "cert") tls->cert_pem = Read(path);
  if (key == "key") tls->key_pem = Read(path);
  return true;
}

}  // namespace
}  // namespace tributary

// e2e_client ID THINK_MS [--ca=FILE] [--cert=FILE --key=FILE] ENDPOINT...
int main(int argc, char** argv) {
  using namespace tributary;
  if (argc < 4) return 2;
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &end, nullptr);
  SteadyTrainer trainer(argv[1], std::stoi(argv[2]));
  client::ClientOptions options;
  options.id = argv[1];
  TlsClientOptions tls;
  for (int i = 3; i < argc; ++i) {
    if (!TakeTls(argv[i], &tls)) options.endpoints.emplace_back(argv[i]);
  }
  if (!tls.ca_pem.empty()) {
    auto settings = client::TlsSettings::Create(tls);
    if (!settings.ok()) {
      std::fprintf(stderr, "%s\n", Text(settings.status()).c_str());
      return 2;
    }
    options.tls = *std::move(settings);
  }
  options.examples = 10;
  options.backoff_max = absl::Milliseconds(500);
  auto client = client::Client::Create(options, &trainer);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", Text(client.status()).c_str());
    return 2;
  }
  std::thread([&] {
    int number = 0;
    if (sigwait(&end, &number) == 0) (*client)->Shutdown();
  }).detach();
  const absl::Status status = (*client)->Run();
  std::fprintf(stderr, "%s: %s\n", argv[1], status.ToString().c_str());
  std::_Exit(status.ok() || absl::IsCancelled(status) ? 0 : 1);
}
