#include "data/tokenizer.h"

#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/tiktoken.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> from_json(const std::string& json,
                                     const std::optional<std::string>& config) {
  if (is_byte_tokenizer(json)) return make_byte_tokenizer();
  return std::make_unique<BpeTokenizer>(
      std::make_shared<const BpeDefinition>(read_tokenizer_json(json, config)));
}

std::unique_ptr<Tokenizer> from_tiktoken(const std::string& content, const fs::path& path,
                                         std::string family) {
  if (family.empty()) family = tiktoken_family_of(path.filename().string());
  if (family.empty())
    user_error("a rank file does not say how texts are cut: name the family, {}:llama3 or such",
               path.string());
  return from_json(tiktoken_to_json(content, family), std::nullopt);
}

std::unique_ptr<Tokenizer> load_file(const fs::path& path, const std::string& family) {
  const std::string content = read_text_file(path);
  const std::string extension = path.extension().string();
  try {
    if (!family.empty() || extension == ".tiktoken" || is_tiktoken(content))
      return from_tiktoken(content, path, family);
    if (extension == ".model") return make_sentencepiece_tokenizer(content);
    const fs::path beside = path.parent_path() / "tokenizer_config.json";
    std::optional<std::string> config;
    if (fs::exists(beside)) config = read_text_file(beside);
    return from_json(content, config);
  } catch (const UserError& error) {
    user_error("{}: {}", path.string(), error.what());
  }
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") return make_byte_tokenizer();
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) {
    for (const char* file : {"tokenizer.json", "tokenizer.model"})
      if (fs::exists(fs::path(name) / file, ignored)) return load_file(fs::path(name) / file, "");
    user_error("{}: there is no tokenizer.json or tokenizer.model in this directory", name);
  }
  const std::size_t colon = name.rfind(':');
  const bool family = !fs::exists(name, ignored) && colon != std::string::npos;
  const std::string file = family ? name.substr(0, colon) : name;
  if (!fs::exists(file, ignored))
    user_error(
        "there is no tokenizer {}: name bytes, a tokenizer.json or its directory, a "
        "SentencePiece .model or ranks.tiktoken:FAMILY",
        file);
  return load_file(file, family ? name.substr(colon + 1) : "");
}

}  // namespace kintsugi
