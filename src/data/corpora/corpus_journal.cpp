#include "data/corpora/corpus_journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json json_of_one(const SkippedInput& skipped) {
  return {{"file", skipped.file},     {"unit", skipped.unit},
          {"begin", skipped.begin},   {"end", skipped.end},
          {"reason", skipped.reason}, {"documents", skipped.documents.value_or(-1)}};
}

SkippedInput skipped_of(const Json& json) {
  SkippedInput skipped{json.at("file").get<std::string>(),    json.at("unit").get<std::string>(),
                       json.at("begin").get<std::uint64_t>(), json.at("end").get<std::uint64_t>(),
                       json.at("reason").get<std::string>(),  {}};
  if (const auto documents = json.at("documents").get<std::int64_t>(); documents >= 0)
    skipped.documents = documents;
  return skipped;
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

Json inputs_identity(const std::vector<fs::path>& inputs) {
  Json list = Json::array();
  for (const fs::path& input : inputs) {
    const auto time = fs::last_write_time(input).time_since_epoch();
    list.push_back({fs::absolute(input).lexically_normal().string(), fs::file_size(input),
                    std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()});
  }
  return list;
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

Json json_of(const InputOffset& offset) {
  return {{"file", offset.file},
          {"text_bytes", offset.in_file.text_bytes},
          {"line", offset.in_file.line}};
}

InputOffset input_offset_of(const Json& json) {
  return {json.at("file").get<std::uint64_t>(),
          {json.at("text_bytes").get<std::uint64_t>(), json.at("line").get<std::uint64_t>()}};
}

Json json_of(const std::vector<SkippedInput>& skipped) {
  Json list = Json::array();
  for (const SkippedInput& one : skipped) list.push_back(json_of_one(one));
  return list;
}

std::vector<SkippedInput> skipped_inputs_of(const Json& json) {
  std::vector<SkippedInput> skipped;
  for (const Json& one : json) skipped.push_back(skipped_of(one));
  return skipped;
}

}  // namespace kintsugi
