#include <algorithm>
#include <cmath>

#include "optim/update_rule.h"

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

// Muon (Jordan): the momentum of a matrix, orthogonalized by a Newton-Schulz iteration, with
// decoupled weight decay. As in torch.optim.Muon.
class Muon final : public MatrixRule {
 public:
  explicit Muon(const OptimizerSettings& settings) : settings_(settings), muon_(settings.muon) {}

  std::string_view name() const override { return "Muon"; }
  std::vector<StateSlot> slots(DType precision) const override {
    return {{"momentum_buffer", "momentum", moments_dtype(settings_, precision)}};
  }
  DType exchanged(DType precision) const override {
    return accumulator_of(precision) == DType::F64 ? DType::F64 : muon_.precision;
  }

  void direction(Backend& backend, Tensor direction, std::span<const Tensor> slots, Tensor gradient,
                 Tensor scale, const UpdateOptions& options) const override {
    backend.momentum(direction, slots[0], gradient, scale,
                     {.momentum = muon_.momentum,
                      .nesterov = muon_.nesterov,
                      .rounding_key = rounding_key(settings_, options.step),
                      .first_element = options.first_element});
  }

  Tensor transform(Backend& backend, const MatrixWork& work) const override {
    backend.fill(work.squared_norms, 0.0);
    for (std::int64_t i = 0; i < work.x.extent(0); ++i)
      backend.squared_norm(work.squared_norms.rows(i, 1), work.x.select(0, i));
    backend.divide_by_norms(work.x, work.squared_norms, muon_.eps);
    Tensor x = work.x, other = work.other;
    for (std::int64_t step = 0; step < muon_.steps; ++step) {
      iterate(backend, other, x, work.squares[0], work.squares[1]);
      std::swap(x, other);
    }
    return x;
  }

  double flops(std::int64_t rows, std::int64_t columns) const override {
    const auto small = static_cast<double>(std::min(rows, columns)),
               large = static_cast<double>(std::max(rows, columns));
    return static_cast<double>(muon_.steps) * 2 * small * small * (2 * large + small);
  }

  void apply(Backend& backend, Tensor weight, Tensor master, Tensor direction, Tensor scale,
             std::int64_t rows, std::int64_t columns, const UpdateOptions& options) const override {
    const double decay =
        options.decays ? options.lr * muon_.lr_factor * settings_.weight_decay : 0.0;
    backend.descend(weight, master, direction, scale, 1.0 - decay,
                    options.lr * lr_factor(rows, columns));
  }

 private:
  double lr_factor(std::int64_t rows, std::int64_t columns) const {
    const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
    const double by_shape = muon_.adjust_lr == LrAdjustment::MatchRmsAdamW
                                ? 0.2 * std::sqrt(std::max(r, c))
                                : std::sqrt(std::max(1.0, r / c));
    return muon_.lr_factor * by_shape;
  }

  OptimizerSettings settings_;
  MuonSettings muon_;
};

}  // namespace

std::shared_ptr<const MatrixRule> make_muon(const OptimizerSettings& settings) {
  return std::make_shared<Muon>(settings);
}

}  // namespace kintsugi
