#pragma once

#include <string>

#include "data/tokenizers/tokenizer.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/config.h"
#include "train/records/run_log.h"
#include "train/run_data.h"

namespace kintsugi {

// Returns the README.md of a checkpoint for model hubs: the architecture, the data and the progress
// of training. It is a function of the step and the configuration, except for the row "layout".
Tokenizer::File model_card(const RunConfig& config, const RunData& data, const TrainerState& state,
                           const StepRecord& last, const std::string& layout);

}  // namespace kintsugi
