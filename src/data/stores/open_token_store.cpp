// Finds the files of a token store by its name.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "data/corpora/input_files.h"
#include "data/stores/token_store.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShardDigits = 5;
constexpr int kVersion = 1;

StoreInfo info_of(const Json& json) {
  StoreInfo info;
  info.tokenizer = json.at("tokenizer").get<std::string>();
  info.tokenizer_description = json.at("tokenizer_description").get<std::string>();
  info.vocab_size = json.at("vocab_size").get<std::int64_t>();
  if (!json.at("end_of_document").is_null())
    info.end_of_document = json.at("end_of_document").get<std::int32_t>();
  info.bytes = json.at("bytes").get<std::int64_t>();
  info.tokens = json.at("tokens").get<std::int64_t>();
  info.documents = json.at("documents").get<std::int64_t>();
  for (const Json& shard : json.at("shards"))
    info.shards.push_back({shard.at("name"), shard.at("bin"), shard.at("idx"),
                           shard.value("mask", ""), shard.value("labels", "")});
  info.kind = json.value("kind", "");
  info.labels = json.value("labels", std::vector<std::string>());
  info.longest = json.value("longest", std::int64_t{0});
  if (json.contains("made_from")) info.made_from = json.at("made_from").dump();
  info.chat_format = json.value("chat_format", "");
  // Stores of older versions name the format only among the options of the job.
  if (info.chat_format.empty() && !info.made_from.empty() && json.at("made_from").is_object())
    info.chat_format = json.at("made_from").value("template", "");
  return info;
}

namespace fs = std::filesystem;

bool file_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A job that was killed while renaming its shards has published only some of them.
void refuse_unfinished(const fs::path& prefix) {
  for (const fs::path& store : {prefix, store_of_shard(prefix)}) {
    const fs::path journal = with_ending(store, ".progress.json");
    if (file_exists(journal))
      user_error(
          "{} is still being written, or its job was interrupted ({} exists): run the same "
          "`kintsugi data tokenize` again to finish it",
          store.string(), journal.string());
  }
}

// Rejects text that must be tokenized first, and tokens in unsupported formats.
void refuse_other_formats(const fs::path& path) {
  constexpr std::array<std::string_view, 8> kText = {".jsonl", ".ndjson", ".json", ".gz",
                                                     ".zst",   ".csv",    ".tsv",  ".parquet"};
  constexpr std::array<std::string_view, 4> kTokens = {".npy", ".ds", ".pbin", ".arrow"};
  const std::string ending = path.extension().string();
  std::array<char, 10> start{};
  std::ifstream(path, std::ios::binary).read(start.data(), start.size());
  const std::string_view bytes(start.data(), start.size());
  if (bytes.starts_with("\x1f\x8b") || bytes.starts_with("\x28\xb5\x2f\xfd") ||
      std::find(kText.begin(), kText.end(), ending) != kText.end())
    user_error(
        "{} is not plain text, so its bytes cannot be tokens: make a token store of it with "
        "`kintsugi data tokenize --input {} --tokenizer … --output …`",
        path.string(), path.string());
  if (std::find(kTokens.begin(), kTokens.end(), ending) != kTokens.end())
    user_error(
        "{} holds tokens of another program; only Megatron .bin/.idx pairs and text are supported",
        path.string());
  if (const char* what = other_format(bytes))
    user_error("{} is {}; only Megatron .bin/.idx pairs and text are supported", path.string(),
               what);
}

TokenShard open_pair(const fs::path& prefix) {
  const fs::path bin = with_ending(prefix, ".bin"), idx = with_ending(prefix, ".idx");
  if (!file_exists(idx)) user_error("{} has no index: {} is missing", bin.string(), idx.string());
  if (!file_exists(bin)) user_error("{} has no tokens: {} is missing", idx.string(), bin.string());
  refuse_unfinished(prefix);
  return TokenShard::open(prefix);
}

