#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"
#include "model/initialize.h"
#include "train/config/config.h"
#include "train/engine.h"

namespace kintsugi {

// The weights that a run with model.init starts from. `directory` is a Hugging Face model, a
// checkpoint or a run directory. If the model has a larger vocabulary than the files, the new rows
// of embedding and head are the mean of the rows of their subtokens, or of all rows in the files.

// The subtokens of the new rows if the configuration asks for them. Throws UserError.
SubtokenRows subtokens_of(const RunConfig& config, const Tokenizer& tokenizer);

// If adapters are trained, `directory` is their base model. They are new, from `seed`, or those of
// the PEFT directory `adapter`.

struct InitialWeightsOptions {
  SubtokenRows subtokens = {};
  std::uint64_t seed = 0;
  std::filesystem::path adapter = {};
  UnusedWeights unused = UnusedWeights::Refuse;
};

// As the configuration of a run says, without subtokens.
InitialWeightsOptions initial_options(const RunConfig& config);

// Checks without loading that every weight of the model is there, and that none is left over.
// Throws UserError.
void check_initial_weights(const std::filesystem::path& directory, const ModelConfig& model,
                           Backend& backend, const InitialWeightsOptions& options = {});

struct LoadedWeights {
  std::string description;  // for the log
  std::string fingerprint;  // of the files in `directory` (model/files/fingerprint.h)
};
// Loads the weights into a prepared engine, and verifies them if the directory has checksums. All
// ranks call it; UserError if they see different weights. The head of a classifier is new, from
// `seed`, if the files are of a language model.
LoadedWeights load_initial_weights(const std::filesystem::path& directory, Engine& engine,
                                   const InitialWeightsOptions& options = {});

// The directory of the model that the adapters of a run are for: model.init, or the one that the
// checkpoint names from which the run continues (empty: it begins). Throws UserError.
std::filesystem::path base_of_run(const RunConfig& config, const std::filesystem::path& checkpoint);

// A warning if the directory has another tokenizer than `tokenizer`; empty: it has the same or
// none.
std::string other_tokenizer(const std::filesystem::path& directory, const Tokenizer& tokenizer);

// The name of the directory for a model card, without the path to it: "Llama-3.1-8B", or
// "RUN, step-00000250" for a checkpoint.
std::string initial_weights_name(const std::filesystem::path& directory);

// For each new row of a vocabulary that grows from `rows` to `vocab_size` tokens: the ids that the
// tokenizer in `directory` gives for the text of the new token. Empty for tokens without text
// (special tokens, rows beyond the tokenizer), and for bytes that the old tokenizer cannot encode.
// UserError if the directory has no tokenizer that can be read.
SubtokenRows subtokens_of_new_rows(const std::filesystem::path& directory, std::int64_t rows,
                                   std::int64_t vocab_size, const Tokenizer& tokenizer);

}  // namespace kintsugi
