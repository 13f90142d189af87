#include "train/records/run_sinks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "comm/launch_environment.h"
#include "core/file.h"
#include "core/log.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

constexpr double kPrometheusInterval_s = 5;

using Combine = StepMetric::Combine;

std::vector<ScalarPoint> points_of(const StepRecord& record) {
  std::vector<ScalarPoint> points;
  for (const StepMetric& metric : step_metrics())
    if (const auto value = number_of(metric, record); value && !metric.tag.empty())
      points.push_back({metric.tag, *value});
  for (const auto& [names, value] : named_values(record)) points.push_back({names->tag, value});
  if (record.valid.size() > 1)
    for (const StepRecord::Valid& set : record.valid) {
      points.push_back({"valid/loss/" + set.name, set.loss});
      if (set.bits_per_byte)
        points.push_back({"valid/bits_per_byte/" + set.name, *set.bits_per_byte});
    }
  for (const StepRecord::TaskMetric& one : record.tasks)
    points.push_back({"eval/" + one.task + "/" + one.metric, one.value});
  return points;
}

std::optional<double> combined(Combine how, std::optional<double> before, double value) {
  if (how == Combine::Last || !before) return value;
  return how == Combine::Sum ? *before + value : std::max(*before, value);
}

// The number after a key in a line of metrics.jsonl. Parsing all lines of a long run would delay
// its start.
std::optional<double> number_in(const std::string& line, const std::string& key) {
  const std::string name = "\"" + key + "\":";
  const std::size_t at = line.find(name);
  if (at == std::string::npos) return {};
  const char* begin = line.c_str() + at + name.size();
  char* end = nullptr;
  const double value = std::strtod(begin, &end);
  return end != begin && std::isfinite(value) && value >= 0 ? std::optional(value) : std::nullopt;
}

std::string absolute_path(const fs::path& path) {
  std::error_code unknown;
  const fs::path whole = fs::absolute(path, unknown);
  return (unknown ? path : whole).lexically_normal().string();
}

TrackerRun tracker_run(const fs::path& run_dir, GoodputLog& goodput) {
  const double start_s = goodput.ledger().attempts().at(0).launched_s;
  return {.id = run_id(run_dir, start_s),
          .name = fs::path(absolute_path(run_dir)).filename().string(),
          .start_s = start_s,
          .config = tracked_config(run_dir)};
}

// Metrics of one name are neighbours.
void add_value(const MetricNames& names, double value, std::vector<PrometheusMetric>& metrics) {
  const MetricNames::Prometheus& name = names.prometheus;
  if (name.name.empty()) return;
  if (metrics.empty() || metrics.back().name != name.name)
    metrics.push_back({name.name, names.help});
  PrometheusSample sample{.value = value};
  if (!name.label.empty()) sample.labels[name.label] = name.value;
  metrics.back().samples.push_back(std::move(sample));
}

std::vector<PrometheusMetric> validation_part(const std::vector<StepRecord::Valid>& sets) {
  PrometheusMetric loss{"kintsugi_valid_set_loss", "Loss of the last validation on each set."};
  PrometheusMetric bits{"kintsugi_valid_set_bits_per_byte",
                        "Bits per byte of the last validation on each set."};
  for (const StepRecord::Valid& set : sets) {
    loss.samples.push_back({{{"set", set.name}}, set.loss});
    if (set.bits_per_byte) bits.samples.push_back({{{"set", set.name}}, *set.bits_per_byte});
  }
  return {loss, bits};
}

std::vector<PrometheusMetric> task_part(const std::vector<StepRecord::TaskMetric>& tasks) {
  PrometheusMetric value{"kintsugi_eval", "Metrics of tasks in the last evaluation."};
  PrometheusMetric error{"kintsugi_eval_stderr", "Their standard errors."};
  for (const StepRecord::TaskMetric& one : tasks) {
    const auto add = [&](PrometheusMetric& to, double x) {
      to.samples.push_back({{{"task", one.task}, {"metric", one.metric}}, x});
    };
    add(value, one.value);
    if (one.stderr_of_mean) add(error, *one.stderr_of_mean);
  }
  return {value, error};
}

// Of all attempts, with everything that the run did.
PrometheusMetric energy_part(const ByLevel<double>& joules) {
  PrometheusMetric energy{"kintsugi_energy_joules_total", "Energy of the run, by level."};
  for (const EnergyLevel level : kEnergyLevels)
    if (joules[level] > 0)
      energy.samples.push_back({{{"level", std::string(to_string(level))}}, joules[level]});
  return energy;
}

// Of all attempts; kintsugi report shows the same categories.
std::vector<PrometheusMetric> goodput_part(const std::vector<Attempt>& attempts,
                                           const GoodputAmounts& seconds) {
  PrometheusMetric productive{"kintsugi_productive_seconds_total",
                              "Time in steps that were done for the first time."};
  PrometheusMetric lost{"kintsugi_lost_seconds_total", "All other time of the run, by cause."};
  PrometheusMetric restarts{"kintsugi_restart_total",
                            "Attempts after the first, by how the one before ended."};
  if (attempts.empty()) return {};
  for (const GoodputCategory& one : goodput_categories())
    if (one.amount == &GoodputAmounts::productive)
      productive.samples.push_back({.value = seconds.productive});
    else
      lost.samples.push_back({{{"cause", one.name}}, seconds.*one.amount});
  for (const char* state : {"diverged", "failed", "finished", "lost", "stopped"})
    restarts.samples.push_back(
        {{{"cause", state}},
         static_cast<double>(std::count_if(attempts.begin(), attempts.end() - 1,
                                           [&](const Attempt& a) { return a.state == state; }))});
  return {productive, lost, restarts};
}

}  // namespace

