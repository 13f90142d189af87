#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "support/paths.h"
#include "support/raw_model.h"

namespace kintsugi {

// The tokenizer of served models: byte-level, with <|im_start|> and <|im_end|>.
inline constexpr int kServedVocabulary = 805;

// A small model with random weights, a tokenizer and many positions, for the server. With
// `uniform`, all tokens are always equally likely.
inline void make_served_model(const std::filesystem::path& directory, bool uniform = false) {
  namespace fs = std::filesystem;
  make_random_model(directory, "llama", 5, "F32", false);
  RawModel model = read_raw_model(directory);
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    RawTensor& tensor = model.at(name);
    const std::int64_t width = tensor.shape[1];
    tensor.shape[0] = kServedVocabulary;
    tensor.values.assign(static_cast<std::size_t>(kServedVocabulary * width), 0.0);
    if (uniform && std::string(name) == "lm_head.weight") continue;
    for (double& value : tensor.values) value = nearest_with_bits(normal(random), 24);
  }
  write_raw_model(directory, model, false);
  auto config = nlohmann::json::parse(content_of(directory / "config.json"));
  config["vocab_size"] = kServedVocabulary;
  config["max_position_embeddings"] = 8192;
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;  // texts end only where a test says so
  std::ofstream(directory / "config.json") << config.dump();
  fs::copy_file(fs::path(test_data_directory()) / "tokenizers/qwen/tokenizer.json",
                directory / "tokenizer.json");
}

}  // namespace kintsugi
