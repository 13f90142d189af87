#include "train/records/goodput_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/file.h"
#include "core/log.h"

namespace kintsugi {
namespace {

constexpr double kRecordInterval_s = 60;

}  // namespace

std::optional<double> submission_time(const std::filesystem::path& run_dir) {
  const std::filesystem::path file = run_dir / "launch" / "job.json";
  std::error_code unknown;
  if (!std::filesystem::exists(file, unknown)) return {};
  try {
    const auto job = nlohmann::json::parse(read_text_file(file));
    const double time = job.at("submitted_s");
    return time > 0 ? std::optional(time) : std::nullopt;
  } catch (const std::exception&) {
    return {};  // whoever reads the whole file reports what is wrong with it
  }
}

std::optional<double> last_save_time(const std::filesystem::path& run_dir) {
  Goodput ledger;
  ledger.add(read_goodput(run_dir / "goodput.jsonl"));
  return ledger.save_s();
}

GoodputLog::GoodputLog(const std::filesystem::path& run_dir, AttemptClock clock,
                       const std::vector<std::string>& last_records)
    : file_(run_dir / "goodput.jsonl"), clock_(std::move(clock)) {
  drop_partial_line(file_);
  const std::vector<GoodputEvent> events = read_goodput(file_);
  ledger_.add(events);
  const GoodputEvent before = signs_of(run_dir / "metrics.jsonl", last_records,
                                       events.empty() ? GoodputEvent{} : events.back());
  first_ = {.kind = GoodputEvent::Kind::Start,
            .launched_s = clock_.launched_s,
            .submitted_s = submission_time(run_dir),
            .alive_s = before.alive_s,
            .reached = before.reached,
            .reached_tokens = before.reached_tokens,
            .unrecorded_steps_s = before.unrecorded_steps_s,
            .spent = before.spent};
}

GoodputEvent GoodputLog::now(GoodputEvent::Kind kind) const {
  GoodputEvent event = current_;
  event.kind = kind;
  event.time_s = clock_.now_s();
  return event;
}

void GoodputLog::write(GoodputEvent event) {
  next_record_s_ = event.time_s + kRecordInterval_s;
  ledger_.add(event);
  try {
    append_to_file(file_, to_json_line(event) + "\n");
  } catch (const std::exception& error) {
    if (std::exchange(lost_, true)) return;
    log_warning("{}: the run continues, but its goodput is not recorded", error.what());
  }
}

void GoodputLog::start(const Beginning& beginning) {
  const std::lock_guard lock(mutex_);
  first_.time_s = clock_.now_s();
  first_.step = current_.step = beginning.step;
  first_.tokens = current_.tokens = beginning.tokens;
  first_.nodes = beginning.nodes;
  first_.meters = beginning.meters;
  first_.energy = current_.energy;
  started_ = true;
  write(first_);
}

void GoodputLog::note_energy(const EnergyTotals& since_launch) {
  const std::lock_guard lock(mutex_);
  current_.energy = since_launch;
}

void GoodputLog::note_stage_end() {
  const std::lock_guard lock(mutex_);
  write(now(GoodputEvent::Kind::Progress));
}

void GoodputLog::note_step(const Step& step) {
  const std::lock_guard lock(mutex_);
  const bool last_again = step.step == ledger_.furthest();  // from here on, steps are new
  current_.steps_s += step.seconds;
  current_.exposed_s += std::min(step.exposed_s, step.seconds);
  current_.step = step.step;
  current_.tokens = step.tokens;
  const GoodputEvent event = now(GoodputEvent::Kind::Progress);
  if (last_again || event.time_s >= next_record_s_) write(event);
}

void GoodputLog::note_save(double seconds) {
  const std::lock_guard lock(mutex_);
  current_.checkpoint_s += seconds;
  last_save_s_ = seconds;
}

void GoodputLog::note_saved(double seconds) {
  const std::lock_guard lock(mutex_);
  current_.save_s = seconds;
}

void GoodputLog::note_validation(double seconds) {
  const std::lock_guard lock(mutex_);
  current_.validation_s += seconds;
}

void GoodputLog::rewind(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  write(now(GoodputEvent::Kind::Progress));
  current_.step = step;
  write(now(GoodputEvent::Kind::Progress));
}

void GoodputLog::end(const std::string& state, const std::string& reason,
                     std::optional<int> exit_code) {
  const std::lock_guard lock(mutex_);
  if (!started_ || std::exchange(ended_, true)) return;
  GoodputEvent event = now(GoodputEvent::Kind::End);
  event.state = state;
  event.reason = reason;
  event.exit_code = exit_code;
  write(event);
}

Goodput GoodputLog::up_to_now() const {
  Goodput live = ledger_;
  if (started_ && !ended_) live.add(now(GoodputEvent::Kind::Progress));
  return live;
}

Goodput GoodputLog::ledger() {
  const std::lock_guard lock(mutex_);
  return up_to_now();
}

std::optional<double> GoodputLog::last_save_s() {
  const std::lock_guard lock(mutex_);
  return last_save_s_;
}

void GoodputLog::add_to(nlohmann::ordered_json& status) {
  const std::lock_guard lock(mutex_);
  if (!started_) return;
  const Goodput live = up_to_now();
  const GoodputAmounts seconds = live.seconds();
  status["attempt"] = live.attempts().size();
  for (const GoodputCategory& one : goodput_categories())
    status["goodput"][std::string(one.name) + "_s"] = seconds.*one.amount;
  status["goodput"]["fraction"] = seconds.fraction();
  for (const EnergyLevel level : kEnergyLevels)
    if (const double joules = live.joules(level).total(); joules > 0)
      status["energy_j"][std::string(to_string(level))] = joules;
}

}  // namespace kintsugi
