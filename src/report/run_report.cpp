#include "report/run_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "core/error.h"
#include "core/json_members.h"
#include "core/units.h"
#include "energy/carbon.h"
#include "report/runs/goodput_timeline.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using ReportJson = nlohmann::ordered_json;

constexpr std::size_t kLastSteps = 5;
constexpr std::size_t kMostStatus = 4 << 20;  // bytes
constexpr std::size_t kMostAttempts = 20;     // in the text

std::string utc(double seconds) {
  const auto time = static_cast<std::time_t>(std::clamp(seconds, 0.0, 2e11));
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[64];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

// The value of a key as text; `otherwise` if it is missing or null.
std::string value_text(const ReportJson& json, const char* key, const std::string& otherwise = "") {
  if (!json.is_object() || !json.contains(key) || json[key].is_null()) return otherwise;
  return json[key].is_string() ? json[key].get<std::string>() : json[key].dump();
}

std::string loss_text(const std::optional<double>& loss) {
  return loss ? fmt::format("{:.4f}", *loss) : "unknown";
}

std::string count_text(const std::optional<double>& count) {
  return count ? fmt::format("{:.0f}", *count) : "?";
}

// The newest record of each of the last steps: a run that was resumed or went back has done some of
// them again.
std::vector<ReportJson> last_records(const fs::path& file) {
  constexpr std::size_t kTail = 1 << 16;
  std::vector<ReportJson> records;
  const FileTail tail = read_tail(file, kTail);
  double later = std::numeric_limits<double>::infinity();  // the step after
  for (auto line = tail.lines.rbegin(); line != tail.lines.rend(); ++line) {
    if (records.size() == kLastSteps) break;
    auto record = parse_untrusted_json(*line);
    if (!record || !record->is_object()) continue;
    const auto found = record->find("step");
    const double step = found != record->end() && found->is_number() ? found->get<double>() : -1.0;
    if (step >= later) continue;
    later = step;
    records.push_back(std::move(*record));
  }
  std::reverse(records.begin(), records.end());
  return records;
}

std::string goodput_table(const Goodput& goodput) {
  const GoodputAmounts all = goodput.seconds();
  const std::optional<EnergyLevel> level = goodput.metered_level();
  const GoodputAmounts joules = level ? goodput.joules(*level) : GoodputAmounts{};
  std::string text = fmt::format(
      "  goodput: {:.1f} % of {} in {}\n", 100 * all.fraction(), format_duration(all.total()),
      format_number(static_cast<std::int64_t>(goodput.attempts().size()), "attempt"));
  for (const GoodputCategory& one : goodput_categories()) {
    const double seconds = all.*one.amount;
    if (seconds <= 0) continue;
    text += fmt::format("    {:<11} {:>12} {:>6.1f} %", one.name, format_duration(seconds),
                        100 * seconds / all.total());
    if (const double used = joules.*one.amount; used > 0)
      text += fmt::format(" {:>11}", energy_text(used));
    text += "\n";
  }
  if (level)
    text += fmt::format(
        "  energy: {} ({}), of which {} for steps that were done again; energy.json "
        "has more\n",
        energy_text(joules.total()), to_string(*level), energy_text(joules.recomputed));
  return text;
}

std::string attempt_lines(const std::vector<Attempt>& attempts) {
  std::string text = "  attempts:\n";
  const std::size_t first = attempts.size() > kMostAttempts ? attempts.size() - kMostAttempts : 0;
  if (first > 0) text += fmt::format("    … {} earlier ones\n", first);
  for (std::size_t i = first; i < attempts.size(); ++i) {
    const Attempt& one = attempts[i];
    text += fmt::format(
        "    {:>3}  {}  {:>9}  steps {} to {}  {}\n", i + 1, utc(one.launched_s),
        format_duration(one.last_s - one.launched_s), one.first_step, one.last_step,
        ending_text(one.state, one.reason, one.exit_code ? std::to_string(*one.exit_code) : ""));
  }
  return text;
}

}  // namespace

