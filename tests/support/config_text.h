#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "train/config/config.h"

// Configurations as text, for the tests of reading and writing them.
namespace kintsugi::config_text {

// The example of the design document, unchanged.
inline const std::string kContract = R"(run:       {dir: runs/demo, seed: 1}
model:     {preset: llama-tiny}          # or {config: path/config.json}; any field may be overridden here
data:      {train: [{path: corpus.txt, weight: 1.0}], valid_fraction: 0.05, tokenizer: bytes, sequence_length: 256}
batch:     {global: 32, micro: 8}        # sequences per optimizer step, and per forward pass on one rank
optimizer: {lr: 1e-3, min_lr: 1e-4, warmup_steps: 50, schedule: cosine, weight_decay: 0.1, betas: [0.9, 0.95], eps: 1e-8, clip: 1.0}
train:     {steps: 500, eval_every: 100, checkpoint_every: 250, precision: fp32, dropout: 0.0}
layout:    {tp: 1, cp: 1, pp: 1, dp: auto, chunks: 1, zero: 0, shard_group: 0, sequence_parallel: false, schedule: 1f1b, recompute: none}
device:    auto                          # cpu, cuda
)";

inline const std::string kShort = "model: {preset: llama-tiny}\ndata: {train: [{path: a.txt}]}\n";

inline RunConfig parse(const std::string& text, const std::vector<std::string>& set = {}) {
  return parse_run_config(text, "demo.yaml", set);
}

inline std::string error_of(const std::string& text, const std::vector<std::string>& set = {}) {
  try {
    parse(text, set);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

// The error of the short configuration with one override.
inline std::string set_error(const std::string& assignment) {
  return error_of(kShort, {assignment});
}

// The names of preset and config.json are written in a comment only.
inline void clear_origin(StageConfig& config) {
  config.model_preset.clear();
  config.model_config.clear();
  // Every key is written.
  config.vocab_size_given = config.max_positions_given = config.rope_scaling_given = true;
}
inline RunConfig without_origin(RunConfig config) {
  clear_origin(config);
  for (StageConfig& stage : config.stages) clear_origin(stage);
  return config;
}

}  // namespace kintsugi::config_text
