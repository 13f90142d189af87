#pragma once

#include "train/config/config.h"

namespace kintsugi {

// A model claims the positions that its run trains. Learned positions are a table and stay as they
// are. Others take the length of the run's sequences, unless `model:` names a larger number; a
// preset's rope scaling goes where no sequence is longer than what it scales from.
void claim_trained_positions(RunConfig& config);

// For a run that continues: `model` is that of its checkpoint. An earlier version kept a preset's
// rope scaling in any case; what was trained so stays so.
void continue_rope_scaling(RunConfig& config, const ModelConfig& model);

}  // namespace kintsugi
