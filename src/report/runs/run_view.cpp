#include "report/runs/run_view.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/json_members.h"
#include "core/log.h"
#include "core/units.h"
#include "report/runs/config_differences.h"
#include "report/runs/goodput_timeline.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using ViewJson = nlohmann::ordered_json;

constexpr std::size_t kMostConfig = 1 << 20, kMostObject = 4 << 20;  // bytes
constexpr std::size_t kLogTail = 64 << 10, kNewLog = 256 << 10, kSamplesTail = 1 << 20,
                      kEventsTail = 256 << 10;
constexpr std::size_t kLogLines = 200, kSamples = 100, kEvents = 200, kMostProfiles = 200;
constexpr std::size_t kMostLogLine = 2000, kMostAttempts = 1000;

// The last objects of a file with one per line.
ViewJson last_objects(const fs::path& file, std::size_t bytes, std::size_t most) {
  ViewJson list = ViewJson::array();
  const FileTail tail = read_tail(file, bytes);
  for (const std::string& line : tail.lines)
    if (auto json = parse_untrusted_json(line); json && json->is_object())
      list.push_back(std::move(*json));
  if (list.size() > most) list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(most));
  return list;
}

std::vector<std::string> log_lines(std::vector<std::string> lines) {
  if (lines.size() > kLogLines)
    lines.erase(lines.begin(), lines.end() - static_cast<std::ptrdiff_t>(kLogLines));
  for (std::string& line : lines)
    if (line.size() > kMostLogLine) line = line.substr(0, kMostLogLine) + " …";
  return lines;
}

ViewJson categories_json(const Goodput& goodput) {
  const std::optional<EnergyLevel> level = goodput.metered_level();
  const GoodputAmounts seconds = goodput.seconds();
  const GoodputAmounts joules = level ? goodput.joules(*level) : GoodputAmounts{};
  ViewJson list = ViewJson::array();
  for (const GoodputCategory& one : goodput_categories())
    list.push_back({{"name", one.name},
                    {"seconds", seconds.*one.amount},
                    {"joules", level ? ViewJson(joules.*one.amount) : ViewJson(nullptr)}});
  return list;
}

ViewJson attempts_json(const std::vector<Attempt>& attempts) {
  ViewJson list = ViewJson::array();
  const std::size_t first = attempts.size() - std::min(attempts.size(), kMostAttempts);
  for (std::size_t i = first; i < attempts.size(); ++i) {
    const Attempt& one = attempts[i];
    list.push_back({{"attempt", i + 1},
                    {"launched_s", one.launched_s},
                    {"last_s", one.last_s},
                    {"first_step", one.first_step},
                    {"last_step", one.last_step},
                    {"state", one.state},
                    {"reason", one.reason},
                    {"exit_code", one.exit_code ? ViewJson(*one.exit_code) : ViewJson(nullptr)},
                    {"nodes", one.nodes}});
  }
  return list;
}

ViewJson timeline_json(const std::vector<TimelineSpan>& spans) {
  ViewJson list = ViewJson::array();
  for (const TimelineSpan& span : spans)
    list.push_back({{"attempt", span.attempt},
                    {"kind", span.kind},
                    {"begin_s", span.begin_s},
                    {"end_s", span.end_s}});
  return list;
}

// The ledger knows the energy of all attempts.
RunSummary with_energy(RunSummary summary, const Goodput& goodput) {
  if (const auto level = goodput.metered_level()) {
    summary.energy_j = goodput.joules(*level).total();
    if (const auto joules = goodput.joules_per_token(*level)) summary.j_per_token = joules;
  }
  if (!goodput.attempts().empty()) {
    summary.attempts = static_cast<double>(goodput.attempts().size());
    summary.goodput = goodput.seconds().fraction();
  }
  return summary;
}

std::string damage_of(const StepSeries& series) {
  const std::string begin = series.rows() == 0 ? "has no step that could be read" : "";
  if (series.damaged_lines() == 0) return begin;
  return fmt::format("{}{} could not be read (first: line {})", begin.empty() ? "" : begin + "; ",
                     format_number(series.damaged_lines(), "line"), series.first_damaged_line());
}

ViewJson to_json(const std::vector<SkippedFile>& files) {
  ViewJson list = ViewJson::array();
  for (const SkippedFile& file : files)
    list.push_back({{"path", file.path.string()}, {"why", file.why}});
  return list;
}

}  // namespace

