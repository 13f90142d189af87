#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/corpora/corpus_pipeline.h"

namespace kintsugi {

// What the journals of jobs over corpora have in common: a killed job continues only with the same
// inputs and settings.

// Each input with its size and modification time.
nlohmann::ordered_json inputs_identity(const std::vector<std::filesystem::path>& inputs);

// Of two identities, JSON objects with a key "inputs" and others: describes the first difference;
// "" if there is none.
std::string identity_difference(const std::string& before, const std::string& now);

nlohmann::ordered_json json_of(const InputOffset& offset);
InputOffset input_offset_of(const nlohmann::ordered_json& json);
nlohmann::ordered_json json_of(const std::vector<SkippedInput>& skipped);
std::vector<SkippedInput> skipped_inputs_of(const nlohmann::ordered_json& json);

}  // namespace kintsugi
