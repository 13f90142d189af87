#pragma once

#include "train/config/config.h"

namespace kintsugi {

// Sets max_positions to the run's sequence length, unless `model:` or the weights of model.init
// give a larger number. Learned positions are a table and are not changed. A preset's rope scaling
// is removed if the sequences are not longer than its original_max_positions; the weights of
// model.init keep theirs.
void set_trained_positions(StageConfig& config);

// For a resumed run: keeps the rope scaling of the checkpoint's `model`. Earlier versions kept a
// preset's rope scaling in every case.
void continue_rope_scaling(RunConfig& config, const ModelConfig& model);

}  // namespace kintsugi
