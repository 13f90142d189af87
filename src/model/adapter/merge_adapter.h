#pragma once

#include <filesystem>

#include "model/model_writer.h"

namespace kintsugi {

// Writes the base model with an adapter added to its weights: W + scale · B A, in double and
// rounded once. `adapter` is a PEFT directory, a checkpoint or a run directory; an empty `base` is
// the directory that the adapter names. Throws as write_model() does.
WrittenModel merge_adapter(const std::filesystem::path& adapter, const std::filesystem::path& base,
                           const std::filesystem::path& output, const ModelOutput& options = {});

}  // namespace kintsugi
