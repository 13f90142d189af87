#include "data/corpora/tokenize_journal.h"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

Json json_of(const TokenizeJournal& journal) {
  Json shards = Json::array();
  for (const StoreInfo::Shard& shard : journal.shards)
    shards.push_back({shard.name, shard.bin, shard.idx, shard.mask});
  return {{"kintsugi_tokenize", kVersion},
          {"all_written", journal.all_written},
          {"place",
           {{"file", journal.position.file},
            {"text_bytes", journal.position.in_file.text_bytes},
            {"line", journal.position.in_file.line}}},
          {"counts",
           {{"documents", journal.counts.documents},
            {"tokens", journal.counts.tokens},
            {"text_bytes", journal.counts.text_bytes},
            {"empty_documents", journal.counts.empty_documents},
            {"invalid_lines", journal.counts.invalid_lines}}},
          {"first_invalid", journal.first_invalid},
          {"writer",
           {{"tokens", journal.writer.tokens},
            {"sequences", journal.writer.sequences},
            {"documents", journal.writer.documents},
            {"open_tokens", journal.writer.open_tokens}}},
          {"shards", shards},
          {"made_from", Json::parse(journal.made_from)}};
}

TokenizeJournal journal_of(const Json& json) {
  TokenizeJournal journal;
  const auto number = [&](const char* group, const char* key) {
    return json.at(group).at(key).get<std::int64_t>();
  };
  journal.all_written = json.at("all_written").get<bool>();
  journal.position.file = json.at("place").at("file").get<std::uint64_t>();
  journal.position.in_file = {json.at("place").at("text_bytes").get<std::uint64_t>(),
                              json.at("place").at("line").get<std::uint64_t>()};
  journal.counts = {number("counts", "documents"), number("counts", "tokens"),
                    number("counts", "text_bytes"), number("counts", "empty_documents"),
                    number("counts", "invalid_lines")};
  journal.first_invalid = json.at("first_invalid").get<std::string>();
  journal.writer = {number("writer", "tokens"), number("writer", "sequences"),
                    number("writer", "documents"), number("writer", "open_tokens")};
  for (const Json& shard : json.at("shards"))
    journal.shards.push_back({shard.at(0).get<std::string>(), shard.at(1).get<std::string>(),
                              shard.at(2).get<std::string>(), shard.at(3).get<std::string>()});
  journal.made_from = json.at("made_from").dump();
  return journal;
}

std::string inputs_difference(const Json& before, const Json& now) {
  for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if (before[i][0] != now[i][0])
      return fmt::format("input {} was {} and is now {}", i + 1, before[i][0].dump(),
                         now[i][0].dump());
    if (before[i] != now[i])
      return fmt::format("the input {} has changed (size or modification time)", now[i][0].dump());
  }
  return fmt::format("there were {} inputs and are now {}", before.size(), now.size());
}

}  // namespace

fs::path journal_path(const fs::path& prefix) { return with_ending(prefix, ".progress.json"); }

std::optional<TokenizeJournal> read_journal(const fs::path& prefix) {
  const fs::path path = journal_path(prefix);
  if (!fs::exists(path)) return std::nullopt;
  try {
    const Json json = Json::parse(read_text_file(path));
    if (json.at("kintsugi_tokenize").get<int>() == kVersion) return journal_of(json);
  } catch (const nlohmann::json::exception&) {
  }
  user_error("{} is not a journal that this version can read: start over with --overwrite",
             path.string());
}

void write_journal(const fs::path& prefix, const TokenizeJournal& journal) {
  write_file_atomically(
      journal_path(prefix),
      json_of(journal).dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string identity_json(const TokenizeIdentity& identity) {
  Json inputs = Json::array();
  for (const fs::path& input : identity.inputs) {
    const auto time = fs::last_write_time(input).time_since_epoch();
    inputs.push_back({fs::absolute(input).lexically_normal().string(), fs::file_size(input),
                      std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()});
  }
  Json json = {{"inputs", inputs},
               {"tokenizer", identity.tokenizer},
               {"end_of_document", nullptr},
               {"text_key", identity.format.text_key},
               {"prompt_key", identity.format.prompt_key},
               {"type", std::string(to_string(identity.type))},
               {"shard_bytes", identity.shard_bytes}};
  if (identity.end_of_document) json["end_of_document"] = *identity.end_of_document;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);  // a path may be invalid UTF-8
}

std::string identity_difference(const std::string& before, const std::string& now) {
  if (before == now) return "";
  const Json was = Json::parse(before, nullptr, false), is = Json::parse(now);
  if (!was.is_object()) return "its settings are unknown";
  for (const auto& [key, value] : is.items()) {
    if (!was.contains(key)) return fmt::format("its {} is unknown", key);
    if (was[key] == value) continue;
    if (key == "inputs") return inputs_difference(was[key], value);
    return fmt::format("{} was {} and is now {}", key, was[key].dump(), value.dump());
  }
  return "";
}

}  // namespace kintsugi