RunReport read_run(const fs::path& given) {
  const fs::path directory = resolved(given);
  SummaryReader reader(directory);
  reader.refresh(this_machine());
  if (!reader.is_run()) {
    for (const SkippedFile& file : reader.skipped())
      user_error("{} {}", file.path.string(), file.why);
    user_error("{} holds no run: it has no status.json; give a run directory (run.dir)",
               given.string());
  }
  ReportJson status = read_json_object(directory / "status.json", kMostStatus);
  GoodputHistory history = read_goodput_history(directory);
  if (reader.summary().state == "lost") history.goodput.mark_lost();
  return {.directory = given,
          .summary = reader.summary(),
          .status = status.is_object() ? std::move(status) : ReportJson::object(),
          .goodput = std::move(history.goodput),
          .goodput_problem = std::move(history.problem),
          .last_steps = last_records(directory / "metrics.jsonl"),
          .experts = read_expert_history(directory / "experts.jsonl")};
}

std::string report_text(const RunReport& run) {
  const ReportJson& status = run.status;
  const RunSummary& summary = run.summary;
  std::string text =
      fmt::format("{}: {}\n", run.directory.string(),
                  ending_text(summary.state, summary.reason, value_text(status, "exit_code")));
  text +=
      fmt::format("  step {} of {}, {} tokens, loss {}, held-out loss {}; updated {}\n",
                  count_text(summary.step), count_text(summary.total_steps),
                  count_text(summary.tokens), loss_text(summary.loss),
                  loss_text(summary.valid_loss), summary.updated_s ? utc(*summary.updated_s) : "?");
  if (!summary.message.empty()) text += fmt::format("  message: {}\n", summary.message);
  text += fmt::format("  newest checkpoint: {}\n", value_text(status, "last_checkpoint", "none"));
  if (!run.last_steps.empty()) {
    text += "  last losses:";
    for (const ReportJson& step : run.last_steps)
      text += fmt::format(" {} (step {})", loss_text(number_at(step, "loss")),
                          value_text(step, "step", "?"));
    text += "\n";
  }
  if (status.contains("straggler") && status["straggler"].is_object())
    text += fmt::format("  slowest rank: {} on node {}, {} times the median of all ranks\n",
                        value_text(status["straggler"], "rank", "?"),
                        value_text(status["straggler"], "node", "?"),
                        loss_text(number_at(status["straggler"], "ratio")));
  for (const ExpertHistory::Layer* layer : worst_layers(run.experts, 1))
    text += fmt::format(
        "  experts: layer {} is the least even: {:.2f} × the mean load, entropy {:.3f}, {} of {} "
        "experts idle (step {})\n",
        layer->number, layer->max_load.back(), layer->entropy.back(), layer->idle.back(),
        run.experts.experts, run.experts.steps.back());
  if (std::error_code unknown; fs::exists(run.directory / "tensorboard", unknown))
    text += fmt::format("  charts: tensorboard --logdir {}\n",
                        (run.directory / "tensorboard").string());
  if (!run.goodput_problem.empty())
    text += fmt::format("  goodput: unknown, goodput.jsonl {}\n", run.goodput_problem);
  if (run.goodput.attempts().empty()) return text;
  return text + goodput_table(run.goodput) + attempt_lines(run.goodput.attempts());
}

ReportJson report_json(const RunReport& run) {
  ReportJson summary = to_json(run.summary);
  summary.erase("id");  // of an index of runs
  summary.erase("name");
  ReportJson json{{"directory", run.directory.string()},
                  {"summary", std::move(summary)},
                  {"status", run.status}};
  const GoodputAmounts all = run.goodput.seconds();
  for (const GoodputCategory& one : goodput_categories())
    json["goodput"][std::string(one.name) + "_s"] = all.*one.amount;
  json["goodput"]["total_s"] = all.total();
  json["goodput"]["fraction"] = all.fraction();
  for (const EnergyLevel level : kEnergyLevels)
    if (const GoodputAmounts joules = run.goodput.joules(level); joules.total() > 0)
      for (const GoodputCategory& one : goodput_categories())
        json["energy"][std::string(to_string(level))][std::string(one.name) + "_j"] =
            joules.*one.amount;
  json["attempts"] = ReportJson::array();
  for (const Attempt& one : run.goodput.attempts()) {
    ReportJson attempt{{"launched_s", one.launched_s}, {"last_s", one.last_s},
                       {"first_step", one.first_step}, {"last_step", one.last_step},
                       {"state", one.state},           {"reason", one.reason}};
    if (one.exit_code) attempt["exit_code"] = *one.exit_code;
    json["attempts"].push_back(std::move(attempt));
  }
  json["last_steps"] = run.last_steps;
  return json;
}

}  // namespace kintsugi
