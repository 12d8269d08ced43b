// Draws by counter: Philox under the seed, at (client, round, purpose).
#include "simulate/clients.h"

#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "base/philox.h"

namespace tributary::simulate {
namespace {

enum Purpose : uint32_t { kTraits = 1, kRates, kRound, kDeath, kPresence };

PhiloxBlock Draws(uint64_t seed, uint32_t client, uint64_t round, Purpose purpose) {
  return Philox4x32(
      seed, {client, static_cast<uint32_t>(round), static_cast<uint32_t>(round >> 32), purpose});
}

double Uniform(uint32_t a) { return (static_cast<double>(a) + 0.5) * 0x1p-32; }  // (0, 1)

}  // namespace

double NormalFrom(uint32_t a, uint32_t b) {
  return std::sqrt(-2 * std::log(Uniform(a))) * std::cos(2 * std::numbers::pi * Uniform(b));
}

double ParetoFrom(uint32_t a, double alpha) { return std::pow(Uniform(a), -1 / alpha); }

ClientPopulation::ClientPopulation(const ClientModel& model, uint64_t seed, uint64_t update_bytes,
                                   uint64_t model_bytes)
    : model_(model),
      seed_(seed),
      update_bytes_(static_cast<double>(update_bytes)),
      model_bytes_(static_cast<double>(model_bytes)) {
  traits_.resize(model.count);
  for (uint32_t c = 0; c < model.count; ++c) {
    const PhiloxBlock a = Draws(seed, c, 0, kTraits);
    const PhiloxBlock b = Draws(seed, c, 0, kRates);
    const bool slow = Uniform(a[2]) < model.slow_share;
    ClientTraits& t = traits_[c];
    t.id = absl::StrCat("c", c);
    t.train_factor = static_cast<float>(std::exp(model.train_sigma * NormalFrom(a[0], a[1])) *
                                        (slow ? model.slow_factor : 1));
    t.rate_factor = static_cast<float>(std::exp(model.rate_sigma * NormalFrom(b[0], b[1])) /
                                       (slow ? model.slow_factor : 1));
    t.hour = static_cast<float>(Uniform(b[2]) * model.diurnal_spread);
  }
}

double ClientPopulation::download_s(uint32_t client) const {
  return model_.latency_s + model_bytes_ / (model_.down_bytes_per_s *
                                            static_cast<double>(traits_[client].rate_factor));
}

double ClientPopulation::upload_s(uint32_t client) const {
  return update_bytes_ / (model_.up_bytes_per_s * static_cast<double>(traits_[client].rate_factor));
}

bool ClientPopulation::Available(uint32_t client, absl::Duration now) const {
  if (model_.diurnal_amplitude == 0) return true;
  const double day = absl::ToDoubleSeconds(now) / model_.diurnal_period_s +
                     static_cast<double>(traits_[client].hour);
  const double chance =
      1 - model_.diurnal_amplitude * (1 + std::sin(2 * std::numbers::pi * day)) / 2;
  const auto hour =
      static_cast<uint64_t>(24 * absl::ToDoubleSeconds(now) / model_.diurnal_period_s);
  return Uniform(Draws(seed_, client, hour, kPresence)[0]) < chance;
}

uint64_t ClientPopulation::Present(absl::Duration now) const {
  if (model_.diurnal_amplitude == 0) return traits_.size();
  uint64_t present = 0;
  for (uint32_t c = 0; c < traits_.size(); ++c) present += Available(c, now) ? 1 : 0;
  return present;
}

ClientRound ClientPopulation::Draw(uint32_t client, uint64_t round) const {
  const PhiloxBlock a = Draws(seed_, client, round, kRound);
  ClientRound out;
  out.train_s = model_.train_s * static_cast<double>(traits_[client].train_factor) *
                std::exp(model_.round_sigma * NormalFrom(a[0], a[1]));
  if (model_.pareto_alpha > 0) out.train_s *= ParetoFrom(a[2], model_.pareto_alpha);
  if (model_.dropout > 0) {
    const PhiloxBlock b = Draws(seed_, client, round, kDeath);
    out.dies = Uniform(b[0]) < model_.dropout;
    out.dies_after_s = Uniform(b[1]) * (download_s(client) + out.train_s + upload_s(client));
  }
  return out;
}

}  // namespace tributary::simulate
