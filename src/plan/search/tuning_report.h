#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/search/tuning.h"

namespace kintsugi {

// The fastest trial that ran; none: nothing did.
std::optional<Trial> best_of(const std::vector<Trial>& trials);

// How well the model knew, over the trials that ran.
struct ModelAgreement {
  std::size_t trials = 0;
  double ratio = 0;        // median of measured / predicted
  double correlation = 0;  // of the ranks (Spearman); NaN where there are fewer than three
};
ModelAgreement agreement_of(const std::vector<Trial>& trials);

// The best five, predicted against measured, and the agreement.
std::string tuning_table(const std::vector<Trial>& trials);

}  // namespace kintsugi
