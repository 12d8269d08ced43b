// Local SGD and evaluation.
#include "client/trainer/internal/local_sgd.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tributary::client::trainer {
namespace {

constexpr int64_t kTestBatch = 250;  // bounds the activations' memory

// Examples as torch sees them; owns the memory that the images lie in.
struct TensorData {
  std::vector<float> values;
  torch::Tensor images;  // [n, channels, height, width]
  torch::Tensor labels;  // [n], int64
  int64_t size() const { return labels.size(0); }
};

TensorData MakeTensors(const Examples& examples, const ImageFormat& format) {
  TensorData data{.values = Normalise(examples, format), .images = {}, .labels = {}};
  data.images = torch::from_blob(
      data.values.data(),
      {static_cast<int64_t>(examples.size()), format.channels, format.height, format.width},
      torch::kFloat);
  data.labels = torch::empty({static_cast<int64_t>(examples.size())}, torch::kLong);
  std::copy(examples.labels.begin(), examples.labels.end(), data.labels.data_ptr<int64_t>());
  return data;
}

void Shuffle(torch::Tensor* order, PhiloxStream* random) {  // Fisher and Yates
  int64_t* items = order->data_ptr<int64_t>();
  for (uint64_t i = static_cast<uint64_t>(order->numel()); i > 1; --i) {
    std::swap(items[i - 1], items[random->NextBelow(i)]);
  }
}

// One client's training of one round.
class LocalSgd {
 public:
  LocalSgd(Network* network, TensorData data, const Hyperparameters& how,
           const std::vector<torch::Tensor>& corrections)
      : network_(*network), data_(std::move(data)), how_(how) {
    for (size_t i = 0; i < network_.tensors().size(); ++i) {
      const Network::NamedTensor& tensor = network_.tensors()[i];
      if (!tensor.parameter || !tensor.tensor.requires_grad()) continue;
      // One tensor under two names takes one step, not two.
      const auto same = [&](const torch::Tensor& other) { return other.is_same(tensor.tensor); };
      if (std::any_of(trained_.begin(), trained_.end(), same)) continue;
      trained_.push_back(tensor.tensor);
      corrections_.push_back(i < corrections.size() ? corrections[i] : torch::Tensor());
    }
    if (pull() > 0) {
      for (const torch::Tensor& w : trained_) base_.push_back(w.detach().clone());
    }
    optimizer_ = std::make_unique<torch::optim::SGD>(
        trained_,
        torch::optim::SGDOptions(how_.lr).momentum(how_.momentum).weight_decay(how_.weight_decay));
  }
  // Gradients are as large as the model, and nobody needs them between rounds.
  ~LocalSgd() {
    for (torch::Tensor& w : trained_) w.mutable_grad() = torch::Tensor();
  }
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  int64_t batch() const {
    return how_.batch_size == 0 ? data_.size() : std::min<int64_t>(how_.batch_size, data_.size());
  }
  uint64_t StepsAnEpoch() const {
    return static_cast<uint64_t>((data_.size() + batch() - 1) / batch());
  }

  // One pass, of at most `steps` steps (1 or more): the mean loss over them, and how many it did.
  absl::StatusOr<Trained> Epoch(uint64_t steps, PhiloxStream* random,
                                const std::function<bool()>& cancelled,
                                const std::function<bool()>& out_of_time) {
    const int64_t n = data_.size();
    const int64_t batch = this->batch();
    torch::Tensor order;
    if (how_.batch_size != 0) {
      order = torch::arange(n, torch::kLong);
      Shuffle(&order, random);
    }
    double total = 0;
    int64_t seen = 0;
    uint64_t done = 0;
    for (int64_t begin = 0; begin < n && done < steps; begin += batch) {
      if (cancelled()) return absl::CancelledError("the round is over");
      const int64_t size = std::min(batch, n - begin);
      double loss = 0;
      if (order.defined()) {
        const torch::Tensor chosen = order.narrow(0, begin, size);
        loss = Step(data_.images.index_select(0, chosen), data_.labels.index_select(0, chosen));
      } else {
        loss = Step(data_.images, data_.labels);
      }
      if (!std::isfinite(loss)) {
        return absl::OutOfRangeError(absl::StrCat("training diverged: the loss is ", loss,
                                                  " with lr ", how_.lr, "; lower lr"));
      }
      total += loss * static_cast<double>(size);
      seen += size;
      ++done;
      if (out_of_time()) break;
    }
    return Trained{.loss = total / static_cast<double>(seen), .steps = done};
  }

