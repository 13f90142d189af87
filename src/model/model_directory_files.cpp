#include "model/model_directory_files.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr std::uintmax_t kLargestTextFile = std::uintmax_t{256} << 20;

bool is_tokenizer_file(const std::string& name) {
  constexpr std::array<std::string_view, 9> kNames = {"tokenizer.json",
                                                      "tokenizer.model",
                                                      "tokenizer_config.json",
                                                      "added_tokens.json",
                                                      "special_tokens_map.json",
                                                      "chat_template.jinja",
                                                      "chat_template.json",
                                                      "vocab.json",
                                                      "merges.txt"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
         name.ends_with(".tiktoken") ||
         (name.starts_with("tokenization_") && name.ends_with(".py"));
}

constexpr std::string_view kTemplates = "additional_chat_templates";

bool is_template_file(const fs::path& name) {
  return name.parent_path() == kTemplates && name.extension() == ".jinja";
}

bool is_weight_file(const std::string& name) {
  return name.starts_with("model") &&
         (name.ends_with(".safetensors") || name == "model.safetensors.index.json");
}

std::string config_with_dtype(const std::string& text, const ModelConfig& config,
                              std::optional<DType> dtype) {
  if (!dtype) return text;
  auto json = nlohmann::ordered_json::parse(text);
  const auto name = nlohmann::json::parse(write_hf_config(config, *dtype)).at("torch_dtype");
  const bool new_key = json.contains("dtype");  // of transformers 5
  if (new_key) json["dtype"] = name;
  if (!new_key || json.contains("torch_dtype")) json["torch_dtype"] = name;
  return json.dump(2) + "\n";
}

}  // namespace

DirectoryKind model_directory_kind() {
  return {.name = "a model that kintsugi writes",
          .required = "config.json",
          .is_member = [](const std::string& name) {
            return name == "config.json" || name == "generation_config.json" ||
                   is_tokenizer_file(name) || is_template_file(name) || is_weight_file(name);
          }};
}

std::vector<ModelDirectoryFile> model_directory_files(const fs::path& directory,
                                                      const ModelConfig& config,
                                                      std::optional<DType> dtype,
                                                      const fs::path& tokenizer) {
  std::vector<ModelDirectoryFile> files = {
      {"config.json", config_with_dtype(read_text_file(directory / "config.json"), config, dtype)},
      {"generation_config.json", write_hf_generation_config(config)}};
  if (fs::exists(directory / "generation_config.json"))
    files.back().content = read_text_file(directory / "generation_config.json");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(tokenizer))
    if (entry.is_regular_file() && is_tokenizer_file(entry.path().filename().string()))
      names.push_back(entry.path().filename().string());
  const fs::path templates = kTemplates;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(tokenizer / templates, ignored))
    if (entry.path().extension() == ".jinja")
      names.push_back((templates / entry.path().filename()).string());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (fs::file_size(tokenizer / name) > kLargestTextFile)
      user_error("{} is too large for a tokenizer file: remove it", (tokenizer / name).string());
    files.push_back({name, read_text_file(tokenizer / name)});
  }
  return files;
}

}  // namespace kintsugi
