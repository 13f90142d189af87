#include "report/runs/run_summary.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>

#include "core/json_members.h"
#include "core/statistics.h"
#include "core/units.h"
#include "energy/energy_totals.h"
#include "report/runs/goodput_timeline.h"

namespace kintsugi {
namespace {

using SummaryJson = nlohmann::ordered_json;

constexpr std::size_t kMostSmallFile = 4 << 20;  // bytes
constexpr std::size_t kMetricsTail = 16 << 10;
constexpr std::size_t kMostText = 2000;  // of a message
constexpr std::array<std::string_view, 5> kStates = {"running", "finished", "stopped", "diverged",
                                                     "failed"};
// Without a sign of life for this time, and for this many steps.
constexpr double kStalledAfter_s = 300, kStalledSteps = 20;
constexpr double kLostAfter_s = 3600, kLostSteps = 100;
// A process that is gone may belong to another container of the same name.
constexpr double kGoneAfter_s = 30, kGoneSteps = 3;

std::string text_in(const SummaryJson& json, const char* key) {
  return text_at(json, key).substr(0, kMostText);
}

SummaryJson number_or_null(const std::optional<double>& value) {
  if (!value) return nullptr;
  const bool whole = *value == std::floor(*value) && std::abs(*value) < 1e15;
  return whole ? SummaryJson(static_cast<std::int64_t>(*value)) : SummaryJson(*value);
}

SummaryJson text_or_nothing(const std::string& text) {
  return text.empty() ? SummaryJson(nullptr) : SummaryJson(text);
}

// The members of a large object that are wanted; the others are not parsed.
SummaryJson members_of(std::string_view text, std::initializer_list<std::string_view> wanted) {
  SummaryJson found = SummaryJson::object();
  JsonMembers members(text);
  for (JsonMember member; members.next(member);)
    if (std::find(wanted.begin(), wanted.end(), member.key) != wanted.end()) {
      const bool quoted = member.kind == JsonMember::Kind::Text;
      const std::string_view value =
          quoted ? std::string_view(member.value.data() - 1, member.value.size() + 2)
                 : member.value;
      if (auto parsed = parse_untrusted_json(value))
        found[std::string(member.key)] = std::move(*parsed);
    }
  return members.is_complete() ? found : SummaryJson(nullptr);
}

// "n1" of "n1.cluster.example".
std::string short_name(const std::string& host) { return host.substr(0, host.find('.')); }

}  // namespace

SummaryJson to_json(const RunSummary& s) {
  return {{"id", s.id},
          {"name", s.name},
          {"state", s.state},
          {"reason", text_or_nothing(s.reason)},
          {"message", text_or_nothing(s.message)},
          {"step", number_or_null(s.step)},
          {"total_steps", number_or_null(s.total_steps)},
          {"tokens", number_or_null(s.tokens)},
          {"loss", number_or_null(s.loss)},
          {"valid_loss", number_or_null(s.valid_loss)},
          {"tokens_per_s", number_or_null(s.tokens_per_s)},
          {"mfu", number_or_null(s.mfu)},
          {"eta_s", number_or_null(s.eta_s)},
          {"stage", text_or_nothing(s.stage)},
          {"updated_s", number_or_null(s.updated_s)},
          {"stalled", s.stalled},
          {"attempts", number_or_null(s.attempts)},
          {"goodput", number_or_null(s.goodput)},
          {"energy_j", number_or_null(s.energy_j)},
          {"j_per_token", number_or_null(s.j_per_token)},
          {"lr", number_or_null(s.lr)},
          {"model", text_or_nothing(s.model)},
          {"ranks", number_or_null(s.ranks)}};
}

std::string ending_text(const std::string& state, const std::string& reason,
                        const std::string& exit_code) {
  std::string inner = reason == state ? "" : reason;
  if (!exit_code.empty()) inner += (inner.empty() ? "exit code " : ", exit code ") + exit_code;
  return inner.empty() ? state : state + " (" + inner + ")";
}

Surroundings this_machine() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {.now_s =
              [] {
                const auto now = std::chrono::system_clock::now().time_since_epoch();
                return std::chrono::duration<double>(now).count();
              },
          .host = host.data(),
          .is_alive =
              [](std::int64_t process) {
                return ::kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH;
              }};
}

bool SummaryReader::has_changed(File& file) const {
  const std::optional<FileStamp> now = stamp_of(directory_ / file.name);
  if (now && now == file.stamp) return false;
  file.stamp = now;
  return true;
}

void SummaryReader::refresh(const Surroundings& machine) {
  if (has_changed(status_)) read_status();
  if (has_changed(metrics_)) read_metrics();
  if (has_changed(layout_)) read_layout();
  if (has_changed(energy_)) read_energy();
  judge(machine);
}

