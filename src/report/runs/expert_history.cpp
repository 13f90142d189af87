#include "report/runs/expert_history.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>

#include "core/json_members.h"
#include "core/units.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace {

using HistoryJson = nlohmann::ordered_json;

constexpr std::size_t kWholeFile = 4 << 20, kMostRecord = 1 << 20;  // bytes
constexpr std::size_t kFewestSteps = 10, kMostSteps = 300, kWorstLayers = 5;
constexpr std::size_t kMostExperts = 65'536;  // of all layers; records of more are damaged

struct LayerRecord {
  std::int64_t number = 0;
  double max_load = 0, entropy = 0, idle = 0, dropped = 0;
  std::vector<float> loads = {};
};
struct StepLoads {
  double step = 0;
  std::vector<LayerRecord> layers = {};

  bool has_shape_of(const StepLoads& other) const {
    return std::ranges::equal(layers, other.layers, [](const LayerRecord& a, const LayerRecord& b) {
      return a.number == b.number && a.loads.size() == b.loads.size();
    });
  }
  std::size_t cells() const { return layers.size() * layers.front().loads.size(); }
};

// Four decimals; 0 where it is no number.
double rounded_at(const HistoryJson& json, const char* key) {
  return std::round(1e4 * number_at(json, key).value_or(0)) / 1e4;
}

// Empty if it is no list of counts.
std::vector<float> relative_loads(const HistoryJson& choices) {
  std::vector<double> counts;
  for (const HistoryJson& one : choices) {
    const double count = one.is_number() ? one.get<double>() : -1;
    if (!(count >= 0 && count < 1e15)) return {};
    counts.push_back(count);
  }
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  std::vector<float> loads;
  for (const double count : counts)
    loads.push_back(sum > 0 ? static_cast<float>(count * static_cast<double>(counts.size()) / sum)
                            : 0);
  return loads;
}

std::optional<StepLoads> parse_record(std::string_view line) {
  const auto json = parse_untrusted_json(line);
  const auto step = json ? number_at(*json, "step") : std::nullopt;
  if (!step || !json_at(*json, "layers").is_array()) return {};
  StepLoads record{.step = *step};
  for (const HistoryJson& one : json_at(*json, "layers")) {
    LayerRecord layer{.number = count_at(one, "layer"),
                      .max_load = rounded_at(one, "max_load"),
                      .entropy = rounded_at(one, "entropy"),
                      .idle = rounded_at(one, "idle"),
                      .dropped = rounded_at(one, "dropped"),
                      .loads = relative_loads(json_at(one, "choices"))};
    if (layer.loads.empty()) return {};
    record.layers.push_back(std::move(layer));
    if (record.layers.back().loads.size() != record.layers.front().loads.size()) return {};
  }
  if (record.layers.empty() || record.cells() > kMostExperts) return {};
  return record;
}

// The first complete line that begins behind `offset`; empty if there is none, or if it is too
// long.
std::string line_behind(const RunFile& file, std::uint64_t offset) {
  std::string text;
  for (std::size_t size = 64 << 10;; size *= 4) {
    file.read(offset, size, text);
    const std::size_t begin = text.find('\n'),
                      end = begin == text.npos ? text.npos : text.find('\n', begin + 1);
    if (end != text.npos) return text.substr(begin + 1, end - begin - 1);
    if (text.size() < size || size > 2 * kMostRecord) return "";
  }
}

// Lines that are spread evenly over a file, in their order; `all`: no line is left out.
struct SpreadLines {
  std::vector<std::string> lines = {};
  bool all = true;
};
SpreadLines spread_lines(const RunFile& file, std::size_t most) {
  const std::uint64_t size = file.stamp().size;
  SpreadLines spread;
  if (size > kWholeFile) {
    spread.all = false;
    for (std::size_t i = 0; i < most; ++i)
      if (std::string line = line_behind(file, size / most * i); !line.empty())
        if (spread.lines.empty() || spread.lines.back() != line)
          spread.lines.push_back(std::move(line));
    return spread;
  }
  std::string text;
  file.read(0, size, text);
  spread.lines = complete_lines(text);
  const std::size_t count = spread.lines.size();
  if (count <= most) return spread;
  spread.all = false;
  for (std::size_t i = 0; i < most; ++i) std::swap(spread.lines[i], spread.lines[i * count / most]);
  spread.lines.resize(most);
  return spread;
}