 private:
  double Step(const torch::Tensor& images, const torch::Tensor& labels) {
    optimizer_->zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(network_.Forward(images), labels);
    loss.backward();
    AddProximalTerm();
    AddCorrections();
    optimizer_->step();
    return loss.item<double>();
  }

  // FedProx's mu, or FedDyn's alpha: one at most is above 0.
  double pull() const { return how_.mu + how_.feddyn; }

  // The gradient of pull/2 * |w - base|^2.
  void AddProximalTerm() {
    if (pull() <= 0) return;
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < trained_.size(); ++i) {
      torch::Tensor& gradient = trained_[i].mutable_grad();
      if (gradient.defined()) gradient.add_(trained_[i] - base_[i], pull());
    }
  }

  void AddCorrections() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < trained_.size(); ++i) {
      torch::Tensor& gradient = trained_[i].mutable_grad();
      if (gradient.defined() && corrections_[i].defined()) gradient.add_(corrections_[i]);
    }
  }

  Network& network_;
  const TensorData data_;
  const Hyperparameters how_;
  std::vector<torch::Tensor> trained_;
  std::vector<torch::Tensor> corrections_;  // of trained_; undefined: none
  std::vector<torch::Tensor> base_;         // of trained_; only for the proximal term
  std::unique_ptr<torch::optim::SGD> optimizer_;
};

}  // namespace

absl::StatusOr<Trained> TrainLocally(Network* network, const Examples& examples,
                                     const ImageFormat& format, const Hyperparameters& how,
                                     PhiloxStream order, const std::function<bool()>& cancelled,
                                     const std::function<bool()>& out_of_time,
                                     const std::vector<torch::Tensor>& corrections) {
  network->SetTraining(true);
  LocalSgd sgd(network, MakeTensors(examples, format), how, corrections);
  const uint64_t an_epoch = sgd.StepsAnEpoch();
  const auto all = static_cast<double>(an_epoch * how.local_epochs);
  const auto wanted = static_cast<uint64_t>(std::ceil(all * how.work * (1 - 1e-12)));
  Trained trained;
  do {
    const uint64_t pass = std::min(wanted - trained.steps, an_epoch);
    ASSIGN_OR_RETURN(const Trained epoch, sgd.Epoch(pass, &order, cancelled, out_of_time));
    trained.loss = epoch.loss;
    trained.steps += epoch.steps;
    if (epoch.steps < pass) break;
  } while (trained.steps < wanted && !out_of_time());
  return trained;
}

TestScore Test(Network* network, const Examples& examples, const ImageFormat& format) {
  const torch::NoGradGuard no_grad;
  network->SetTraining(false);
  const TensorData data = MakeTensors(examples, format);
  double loss = 0;
  int64_t right = 0;
  for (int64_t begin = 0; begin < data.size(); begin += kTestBatch) {
    const int64_t size = std::min(kTestBatch, data.size() - begin);
    const torch::Tensor labels = data.labels.narrow(0, begin, size);
    const torch::Tensor scores = network->Forward(data.images.narrow(0, begin, size));
    loss += torch::nn::functional::cross_entropy(scores, labels).item<double>() *
            static_cast<double>(size);
    right += scores.argmax(1).eq(labels).sum().item<int64_t>();
  }
  const auto n = static_cast<double>(data.size());
  return {.loss = loss / n, .accuracy = static_cast<double>(right) / n};
}

}  // namespace tributary::client::trainer
