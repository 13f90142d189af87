#include "report/goodput.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kintsugi {
namespace {

using GoodputJson = nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kKinds = {"start", "progress", "end"};

constexpr double kLargest = 1e15;  // of times, durations and steps

double number_of(const GoodputJson& json, const char* key, double otherwise = 0) {
  if (!json.contains(key) || !json[key].is_number()) return otherwise;
  const double value = json[key].get<double>();
  return std::abs(value) <= kLargest ? value : otherwise;
}

std::optional<double> optional_number(const GoodputJson& json, const char* key) {
  const double value = number_of(json, key, NAN);
  return std::isnan(value) ? std::nullopt : std::optional(value);
}

std::int64_t step_of(const GoodputJson& json, const char* key) {
  return static_cast<std::int64_t>(std::clamp(number_of(json, key), 0.0, kLargest));
}

std::string text_of_key(const GoodputJson& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

void add_start(GoodputJson& json, const GoodputEvent& event) {
  json["launched_s"] = event.launched_s;
  if (event.submitted_s) json["submitted_s"] = *event.submitted_s;
  if (event.alive_s) json["alive_s"] = *event.alive_s;
  if (event.reached) json["reached"] = *event.reached;
}

}  // namespace

std::string to_json_line(const GoodputEvent& event) {
  GoodputJson json{{"event", kKinds[static_cast<std::size_t>(event.kind)]},
                   {"time_s", event.time_s},
                   {"step", event.step}};
  if (event.kind == GoodputEvent::Kind::Start) {
    add_start(json, event);
  } else {
    json["steps_s"] = event.steps_s;
    json["checkpoint_s"] = event.checkpoint_s;
    json["validation_s"] = event.validation_s;
  }
  if (event.kind == GoodputEvent::Kind::End) {
    json["state"] = event.state;
    if (!event.reason.empty()) json["reason"] = event.reason;
    if (event.exit_code) json["exit_code"] = *event.exit_code;
  }
  return json.dump(-1, ' ', false, GoodputJson::error_handler_t::replace);
}

std::optional<GoodputEvent> parse_goodput_line(const std::string& line) {
  const GoodputJson json = GoodputJson::parse(line, nullptr, false);
  if (!json.is_object()) return {};
  const auto kind = std::find(kKinds.begin(), kKinds.end(), text_of_key(json, "event"));
  const std::optional<double> time = optional_number(json, "time_s");
  if (kind == kKinds.end() || !time) return {};
  GoodputEvent event{.kind = static_cast<GoodputEvent::Kind>(kind - kKinds.begin()),
                     .time_s = *time,
                     .step = step_of(json, "step"),
                     .launched_s = number_of(json, "launched_s", *time),
                     .submitted_s = optional_number(json, "submitted_s"),
                     .alive_s = optional_number(json, "alive_s"),
                     .steps_s = number_of(json, "steps_s"),
                     .checkpoint_s = number_of(json, "checkpoint_s"),
                     .validation_s = number_of(json, "validation_s"),
                     .state = text_of_key(json, "state"),
                     .reason = text_of_key(json, "reason")};
  if (event.kind != GoodputEvent::Kind::Start) event.launched_s = 0;
  if (json.contains("reached")) event.reached = step_of(json, "reached");
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
      {"productive", &GoodputSeconds::productive},
      {"recomputed", &GoodputSeconds::recomputed},
      {"checkpoint", &GoodputSeconds::checkpoint},
      {"validation", &GoodputSeconds::validation},
      {"startup", &GoodputSeconds::startup},
      {"waiting", &GoodputSeconds::waiting},
      {"down", &GoodputSeconds::down},
      {"other", &GoodputSeconds::other}};
  return categories;
}

double GoodputSeconds::total() const {
  double sum = 0;
  for (const GoodputCategory& one : goodput_categories()) sum += this->*one.seconds;
  return sum;
}

double GoodputSeconds::fraction() const {
  const double all = total();
  return all > 0 ? productive / all : 0;
}

GoodputSeconds& GoodputSeconds::operator+=(const GoodputSeconds& more) {
  for (const GoodputCategory& one : goodput_categories()) this->*one.seconds += more.*one.seconds;
  return *this;
}

GoodputSeconds Goodput::seconds() const {
  GoodputSeconds sum;
  for (const Attempt& attempt : attempts_) sum += attempt.seconds;
  return sum;
}

void Goodput::charge_steps(double seconds, std::int64_t step) {
  const std::int64_t before = last_.step;
  const std::int64_t again = std::clamp(furthest_, before, std::max(before, step)) - before;
  const double share =
      step > before ? static_cast<double>(again) / static_cast<double>(step - before) : 1.0;
  attempts_.back().seconds.recomputed += seconds * share;
  attempts_.back().seconds.productive += seconds * (1 - share);
  furthest_ = std::max(furthest_, step);
}

void Goodput::close_lost(const GoodputEvent& next) {
  Attempt& lost = attempts_.back();
  const double alive = std::clamp(next.alive_s.value_or(last_.time_s), last_.time_s,
                                  std::max(last_.time_s, next.launched_s));
  // Without a later sign of life, the step is one of an earlier attempt.
  const std::int64_t reached =
      alive > last_.time_s ? std::max(next.reached.value_or(last_.step), last_.step) : last_.step;
  if (reached > last_.step)
    charge_steps(alive - last_.time_s, reached);
  else
    lost.seconds.other += alive - last_.time_s;
  lost.last_s = alive;
  lost.last_step = reached;
  lost.state = "lost";
  lost.reason = "it ended without a record: killed, or its node was lost";
}

void Goodput::begin_attempt(const GoodputEvent& event) {
  if (!ended_) close_lost(event);
  Attempt attempt{.launched_s = event.launched_s, .first_step = event.step};
  if (attempts_.empty()) {
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
  last_.time_s = event.launched_s;
  ended_ = false;
}

void Goodput::start(const GoodputEvent& event) {
  const bool next_stage = !ended_ && attempts_.back().launched_s == event.launched_s;
  if (!next_stage) begin_attempt(event);
  const double time = std::max(event.time_s, last_.time_s);
  Attempt& attempt = attempts_.back();
  attempt.seconds.startup += time - last_.time_s;
  attempt.last_s = time;
  attempt.last_step = event.step;
  last_ = {.time_s = time, .step = event.step};
}

void Goodput::add(const GoodputEvent& event) {
  if (event.kind == GoodputEvent::Kind::Start) return start(event);
  if (ended_) return;  // its start is lost
  Attempt& attempt = attempts_.back();
  const double elapsed = std::max(0.0, event.time_s - last_.time_s);
  const double steps = std::max(0.0, event.steps_s - last_.steps_s),
               checkpoint = std::max(0.0, event.checkpoint_s - last_.checkpoint_s),
               validation = std::max(0.0, event.validation_s - last_.validation_s);
  // No category gets time that did not pass.
  const double measured = steps + checkpoint + validation;
  const double scale = measured > elapsed ? elapsed / measured : 1.0;
  charge_steps(steps * scale, event.step);
  attempt.seconds.checkpoint += checkpoint * scale;
  attempt.seconds.validation += validation * scale;
  attempt.seconds.other += std::max(0.0, elapsed - measured);
  const double time = last_.time_s + elapsed;
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

}  // namespace kintsugi
