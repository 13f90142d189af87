// fp8 matmuls: whether they can run, and what they lose (train.fp8.statistics_every).
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "model/fp8.h"
#include "train/trainer.h"

namespace kintsugi {
namespace {

constexpr std::array<const char*, 3> kOperands = {"input", "gradient", "weight"};
constexpr std::size_t kNumbers = 4;  // QuantizeOptions::statistics
// Rows of activations whose small numbers are lost beside an outlier, as SwiGLU makes them late in
// long runs.
constexpr double kTooMuchLost = 0.01;

}  // namespace

void Trainer::check_fp8_device() const {
  const Fp8Config& fp8 = config_.model.fp8;
  const std::string why = backend_.why_no_fp8(fp8.recipe == Fp8Recipe::Tensorwise);
  if (!why.empty()) user_error("train.fp8: {}", why);
  if (fp8_use(config_.model, config_.layout.tp).sites.empty())
    user_error(
        "train.fp8: no matmul of this model has sizes that are multiples of {} on {} tensor "
        "rank{}: "
        "remove train.fp8",
        kFp8Multiple, config_.layout.tp, config_.layout.tp == 1 ? "" : "s");
}

bool Trainer::fp8_statistics_are_due(std::int64_t step) const {
  const Fp8Config& fp8 = config_.model.fp8;
  return fp8.on() && fp8.statistics_every > 0 && step % fp8.statistics_every == 0;
}

void Trainer::record_fp8_statistics() {
  std::vector<float> numbers = engine_->fp8_statistics();
  std::vector<double> largest, counts;
  for (std::size_t i = 0; i < numbers.size(); i += kNumbers) {
    largest.push_back(numbers[i]);
    counts.insert(counts.end(), numbers.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                  numbers.begin() + static_cast<std::ptrdiff_t>(i + kNumbers));
  }
  Communicator& world = (*groups_)[GroupKind::World];
  const auto of = [](std::vector<double>& all) {
    return Tensor(all.data(), DType::F64, {static_cast<std::int64_t>(all.size())});
  };
  world.wait(world.all_reduce(of(largest), ReduceOp::Max));
  world.wait(world.all_reduce(of(counts)));
  const std::vector<std::string> sites = fp8_sites(model_spec(config_.model));
  nlohmann::ordered_json line = {{"step", record_.step}};
  record_.fp8_amax = record_.fp8_underflow = record_.fp8_saturated = 0;
  std::string lost;
  double most_lost = 0;
  for (std::size_t i = 0; i < largest.size(); ++i) {
    const std::string& site = sites[i / kOperands.size()];
    const double* count = &counts[i * (kNumbers - 1)];
    const double elements = std::max(count[2], 1.0), underflow = count[0] / elements,
                 saturated = count[1] / elements;
    line[site][kOperands[i % kOperands.size()]] = {
        {"amax", largest[i]}, {"underflow", underflow}, {"saturated", saturated}};
    record_.fp8_amax = std::max(*record_.fp8_amax, largest[i]);
    record_.fp8_underflow = std::max(*record_.fp8_underflow, underflow);
    record_.fp8_saturated = std::max(*record_.fp8_saturated, saturated);
    if (i % kOperands.size() == 0 && site.ends_with("mlp.down") && underflow > most_lost)
      most_lost = underflow, lost = site;
  }
  if (!is_first()) return;
  log_->files().add_fp8(line.dump() + "\n");
  if (most_lost < kTooMuchLost || warned_of_outliers_) return;
  warned_of_outliers_ = true;
  log_warning(
      "step {}: {:.1f} % of the inputs of {} are lost in fp8 beside outliers of the activation: if "
      "the loss suffers, add mlp.down to train.fp8.filter",
      record_.step, 100 * most_lost, lost);
}

}  // namespace kintsugi
