#include "core/error.h"
#include "core/file.h"
#include "model/config.h"
#include "model/families/config_json.h"
#include "model/families/family.h"

// Reads and writes config.json of a Hugging Face model directory. Reads the keys of transformers 4
// and 5, writes those of 4. Each family reads and writes its own keys.

namespace kintsugi {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return "float64";
    case DType::F32:
      return "float32";
    case DType::BF16:
      return "bfloat16";
    case DType::F16:
      return "float16";
    default:
      failure("a model cannot be stored as {}", to_string(dtype));
  }
}

json parse_object(const std::string& text, const std::string& source) {
  json root;
  try {
    root = json::parse(text);
  } catch (const json::exception& error) {
    std::string_view reason =
        error.what();  // "[json.exception.parse_error.101] parse error at line …"
    if (const auto end = reason.find("] "); end != std::string_view::npos)
      reason.remove_prefix(end + 2);
    user_error("{} is not valid JSON: {}", source, reason);
  }
  if (!root.is_object())
    user_error("{} is not a model's config.json: it is not a JSON object", source);
  return root;
}

// The labels of …ForSequenceClassification. Other models may have the key id2label too, with
// transformers' default values.
std::vector<std::string> read_labels(const ConfigObject& root, const FamilyInfo& info) {
  const std::vector<std::string> architectures = root.texts("architectures");
  if (architectures.empty() || !architectures.front().ends_with("ForSequenceClassification"))
    return {};
  if (info.classifier == nullptr || architectures.front() != info.classifier)
    root.refuse("architecture {} does not belong to model_type {}", architectures.front(),
                info.model_type);
  root.require_text({"problem_type"}, {"single_label_classification"});
  std::vector<std::string> labels = root.texts_by_number("id2label");
  if (labels.empty()) labels = {"LABEL_0", "LABEL_1"};  // transformers' default
  if (labels.size() == 1)
    root.refuse(
        "id2label has one label, which is a regression: only classifiers with two labels or more "
        "are supported");
  return labels;
}

void write_labels(const ModelConfig& config, ordered_json& root) {
  root["problem_type"] = "single_label_classification";
  root["pad_token_id"] = token_or_null(config.pad_token);
  ordered_json names = ordered_json::object(), ids = ordered_json::object();
  for (std::size_t i = 0; i < config.labels.size(); ++i) {
    names[std::to_string(i)] = config.labels[i];
    ids[config.labels[i]] = i;
  }
  root["id2label"] = std::move(names);
  root["label2id"] = std::move(ids);
}

}  // namespace

ModelConfig read_hf_config(const std::filesystem::path& file) {
  return parse_hf_config(read_text_file(file), file.string());
}

ModelConfig parse_hf_config(const std::string& text, const std::string& source) {
  const json document = parse_object(text, source);
  const ConfigObject root(document, source);
  const std::string type = root.text({"model_type"}, "");
  if (type.empty()) root.refuse("key 'model_type' is missing");
  if (root.has("quantization_config"))
    root.refuse("quantization_config is set: quantised weights are not supported");

  ModelConfig config;
  try {
    config.family = parse_family(type);
  } catch (const UserError& error) {
    root.refuse("model_type: {}", error.what());
  }
  family_info(config.family).read(root, config);
  config.labels = read_labels(root, family_info(config.family));
  config.init_std = root.real({"initializer_range"}, 0.02);
  config.bos_token = root.token("bos_token_id", config.vocab_size);
  config.eos_token = root.token("eos_token_id", config.vocab_size);
  if (config.is_classifier()) config.pad_token = root.token("pad_token_id", config.vocab_size);
  try {
    config.complete_and_check();
  } catch (const UserError& error) {
    root.refuse("{}", error.what());
  }
  return config;
}

std::string write_hf_config(const ModelConfig& config, DType dtype) {
  ordered_json root;
  const FamilyInfo& info = family_info(config.family);
  root["architectures"] = {config.is_classifier() ? info.classifier : info.architecture};
  root["model_type"] = info.model_type;
  info.write(config, root);
  if (config.is_classifier()) write_labels(config, root);
  root["torch_dtype"] = torch_name(dtype);
  // The version whose keys these are. Without it, transformers warns that a large vocabulary needs
  // a fix meant for Mistral's tokenizer, and applying that fix would change the token ids.
  root["transformers_version"] = "4.51.0";
  return root.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string write_hf_generation_config(const ModelConfig& config) {
  ordered_json root;
  root["_from_model_config"] = true;
  if (config.bos_token >= 0) root["bos_token_id"] = config.bos_token;
  if (config.eos_token >= 0) root["eos_token_id"] = config.eos_token;
  return root.dump(2) + "\n";
}

}  // namespace kintsugi
