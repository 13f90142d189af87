#pragma once

#include <filesystem>

#include "model/adapter/peft_config.h"

namespace kintsugi {

// The directories of a model that is computed: a Hugging Face model, and perhaps an adapter.
struct ModelFiles {
  std::filesystem::path model;         // config.json and the weights
  std::filesystem::path adapter = {};  // a PEFT directory that is added to them; empty: none

  // What the user knows it by.
  const std::filesystem::path& name() const { return adapter.empty() ? model : adapter; }
  // The directory with the tokenizer: that of the adapter, if it has one.
  const std::filesystem::path& tokenizer() const;
};

// `checkpoint` is a model, a checkpoint, a run directory (its latest checkpoint), or an adapter,
// whose base is found by base_of_adapter(). `adapter` is an adapter of it; empty: none. Throws
// UserError.
ModelFiles find_model(const std::filesystem::path& checkpoint,
                      const std::filesystem::path& adapter = {});

// The directory that base_model_name_or_path names, as it is or relative to the adapter. `remedy`
// says how to name another one.
std::filesystem::path base_of_adapter(const std::filesystem::path& adapter,
                                      const PeftConfig& config,
                                      std::string_view remedy =
                                          "give the base model as "
                                          "--checkpoint and this directory "
                                          "as --adapter");

}  // namespace kintsugi
