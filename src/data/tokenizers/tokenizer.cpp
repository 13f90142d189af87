#include "data/tokenizers/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/tokenizer_formats.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

const fs::path kChatTemplates = "additional_chat_templates";
constexpr std::uintmax_t kLargestCompanion = std::uintmax_t{64} << 20;

// Reads the other files of a Hugging Face tokenizer. For a tokenizer.model, the files of a
// tokenizer.json are skipped, since that may be another tokenizer.
TokenizerCompanions companions_of(const fs::path& path) {
  TokenizerCompanions found;
  const fs::path directory = path.parent_path();
  const auto read = [&](const fs::path& name) -> std::optional<std::string> {
    std::error_code error;
    const fs::path file = directory / name;
    if (!fs::is_regular_file(file, error)) return std::nullopt;
    if (const auto bytes = fs::file_size(file, error); bytes > kLargestCompanion)
      user_error("{} in the same directory has {} bytes, too many for a tokenizer file",
                 name.string(), bytes);
    return read_text_file(file);
  };
  const auto take = [&](const fs::path& name) {
    if (std::optional<std::string> content = read(name))
      found.others.push_back({name.string(), std::move(*content)});
  };
  found.config = read("tokenizer_config.json");
  for (const char* name : {"special_tokens_map.json", "added_tokens.json", "chat_template.jinja"})
    take(name);
  if (path.extension() != ".model")
    for (const char* name : {"vocab.json", "merges.txt", "tokenizer.model"}) take(name);
  std::vector<fs::path> templates;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory / kChatTemplates, error))
    if (entry.path().extension() == ".jinja") templates.push_back(entry.path().filename());
  std::sort(templates.begin(), templates.end());
  for (const fs::path& name : templates) take(kChatTemplates / name);
  return found;
}

std::unique_ptr<Tokenizer> from_json(const std::string& json, TokenizerCompanions companions,
                                     const fs::path& path) {
  if (is_byte_tokenizer(json)) return make_byte_tokenizer(std::move(companions));
  BpeDefinition definition = read_tokenizer_json(json, std::move(companions));
  definition.normalizer.set_source(path.string());
  return std::make_unique<BpeTokenizer>(
      std::make_shared<const BpeDefinition>(std::move(definition)));
}

std::unique_ptr<Tokenizer> from_tiktoken(const std::string& content, const fs::path& path,
                                         std::string family) {
  if (family.empty()) family = tiktoken_family_of(path.filename().string());
  if (family.empty())
    user_error(
        "a rank file does not define the pre-tokenizer: add the family, for example {}:llama3",
        path.string());
  return from_json(tiktoken_to_json(content, family), {}, path);
}

std::unique_ptr<Tokenizer> load_file(const fs::path& path, const std::string& family) {
  const std::string content = read_text_file(path);
  const std::string extension = path.extension().string();
  try {
    if (!family.empty() || extension == ".tiktoken" || is_tiktoken(content))
      return from_tiktoken(content, path, family);
    if (extension == ".model") return make_sentencepiece_tokenizer(content, companions_of(path));
    return from_json(content, companions_of(path), path);
  } catch (const UserError& error) {
    user_error("{}: {}", path.string(), error.what());
  }
}

// The tokenizer of a directory; empty: it has none.
fs::path file_in(const fs::path& directory) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (fs::exists(directory / name, ignored)) return directory / name;
  return {};
}

std::vector<std::int32_t> probe_ids(const Tokenizer& tokenizer) {
  std::vector<std::int32_t> ids;
  tokenizer.clone()->encode("The year 1984, in Jyväskylä:\n\tint main() { return 0; } // 金継ぎ",
                            ids, SpecialTokens::AsText);
  return ids;
}

}  // namespace

std::vector<Tokenizer::File> TokenizerCompanions::with(Tokenizer::File own,
                                                       std::string default_config) const {
  std::vector<Tokenizer::File> files = {std::move(own)};
  files.push_back({"tokenizer_config.json", config ? *config : std::move(default_config)});
  files.insert(files.end(), others.begin(), others.end());
  return files;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& name) {
  if (name == "bytes") return make_byte_tokenizer();
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) {
    const fs::path directory =
        resolve_run_directory(name, [](const fs::path& one) { return !file_in(one).empty(); });
    if (const fs::path file = file_in(directory); !file.empty()) return load_file(file, "");
    user_error("{}: there is no tokenizer.json or tokenizer.model in this directory", name);
  }
  const std::size_t colon = name.rfind(':');
  const bool family = !fs::exists(name, ignored) && colon != std::string::npos;
  const std::string file = family ? name.substr(0, colon) : name;
  if (!fs::exists(file, ignored))
    user_error(
        "there is no tokenizer {}: give bytes, a tokenizer.json or its directory, a run directory, "
        "a "
        "SentencePiece .model or ranks.tiktoken:FAMILY",
        file);
  return load_file(file, family ? name.substr(colon + 1) : "");
}

bool gives_same_ids(const Tokenizer& a, const Tokenizer& b) { return probe_ids(a) == probe_ids(b); }

}  // namespace kintsugi
