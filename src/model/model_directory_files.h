#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/new_file.h"
#include "model/config.h"

namespace kintsugi {

// The directories that write_model() writes (model/model_writer.h).
DirectoryKind model_directory_kind();

struct ModelDirectoryFile {
  std::string name, content;
};

// The files of a copy of a model, without its weights: config.json, generation_config.json and the
// files of the tokenizer, which are those of the directory `tokenizer`. They are unchanged, except
// that config.json states the new dtype if one is given. A missing generation_config.json is
// generated. Files that describe a training run (README.md, trainer.json, checksums.json) do not
// apply to the copy and are left out.
std::vector<ModelDirectoryFile> model_directory_files(const std::filesystem::path& directory,
                                                      const ModelConfig& config,
                                                      std::optional<DType> dtype,
                                                      const std::filesystem::path& tokenizer);

}  // namespace kintsugi
