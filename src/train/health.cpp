#include "train/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/statistics.h"

namespace kintsugi {

std::string RunHealth::after_step(Engine& engine, const StepResult& result, double loss_scale) {
  const bool overflow = !std::isfinite(result.gradient_norm),
             bad_loss = !std::isfinite(result.loss);
  if (result.outlier && !bad_loss) {
    if (++outliers_ < max_skipped_) return "";
    return fmt::format(
        "{} step{} in a row had a loss or gradient norm far above those of the steps before "
        "(optimizer.skip_step, train.max_skipped_steps)",
        outliers_, outliers_ == 1 ? "" : "s");
  }
  if (!overflow && !bad_loss) {
    skipped_ = outliers_ = 0;
    return "";
  }
  ++skipped_;
  // With a dynamic loss scale, an overflow with a finite loss is normal. Otherwise check the
  // weights.
  if ((bad_loss || !minimum_scale_) && !weights_are_finite(engine))
    return "the weights are no longer finite";
  if (overflow && minimum_scale_ && loss_scale <= *minimum_scale_)
    return fmt::format("the gradients overflow with the loss scale at its minimum of {}",
                       *minimum_scale_);
  if (skipped_ >= max_skipped_)
    return fmt::format(
        "{} step{} in a row had a loss or gradient norm that was not finite "
        "(train.max_skipped_steps)",
        skipped_, skipped_ == 1 ? "" : "s");
  return "";
}

bool weights_are_finite(Engine& engine) {
  Backend& backend = engine.backend();
  engine.sharding().finish_weights();
  // The norm of this step was already read; the next step clears it.
  const Tensor norm = engine.optimizer().squared_norm();
  backend.fill(norm, 0.0);
  for (int bucket = 0; bucket < static_cast<int>(engine.parameters().buckets().size()); ++bucket)
    backend.squared_norm(norm, engine.sharding().owned_weights(bucket));
  double bad = 0;
  visit_float(norm.dtype(), [&]<class T>() {
    T sum;
    backend.download(&sum, norm);
    bad = std::isfinite(static_cast<double>(static_cast<Accumulator<T>>(sum))) ? 0 : 1;
  });
  Communicator& world = engine.groups()[GroupKind::World];
  world.wait(world.all_reduce(Tensor(&bad, DType::F64, {1}), ReduceOp::Max));
  return bad == 0;
}

namespace {

constexpr double kNormal = 1.4826;       // median distance to standard deviation
constexpr double kSpikeRounding = 1e-6;  // losses that differ by rounding only are no spikes

}  // namespace

double SpikeHistory::median_loss() const { return median(state_.losses); }

double SpikeHistory::deviations(double loss) const {
  const auto needed = static_cast<std::size_t>(std::max<std::int64_t>(2, options_.window / 2));
  if (state_.losses.size() < needed || !std::isfinite(loss)) return 0;
  const double middle = median_loss();
  std::vector<double> distances;
  for (const double one : state_.losses) distances.push_back(std::abs(one - middle));
  const double deviation =
      std::max({kNormal * median(std::move(distances)), kSpikeRounding * std::abs(middle), 1e-300});
  return (loss - middle) / deviation;
}

void SpikeHistory::add(double loss) {
  if (options_.action == SpikeAction::None || !std::isfinite(loss)) return;
  state_.losses.push_back(loss);
  shorten();
}

std::int64_t SpikeHistory::next_rewind(std::int64_t step) const {
  const bool again = state_.rewinds > 0 && step <= state_.last_step + options_.window;
  return again ? state_.rewinds + 1 : 1;
}

void SpikeHistory::note_rewind(std::int64_t step) {
  state_.rewinds = next_rewind(step);
  state_.last_step = step;
}

void SpikeHistory::restore(State state) {
  if (options_.action == SpikeAction::None) return;
  state_ = std::move(state);
  shorten();
}

void SpikeHistory::shorten() {
  const auto extra = static_cast<std::int64_t>(state_.losses.size()) - options_.window;
  if (extra > 0) state_.losses.erase(state_.losses.begin(), state_.losses.begin() + extra);
}

}  // namespace kintsugi
