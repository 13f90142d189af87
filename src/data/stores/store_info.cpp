#include "data/stores/store_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

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
    info.shards.push_back({shard.at("name").get<std::string>(), shard.at("bin").get<std::string>(),
                           shard.at("idx").get<std::string>(), shard.value("mask", ""),
                           shard.value("labels", "")});
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

}  // namespace kintsugi
