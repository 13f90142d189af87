#include "train/checkpoint/tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/chat/prompt_encoder.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

// transformers has a tokenizer class per model type. From version 5 on these keep the vocabulary of
// a tokenizer.json but replace its normalizer and pre-tokenizer. The generic class uses the file
// unchanged, also in version 4. A tokenizer.model has no generic class; Llama's class keeps its
// ids.
const char* class_of(bool sentencepiece) {
  return sentencepiece ? "LlamaTokenizer" : "PreTrainedTokenizerFast";
}

// From 5.8 on transformers ignores the tokenizer_class for some model types, unless the directory
// contains its own class. If the user does not trust that code, it uses the tokenizer_class.
bool class_is_overruled(Family family) { return family == Family::Qwen2; }

const char* const kModule = "tokenization_kintsugi";

Tokenizer::File own_class(const char* base) {
  return {std::string(kModule) + ".py",
          fmt::format(
              "# The tokenizer as defined by the files of this directory. transformers would "
              "otherwise use the\n# class of the model type, which has another "
              "pre-tokenizer.\nfrom transformers import {0}\n\n\nclass KintsugiTokenizer({0}):\n"
              "    pass\n",
              base)};
}

const std::string* content_of(const std::vector<Tokenizer::File>& files, const char* name) {
  const auto found =
      std::ranges::find_if(files, [&](const auto& file) { return file.name == name; });
  return found == files.end() ? nullptr : &found->content;
}

// transformers 4 sets this option of the pre-tokenizer from the configuration, and to false if it
// is not set there.
void keep_prefix_space(Json& config, const std::string& tokenizer_json) {
  const auto json = nlohmann::json::parse(tokenizer_json);
  const auto pre_tokenizer = json.find("pre_tokenizer");
  if (pre_tokenizer == json.end() || !pre_tokenizer->is_object()) return;
  if (const auto option = pre_tokenizer->find("add_prefix_space");
      option != pre_tokenizer->end() && option->is_boolean())
    config["add_prefix_space"] = option->get<bool>();
}

// Limits the length to the number of learned positions; other models keep the tokenizer's value.
void limit_length(Json& config, const ModelConfig& model) {
  const auto given = config.find("model_max_length");
  const bool number = given != config.end() && given->is_number();
  const auto positions = static_cast<double>(model.max_positions);
  const bool learned = model.positions() == PositionKind::Learned;
  if (!number || (learned && given->get<double>() > positions))
    config["model_max_length"] = model.max_positions;
}

Json parse_config(const std::string& content) {
  try {
    Json config = Json::parse(content);
    if (config.is_object()) return config;
  } catch (const Json::exception&) {
  }
  user_error(
      "the tokenizer_config.json of data.tokenizer is not a JSON object: correct or remove it");
}

// In tokenizer_config.json, which every version of transformers reads. A chat_template.jinja would
// take precedence.
void set_chat_template(const ChatFormat& chat, std::vector<Tokenizer::File>& files, Json& config) {
  const PromptSettings settings = read_prompt_settings(files);
  if (recognize_chat_format(settings.chat_template) == &chat) return;
  config["chat_template"] = jinja_template(chat, settings.adds_bos ? settings.bos : "");
  std::erase_if(files, [](const auto& file) { return file.name == "chat_template.jinja"; });
}

}  // namespace

std::vector<Tokenizer::File> tokenizer_files(const Tokenizer& tokenizer, const ModelConfig& model,
                                             const ChatFormat* chat) {
  std::vector<Tokenizer::File> files = tokenizer.files(model.max_positions);
  const std::string* json = content_of(files, "tokenizer.json");
  const char* const base = class_of(json == nullptr);
  Json config = parse_config(*content_of(files, "tokenizer_config.json"));
  config["tokenizer_class"] = base;
  config.erase("auto_map");  // its Python code is not copied
  if (json != nullptr) keep_prefix_space(config, *json);
  if (chat != nullptr) set_chat_template(*chat, files, config);  // `json` is not valid any more
  limit_length(config, model);
  if (class_is_overruled(model.family))
    config["auto_map"] = {
        {"AutoTokenizer", Json::array({nullptr, std::string(kModule) + ".KintsugiTokenizer"})}};
  for (Tokenizer::File& file : files)
    if (file.name == "tokenizer_config.json") file.content = config.dump(2) + "\n";
  if (class_is_overruled(model.family)) files.push_back(own_class(base));
  return files;
}

}  // namespace kintsugi