RunSinks::RunSinks(const fs::path& run_dir, std::int64_t total_steps, std::function<double()> now_s,
                   SinkOptions options)
    : options_(options),
      events_(run_dir / "tensorboard", node_name(), now_s),
      wandb_(run_dir, now_s),
      file_(run_dir / "metrics.prom"),
      run_dir_(run_dir),
      run_(absolute_path(run_dir)),
      total_steps_(total_steps),
      now_s_(std::move(now_s)),
      values_(step_metrics().size()) {}

void RunSinks::add_earlier(const std::string& line) noexcept {
  if (!options_.prometheus) return;
  for (std::size_t i = 0; i < values_.size(); ++i) try {
      const StepMetric& metric = step_metrics()[i];
      const Combine how = metric.prometheus.combine;
      if (how == Combine::Last) continue;
      if (const auto value = number_in(line, metric.json))
        values_[i] = combined(how, values_[i], *value);
    } catch (...) {  // no memory
    }
}

void RunSinks::note(const StepRecord& record) {
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const StepMetric& metric = step_metrics()[i];
    const Combine how = metric.prometheus.combine;
    if (const auto value = number_of(metric, record))
      values_[i] = combined(how, values_[i], *value);
    else if (how == Combine::Last && metric.missing == StepMetric::Missing::Null)
      values_[i].reset();
  }
  for (const auto& [names, value] : named_values(record)) {
    const auto same = std::ranges::find_if(
        scalars_, [&](const auto& one) { return one.first.json == names->json; });
    if (same == scalars_.end())
      scalars_.emplace_back(*names, value);
    else
      same->second = value;
  }
  if (record.valid.size() > 1) valid_ = record.valid;
  if (!record.tasks.empty()) tasks_ = record.tasks;
}

std::vector<PrometheusMetric> RunSinks::prometheus_metrics(GoodputLog& log) {
  std::vector<PrometheusMetric> metrics;
  for (std::size_t i = 0; i < values_.size(); ++i)
    if (values_[i]) add_value(step_metrics()[i], *values_[i], metrics);
  for (const auto& [names, value] : scalars_) add_value(names, value, metrics);
  const auto append = [&](std::vector<PrometheusMetric> more) {
    metrics.insert(metrics.end(), more.begin(), more.end());
  };
  append(validation_part(valid_));
  append(task_part(tasks_));
  const Goodput goodput = log.ledger();
  const GoodputAmounts now = goodput.seconds();
  for (const GoodputCategory& one : goodput_categories())
    seconds_.*one.amount = std::max(seconds_.*one.amount, now.*one.amount);
  append(goodput_part(goodput.attempts(), seconds_));
  for (const EnergyLevel level : kEnergyLevels)
    joules_[level] = std::max(joules_[level], goodput.joules(level).total());
  if (PrometheusMetric energy = energy_part(joules_); !energy.samples.empty())
    metrics.push_back(std::move(energy));
  if (const auto seconds = log.last_save_s())
    metrics.push_back({"kintsugi_checkpoint_seconds",
                       "Time in which the steps waited for the last save.",
                       {{.value = *seconds}}});
  metrics.push_back({"kintsugi_planned_steps",
                     "Steps of the whole run.",
                     {{.value = static_cast<double>(total_steps_)}}});
  metrics.push_back(
      {"kintsugi_running", "1 until the attempt ends.", {{.value = running_ ? 1.0 : 0.0}}});
  metrics.push_back({"kintsugi_updated_timestamp_seconds",
                     "When this file was written, in seconds since 1970.",
                     {{.value = now_s_()}}});
  for (PrometheusMetric& metric : metrics)
    for (PrometheusSample& sample : metric.samples) sample.labels["run"] = run_;
  return metrics;
}

void RunSinks::write_prometheus(GoodputLog& goodput) {
  try {
    next_write_s_ = now_s_() + kPrometheusInterval_s;
    write_file_atomically(file_, prometheus_text(prometheus_metrics(goodput)),
                          running_ ? OnDisk::Later : OnDisk::Now);
  } catch (const std::exception& error) {
    if (std::exchange(lost_, true)) return;
    log_warning("{}: the run continues, but metrics.prom is out of date", error.what());
  }
}

void RunSinks::add(const StepRecord& record, std::string_view line, GoodputLog& goodput) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (options_.tensorboard) events_.add(record.step, points_of(record));
    if (options_.wandb && events_.is_in_place())
      wandb_.add(line, [&] { return tracker_run(run_dir_, goodput); });
    if (!options_.prometheus) return;
    note(record);
    if (now_s_() >= next_write_s_) write_prometheus(goodput);
  } catch (...) {  // no memory
  }
}

void RunSinks::end(GoodputLog& goodput, int exit_code) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    running_ = false;
    events_.flush();
    if (events_.is_in_place()) wandb_.end(exit_code);
    if (options_.prometheus) write_prometheus(goodput);
  } catch (...) {
  }
}

}  // namespace kintsugi