std::string SummaryReader::read_small(File& file) {
  FileText text = read_run_file(directory_ / file.name, kMostSmallFile);
  file.problem = text.problem;
  file.stamp = text.stamp;
  bytes_read_ += text.text.size();
  return std::move(text.text);
}

void SummaryReader::read_status() {
  const std::string text = read_small(status_);
  std::string problem;
  const auto json = parse_untrusted_json(text, &problem);
  has_status_ = json && json->is_object() && !text_in(*json, "state").empty();
  if (!has_status_) {
    claimed_state_.clear();
    if (status_.problem.empty() && status_.stamp)
      status_.problem = "is not the status of a run" + (json ? "" : ": " + problem);
    return;
  }
  claimed_state_ = text_in(*json, "state");
  RunSummary& s = summary_;
  claimed_reason_ = text_in(*json, "reason");
  s.message = text_in(*json, "message");
  s.stage = text_in(*json, "stage");
  s.total_steps = number_at(*json, "total_steps");
  s.step = number_at(*json, "step");
  s.tokens = number_at(*json, "tokens");
  s.loss = number_at(*json, "loss");
  s.valid_loss = number_at(*json, "valid_loss");
  s.tokens_per_s = number_at(*json, "tokens_per_s");
  claimed_eta_s_ = number_at(*json, "eta_s");
  s.attempts = number_at(*json, "attempt");
  claimed_goodput_ = number_at(json_at(*json, "goodput"), "fraction");
  pid_ = number_at(*json, "pid");
  metrics_.stamp.reset();  // its last record is newer
}

void SummaryReader::read_metrics() {
  const FileTail tail = read_tail(directory_ / metrics_.name, kMetricsTail);
  metrics_.problem = tail.problem;
  metrics_.stamp = tail.stamp;
  bytes_read_ += tail.bytes;
  has_metrics_ = tail.stamp && stamp_of(directory_ / "config.yaml");
  std::vector<double> times;
  bool last = true;
  for (auto line = tail.lines.rbegin(); line != tail.lines.rend(); ++line) {
    const SummaryJson json =
        members_of(*line, {"step", "tokens", "loss", "lr", "mfu", "tokens_per_s", "step_time_s",
                           "energy_j", "energy_scope", "energy_since_launch", "valid_loss"});
    if (!json.is_object() || !number_at(json, "step")) continue;
    if (const auto time = number_at(json, "step_time_s")) times.push_back(*time);
    if (!last) continue;
    last = false;
    RunSummary& s = summary_;
    s.step = number_at(json, "step");
    s.tokens = number_at(json, "tokens");
    s.loss = number_at(json, "loss");
    s.lr = number_at(json, "lr");
    s.mfu = number_at(json, "mfu");
    s.tokens_per_s = number_at(json, "tokens_per_s");
    if (const auto valid = number_at(json, "valid_loss")) s.valid_loss = valid;
    const std::string scope = text_in(json, "energy_scope");
    spent_ = {};
    spent_level_ = {};
    spent_per_token_ = {};
    for (const EnergyLevel level : kEnergyLevels) {
      const std::string name(to_string(level));
      if (scope == name) spent_level_ = level;
      if (json.contains("energy_since_launch") && json["energy_since_launch"].contains(name))
        spent_[level] = number_at(json["energy_since_launch"][name], "j");
    }
    const double tokens = s.tokens_per_s.value_or(0) * number_at(json, "step_time_s").value_or(0);
    if (const auto joules = number_at(json, "energy_j"); joules && tokens > 0)
      spent_per_token_ = *joules / tokens;
  }
  step_time_s_ = times.empty() ? std::nullopt : std::optional(median(times));
}

void SummaryReader::read_layout() {
  const std::string text = read_small(layout_);
  summary_.ranks = {};
  summary_.model.clear();
  node_.clear();
  if (text.empty()) return;
  const SummaryJson json = members_of(text, {"ranks", "nodes", "node_of_rank", "model"});
  if (!json.is_object()) {
    layout_.problem = "is damaged: it is not a JSON object";
    return;
  }
  summary_.ranks = number_at(json, "ranks");
  if (json.contains("model")) {
    summary_.model = text_in(json["model"], "family");
    if (const auto count = number_at(json["model"], "parameters"))
      summary_.model += (summary_.model.empty() ? "" : " ") + format_count(*count);
  }
  if (!json.contains("nodes") || !json["nodes"].is_array()) return;
  std::size_t first = 0;  // the node of rank 0
  if (json.contains("node_of_rank") && json["node_of_rank"].is_array() &&
      !json["node_of_rank"].empty() && json["node_of_rank"][0].is_number_unsigned())
    first = json["node_of_rank"][0].get<std::size_t>();
  if (first < json["nodes"].size() && json["nodes"][first].is_string())
    node_ = json["nodes"][first].get<std::string>();
}

