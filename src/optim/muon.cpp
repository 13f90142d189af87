#include "optim/muon.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"

namespace kintsugi {
namespace {

// One iteration multiplies each singular value x by a + b x^2 + c x^4. These coefficients move all
// of them close to 1 in few iterations.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;

// y = (a + b G + c G^2) x with G = x x^T or, if x has more rows than columns, from the right with
// G = x^T x: the same result with the smaller G.
void iterate(Backend& backend, Tensor y, Tensor x, Tensor gram, Tensor polynomial) {
  const bool tall = x.extent(1) > x.extent(2);
  backend.matmul(gram, x, x, {.transpose_a = tall, .transpose_b = !tall});
  backend.matmul(polynomial, gram, gram, {.residual = gram, .scale = kC, .residual_scale = kB});
  backend.matmul(y, tall ? x : polynomial, tall ? polynomial : x,
                 {.residual = x, .residual_scale = kA});
}

}  // namespace

Muon::Muon(const OptimizerSettings& settings) : settings_(settings) {}

std::vector<StateSlot> Muon::slots(DType precision) const {
  return {{"momentum_buffer", "momentum", moments_dtype(settings_, precision)}};
}

DType Muon::exchanged(DType precision) const {
  return accumulator_of(precision) == DType::F64 ? DType::F64 : settings_.muon.precision;
}

void Muon::direction(Backend& backend, Tensor direction, std::span<const Tensor> slots,
                     Tensor gradient, Tensor scale, const UpdateOptions& options) const {
  MomentumOptions momentum{.momentum = settings_.muon.momentum,
                           .nesterov = settings_.muon.nesterov,
                           .first_element = options.first_element};
  if (settings_.stochastic_rounding)
    momentum.rounding_key =
        derive_key(settings_.seed, 0x50FF, static_cast<std::uint64_t>(options.step)) | 1;
  backend.momentum(direction, slots[0], gradient, scale, momentum);
}

Tensor Muon::transform(Backend& backend, const MatrixWork& work) const {
  backend.fill(work.squared_norms, 0.0);
  for (std::int64_t i = 0; i < work.x.extent(0); ++i)
    backend.squared_norm(work.squared_norms.rows(i, 1), work.x.select(0, i));
  backend.divide_by_norms(work.x, work.squared_norms, settings_.muon.eps);
  Tensor x = work.x, other = work.other;
  for (std::int64_t step = 0; step < settings_.muon.steps; ++step) {
    iterate(backend, other, x, work.squares[0], work.squares[1]);
    std::swap(x, other);
  }
  return x;
}

double Muon::flops(std::int64_t rows, std::int64_t columns) const {
  const auto small = static_cast<double>(std::min(rows, columns)),
             large = static_cast<double>(std::max(rows, columns));
  return static_cast<double>(settings_.muon.steps) * 2 * small * small * (2 * large + small);
}

double Muon::lr_factor(std::int64_t rows, std::int64_t columns) const {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  const double by_shape = settings_.muon.adjust_lr == LrAdjustment::MatchRmsAdamW
                              ? 0.2 * std::sqrt(std::max(r, c))
                              : std::sqrt(std::max(1.0, r / c));
  return settings_.muon.lr_factor * by_shape;
}

void Muon::apply(Backend& backend, Tensor weight, Tensor master, Tensor direction, Tensor scale,
                 std::int64_t rows, std::int64_t columns, const UpdateOptions& options) const {
  const double decay =
      options.decays ? options.lr * settings_.muon.lr_factor * settings_.weight_decay : 0.0;
  backend.descend(weight, master, direction, scale, 1.0 - decay,
                  options.lr * lr_factor(rows, columns));
}

}  // namespace kintsugi
