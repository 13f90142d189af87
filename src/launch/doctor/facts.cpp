#include "launch/doctor/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/log.h"

namespace kintsugi {
namespace {

using nlohmann::json;

constexpr int kMostCores = 1 << 16;

json json_of(const PairRate& pair) {
  return {{"first", pair.first},
          {"second", pair.second},
          {"between_nodes", pair.between_nodes},
          {"bytes_per_s", pair.bytes_per_s},
          {"wrong", pair.wrong}};
}

PairRate pair_of(const json& fields) {
  return {.first = fields.at("first"),
          .second = fields.at("second"),
          .between_nodes = fields.at("between_nodes"),
          .bytes_per_s = fields.at("bytes_per_s"),
          .wrong = fields.at("wrong")};
}

}  // namespace

std::string to_json_text(const RankFacts& facts) {
  json pairs = json::array();
  for (const PairRate& pair : facts.pairs) pairs.push_back(json_of(pair));
  // printable: names and system messages may be any bytes, but JSON is UTF-8.
  const json text = {{"rank", facts.rank},
                     {"node", printable(facts.node)},
                     {"binding",
                      {{"cores", number_list(facts.binding.cores)},
                       {"usable", number_list(facts.binding.usable)},
                       {"threads", facts.binding.threads},
                       {"gpu", printable(facts.binding.gpu)},
                       {"gpu_cores", number_list(facts.binding.gpu_cores)}}},
                     {"device",
                      {{"name", printable(facts.device.name)},
                       {"problem", printable(facts.device.problem)},
                       {"hash", facts.device.hash},
                       {"free_bytes", facts.device.free_bytes},
                       {"flops_per_s", facts.device.flops_per_s}}},
                     {"pairs", pairs},
                     {"directory",
                      {{"checked", facts.directory.checked},
                       {"problem", printable(facts.directory.problem)},
                       {"sees_first", facts.directory.sees_first},
                       {"free_bytes", facts.directory.free_bytes},
                       {"write_bytes_per_s", facts.directory.write_bytes_per_s}}},
                     {"host",
                      {{"clock_offset_s", facts.host.clock_offset_s},
                       {"wall_clock_s", facts.host.wall_clock_s},
                       {"shared_memory_free", facts.host.shared_memory_free},
                       {"old_shared_memory", facts.host.old_shared_memory},
                       {"open_files", facts.host.open_files}}}};
  return text.dump();
}

RankFacts facts_of(const std::string& json_text) {
  const json all = json::parse(json_text);
  const json &binding = all.at("binding"), &device = all.at("device"),
             &directory = all.at("directory"), &host = all.at("host");
  RankFacts facts{.rank = all.at("rank"),
                  .node = all.at("node"),
                  .binding = {.cores = parse_number_list(binding.at("cores")),
                              .usable = parse_number_list(binding.at("usable")),
                              .threads = binding.at("threads"),
                              .gpu = binding.at("gpu"),
                              .gpu_cores = parse_number_list(binding.at("gpu_cores"))},
                  .device = {.name = device.at("name"),
                             .problem = device.at("problem"),
                             .hash = device.at("hash"),
                             .free_bytes = device.at("free_bytes"),
                             .flops_per_s = device.at("flops_per_s")},
                  .pairs = {},
                  .directory = {.checked = directory.at("checked"),
                                .problem = directory.at("problem"),
                                .sees_first = directory.at("sees_first"),
                                .free_bytes = directory.at("free_bytes"),
                                .write_bytes_per_s = directory.at("write_bytes_per_s")},
                  .host = {.clock_offset_s = host.at("clock_offset_s"),
                           .wall_clock_s = host.at("wall_clock_s"),
                           .shared_memory_free = host.at("shared_memory_free"),
                           .old_shared_memory = host.at("old_shared_memory"),
                           .open_files = host.at("open_files")}};
  for (const json& pair : all.at("pairs")) facts.pairs.push_back(pair_of(pair));
  return facts;
}

std::string number_list(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t at = 0; at < numbers.size();) {
    std::size_t last = at;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[at]);
    if (last > at) text += fmt::format("-{}", numbers[last]);
    at = last + 1;
  }
  return text;
}

std::vector<int> parse_number_list(const std::string& text) {
  std::vector<int> numbers;
  const char* at = text.c_str();
  while (*at >= '0' && *at <= '9') {
    char* end = nullptr;
    const long first = std::strtol(at, &end, 10);
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    if (first > last || last >= kMostCores) return {};
    for (long number = first; number <= last; ++number) numbers.push_back(static_cast<int>(number));
    at = *end == ',' ? end + 1 : end;
  }
  if (*at != '\0' && *at != '\n') return {};
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

}  // namespace kintsugi