// The sorted prefixes of the .bin and .idx files, without those that a job is still writing.
std::vector<fs::path> prefixes_of(const std::vector<fs::path>& files) {
  std::vector<fs::path> prefixes;
  for (const fs::path& file : files) {
    if (file.extension() != ".idx" && file.extension() != ".bin") continue;
    const fs::path prefix = fs::path(file).replace_extension();
    if (prefix.extension() == ".partial")
      refuse_unfinished(fs::path(prefix).replace_extension());
    else
      prefixes.push_back(prefix);
  }
  std::sort(prefixes.begin(), prefixes.end());
  prefixes.erase(std::unique(prefixes.begin(), prefixes.end()), prefixes.end());
  return prefixes;
}

std::vector<TokenShard> open_pairs(const std::vector<fs::path>& prefixes) {
  std::vector<TokenShard> shards;
  for (const fs::path& prefix : prefixes) {
    shards.push_back(open_pair(prefix));
    if (shards.back().type() != shards.front().type())
      user_error("{} has {} tokens, {} has {}: the shards of a store must have the same type",
                 shards.front().name(), to_string(shards.front().type()), shards.back().name(),
                 to_string(shards.back().type()));
  }
  return shards;
}

TokenShard open_text_file(const fs::path& path) {
  if (!fs::is_regular_file(path)) user_error("{} is not a file", path.string());
  refuse_other_formats(path);
  return TokenShard::open_text(path);
}

std::vector<TokenShard> open_directory(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) files.push_back(entry.path());
  const auto prefixes = prefixes_of(files);
  if (prefixes.empty())
    user_error(
        "the directory {} has no token store: no .bin and .idx files; for text files give a "
        "pattern, like '{}/*.txt'",
        directory.string(), directory.string());
  return open_pairs(prefixes);
}

std::vector<TokenShard> open_matches(const std::string& pattern) {
  std::vector<fs::path> files = expand_pattern(pattern);
  for (const fs::path& index : expand_pattern(pattern + ".idx")) files.push_back(index);
  const auto prefixes = prefixes_of(files);
  if (!prefixes.empty()) return open_pairs(prefixes);
  if (files.empty())
    user_error("nothing matches {}: no .bin and .idx pair, and no text file", pattern);
  std::vector<TokenShard> shards;
  for (const fs::path& file : files) shards.push_back(open_text_file(file));
  return shards;
}

// PREFIX-00000 and so on.
std::vector<fs::path> shards_of(const fs::path& prefix) {
  std::vector<fs::path> prefixes;
  while (file_exists(
      with_ending(shard_prefix(prefix, static_cast<std::int64_t>(prefixes.size())), ".idx")))
    prefixes.push_back(shard_prefix(prefix, static_cast<std::int64_t>(prefixes.size())));
  return prefixes;
}

void check_complete(const fs::path& prefix, std::size_t shards) {
  refuse_unfinished(prefix);
  const auto info = read_store_info(prefix);
  if (info && info->shards.size() != shards)
    user_error("{}.json names {} shards, {} were found: copy the missing ones", prefix.string(),
               info->shards.size(), shards);
}

}  // namespace

std::filesystem::path with_ending(std::filesystem::path prefix, const char* ending) {
  return prefix += ending;
}

std::filesystem::path shard_prefix(const std::filesystem::path& prefix, std::int64_t shard) {
  return with_ending(prefix, fmt::format("-{:0{}}", shard, kShardDigits).c_str());
}

std::filesystem::path store_of_shard(const std::filesystem::path& prefix) {
  const std::string name = prefix.string();
  if (name.size() <= kShardDigits + 1) return prefix;
  const std::string end = name.substr(name.size() - kShardDigits);
  const bool digits =
      std::all_of(end.begin(), end.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || name[name.size() - kShardDigits - 1] != '-') return prefix;
  return name.substr(0, name.size() - kShardDigits - 1);
}