std::vector<SkippedFile> damaged_files(const fs::path& run, const StepSeries& series) {
  std::vector<SkippedFile> files;
  const std::optional<FileStamp> metrics = stamp_of(run / "metrics.jsonl");
  if (!series.problem().empty())
    files.push_back({"metrics.jsonl", series.problem()});
  else if (const std::string damage = damage_of(series);
           metrics && metrics->size > 0 && !damage.empty())
    files.push_back({"metrics.jsonl", damage});
  std::string problem = read_expert_history(run / "experts.jsonl").problem;
  if (!problem.empty()) files.push_back({"experts.jsonl", problem});
  const FileText config = read_run_file(run / "config.yaml", kMostConfig);
  problem = config.problem;
  if (problem.empty()) {
    config_values(config.text, &problem);
    if (!problem.empty()) problem = "was not used: " + problem;
  }
  if (!problem.empty()) files.push_back({"config.yaml", problem});
  return files;
}

LogTail read_log_tail(const fs::path& run) {
  FileTail tail = read_tail(run / "log.txt", kLogTail);
  return {.lines = log_lines(std::move(tail.lines)),
          .end = tail.end,
          .inode = tail.stamp ? tail.stamp->inode : 0};
}

std::vector<std::string> read_new_log_lines(const fs::path& run, LogTail& before) {
  const RunFile file(run / "log.txt");
  if (!file.is_open() || (file.stamp().inode == before.inode && file.stamp().size == before.end))
    return {};
  const bool same = file.stamp().inode == before.inode && file.stamp().size > before.end &&
                    file.stamp().size - before.end <= kNewLog;
  if (!same) {
    LogTail now = read_log_tail(run);
    std::swap(now.lines, before.lines);
    before.end = now.end;
    before.inode = now.inode;
    return std::exchange(before.lines, {});
  }
  std::string text;
  file.read(before.end, static_cast<std::size_t>(file.stamp().size - before.end), text);
  const std::size_t last = text.rfind('\n');
  if (last == text.npos) return {};
  before.end += last + 1;
  return log_lines(complete_lines(text));
}

std::vector<std::string> profile_names(const fs::path& run) {
  std::vector<std::string> names;
  for (const std::string& name : sorted_names(run / "profiles"))
    if (name.ends_with(".json") && stamp_of(run / "profiles" / name) && printable(name) == name)
      names.push_back(name);
  if (names.size() > kMostProfiles) names.resize(kMostProfiles);
  return names;
}

ViewJson run_json(const SummaryReader& run, SeriesCache& series, std::size_t most_cells) {
  const fs::path& directory = run.directory();
  GoodputHistory history = read_goodput_history(directory);
  if (run.summary().state == "lost") history.goodput.mark_lost();
  const FileText config = read_run_file(directory / "config.yaml", kMostConfig);
  std::vector<std::string> keys;
  std::vector<SkippedFile> damaged;
  series.with(directory, [&](const StepSeries& of) {
    keys = of.keys();
    damaged = damaged_files(directory, of);
  });
  return {{"summary", to_json(with_energy(run.summary(), history.goodput))},
          {"status", read_json_object(directory / "status.json", kMostObject)},
          {"config", public_config(config.text)},
          {"goodput",
           {{"categories", categories_json(history.goodput)},
            {"timeline", timeline_json(history.timeline)},
            {"attempts", attempts_json(history.goodput.attempts())},
            {"problem", history.problem.empty() ? ViewJson(nullptr) : ViewJson(history.problem)}}},
          {"layout", read_json_object(directory / "layout.json", kMostObject)},
          {"ranks", read_json_object(directory / "ranks.json", kMostObject)},
          {"experts", to_json(read_expert_history(directory / "experts.jsonl", most_cells))},
          {"samples", last_objects(directory / "samples.jsonl", kSamplesTail, kSamples)},
          {"events", last_objects(directory / "events.jsonl", kEventsTail, kEvents)},
          {"log", read_log_tail(directory).lines},
          {"energy", read_json_object(directory / "energy.json", kMostObject)},
          {"profiles", profile_names(directory)},
          {"keys", keys},
          {"skipped", to_json(damaged)}};
}

ViewJson compare_json(const std::vector<const SummaryReader*>& runs) {
  std::vector<ConfigValues> configs;
  ViewJson ids = ViewJson::array(), summaries = ids;
  for (const SummaryReader* run : runs) {
    ids.push_back(run->summary().id);
    summaries.push_back(to_json(run->summary()));
    configs.push_back(
        config_values(read_run_file(run->directory() / "config.yaml", kMostConfig).text));
  }
  ViewJson rows = ViewJson::array();
  bool same_data = true;
  for (const ConfigDifference& one : config_differences(configs)) {
    ViewJson values = ViewJson::array();
    for (const auto& value : one.values)
      values.push_back(value ? ViewJson(*value) : ViewJson(nullptr));
    rows.push_back({{"key", one.key}, {"values", std::move(values)}});
    same_data = same_data && !one.key.starts_with("data.");
  }
  return {{"ids", std::move(ids)},
          {"configuration", std::move(rows)},
          {"summary", std::move(summaries)},
          {"same_data", same_data}};
}

}  // namespace kintsugi
