#include "train/trainer/fp8_statistics.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"
#include "model/fp8.h"

namespace kintsugi {
namespace {

constexpr std::array<const char*, 3> kOperands = {"input", "gradient", "weight"};
constexpr std::size_t kNumbers = 4;  // QuantizeOptions::statistics
// Rows of activations whose small numbers are lost beside an outlier, as SwiGLU makes them late in
// long runs.
constexpr double kTooMuchLost = 0.01;

}  // namespace

void check_fp8_device(Backend& backend, const RunConfig& config) {
  const Fp8Config& fp8 = config.model.fp8;
  const std::string why = backend.why_no_fp8(fp8.recipe == Fp8Recipe::Tensorwise);
  if (!why.empty()) user_error("train.fp8: {}", why);
  if (fp8_use(config.model, config.layout.tp).sites.empty())
    user_error(
        "train.fp8: no matmul of this model has sizes that are multiples of {} on {} tensor "
        "rank{}: "
        "remove train.fp8",
        kFp8Multiple, config.layout.tp, config.layout.tp == 1 ? "" : "s");
}

bool Fp8Statistics::are_due(std::int64_t step) const {
  const Fp8Config& fp8 = run_.config.model.fp8;
  return fp8.on() && fp8.statistics_every > 0 && step % fp8.statistics_every == 0;
}

void Fp8Statistics::record() {
  std::vector<float> numbers = run_.engine->fp8_statistics();
  std::vector<double> largest, counts;
  for (std::size_t i = 0; i < numbers.size(); i += kNumbers) {
    largest.push_back(numbers[i]);
    counts.insert(counts.end(), numbers.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                  numbers.begin() + static_cast<std::ptrdiff_t>(i + kNumbers));
  }
  Communicator& world = run_.host();
  const auto of = [](std::vector<double>& all) {
    return Tensor(all.data(), DType::F64, {static_cast<std::int64_t>(all.size())});
  };
  world.wait(world.all_reduce(of(largest), ReduceOp::Max));
  world.wait(world.all_reduce(of(counts)));
  const std::vector<std::string> sites = fp8_sites(model_spec(run_.config.model));
  nlohmann::ordered_json line = {{"step", run_.record.step}};
  run_.record.fp8_amax = run_.record.fp8_underflow = run_.record.fp8_saturated = 0;
  std::string lost;
  double most_lost = 0;
  for (std::size_t i = 0; i < largest.size(); ++i) {
    const std::string& site = sites[i / kOperands.size()];
    const double* count = &counts[i * (kNumbers - 1)];
    const double elements = std::max(count[2], 1.0), underflow = count[0] / elements,
                 saturated = count[1] / elements;
    line[site][kOperands[i % kOperands.size()]] = {
        {"amax", largest[i]}, {"underflow", underflow}, {"saturated", saturated}};
    run_.record.fp8_amax = std::max(*run_.record.fp8_amax, largest[i]);
    run_.record.fp8_underflow = std::max(*run_.record.fp8_underflow, underflow);
    run_.record.fp8_saturated = std::max(*run_.record.fp8_saturated, saturated);
    if (i % kOperands.size() == 0 && site.ends_with(".down") && underflow > most_lost)
      most_lost = underflow, lost = site;
  }
  if (!run_.is_first()) return;
  run_.log->files().add_fp8(line.dump() + "\n");
  if (most_lost < kTooMuchLost || warned_) return;
  warned_ = true;
  log_warning(
      "step {}: {:.1f} % of the inputs of {} are lost in fp8 beside outliers of the activation: if "
      "the loss suffers, add {} to train.fp8.filter",
      run_.record.step, 100 * most_lost, lost, lost.substr(lost.find('.', lost.find('.') + 1) + 1));
}

}  // namespace kintsugi
