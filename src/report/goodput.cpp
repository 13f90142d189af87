#include "report/goodput.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/json_members.h"

namespace kintsugi {
namespace {

using GoodputJson = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kKinds = {"start", "progress", "end"};

constexpr const char* kSinceLaunch = "energy_since_launch";  // in metrics.jsonl
constexpr std::size_t kLeastRecordBytes = 20, kMostRecordBytes = 64 << 10;
constexpr double kLargest = 1e15;  // of times, durations and steps

double number_of(const GoodputJson& json, const char* key, double otherwise = 0) {
  const std::optional<double> value = number_at(json, key);
  return value && std::abs(*value) <= kLargest ? *value : otherwise;
}

std::optional<double> optional_number(const GoodputJson& json, const char* key) {
  const double value = number_of(json, key, NAN);
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

std::int64_t step_of(const GoodputJson& json, const char* key) {
  return static_cast<std::int64_t>(std::clamp(number_of(json, key), 0.0, kLargest));
}

// Null if there is none.
const GoodputJson& of_level(const GoodputJson& json, const char* key, EnergyLevel level) {
  return json_at(json_at(json, key), std::string(to_string(level)).c_str());
}

struct EnergyField {
  const char* name;
  double LevelEnergy::*value;
};
constexpr std::array<EnergyField, 5> kEnergyFields = {{{"total_j", &LevelEnergy::total_j},
                                                       {"steps_j", &LevelEnergy::steps_j},
                                                       {"checkpoint_j", &LevelEnergy::checkpoint_j},
                                                       {"validation_j", &LevelEnergy::validation_j},
                                                       {"covered_s", &LevelEnergy::covered_s}}};

// Levels that were not metered are left out.
void add_energy(GoodputJson& json, const EnergyTotals& energy) {
  for (const EnergyLevel level : kEnergyLevels)
    if (energy[level] != LevelEnergy{})
      for (const EnergyField& one : kEnergyFields)
        json["energy"][std::string(to_string(level))][one.name] = energy[level].*one.value;
}

EnergyTotals energy_in(const GoodputJson& json) {
  EnergyTotals energy;
  for (const EnergyLevel level : kEnergyLevels) {
    const GoodputJson& of = of_level(json, "energy", level);
    for (const EnergyField& one : kEnergyFields)
      energy[level].*one.value = std::max(0.0, number_of(of, one.name));
  }
  return energy;
}

void add_spent(GoodputJson& json, const char* key, EnergyLevel level, const LevelAmount& spent) {
  json[key][std::string(to_string(level))] = {{"j", spent.joules}, {"covered_s", spent.covered_s}};
}

void add_start(GoodputJson& json, const GoodputEvent& event) {
  json["launched_s"] = event.launched_s;
  json["nodes"] = event.nodes;
  if (event.submitted_s) json["submitted_s"] = *event.submitted_s;
  if (event.alive_s) json["alive_s"] = *event.alive_s;
  if (event.reached) json["reached"] = *event.reached;
  if (event.reached_tokens) json["reached_tokens"] = *event.reached_tokens;
  if (event.unrecorded_steps_s) json["unrecorded_steps_s"] = *event.unrecorded_steps_s;
  for (const EnergyLevel level : kEnergyLevels) {
    const std::string name(to_string(level));
    if (event.spent) add_spent(json, "spent", level, (*event.spent)[level]);
    if (const LevelMeter& meter = event.meters[level]; meter != LevelMeter{})
      json["meters"][name] = {
          {"source", meter.source}, {"kind", to_string(meter.kind)}, {"nodes", meter.nodes}};
  }
}

std::optional<ByLevel<LevelAmount>> spent_in(const GoodputJson& json, const char* key) {
  if (!json.contains(key)) return {};
  ByLevel<LevelAmount> spent;
  for (const EnergyLevel level : kEnergyLevels) {
    const GoodputJson& one = of_level(json, key, level);
    spent[level] = {std::max(0.0, number_of(one, "j")), std::max(0.0, number_of(one, "covered_s"))};
  }
  return spent;
}

ByLevel<LevelMeter> meters_in(const GoodputJson& json) {
  ByLevel<LevelMeter> meters;
  for (const EnergyLevel level : kEnergyLevels) {
    const GoodputJson& one = of_level(json, "meters", level);
    meters[level] = {.source = text_at(one, "source"), .nodes = step_of(one, "nodes")};
    for (const MeterKind kind : {MeterKind::Power, MeterKind::Estimate})
      if (text_at(one, "kind") == to_string(kind)) meters[level].kind = kind;
  }
  return meters;
}

// A quantity at one time: in all and in three phases, each growing. Seconds, or joules of one
// level.
struct Quantity {
  double total = 0, steps = 0, checkpoint = 0, validation = 0;
};

Quantity seconds_at(const GoodputEvent& event) {
  return {event.time_s, event.steps_s, event.checkpoint_s, event.validation_s};
}
Quantity joules_at(const GoodputEvent& event, EnergyLevel level) {
  const LevelEnergy& e = event.energy[level];
  return {e.total_j, e.steps_j, e.checkpoint_j, e.validation_j};
}

// How steps are divided between categories.
struct StepShares {
  double repeated = 0;  // done before
  double exposed = 0;   // waited for communication
};

void charge_steps(double amount, const StepShares& shares, GoodputAmounts& charged) {
  charged.recomputed += amount * shares.repeated;
  charged.productive += amount * (1 - shares.repeated);
  charged.exposed += amount * (1 - shares.repeated) * shares.exposed;
}

// Charges what was used between two times. No category gets more than was used in all.
void charge(const Quantity& from, const Quantity& to, const StepShares& shares,
            GoodputAmounts& charged) {
  const double used = std::max(0.0, to.total - from.total);
  const double steps = std::max(0.0, to.steps - from.steps),
               checkpoint = std::max(0.0, to.checkpoint - from.checkpoint),
               validation = std::max(0.0, to.validation - from.validation);
  const double measured = steps + checkpoint + validation;
  const double scale = measured > used ? used / measured : 1.0;
  charge_steps(steps * scale, shares, charged);
  charged.checkpoint += checkpoint * scale;
  charged.validation += validation * scale;
  charged.other += std::max(0.0, used - measured);
}

// The time in the steps since the last event. Steps only grow since then: a rewind is an event.
std::optional<double> steps_since(const std::vector<std::string>& records,
                                  const GoodputEvent& last) {
  double seconds = 0, known = 0;
  std::int64_t reached = -1, before = -1;
  for (auto line = records.rbegin(); line != records.rend(); ++line) {
    const std::optional<GoodputJson> record = parse_untrusted_json(*line);
    if (!record || !record->is_object() || !record->contains("step")) continue;
    const std::int64_t step = step_of(*record, "step");
    if (step <= last.step || (before >= 0 && step >= before)) break;
    if (reached < 0) reached = step;
    before = step;
    const double time = number_of(*record, "step_time_s", -1);
    if (time < 0) continue;
    seconds += time;
    ++known;
  }
  if (known == 0) return {};
  return seconds * static_cast<double>(reached - last.step) / known;
}

// The amount of one phase: seconds, or joules of one level.
double amount_in(EnergyPhase phase, const GoodputAmounts& all) {
  const std::array<double, kEnergyPhases.size()> amounts = {all.productive - all.exposed,
                                                            all.exposed,
                                                            all.checkpoint,
                                                            all.validation,
                                                            all.startup,
                                                            all.other,
                                                            all.recomputed};
  return amounts[static_cast<std::size_t>(phase)];
}

// Without the time before the launch.
double seconds_of(const Attempt& attempt) {
  return attempt.seconds.total() - attempt.seconds.waiting - attempt.seconds.down;
}

AttemptEnergy energy_of(const Attempt& attempt) {
  AttemptEnergy energy{.first_step = attempt.first_step,
                       .last_step = attempt.last_step,
                       .seconds = seconds_of(attempt),
                       .state = attempt.state};
  for (const EnergyLevel level : kEnergyLevels) {
    if (attempt.covered_s[level] <= 0) continue;
    energy.joules[level] = attempt.joules[level].total();
    energy.lost[level] = attempt.joules[level].recomputed;
  }
  return energy;
}

// The source of a level over several attempts: all sources, and the least reliable kind.
void add_meter(const LevelMeter& meter, LevelMeasurement& source) {
  if (source.source.empty()) {
    source.source = meter.source;
    source.kind = meter.kind;
  } else if (source.source.find(meter.source) == std::string::npos) {
    source.source += ", " + meter.source;
  }
  source.kind = std::max(source.kind, meter.kind);
  source.nodes = meter.nodes;
}

}  // namespace

GoodputEvent signs_of(const std::filesystem::path& metrics,
                      const std::vector<std::string>& last_records, const GoodputEvent& last) {
  GoodputEvent signs;
  struct stat status {};
  if (::stat(metrics.c_str(), &status) == 0)
    signs.alive_s = static_cast<double>(status.st_mtim.tv_sec) +
                    1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
  const GoodputJson record = last_records.empty()
                                 ? GoodputJson()
                                 : parse_untrusted_json(last_records.back()).value_or(nullptr);
  if (!record.is_object() || !record.contains("step")) return signs;
  signs.reached = step_of(record, "step");
  signs.reached_tokens = step_of(record, "tokens");
  signs.unrecorded_steps_s = steps_since(last_records, last);
  signs.spent = spent_in(record, kSinceLaunch);
  return signs;
}

void add_since_launch(GoodputJson& record, const ByLevel<LevelAmount>& energy) {
  record[kSinceLaunch] = GoodputJson::object();
  for (const EnergyLevel level : kEnergyLevels)
    if (energy[level].covered_s > 0) add_spent(record, kSinceLaunch, level, energy[level]);
}

std::string to_json_line(const GoodputEvent& event) {
  GoodputJson json{{"event", kKinds[static_cast<std::size_t>(event.kind)]},
                   {"time_s", event.time_s},
                   {"step", event.step},
                   {"tokens", event.tokens}};
  if (event.kind == GoodputEvent::Kind::Start) {
    add_start(json, event);
  } else {
    json["steps_s"] = event.steps_s;
    json["checkpoint_s"] = event.checkpoint_s;
    json["validation_s"] = event.validation_s;
    if (event.exposed_s > 0) json["exposed_s"] = event.exposed_s;
    if (event.save_s) json["save_s"] = *event.save_s;
  }
  add_energy(json, event.energy);
  if (event.kind == GoodputEvent::Kind::End) {
    json["state"] = event.state;
    if (!event.reason.empty()) json["reason"] = event.reason;
    if (event.exit_code) json["exit_code"] = *event.exit_code;
  }
  return json.dump(-1, ' ', false, GoodputJson::error_handler_t::replace);
}

std::optional<GoodputEvent> parse_goodput_line(std::string_view line) {
  if (line.size() < kLeastRecordBytes || line.size() > kMostRecordBytes) return {};
  const std::optional<GoodputJson> parsed = parse_untrusted_json(line);
  if (!parsed || !parsed->is_object()) return {};
  const GoodputJson& json = *parsed;
  const auto kind = std::find(kKinds.begin(), kKinds.end(), text_at(json, "event"));
  const std::optional<double> time = optional_number(json, "time_s");
  if (kind == kKinds.end() || !time) return {};
  GoodputEvent event{.kind = static_cast<GoodputEvent::Kind>(kind - kKinds.begin()),
                     .time_s = *time,
                     .step = step_of(json, "step"),
                     .tokens = step_of(json, "tokens"),
                     .launched_s = number_of(json, "launched_s", *time),
                     .nodes = std::max<std::int64_t>(1, step_of(json, "nodes")),
                     .submitted_s = optional_number(json, "submitted_s"),
                     .alive_s = optional_number(json, "alive_s"),
                     .unrecorded_steps_s = optional_number(json, "unrecorded_steps_s"),
                     .spent = spent_in(json, "spent"),
                     .meters = meters_in(json),
                     .steps_s = number_of(json, "steps_s"),
                     .checkpoint_s = number_of(json, "checkpoint_s"),
                     .validation_s = number_of(json, "validation_s"),
                     .exposed_s = number_of(json, "exposed_s"),
                     .save_s = optional_number(json, "save_s"),
                     .energy = energy_in(json),
                     .state = text_at(json, "state"),
                     .reason = text_at(json, "reason")};
  if (event.kind != GoodputEvent::Kind::Start) {
    event.launched_s = 0;
    event.nodes = 1;
  }
  if (json.contains("reached")) event.reached = step_of(json, "reached");
  if (json.contains("reached_tokens")) event.reached_tokens = step_of(json, "reached_tokens");
  if (const auto code = optional_number(json, "exit_code"))
    event.exit_code = static_cast<int>(std::clamp(*code, 0.0, 255.0));
  return event;
}

std::vector<GoodputEvent> read_goodput(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<GoodputEvent> events;
  for (std::string line; std::getline(stream, line);)
    if (auto event = parse_goodput_line(line)) events.push_back(std::move(*event));
  return events;
}

const std::vector<GoodputCategory>& goodput_categories() {
  static const std::vector<GoodputCategory> categories = {
      {"productive", &GoodputAmounts::productive},
      {"recomputed", &GoodputAmounts::recomputed},
      {"checkpoint", &GoodputAmounts::checkpoint},
      {"validation", &GoodputAmounts::validation},
      {"startup", &GoodputAmounts::startup},
      {"waiting", &GoodputAmounts::waiting},
      {"down", &GoodputAmounts::down},
      {"other", &GoodputAmounts::other}};
  return categories;
}

double GoodputAmounts::total() const {
  double sum = 0;
  for (const GoodputCategory& one : goodput_categories()) sum += this->*one.amount;
  return sum;
}

double GoodputAmounts::fraction() const {
  const double all = total();
  return all > 0 ? productive / all : 0;
}

GoodputAmounts& GoodputAmounts::operator+=(const GoodputAmounts& more) {
  for (const GoodputCategory& one : goodput_categories()) this->*one.amount += more.*one.amount;
  exposed += more.exposed;
  return *this;
}

GoodputAmounts Goodput::seconds() const {
  GoodputAmounts sum;
  for (const Attempt& attempt : attempts_) sum += attempt.seconds;
  return sum;
}

GoodputAmounts Goodput::joules(EnergyLevel level) const {
  GoodputAmounts sum;
  for (const Attempt& attempt : attempts_) sum += attempt.joules[level];
  return sum;
}

std::optional<double> Goodput::joules_per_token(EnergyLevel level) const {
  if (trained_tokens() == 0) return {};
  return joules(level).total() / static_cast<double>(trained_tokens());
}

double Goodput::coverage(EnergyLevel level) const {
  double covered_s = 0, node_s = 0;
  for (const Attempt& attempt : attempts_) {
    covered_s += attempt.covered_s[level];
    node_s += static_cast<double>(attempt.nodes) *
              (attempt.seconds.total() - attempt.seconds.waiting - attempt.seconds.down);
  }
  return node_s > 0 ? std::min(1.0, covered_s / node_s) : 0;
}

std::optional<EnergyLevel> Goodput::metered_level() const {
  ByLevel<double> part;
  for (const EnergyLevel level : kEnergyLevels) part[level] = coverage(level);
  return standing_level(part);
}

void Goodput::reach(std::int64_t step, std::int64_t tokens) {
  if (step < furthest_) return;
  furthest_ = step;
  furthest_tokens_ = std::max(furthest_tokens_, tokens);
}

double Goodput::repeated_share(std::int64_t step) const {
  const std::int64_t before = last_.step;
  const std::int64_t again = std::clamp(furthest_, before, std::max(before, step)) - before;
  return step > before ? static_cast<double>(again) / static_cast<double>(step - before) : 1.0;
}

void Goodput::add_later_signs(const GoodputEvent& next) {
  if (ended_) return;
  Attempt& lost = attempts_.back();
  const double latest = next.launched_s > 0 ? next.launched_s : next.alive_s.value_or(0);
  const double alive =
      std::clamp(next.alive_s.value_or(last_.time_s), last_.time_s, std::max(last_.time_s, latest));
  // Without a later sign of life, the step is one of an earlier attempt.
  const std::int64_t reached =
      alive > last_.time_s ? std::max(next.reached.value_or(last_.step), last_.step) : last_.step;
  const bool trained = reached > last_.step;
  const StepShares shares{.repeated = repeated_share(reached)};
  const double silent_s = alive - last_.time_s;  // without an event
  double in_steps = trained ? 1 : 0;             // part of that time
  if (trained && next.unrecorded_steps_s && silent_s > 0)
    in_steps = std::clamp(*next.unrecorded_steps_s / silent_s, 0.0, 1.0);
  const auto use = [&](double amount, GoodputAmounts& charged) {
    charge_steps(amount * in_steps, shares, charged);
    charged.other += amount * (1 - in_steps);
  };
  use(silent_s, lost.seconds);
  if (alive > last_.time_s && next.spent)
    for (const EnergyLevel level : kEnergyLevels) {
      const LevelAmount& spent = (*next.spent)[level];
      use(std::max(0.0, spent.joules - last_.energy[level].total_j), lost.joules[level]);
      lost.covered_s[level] = std::max(lost.covered_s[level], spent.covered_s);
    }
  reach(reached, trained ? next.reached_tokens.value_or(0) : 0);
  lost.last_s = alive;
  lost.last_step = reached;
}

void Goodput::close_lost(const GoodputEvent& next) {
  add_later_signs(next);
  mark_lost();
}

void Goodput::mark_lost() {
  if (ended_) return;
  attempts_.back().state = "lost";
  attempts_.back().reason = "it ended without a record: killed, or its node was lost";
}

void Goodput::begin_attempt(const GoodputEvent& event) {
  if (!ended_) close_lost(event);
  Attempt attempt{.nodes = event.nodes,
                  .launched_s = event.launched_s,
                  .first_step = event.step,
                  .meters = event.meters};
  if (attempts_.empty()) {
    first_ = event.step;
    first_tokens_ = event.tokens;
    attempt.seconds.waiting =
        std::max(0.0, event.launched_s - event.submitted_s.value_or(event.launched_s));
  } else {
    const Attempt& before = attempts_.back();
    const double gap = std::max(0.0, event.launched_s - before.last_s);
    // A job that was submitted before the last launch is still the same one: it was not queued.
    const double submitted = event.submitted_s.value_or(before.launched_s);
    if (submitted > before.launched_s)
      attempt.seconds.waiting = std::clamp(event.launched_s - submitted, 0.0, gap);
    attempt.seconds.down = gap - attempt.seconds.waiting;
  }
  attempts_.push_back(std::move(attempt));
  last_ = {.time_s = event.launched_s};
  ended_ = false;
}

void Goodput::start(const GoodputEvent& event) {
  const bool next_stage = !ended_ && attempts_.back().launched_s == event.launched_s;
  if (!next_stage) begin_attempt(event);
  const double time = std::max(event.time_s, last_.time_s);
  Attempt& attempt = attempts_.back();
  attempt.seconds.startup += time - last_.time_s;
  for (const EnergyLevel level : kEnergyLevels) {
    attempt.joules[level].startup +=
        std::max(0.0, event.energy[level].total_j - last_.energy[level].total_j);
    attempt.covered_s[level] = event.energy[level].covered_s;
  }
  attempt.last_s = time;
  attempt.last_step = event.step;
  last_ = {.time_s = time, .step = event.step, .energy = event.energy};
}

void Goodput::add(const GoodputEvent& event) {
  if (event.kind == GoodputEvent::Kind::Start) return start(event);
  if (ended_) return;  // its start is lost
  Attempt& attempt = attempts_.back();
  const double steps = event.steps_s - last_.steps_s,
               exposed = std::max(0.0, event.exposed_s - last_.exposed_s);
  const StepShares shares{.repeated = repeated_share(event.step),
                          .exposed = steps > 0 ? std::min(1.0, exposed / steps) : 0.0};
  charge(seconds_at(last_), seconds_at(event), shares, attempt.seconds);
  for (const EnergyLevel level : kEnergyLevels) {
    charge(joules_at(last_, level), joules_at(event, level), shares, attempt.joules[level]);
    attempt.covered_s[level] = std::max(attempt.covered_s[level], event.energy[level].covered_s);
  }
  reach(event.step, event.tokens);
  if (event.save_s && *event.save_s >= 0) save_s_ = event.save_s;
  const double time = std::max(last_.time_s, event.time_s);
  last_ = event;
  last_.time_s = time;
  attempt.last_s = time;
  attempt.last_step = event.step;
  if (event.kind != GoodputEvent::Kind::End) return;
  ended_ = true;
  attempt.state = event.state;
  attempt.reason = event.reason;
  attempt.exit_code = event.exit_code;
}

void Goodput::add(const std::vector<GoodputEvent>& events) {
  for (const GoodputEvent& event : events) add(event);
}

void add_ledger(const Goodput& goodput, EnergyReport& report) {
  report.steps = goodput.trained_steps();
  report.tokens = static_cast<double>(goodput.trained_tokens());
  for (const Attempt& attempt : goodput.attempts()) {
    report.attempts.push_back(energy_of(attempt));
    report.seconds += seconds_of(attempt);
    report.node_seconds += seconds_of(attempt) * static_cast<double>(attempt.nodes);
    for (const EnergyLevel level : kEnergyLevels) {
      report.source(level).covered_s += attempt.covered_s[level];
      if (attempt.covered_s[level] > 0) add_meter(attempt.meters[level], report.source(level));
    }
  }
  const GoodputAmounts seconds = goodput.seconds();
  for (const EnergyPhase phase : kEnergyPhases) {
    report.phase(phase).seconds += amount_in(phase, seconds);
    for (const EnergyLevel level : kEnergyLevels)
      if (report.source(level).covered_s > 0)
        report.phase(phase).joules[level] = amount_in(phase, goodput.joules(level));
  }
}

}  // namespace kintsugi