std::optional<StoreInfo> read_store_info(const std::filesystem::path& prefix) {
  std::filesystem::path path = with_ending(prefix, ".json");
  if (!std::filesystem::exists(path)) path = with_ending(store_of_shard(prefix), ".json");
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const Json json = Json::parse(read_text_file(path));
    if (json.at("kintsugi_store").get<int>() != kVersion)
      user_error(
          "{} has format version {}, but this program reads version {}: use the newer program",
          path.string(), json.at("kintsugi_store").dump(), kVersion);
    return info_of(json);
  } catch (const nlohmann::json::exception& error) {
    user_error(
        "{} does not describe a token store ({}): restore it, or remove it to use the store "
        "without checksums",
        path.string(), error.what());
  }
}

void write_store_info(const std::filesystem::path& prefix, const StoreInfo& info) {
  Json json = {{"kintsugi_store", kVersion},
               {"tokenizer", info.tokenizer},
               {"tokenizer_description", info.tokenizer_description},
               {"vocab_size", info.vocab_size},
               {"end_of_document", nullptr},
               {"bytes", info.bytes},
               {"tokens", info.tokens},
               {"documents", info.documents},
               {"shards", Json::array()}};
  if (info.end_of_document) json["end_of_document"] = *info.end_of_document;
  for (const StoreInfo::Shard& shard : info.shards) {
    Json entry = {{"name", shard.name}, {"bin", shard.bin}, {"idx", shard.idx}};
    if (!shard.mask.empty()) entry["mask"] = shard.mask;
    if (!shard.labels.empty()) entry["labels"] = shard.labels;
    json["shards"].push_back(entry);
  }
  if (!info.kind.empty()) json["kind"] = info.kind;
  if (!info.labels.empty()) json["labels"] = info.labels;
  if (!info.chat_format.empty()) json["chat_format"] = info.chat_format;
  if (info.longest > 0) json["longest"] = info.longest;
  if (!info.made_from.empty()) json["made_from"] = Json::parse(info.made_from);
  write_file_atomically(with_ending(prefix, ".json"),
                        json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::vector<TokenShard> open_token_store(const std::string& name) {
  if (name.empty()) user_error("a token store needs a name");
  if (is_pattern(name)) return open_matches(name);
  const fs::path path = name;
  if (path.extension() == ".bin" || path.extension() == ".idx")
    return open_pairs({fs::path(path).replace_extension()});
  const bool pair =
      file_exists(with_ending(path, ".idx")) || file_exists(with_ending(path, ".bin"));
  const auto shards = shards_of(path);
  if (pair && !shards.empty())
    user_error("{} is ambiguous: both {}.idx and {}.idx exist; give {}.idx or '{}-*'", name, name,
               shards.front().string(), name, name);
  if (pair) return open_pairs({path});
  if (!shards.empty()) {
    check_complete(path, shards.size());
    return open_pairs(shards);
  }
  if (fs::is_directory(path)) return open_directory(path);
  refuse_unfinished(path);
  if (!file_exists(path))
    user_error("there is no token store or text file {}: neither {}.idx nor {} exists", name, name,
               name);
  std::vector<TokenShard> text;
  text.push_back(open_text_file(path));
  return text;
}

std::vector<std::shared_ptr<const StoreInfo>> read_store_infos(std::span<const TokenShard> shards) {
  std::vector<std::shared_ptr<const StoreInfo>> infos;
  std::map<fs::path, std::shared_ptr<const StoreInfo>> known;  // by the prefix of its file
  for (const TokenShard& shard : shards) {
    if (shard.is_text()) {
      infos.emplace_back();
      continue;
    }
    // The name of a store may look like that of a shard.
    const bool own = file_exists(with_ending(shard.name(), ".json"));
    const auto [entry, fresh] =
        known.try_emplace(own ? fs::path(shard.name()) : store_of_shard(shard.name()));
    if (fresh)
      if (auto info = read_store_info(shard.name()))
        entry->second = std::make_shared<const StoreInfo>(std::move(*info));
    infos.push_back(entry->second);
  }
  return infos;
}

}  // namespace kintsugi