// Of all attempts up to its last save or end: the level that stands for the run.
void SummaryReader::read_energy() {
  written_ = {};
  const std::string text = read_small(energy_);
  if (text.empty()) return;
  const SummaryJson json = members_of(text, {"levels", "attempts"});
  if (!json.is_object()) {
    energy_.problem = "is damaged: it is not a JSON object";
    return;
  }
  if (!json.contains("levels") || !json["levels"].is_object()) return;
  const SummaryJson& levels = json["levels"];
  ByLevel<double> coverage;
  for (const EnergyLevel level : kEnergyLevels)
    if (const std::string name(to_string(level)); levels.contains(name))
      coverage[level] = number_at(levels[name], "time_measured").value_or(0);
  const auto level = standing_level(coverage);
  if (!level) return;
  const std::string name(to_string(*level));
  written_ = {.level = *level,
              .joules = number_at(levels[name], "joules"),
              .per_token = number_at(levels[name], "joules_per_token")};
  if (!json.contains("attempts") || !json["attempts"].is_array() || json["attempts"].empty())
    return;
  written_->attempts = static_cast<double>(json["attempts"].size());
  const SummaryJson& last = json["attempts"].back();
  if (last.is_object() && last.contains("joules"))
    written_->last_attempt_j = number_at(last["joules"], name.c_str()).value_or(0);
}

// While the run trains: the attempts before this one, and this one since its launch.
std::optional<double> SummaryReader::energy_up_to_now() const {
  const std::optional<EnergyLevel> level = written_ ? written_->level : spent_level_;
  if (!level || !spent_[*level]) return written_ ? written_->joules : std::nullopt;
  double earlier_j = written_ ? written_->joules.value_or(0) : 0;
  // A file of this attempt has a part of it already.
  if (written_ && written_->attempts == summary_.attempts) earlier_j -= written_->last_attempt_j;
  return earlier_j + *spent_[*level];
}

void SummaryReader::judge(const Surroundings& machine) {
  RunSummary& s = summary_;
  const bool known = std::find(kStates.begin(), kStates.end(), claimed_state_) != kStates.end();
  s.state = known ? claimed_state_ : "unknown";
  s.reason = claimed_reason_;
  s.eta_s = claimed_eta_s_;
  s.goodput = claimed_goodput_;
  s.stalled = false;
  s.updated_s = {};
  for (const File* file : {&status_, &metrics_})
    if (file->stamp) s.updated_s = std::max(s.updated_s.value_or(0), file->stamp->changed_s());
  const bool running = s.state == "running";
  s.energy_j = running                ? energy_up_to_now()
               : written_.has_value() ? written_->joules
                                      : std::nullopt;
  s.j_per_token = written_ ? written_->per_token : std::nullopt;
  if (running && spent_per_token_) s.j_per_token = spent_per_token_;
  if (!running || !s.updated_s) return;
  const double age = machine.now_s() - *s.updated_s, step = step_time_s_.value_or(0);
  const auto silent = [&](double seconds, double steps) {
    return age > std::max(seconds, steps * step);
  };
  s.stalled = silent(kStalledAfter_s, kStalledSteps);
  const bool here = pid_ && *pid_ > 1 && *pid_ < 1e9 && !node_.empty() &&
                    short_name(node_) == short_name(machine.host);
  const bool lost =
      here ? silent(kGoneAfter_s, kGoneSteps) && !machine.is_alive(static_cast<std::int64_t>(*pid_))
           : silent(kLostAfter_s, kLostSteps);
  if (!lost) return;
  s.state = "lost";
  s.stalled = false;
  s.eta_s = {};
  s.reason = here ? "its process is gone" : "no sign of life";
  if (const auto goodput = goodput_until_lost()) s.goodput = goodput;
}

// status.json is older than the last step.
std::optional<double> SummaryReader::goodput_until_lost() {
  if (!lost_stamp_ || lost_stamp_ != metrics_.stamp) {
    lost_stamp_ = metrics_.stamp;
    const Goodput goodput = read_goodput_history(directory_).goodput;
    lost_goodput_ =
        goodput.attempts().empty() ? std::nullopt : std::optional(goodput.seconds().fraction());
  }
  return lost_goodput_;
}

bool SummaryReader::may_change() const {
  return summary_.state == "running" || summary_.state == "unknown" || summary_.state == "lost";
}

std::vector<SkippedFile> SummaryReader::skipped() const {
  std::vector<SkippedFile> list;
  for (const File* file : {&status_, &metrics_, &layout_, &energy_})
    if (!file->problem.empty()) list.push_back({directory_ / file->name, file->problem});
  return list;
}

}  // namespace kintsugi
