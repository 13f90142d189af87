#include "plan/search/job.h"

#include <fmt/ranges.h>

namespace kintsugi {

std::string_view precision_word(const PlanJob& job) {
  return job.model.fp8.on() ? "fp8" : to_string(job.precision);
}

std::string fp8_yaml(const Fp8Config& fp8) {
  const Fp8Config usual;
  std::string text = fp8.recipe == Fp8Recipe::Rowwise      ? "recipe: rowwise"
                     : fp8.recipe == Fp8Recipe::Tensorwise ? "recipe: tensorwise"
                                                           : "recipe: none";
  if (fp8.wgrad != usual.wgrad) text += fmt::format(", wgrad: {}", fp8.wgrad);
  if (fp8.filter != usual.filter)
    text += fmt::format(", filter: [{}]", fmt::join(fp8.filter, ", "));
  if (fp8.fast_accumulation != usual.fast_accumulation)
    text += fmt::format(", fast_accumulation: {}",
                        fp8.fast_accumulation == FastAccumulation::All ? "all" : "none");
  if (fp8.power_of_two_scales != usual.power_of_two_scales)
    text += fmt::format(", power_of_two_scales: {}", fp8.power_of_two_scales);
  if (fp8.keep_weights != usual.keep_weights)
    text += fmt::format(", keep_weights: {}", fp8.keep_weights);
  if (fp8.bf16_layers != usual.bf16_layers)
    text += fmt::format(", bf16_layers: {{first: {}, last: {}}}", fp8.bf16_layers.first,
                        fp8.bf16_layers.last);
  if (fp8.statistics_every != usual.statistics_every)
    text += fmt::format(", statistics_every: {}", fp8.statistics_every);
  return "{" + text + "}";
}

}  // namespace kintsugi
