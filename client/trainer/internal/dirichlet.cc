// Gamma variates from Philox by IEEE basic operations.
#include "client/trainer/internal/dirichlet.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace tributary::client::trainer {
namespace {

constexpr double kLn2 = 0.6931471805599453;  // rounded to double
constexpr double kShareUnit = 1 << 20;

// Uniform in (0, 1): never 0, so that its logarithm exists.
double NextOpen(PhiloxStream* random) { return random->NextDouble() + 0x1p-54; }

// A standard normal variate by Marsaglia's polar method (Marsaglia and Bray, 1964); the second of
// each pair is not used.
double NextNormal(PhiloxStream* random) {
  while (true) {
    const double u = 2 * random->NextDouble() - 1;
    const double v = 2 * random->NextDouble() - 1;
    const double s = u * u + v * v;
    if (s > 0 && s < 1) return u * std::sqrt(-2 * PortableLog(s) / s);
  }
}

// The logarithm of a Gamma(shape, 1) variate, shape >= 1: Marsaglia and Tsang, "A Simple Method for
// Generating Gamma Variables" (2000).
double LogGammaVariateAboveOne(double shape, PhiloxStream* random) {
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = NextNormal(random);
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    const double log_v = PortableLog(v);
    if (PortableLog(NextOpen(random)) < 0.5 * x * x + d - d * v + d * log_v) {
      return PortableLog(d) + log_v;
    }
  }
}

// For any shape. Logarithms, because a small shape's variates lie below the smallest double.
double LogGammaVariate(double shape, PhiloxStream* random) {
  if (shape >= 1) return LogGammaVariateAboveOne(shape, random);
  const double log_g = LogGammaVariateAboveOne(shape + 1, random);
  return log_g + PortableLog(NextOpen(random)) / shape;
}

}  // namespace

double PortableLog(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact; m in [1/2, 1)
  if (m < 0.7071067811865476) {
    m *= 2;
    --exponent;
  }
  // log(m) = 2 atanh(s); |s| < 0.172, so that s^25 is below 1e-19.
  const double s = (m - 1) / (m + 1);
  const double s2 = s * s;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return 2 * s * sum + exponent * kLn2;
}

double PortableExp(double x) {
  const double n = std::floor(x / kLn2 + 0.5);
  const double r = x - n * kLn2;  // |r| <= 0.35: r^18 / 18! is below 1e-24
  double sum = 1;
  for (int k = 17; k >= 1; --k) sum = 1 + r * sum / k;
  return std::ldexp(sum, static_cast<int>(n));  // exact
}

std::vector<uint64_t> DrawShares(double alpha, uint32_t n, PhiloxStream* random) {
  std::vector<double> shares(n);
  for (double& share : shares) share = LogGammaVariate(alpha, random);
  const double largest = *std::max_element(shares.begin(), shares.end());
  double sum = 0;
  for (double& share : shares) {
    share = share - largest < -700 ? 0 : PortableExp(share - largest);
    sum += share;
  }
  std::vector<uint64_t> units(n);
  for (uint32_t i = 0; i < n; ++i) {
    units[i] = static_cast<uint64_t>(std::nearbyint(shares[i] / sum * kShareUnit));
  }
  return units;
}

std::vector<uint64_t> Apportion(uint64_t total, std::span<const uint64_t> shares) {
  const uint64_t sum = std::accumulate(shares.begin(), shares.end(), uint64_t{0});
  if (sum == 0) std::abort();  // shares of nothing: our own bug
  std::vector<uint64_t> counts(shares.size());
  uint64_t left = total;
  for (size_t i = 0; i < shares.size(); ++i) {
    counts[i] = total * shares[i] / sum;
    left -= counts[i];
  }
  std::vector<size_t> order(shares.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return total * shares[a] % sum > total * shares[b] % sum;
  });
  for (uint64_t i = 0; i < left; ++i) ++counts[order[i]];
  return counts;
}

}  // namespace tributary::client::trainer
