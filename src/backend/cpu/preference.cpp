// The loss of preference pairs (DPO): sums over sequences, and the weight of each token's loss.
#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"

namespace kintsugi {
namespace {

// -log sigmoid(x), without overflow
double softplus_of_minus(double x) {
  return std::max(-x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

struct PairLoss {
  double slope;                  // d loss / d margin, negative if the margin should grow
  std::array<double, 4> totals;  // as preference_loss adds them
};

PairLoss pair_loss(double preferred, double rejected, double label_smoothing) {
  const double margin = preferred - rejected, s = label_smoothing;
  const double down = std::exp(-softplus_of_minus(-margin));  // sigmoid(-margin)
  const double up = std::exp(-softplus_of_minus(margin));
  return {s * up - (1 - s) * down,
          {(1 - s) * softplus_of_minus(margin) + s * softplus_of_minus(-margin), preferred,
           rejected, margin > 0 ? 1.0 : 0.0}};
}

}  // namespace

void CpuBackend::do_range_sums(Tensor sums, Tensor x, Tensor ranges) {
  const std::int64_t count = sums.elements();
  visit_float(sums.dtype(), [&]<class T>() {
    const std::int32_t* range = ranges.as<std::int32_t>();
    const T* from = x.as<T>();
    pool_.run_ranges(count, 16, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = std::max(range[2 * i], 0), last = std::max(range[2 * i + 1], 0);
        double total = 0;
        for (std::int64_t at = first; at < last; ++at)
          total += static_cast<double>(static_cast<Accumulator<T>>(from[at]));
        sums.as<T>()[i] = static_cast<T>(static_cast<Accumulator<T>>(total));
      }
    });
  });
}

void CpuBackend::do_preference_loss(Tensor weights, Tensor totals, Tensor sums, Tensor reference,
                                    Tensor ranges, const PreferenceOptions& options) {
  const std::int64_t count = sums.elements();
  visit_float(sums.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int32_t* range = ranges.as<std::int32_t>();
    T* weight = weights.as<T>();
    std::fill_n(weight, weights.elements(), static_cast<T>(A(0)));
    std::array<double, 4> total = {};
    const auto reward = [&](std::int64_t i) {
      return options.beta * (-static_cast<double>(static_cast<A>(sums.as<T>()[i])) -
                             static_cast<double>(static_cast<A>(reference.as<T>()[i])));
    };
    for (std::int64_t i = 0; i < count; i += 2) {
      if (range[2 * i] < 0) continue;
      const PairLoss pair = pair_loss(reward(i), reward(i + 1), options.label_smoothing);
      for (std::size_t k = 0; k < total.size(); ++k) total[k] += pair.totals[k];
      for (const std::int64_t side : {0, 1}) {
        const double slope = options.beta * pair.slope * (side == 0 ? -1 : 1);
        const std::int32_t* of = range + 2 * (i + side);
        std::fill(weight + of[0], weight + of[1], static_cast<T>(static_cast<A>(slope)));
      }
    }
    for (std::size_t k = 0; k < total.size(); ++k)
      totals.as<T>()[k] =
          static_cast<T>(static_cast<A>(totals.as<T>()[k]) + static_cast<A>(total[k]));
  });
}

}  // namespace kintsugi
