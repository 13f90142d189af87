#pragma once

#include <string>

#include "data/tokenizers/tokenizer.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/config.h"
#include "train/run_data.h"
#include "train/run_log.h"

namespace kintsugi {

// README.md of a checkpoint, as model hubs show it: what the model is, what it was trained on and
// how far. Of a step it says the same whoever wrote it, but for the line of the layout.
Tokenizer::File model_card(const RunConfig& config, const RunData& data, const TrainerState& state,
                           const StepRecord& last, const std::string& layout);

}  // namespace kintsugi