std::optional<StepLoads> newest_record(const std::filesystem::path& path, std::string& problem) {
  const FileTail tail = read_tail(path, kMostRecord);
  problem = tail.problem;
  for (auto line = tail.lines.rbegin(); line != tail.lines.rend(); ++line)
    if (auto record = parse_record(*line)) return record;
  if (problem.empty() && tail.stamp && tail.stamp->size > 0)
    problem = "has no count of experts at its end that could be read";
  return {};
}

ExpertHistory history_of(const std::vector<StepLoads>& records) {
  ExpertHistory history;
  history.experts = std::ssize(records.back().layers.front().loads);
  for (const LayerRecord& layer : records.back().layers)
    history.layers.push_back({.number = layer.number});
  for (const StepLoads& record : records) {
    history.steps.push_back(record.step);
    for (std::size_t i = 0; i < record.layers.size(); ++i) {
      const LayerRecord& from = record.layers[i];
      ExpertHistory::Layer& to = history.layers[i];
      to.max_load.push_back(from.max_load);
      to.entropy.push_back(from.entropy);
      to.idle.push_back(from.idle);
      to.dropped.push_back(from.dropped);
      to.loads.insert(to.loads.end(), from.loads.begin(), from.loads.end());
    }
  }
  return history;
}

// As the page reads it: log2 of the load in 256ths, from 2^-7 on.
int code_of(float load) {
  if (!(load >= 0x1p-7f)) return 0;
  return std::clamp(static_cast<int>(std::lround(256 * (7 + std::log2(load)))) + 1, 1, 4095);
}

std::string encoded(const std::vector<float>& loads) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (const float load : loads) {
    const auto code = static_cast<std::size_t>(code_of(load));
    text += kDigits[code / 64];
    text += kDigits[code % 64];
  }
  return text;
}

}  // namespace

ExpertHistory read_expert_history(const std::filesystem::path& path, std::size_t most_cells) {
  std::string problem;
  const std::optional<StepLoads> newest = newest_record(path, problem);
  const RunFile file(path);
  if (!newest || !file.is_open()) return {.problem = problem};
  const std::size_t most = std::clamp(most_cells / newest->cells(), kFewestSteps, kMostSteps);
  const SpreadLines spread = spread_lines(file, most - 1);
  std::vector<StepLoads> records;
  std::int64_t damaged = 0;
  const auto add = [&](StepLoads record) {
    while (!records.empty() && records.back().step >= record.step) records.pop_back();
    records.push_back(std::move(record));
  };
  for (const std::string& line : spread.lines) {
    auto record = parse_record(line);
    if (record && record->has_shape_of(*newest))
      add(std::move(*record));
    else
      ++damaged;
  }
  add(*newest);
  ExpertHistory history = history_of(records);
  history.thinned = !spread.all;
  if (damaged > 0) history.problem = format_number(damaged, "line") + " could not be read";
  return history;
}

std::vector<const ExpertHistory::Layer*> worst_layers(const ExpertHistory& history,
                                                      std::size_t most) {
  std::vector<const ExpertHistory::Layer*> layers;
  for (const ExpertHistory::Layer& layer : history.layers) layers.push_back(&layer);
  std::ranges::stable_sort(layers, std::greater(),
                           [](const auto* layer) { return layer->max_load.back(); });
  layers.resize(std::min(layers.size(), most));
  return layers;
}

HistoryJson to_json(const ExpertHistory& history) {
  if (history.layers.empty()) return nullptr;
  HistoryJson layers = HistoryJson::array(), worst = layers;
  for (const ExpertHistory::Layer* layer : worst_layers(history, kWorstLayers))
    worst.push_back(layer - history.layers.data());
  for (const ExpertHistory::Layer& layer : history.layers)
    layers.push_back({{"layer", layer.number},
                      {"max_load", layer.max_load},
                      {"entropy", layer.entropy},
                      {"idle", layer.idle},
                      {"dropped", layer.dropped},
                      {"loads", encoded(layer.loads)}});
  return {{"experts", history.experts},
          {"steps", history.steps},
          {"thinned", history.thinned},
          {"layers", std::move(layers)},
          {"worst", std::move(worst)}};
}

}  // namespace kintsugi
