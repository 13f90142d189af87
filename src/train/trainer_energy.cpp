// The energy of a run: of each step, and the report over all attempts.
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
#include "report/energy_ledger.h"
#include "train/trainer.h"

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

void Trainer::meter_with(JobEnergy& energy) {
  energy_ = &energy;
  // Once: later stages of this process find its own energy there.
  if (is_first() && !energy.earlier()) energy.set_earlier(read_nodes(directory_ / "energy.json"));
}

GoodputLog::Beginning Trainer::beginning() const {
  GoodputLog::Beginning beginning{.step = state_.step, .tokens = state_.tokens, .nodes = nodes()};
  if (energy_ == nullptr) return beginning;
  for (const EnergyLevel level : kEnergyLevels) {
    const MeterSource from = energy_->source(level);
    if (!from.source.empty())
      beginning.meters[level] = {from.source, from.kind, energy_->nodes_with(level)};
  }
  return beginning;
}

void Trainer::sum_energy() {
  if (energy_ == nullptr) return;
  std::vector<double> values;
  append_values(own_energy(), values);
  sum_over_ranks(values);
  note_energy(energy_totals_of(values));
}

void Trainer::note_energy(const EnergyTotals& now) {
  for (const EnergyLevel level : kEnergyLevels) {
    Metered& metered = metered_[level];
    if (energy_time_ == Clock::time_point{}) metered.since = Clock::now();
    const double seconds = seconds_since(metered.since);
    if (seconds < kJudge_s + 2 * config_.energy.sample_s) continue;
    const double covered_s = now[level].covered_s - metered.covered_s;
    const bool was_metered = metered.now;
    metered = {.since = Clock::now(),
               .covered_s = now[level].covered_s,
               .now = covered_s > kEnough * seconds * static_cast<double>(energy_->nodes())};
    if (was_metered && !metered.now && is_first() && energy_->best_level() == level)
      log_warning(
          "step {}: the energy of the {} is no longer metered on all nodes: energy_j is null until "
          "it is again; energy.json will say why",
          state_.step, parts_name(level));
  }
  energy_now_ = now;
  energy_time_ = Clock::now();
  if (is_first()) log_->goodput().note_energy(now);
}

// A step shorter than the time between two readings gets its share of the power at that time: the
// sum over steps is exact, a single step is not.
void Trainer::record_energy(const EnergyTotals& now) {
  if (energy_ == nullptr) return;
  const EnergyTotals before = energy_now_;
  const EnergyTotals recorded = std::exchange(energy_recorded_, now);
  const double elapsed_s = seconds_since(energy_time_);
  note_energy(now);
  const auto metered = [&](EnergyLevel level) {
    return now[level].covered_s > 0 && metered_[level].now;
  };
  const auto joules = [&](EnergyLevel level) -> std::optional<double> {
    if (!metered(level)) return {};
    // Since the last record, not the last sum: a save also sums, after the end of the step.
    return now[level].steps_j - recorded[level].steps_j;
  };
  record_.energy_gpu_j = joules(EnergyLevel::Gpu);
  record_.energy_node_j = joules(EnergyLevel::Node);
  record_.energy_since_launch.emplace();
  for (const EnergyLevel level : kEnergyLevels)
    (*record_.energy_since_launch)[level] = {now[level].total_j, now[level].covered_s};
  const std::optional<EnergyLevel> best = energy_->best_level();
  if (!best) return;
  record_.energy_j = joules(*best);
  record_.energy_scope = to_string(*best);
  if (record_.energy_j && elapsed_s > 0)
    record_.power_w = (now[*best].total_j - before[*best].total_j) / elapsed_s;
}

void Trainer::apply_power_policy() {
  if (energy_ == nullptr) return;
  const std::string line =
      energy_->after_step(record_.step, record_.step_tokens, record_.step_time_s, record_.energy_j);
  if (line.empty()) return;
  if (!energy_->power_effect()->refused.empty())
    log_warning("{}", line);  // of any node
  else if (is_first())
    log_info("{}", line);
}

