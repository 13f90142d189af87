#pragma once

#include <filesystem>

#include "model/adapter/peft_config.h"
#include "model/files/model_writer.h"

namespace kintsugi {

// The directories of an adapter and its base. `adapter` is a PEFT directory, a checkpoint or a run
// directory; an empty `base` is the directory that the adapter names. Throws UserError.
ModelFiles files_to_merge(const std::filesystem::path& adapter, const std::filesystem::path& base);

// Writes the base model with an adapter added to its weights: W + scale · B A, in double and
// rounded once. `adapter` and `base` as above. Throws as write_model() does.
WrittenModel merge_adapter(const std::filesystem::path& adapter, const std::filesystem::path& base,
                           const std::filesystem::path& output, const ModelOutput& options = {});

}  // namespace kintsugi
