#include "train/trainer/energy_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/exchange.h"
#include "core/build_info.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/units.h"
#include "report/documents/wandb.h"
#include "report/goodput.h"

namespace kintsugi {
namespace {

// Whether a level is metered is judged over so long: it is, if almost all of this time was covered.
constexpr double kJudge_s = 5, kEnough = 0.9;

// Earlier attempts, from their energy.json. A file that cannot be read is replaced.
std::vector<NodeEnergy> read_nodes(const std::filesystem::path& file) {
  std::vector<NodeEnergy> nodes;
  nlohmann::json json;
  try {
    if (!std::filesystem::exists(file)) return nodes;
    json = nlohmann::json::parse(read_text_file(file), nullptr, false);
  } catch (const std::exception& error) {
    log_warning("{}: the energy of each node starts again at 0", error.what());
  }
  if (!json.is_object() || !json.contains("by_node") || !json["by_node"].is_array()) return nodes;
  for (const auto& one : json["by_node"]) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string()) continue;
    NodeEnergy node{.name = one["name"]};
    for (const EnergyLevel level : kEnergyLevels) {
      const auto at = nlohmann::json::json_pointer(fmt::format("/joules/{}", to_string(level)));
      if (one.contains(at) && one[at].is_number()) node.joules[level] = one[at].get<double>();
    }
    nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace

void EnergyAccount::meter_with(JobEnergy& energy) {
  run_.energy = &energy;
  // Once: later stages of this process find its own energy there.
  if (run_.is_first() && !energy.earlier())
    energy.set_earlier(read_nodes(run_.directory / "energy.json"));
}

GoodputLog::Beginning EnergyAccount::beginning() const {
  GoodputLog::Beginning beginning{
      .step = run_.state.step, .tokens = run_.state.tokens, .nodes = run_.nodes()};
  if (run_.energy == nullptr) return beginning;
  for (const EnergyLevel level : kEnergyLevels) {
    const MeterSource from = run_.energy->source(level);
    if (!from.source.empty())
      beginning.meters[level] = {from.source, from.kind, run_.energy->nodes_with(level)};
  }
  return beginning;
}

EnergyTotals EnergyAccount::own() const {
  return run_.energy != nullptr ? run_.energy->own() : EnergyTotals{};
}

void EnergyAccount::sum() {
  if (run_.energy == nullptr) return;
  std::vector<double> values;
  append_values(own(), values);
  run_.sum_over_ranks(values);
  note(energy_totals_of(values));
}

void EnergyAccount::note(const EnergyTotals& now) {
  for (const EnergyLevel level : kEnergyLevels) {
    Metered& metered = metered_[level];
    if (time_ == Clock::time_point{}) metered.since = Clock::now();
    const double seconds = seconds_since(metered.since);
    if (seconds < kJudge_s + 2 * run_.config.energy.sample_s) continue;
    const double covered_s = now[level].covered_s - metered.covered_s;
    const bool was_metered = metered.now;
    metered = {.since = Clock::now(),
               .covered_s = now[level].covered_s,
               .now = covered_s > kEnough * seconds * static_cast<double>(run_.energy->nodes())};
    if (was_metered && !metered.now && run_.is_first() && run_.energy->best_level() == level)
      log_warning(
          "step {}: the energy of the {} is no longer metered on all nodes: energy_j is null until "
          "it is again; energy.json will say why",
          run_.state.step, parts_name(level));
  }
  now_ = now;
  time_ = Clock::now();
  if (run_.is_first()) run_.log->goodput().note_energy(now);
}

// A step shorter than the time between two readings gets its share of the power at that time: the
// sum over steps is exact, a single step is not.
void EnergyAccount::record_step(const EnergyTotals& now) {
  if (run_.energy == nullptr) return;
  const EnergyTotals before = now_;
  const EnergyTotals recorded = std::exchange(recorded_, now);
  const double elapsed_s = seconds_since(time_);
  note(now);
  const auto metered = [&](EnergyLevel level) {
    return now[level].covered_s > 0 && metered_[level].now;
  };
  const auto joules = [&](EnergyLevel level) -> std::optional<double> {
    if (!metered(level)) return {};
    // Since the last record, not the last sum: a save also sums, after the end of the step.
    return now[level].steps_j - recorded[level].steps_j;
  };
  run_.record.energy_gpu_j = joules(EnergyLevel::Gpu);
  run_.record.energy_node_j = joules(EnergyLevel::Node);
  run_.record.energy_since_launch.emplace();
  for (const EnergyLevel level : kEnergyLevels)
    (*run_.record.energy_since_launch)[level] = {now[level].total_j, now[level].covered_s};
  const std::optional<EnergyLevel> best = run_.energy->best_level();
  if (!best) return;
  run_.record.energy_j = joules(*best);
  run_.record.energy_scope = to_string(*best);
  if (run_.record.energy_j && elapsed_s > 0)
    run_.record.power_w = (now[*best].total_j - before[*best].total_j) / elapsed_s;
}

void EnergyAccount::apply_power_policy() {
  if (run_.energy == nullptr) return;
  const std::string line = run_.energy->after_step(run_.record.step, run_.record.step_tokens,
                                                   run_.record.step_time_s, run_.record.energy_j);
  if (line.empty()) return;
  if (!run_.energy->power_effect()->refused.empty())
    log_warning("{}", line);  // of any node
  else if (run_.is_first())
    log_info("{}", line);
}

void EnergyAccount::add_nodes(EnergyReport& report) const {
  std::map<std::string, NodeEnergy> nodes;
  for (const NodeEnergy& node : run_.energy->earlier().value_or(std::vector<NodeEnergy>{}))
    nodes[node.name] = node;
  for (const NodeReading& reading : readings_) {
    NodeEnergy& node = nodes[reading.name];
    node.name = reading.name;
    node.note = reading.note;
    for (const EnergyLevel level : kEnergyLevels) {
      const NodeReading::Level& one = reading.levels[level];
      if (one.joules > 0) node.joules[level] = node.joules[level].value_or(0) + one.joules;
      if (one.counter_j <= 0) continue;
      LevelMeasurement& source = report.source(level);
      source.counter_j = source.counter_j.value_or(0) + one.counter_j;
      source.integral_j = source.integral_j.value_or(0) + one.power_j;
    }
  }
  for (auto& [name, node] : nodes) report.by_node.push_back(std::move(node));
}

EnergyReport EnergyAccount::report_now() const {
  const Goodput ledger = run_.log->goodput().ledger();
  EnergyReport report{
      .run = run_.directory.filename().string(),
      .timestamp = iso_time(unix_time_s()).substr(0, 19),  // as CodeCarbon writes it
      .version = std::string(program_version()),
      .gpu_model = run_.energy->gpu_model(),
      .nodes = run_.energy->nodes(),
      .gpus = run_.energy->gpus()};
  if (!ledger.attempts().empty())
    report.run_id = run_id(run_.directory, ledger.attempts().front().launched_s);
  add_ledger(ledger, report);
  for (const EnergyLevel level : kEnergyLevels) {
    LevelMeasurement& source = report.source(level);
    source.reason = run_.energy->source(level).reason;
    if (source.reason.empty() && report.coverage(level) < kEnough) source.reason = first_note();
    if (source.nodes == 0) source.nodes = run_.energy->nodes_with(level);
  }
  add_nodes(report);
  report.power_setting = setting_effect();
  add_context(run_.energy->context(), steps_of_stages(), report);
  return report;
}

// Why a meter did not cover all time.
std::string EnergyAccount::first_note() const {
  for (const NodeReading& reading : readings_)
    if (!reading.note.empty()) return fmt::format("{}: {}", reading.name, reading.note);
  return "";
}

std::optional<PowerSettingEffect> EnergyAccount::setting_effect() const {
  const std::optional<PowerEffect>& effect = run_.energy->power_effect();
  if (!effect || !effect->refused.empty() || !effect->before || !effect->after ||
      !run_.energy->best_level() || !effect->before->j_per_token() || !effect->after->j_per_token())
    return {};
  const auto rate = [](const StepEnergy& steps) {
    return PowerSettingEffect::Rate{steps.tokens_per_s(), *steps.j_per_token()};
  };
  return PowerSettingEffect{.setting = to_string(effect->settings),
                            .level = *run_.energy->best_level(),
                            .before = rate(*effect->before),
                            .after = rate(*effect->after)};
}

// The finished steps of each stage, up to the current one.
std::vector<std::int64_t> EnergyAccount::steps_of_stages() const {
  std::vector<std::int64_t> steps;
  for (std::int64_t i = 0; i < run_.config.stage; ++i)
    steps.push_back(run_.config.stages[i].total_steps());
  // After a failure, up to the step that an earlier attempt has reached.
  steps.push_back(std::max(run_.state.step, run_.log->goodput().ledger().furthest()) -
                  run_.state.stage_start);
  return steps;
}

void EnergyAccount::gather() {
  if (run_.energy == nullptr) return;
  sum();
  readings_ = run_.energy->gather_readings(run_.host());
}

void EnergyAccount::write(bool summary) {
  if (run_.energy == nullptr || !run_.is_first() || !run_.log) return;
  try {
    const EnergyReport report = report_now();
    if (summary) {
      std::string text = to_text(report);
      while (text.ends_with('\n')) text.pop_back();
      log_info("{}", text);
    }
    write_file_atomically(run_.directory / "energy.json", to_json(report),
                          summary ? OnDisk::Now : OnDisk::Later);
    if (summary) write_codecarbon(run_.directory / "emissions.csv", report);
  } catch (const std::exception& error) {
    log_warning("{}: the run continues, but its energy report is out of date", error.what());
  }
}

}  // namespace kintsugi
