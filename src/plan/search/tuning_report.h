#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/search/tuning.h"

namespace kintsugi {

// The fastest trial that ran; nullopt if none did.
std::optional<Trial> best_of(const std::vector<Trial>& trials);

// How well the predictions agree with the trials that ran.
struct ModelAgreement {
  std::size_t trials = 0;
  double ratio = 0;        // median of measured / predicted
  double correlation = 0;  // Spearman rank correlation; NaN with fewer than three trials
};
ModelAgreement agreement_of(const std::vector<Trial>& trials);

// A table of the best five trials, predicted and measured, and the agreement.
std::string tuning_table(const std::vector<Trial>& trials);

}  // namespace kintsugi