void Trainer::add_nodes(EnergyReport& report) const {
  std::map<std::string, NodeEnergy> nodes;
  for (const NodeEnergy& node : energy_->earlier().value_or(std::vector<NodeEnergy>{}))
    nodes[node.name] = node;
  for (const NodeReading& reading : readings_) {
    NodeEnergy& node = nodes[reading.name];
    node.name = reading.name;
    node.note = reading.note;
    for (const EnergyLevel level : kEnergyLevels) {
      const NodeReading::Level& one = reading.levels[level];
      if (one.joules > 0) node.joules[level] = node.joules[level].value_or(0) + one.joules;
      if (one.counter_j <= 0) continue;
      LevelSource& source = report.source(level);
      source.counter_j = source.counter_j.value_or(0) + one.counter_j;
      source.integral_j = source.integral_j.value_or(0) + one.power_j;
    }
  }
  for (auto& [name, node] : nodes) report.by_node.push_back(std::move(node));
}

EnergyReport Trainer::energy_report() const {
  const Goodput ledger = log_->goodput().ledger();
  EnergyReport report{
      .run = directory_.filename().string(),
      .timestamp = iso_time(unix_time_s()).substr(0, 19),  // as CodeCarbon writes it
      .version = std::string(program_version()),
      .gpu_model = energy_->gpu_model(),
      .nodes = energy_->nodes(),
      .gpus = energy_->gpus()};
  if (!ledger.attempts().empty())
    report.run_id =
        hex64(hash64(fmt::format("{} {:.3f}", report.run, ledger.attempts().front().launched_s)));
  add_ledger(ledger, report);
  for (const EnergyLevel level : kEnergyLevels) {
    LevelSource& source = report.source(level);
    source.reason = energy_->source(level).reason;
    if (source.reason.empty() && report.coverage(level) < kEnough) source.reason = first_note();
    if (source.nodes == 0) source.nodes = energy_->nodes_with(level);
  }
  add_nodes(report);
  report.power_setting = setting_effect();
  add_context(energy_->context(), steps_of_stages(), report);
  return report;
}

// Why a meter did not cover all time.
std::string Trainer::first_note() const {
  for (const NodeReading& reading : readings_)
    if (!reading.note.empty()) return fmt::format("{}: {}", reading.name, reading.note);
  return "";
}

std::optional<PowerSettingEffect> Trainer::setting_effect() const {
  const std::optional<PowerEffect>& effect = energy_->power_effect();
  if (!effect || !effect->refused.empty() || !effect->before || !effect->after ||
      !energy_->best_level() || !effect->before->j_per_token() || !effect->after->j_per_token())
    return {};
  const auto rate = [](const StepEnergy& steps) {
    return PowerSettingEffect::Rate{steps.tokens_per_s(), *steps.j_per_token()};
  };
  return PowerSettingEffect{.setting = to_string(effect->settings),
                            .level = *energy_->best_level(),
                            .before = rate(*effect->before),
                            .after = rate(*effect->after)};
}

// The finished steps of each stage, up to the current one.
std::vector<std::int64_t> Trainer::steps_of_stages() const {
  std::vector<std::int64_t> steps;
  for (std::int64_t i = 0; i < config_.stage; ++i)
    steps.push_back(config_.stages[static_cast<std::size_t>(i)].total_steps());
  // After a failure, up to the step that an earlier attempt has reached.
  steps.push_back(std::max(state_.step, log_->goodput().ledger().furthest()) - state_.stage_start);
  return steps;
}

void Trainer::gather_energy() {
  if (energy_ == nullptr) return;
  sum_energy();
  readings_ = energy_->gather_readings(host());
}

void Trainer::write_energy(bool summary) {
  if (energy_ == nullptr || !is_first() || !log_) return;
  try {
    const EnergyReport report = energy_report();
    if (summary) {
      std::string text = to_text(report);
      while (text.ends_with('\n')) text.pop_back();
      log_info("{}", text);
    }
    write_file_atomically(directory_ / "energy.json", to_json(report),
                          summary ? OnDisk::Now : OnDisk::Later);
    if (summary) write_codecarbon(directory_ / "emissions.csv", report);
  } catch (const std::exception& error) {
    log_warning("{}: the run continues, but its energy report is out of date", error.what());
  }
}

}  // namespace kintsugi
