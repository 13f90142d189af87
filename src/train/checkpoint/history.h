#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/config.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {

// The stages before a checkpoint's own, stored in history.json of its state directory, so that a
// checkpoint knows its data and its configurations without the runs that it descends from.
inline constexpr const char* kHistoryFile = "history.json";
std::string history_to_json(const std::vector<PastStage>& history);
// Empty if there is no such file: the first stage, or an older version.
std::vector<PastStage> read_history(const std::filesystem::path& state);

// The past batches of a stage, in trainer.json and history.json under the key "batches", which is
// missing if there are none.
void add_batches(nlohmann::ordered_json& json, const std::vector<PastBatch>& batches);
std::vector<PastBatch> read_batches(const nlohmann::ordered_json& json);

// The same for what rewinds left out, under the key "skipped_samples".
void add_skipped(nlohmann::ordered_json& json, const std::vector<SkippedSamples>& skipped);
std::vector<SkippedSamples> read_skipped(const nlohmann::ordered_json& json);

// UserError unless the weights of `saved`, the model of this checkpoint, fit `model`.
void check_shapes(const ModelConfig& saved, const ModelConfig& model,
                  const std::filesystem::path& checkpoint);

}  // namespace kintsugi
