#include "train/checkpoint/tokenizer_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

// transformers has a class of its own for most model types. From version 5 on these keep the
// vocabulary of a tokenizer.json and replace its normalizer and pre-tokenizer. The generic class
// takes the file as it is, in version 4, too. A tokenizer.model has no generic class; Llama's keeps
// its ids.
const char* class_of(bool sentencepiece) {
  return sentencepiece ? "LlamaTokenizer" : "PreTrainedTokenizerFast";
}

// From 5.8 on transformers overrules the class that is named here for some model types, unless the
// directory brings a class of its own. It need not trust that class: it then takes the one named.
bool class_is_overruled(Family family) { return family == Family::Qwen2; }

const char* const kModule = "tokenization_kintsugi";

Tokenizer::File own_class(const char* base) {
  return {std::string(kModule) + ".py",
          fmt::format("# The tokenizer of this directory as its files say. transformers would take "
                      "the class of the\n# model type instead, whose pre-tokenizer is another "
                      "one.\nfrom transformers import {0}\n\n\nclass KintsugiTokenizer({0}):\n"
                      "    pass\n",
                      base)};
}

const std::string* content_of(const std::vector<Tokenizer::File>& files, const char* name) {
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const auto& file) { return file.name == name; });
  return found == files.end() ? nullptr : &found->content;
}

// transformers 4 sets this option of the pre-tokenizer to what the configuration says, and to
// false where it says nothing.
void keep_prefix_space(Json& config, const std::string& tokenizer_json) {
  const auto json = nlohmann::json::parse(tokenizer_json);
  const auto pre_tokenizer = json.find("pre_tokenizer");
  if (pre_tokenizer == json.end() || !pre_tokenizer->is_object()) return;
  if (const auto option = pre_tokenizer->find("add_prefix_space");
      option != pre_tokenizer->end() && option->is_boolean())
    config["add_prefix_space"] = option->get<bool>();
}

// A table of learned positions ends; others are taken at their tokenizer's word.
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

}  // namespace

std::vector<Tokenizer::File> tokenizer_files(const Tokenizer& tokenizer, const ModelConfig& model) {
  std::vector<Tokenizer::File> files = tokenizer.files(model.max_positions);
  const std::string* json = content_of(files, "tokenizer.json");
  const char* const base = class_of(json == nullptr);
  Json config = parse_config(*content_of(files, "tokenizer_config.json"));
  config["tokenizer_class"] = base;
  config.erase("auto_map");  // its Python code is not here
  if (json != nullptr) keep_prefix_space(config, *json);
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
