#include "launch/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "comm/launch_environment.h"
#include "core/child_output.h"
#include "core/error.h"
#include "core/file.h"
#include "core/json_members.h"
#include "core/log.h"
#include "core/units.h"
#include "launch/child_session.h"
#include "launch/node_ledger.h"
#include "report/runs/run_file.h"
#include "report/runs/run_status.h"
#include "train/checkpoint/branches.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/config.h"
#include "train/engine_options.h"
#include "train/run_lock.h"
#include "train/startup.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(200);
constexpr double kSlurmAnswer_s = 20;
constexpr double kSentence_s = 2;  // for scancel, which waits for a dead node; the request is sent
constexpr double kPaused_s = 3;    // a round that took longer: this process was stopped
constexpr double kLater_s = 3;     // the other ranks notice that rank 0 is silent, and end first
constexpr double kLedgerDays = 1;  // a node that failed is avoided by later jobs for a day

double seconds_since(Steady::time_point begin) {
  return std::chrono::duration<double>(Steady::now() - begin).count();
}

// When a process began, in clock ticks since the boot; empty if it does not exist. A process id may
// be used again, but not with the same time.
std::string start_of_process(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return {};
  std::istringstream words(text.substr(end + 1));
  std::string word;
  for (int field = 3; field <= 22; ++field) words >> word;
  return word;
}

int exit_code_of(int status) {
  if (!WIFEXITED(status)) return exit_code::kFailure;
  const int code = WEXITSTATUS(status);
  const bool known = code == exit_code::kFinished || code == exit_code::kMistake ||
                     code == exit_code::kDiverged || code == exit_code::kStopped;
  return known ? code : exit_code::kFailure;
}

std::string describe(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("the launcher was killed by signal {}", WTERMSIG(status));
  return fmt::format("the launcher ended with exit code {}", WEXITSTATUS(status));
}

nlohmann::json to_json(const LaunchAttempt& attempt, std::size_t number) {
  const RankFailure& failure = attempt.end.failure;
  nlohmann::json json{{"attempt", number},        {"exit_code", attempt.end.exit_code},
                      {"text", failure.text},     {"step", attempt.step},
                      {"saved", attempt.saved},   {"began", attempt.began_s},
                      {"ended", attempt.ended_s}, {"nodes", attempt.nodes},
                      {"failure", nullptr},       {"rank", nullptr},
                      {"node", nullptr},          {"reported_s", nullptr},
                      {"first_step_s", nullptr}};
  if (failure.kind != FailureKind::Unknown) json["failure"] = to_string(failure.kind);
  if (failure.rank() >= 0) json["rank"] = failure.rank();
  if (const std::string node = failure.node(); !node.empty()) json["node"] = node;
  if (!failure.file.empty()) json["file"] = failure.file;
  if (attempt.reported_s >= 0) json["reported_s"] = attempt.reported_s;
  if (attempt.first_step_s >= 0) json["first_step_s"] = attempt.first_step_s;
  json["noticed"] = nullptr;
  if (attempt.noticed_s > 0) json["noticed"] = attempt.noticed_s;
  return json;
}

// Slurm commands in a job: a missing answer is an empty one.
std::vector<std::string> slurm_lines(const std::vector<std::string>& command) {
  const ChildOutput output = run_captured(command, kSlurmAnswer_s);
  std::vector<std::string> lines;
  std::istringstream stream(output.found && output.code == 0 ? output.out : "");
  for (std::string line; std::getline(stream, line);)
    if (!line.empty()) lines.push_back(line);
  return lines;
}

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

// "down*", "fail", "idle*": '*' marks a node that does not answer.
bool is_down(const std::string& state) {
  return state.ends_with('*') || state.starts_with("down") || state.starts_with("fail");
}

// A configuration that cannot be read is reported by the ranks.
fs::path ledger_of(const JobDescription& job) {
  std::string configured;
  try {
    configured = load_run_config(job.config, {}).run.node_ledger.value_or("");
  } catch (const std::exception&) {
  }
  return node_ledger_path(configured, job.run_dir);
}

// The ranks of a supervisor that was killed save and end by themselves. Waits for that, so that two
// sets of ranks never train the same run.
void wait_for_ranks_before(const JobDescription& job, double patience_s) {
  const fs::path file = job.directory() / "supervisor.json";
  if (!fs::exists(file)) return;
  pid_t leader = 0;
  try {
    const nlohmann::json state = nlohmann::json::parse(read_text_file(file));
    leader = state.at("launcher");
    // A launcher that has died may have left ranks: its process id is not used again while its
    // session has processes.
    const std::string start = start_of_process(leader);
    if (state.at("node") != node_name() || leader <= 0 ||
        (!start.empty() && state.at("launcher_start") != start))
      return;
  } catch (const nlohmann::json::exception&) {
    return;
  }
  if (!session_has_processes(leader)) return;
  log_info("the supervisor was restarted; waiting for the ranks of the attempt before to save");
  const auto begin = Steady::now();
  while (session_has_processes(leader) && seconds_since(begin) < patience_s &&
         StopSignals::received() == nullptr)
    std::this_thread::sleep_for(kPoll);
  while (session_has_processes(leader)) {
    kill_session(leader);
    std::this_thread::sleep_for(kPoll);
  }
}

constexpr std::size_t kMostStateBytes = 1 << 16;

std::vector<std::string> last_attempts(const fs::path& run_dir) {
  return read_tail(run_dir / "launch/attempts.jsonl", kMostStateBytes).lines;
}

double changed_s(const fs::path& file) {
  const auto stamp = stamp_of(file);
  return stamp ? stamp->changed_s() : 0;
}

}  // namespace

OpenAttempt open_attempt(const fs::path& run_dir) {
  const fs::path run = resolved(run_dir);
  const auto state = read_json_object(run / "launch/supervisor.json", kMostStateBytes);
  OpenAttempt open{.began_s = number_at(state, "began").value_or(0),
                   .reported_s = number_at(state, "reported_s").value_or(-1),
                   .nodes = count_at(state, "nodes")};
  const auto ended = last_attempts(run);
  if (!ended.empty())
    if (const auto last = parse_untrusted_json(ended.back()))
      if (number_at(*last, "ended").value_or(0) >= open.began_s) return {};
  open.seen_s = open.began_s;
  for (const char* name : {"status.json", "metrics.jsonl", "log.txt", "launch/alive"})
    open.seen_s = std::max(open.seen_s, changed_s(run / name));
  return open;
}

Supervisor::Supervisor(JobDescription job, SupervisorOptions options)
    : job_(std::move(job)),
      options_(options),
      port_(job_.local),
      deputy_(job_),
      ledger_(ledger_of(job_)) {}

std::int64_t Supervisor::saved_step() const {
  try {
    const auto latest = peek_latest_checkpoint(fs::path(job_.run_dir) / "checkpoints");
    return latest ? saved_state(*latest).step : 0;
  } catch (const std::exception&) {
    return 0;  // a damaged checkpoint: the run itself looks for another one
  }
}

bool Supervisor::fits(std::int64_t nodes) const {
  try {
    const RunConfig config = load_run_config(job_.config, {});
    for (std::int64_t stage = 0; stage < config.stage_count(); ++stage)
      if (const RunConfig part = config.at_stage(stage); !part.layout_auto)
        layout_on(part, static_cast<int>(nodes * job_.ranks_per_node));
    return true;
  } catch (const UserError&) {
    return false;
  }
}

NodeStates Supervisor::node_states() const {
  NodeStates states;
  const char* const list = std::getenv("SLURM_JOB_NODELIST");
  if (job_.local || list == nullptr) return states;
  states.allocated = slurm_lines({"scontrol", "show", "hostnames", list});
  for (const std::string& line : slurm_lines({"sinfo", "-h", "-N", "-n", list, "-o", "%N %T"}))
    if (const std::size_t space = line.find(' '); space != std::string::npos)
      if (is_down(line.substr(space + 1))) states.down.push_back(line.substr(0, space));
  states.avoided = avoided_;
  for (const std::string& node : NodeLedger(ledger_).excluded(std::time(nullptr)))
    if (!contains(avoided_, node)) states.avoided.push_back(node);
  return states;
}

void Supervisor::blame(const RankFailure& failure) {
  const NodeVerdict verdict = judge_node(failure);
  const std::string node = failure.node();
  if (!verdict.avoid || job_.local) return;
  std::erase(avoided_, node);
  avoided_.insert(avoided_.begin(), node);
  if (!verdict.trouble) return;
  try {
    NodeLedger(ledger_).add(node, *verdict.trouble, failure.text, std::time(nullptr), kLedgerDays);
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
  }
}

bool supervisor_is_here(const fs::path& run_dir) {
  std::ifstream file(run_dir / "launch/supervisor.json");
  const nlohmann::json state = nlohmann::json::parse(file, nullptr, false);
  if (!state.is_object() || !state.contains("process") || !state["process"].is_number_integer() ||
      state.value("node", "") != node_name())
    return false;
  const auto process = state["process"].get<pid_t>();
  if (process <= 0 || (::kill(process, 0) != 0 && errno != EPERM)) return false;
  // Another process may have its number by now.
  std::ifstream words(fmt::format("/proc/{}/cmdline", process), std::ios::binary);
  if (!words) return true;
  std::string word;
  while (std::getline(words, word, '\0'))
    if (word == "--supervise") return true;
  return false;
}

void Supervisor::keep(const LaunchAttempt& attempt) const {
  const fs::path path = job_.directory() / "attempts.jsonl";
  std::size_t number = 1;
  std::ifstream before(path);
  for (std::string line; std::getline(before, line);) ++number;
  std::ofstream file(path, std::ios::app);
  file << to_json(attempt, number).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
       << "\n";
  if (!file.flush()) log_warning("cannot write {}", path.string());
}

void Supervisor::write_state(pid_t leader, const LaunchAttempt& attempt) const {
  try {
    write_file_atomically(job_.directory() / "supervisor.json",
                          nlohmann::json{{"node", node_name()},
                                         {"process", ::getpid()},
                                         {"launcher", leader},
                                         {"began", attempt.began_s},
                                         {"reported_s", attempt.reported_s},
                                         {"nodes", attempt.nodes},
                                         {"launcher_start", start_of_process(leader)}}
                                  .dump() +
                              "\n");
  } catch (const std::exception& error) {
    log_warning("{}", error.what());  // needed only if this process is killed
  }
}

// What it used must not be forgotten.
void Supervisor::take_over() {
  wait_for_ranks_before(job_, options_.take_over_s);
  if (const OpenAttempt lost = open_attempt(job_.run_dir); lost.began_s > 0)
    keep({.end = {.failure = {.text = "the supervisor was killed"}},
          .saved = saved_step(),
          .began_s = lost.began_s,
          .ended_s = lost.seen_s,
          .reported_s = lost.reported_s,
          .nodes = lost.nodes});
  for (const std::string& line : last_attempts(job_.run_dir))
    if (const auto attempt = parse_untrusted_json(line))
      known_start_s_ = std::max(known_start_s_, number_at(*attempt, "reported_s").value_or(-1));
}

// A killed srun leaves its ranks behind. The deputy's step is among them; it is started again.
void Supervisor::kill_steps() const {
  const char* const job = std::getenv("SLURM_JOB_ID");
  if (job_.local || job == nullptr) return;
  for (const std::string& step :
       slurm_lines({"squeue", "--steps", "--noheader", "--jobs", job, "--format=%i"}))
    if (step.find_first_not_of("0123456789._") == std::string::npos)  // not batch, extern
      run_captured({"scancel", "--signal=KILL", step}, kSentence_s);
}

void Supervisor::forward_stop() {
  if (stopping_ || StopSignals::received() == nullptr) return;
  stopping_ = true;
  log_info("{}: asking the run to save and stop", StopSignals::received());
  port_.ask_to_stop(StopSignals::received());
}

std::optional<RankFailure> Supervisor::silent_rank_0(const SupervisorPort::State& state,
                                                     double later_s) const {
  const double limit_s = options_.silence_s.value_or(state.silence_limit_s + later_s);
  if (!state.connected || state.silence_limit_s <= 0 || state.silent_s <= limit_s) return {};
  return RankFailure{
      .kind = FailureKind::Silent,
      .culprits = {{0, state.node}},
      .text = fmt::format("rank 0 gave no sign of life for {:.0f} s (stopped, or its node is down)",
                          state.silent_s)};
}

std::optional<RankFailure> Supervisor::given_up(const SupervisorPort::State& state,
                                                double running_s) {
  if (!state.connected) {
    const double limit_s = start_limit_s(attempts_, known_start_s_, options_.start);
    if (running_s < limit_s) return {};
    return RankFailure{
        .text = fmt::format("the ranks did not report within {}", format_duration(limit_s))};
  }
  if (state.end) return {};
  // When another rank fails, rank 0 reports that before the launcher ends it. Or the others noticed
  // first that it was silent. While ranks start, nobody knows who is at fault.
  if (state.closed && state.step > 0 && !stopping_)
    return silent_rank_0(state, 0).value_or(
        RankFailure{.kind = FailureKind::Lost,
                    .culprits = {{0, state.node}},
                    .text = "rank 0 was lost: its process exited unexpectedly (killed?)"});
  if (auto silent = silent_rank_0(state, kLater_s)) return silent;
  if (state.step != last_step_ || last_step_at_s_ == 0) {
    last_step_ = state.step;
    last_step_at_s_ = running_s;
  }
  if (running_s - last_step_at_s_ > options_.stall_s)  // whoever is at fault
    return RankFailure{.text =
                           fmt::format("no new step for {}", format_duration(options_.stall_s))};
  return {};
}

void Supervisor::watch(pid_t leader, LaunchAttempt& attempt) {
  auto begin = Steady::now();
  std::optional<Steady::time_point> reported;
  last_step_at_s_ = 0;
  std::optional<RankFailure> given;
  while (!session_is_over(leader) && !given) {
    const auto round = Steady::now();
    const SupervisorPort::State& state = port_.poll(kPoll);
    deputy_.work(others_);
    forward_stop();
    if (state.connected && attempt.reported_s < 0) {
      attempt.reported_s = seconds_since(begin);
      write_state(leader, attempt);
    }
    if (state.step > 0 && attempt.first_step_s < 0) attempt.first_step_s = seconds_since(begin);
    if (state.end && !reported) {
      reported = Steady::now();
      if (state.end->exit_code == exit_code::kFailure) attempt.noticed_s = unix_time_s();
    }
    const bool failed = state.end && state.end->exit_code == exit_code::kFailure;
    if (reported && seconds_since(*reported) > (failed ? options_.failed_s : options_.leave_s))
      break;
    if (const double paused = seconds_since(round); paused > kPaused_s) {
      // This process was stopped itself, perhaps with all others: a suspended job.
      port_.forgive_silence();
      begin += Steady::now() - round;
      continue;
    }
    if (!session_is_over(leader))  // a launcher that dies takes rank 0 with it
      given = given_up(state, seconds_since(begin));
  }
  if (given) attempt.noticed_s = unix_time_s();
  const bool forced = !session_is_over(leader);
  const int status = end_session(leader, false);
  if (forced) kill_steps();
  const SupervisorPort::State& state = port_.poll(std::chrono::milliseconds(0));
  attempt.step = state.step;
  if (state.step > 0 && attempt.first_step_s < 0) attempt.first_step_s = seconds_since(begin);
  if (!given) return note_end(state, status, attempt.end);
  attempt.end.failure = std::move(*given);
}

void Supervisor::note_end(const SupervisorPort::State& state, int status, RunEnd& end) const {
  if (state.end) {
    end = *state.end;
    return;
  }
  end.exit_code = exit_code_of(status);
  end.failure.text = describe(status);
  // srun may end without an error where it could not start the ranks.
  if (end.exit_code == exit_code::kFinished && read_run_status(job_.run_dir).state != "finished") {
    end.exit_code = exit_code::kFailure;
    end.failure.text = "the launcher ended without an error, but the run has not finished";
  }
  if (end.exit_code != exit_code::kFailure) return;
  // The other ranks noticed first that rank 0 was silent, and the launcher then ended it.
  if (auto silent = silent_rank_0(state, 0)) {
    end.failure = std::move(*silent);
    end.failure.text += "; " + describe(status);
  }
}

LaunchAttempt Supervisor::run_attempt(const NodeChoice& choice) {
  LaunchAttempt attempt{.began_s = unix_time_s(), .nodes = choice.nodes};
  port_.forget_run();
  Variables variables = job_.environment;
  variables.emplace_back(kSupervisorVariable, port_.address());
  const pid_t leader =
      start_session(rank_command(job_, choice, {"train", job_.config}), {}, variables);
  write_state(leader, attempt);
  watch(leader, attempt);
  attempt.ended_s = unix_time_s();
  attempt.saved = saved_step();
  return attempt;
}

int Supervisor::run() {
  const StopSignals signals;
  const std::unique_ptr<RunLock> lock = RunLock::for_supervisor(job_.run_dir);
  take_over();
  const std::int64_t saved_before = saved_step();
  for (;;) {
    if (StopSignals::received() != nullptr && attempts_.empty()) return exit_code::kStopped;
    lock->check_in_place();
    const NodeStates states = node_states();
    const auto choice =
        choose_nodes(job_, states, [this](std::int64_t nodes) { return fits(nodes); });
    others_.clear();
    for (const std::string& node : states.allocated)
      if (node != node_name() && !contains(states.down, node) && !contains(states.avoided, node))
        others_.push_back(node);
    if (!choice) {
      log_message(LogLevel::Error,
                  fmt::format("too few usable nodes in this job for {} (at least {})", job_.nodes,
                              std::min(job_.min_nodes, job_.nodes)));
      return exit_code::kFailure;
    }
    if (!choice->exclude.empty())
      log_info("attempt {} on {} without {}", attempts_.size() + 1,
               format_number(choice->nodes, "node"), fmt::join(choice->exclude, ", "));
    const LaunchAttempt attempt = run_attempt(*choice);
    attempts_.push_back(attempt);
    keep(attempt);
    blame(attempt.end.failure);
    if (attempt.end.stop == StopCause::File) std::ofstream(job_.directory() / "asked_to_stop");
    if (attempt.end.stop == StopCause::WallTime && attempt.saved <= saved_before) {
      // The next job would be too short as well.
      log_message(LogLevel::Error,
                  "the job ends before the run could save a new step: give it more time (--time), "
                  "or a shorter margin (run.stop_margin)");
      return exit_code::kNoProgress;
    }
    const Decision decision = decide(attempts_, saved_before, options_.limits);
    if (decision.exit_code) {
      if (!decision.reason.empty()) log_message(LogLevel::Error, decision.reason);
      return *decision.exit_code;
    }
    if (stopping_) return exit_code::kStopped;  // its last checkpoint is resumable
    log_warning("attempt {} failed at step {}: {}; starting again from step {} in {}",
                attempts_.size(), attempt.step, attempt.end.failure.text, attempt.saved,
                format_duration(decision.pause_s));
    const auto begin = Steady::now();
    while (seconds_since(begin) < decision.pause_s && StopSignals::received() == nullptr)
      std::this_thread::sleep_for(kPoll);
    if (StopSignals::received() != nullptr) return exit_code::kStopped;
  }
}

// ---- the deputy

namespace {

constexpr auto kDeputyBeat = std::chrono::seconds(5);
constexpr auto kDeputyPatience = std::chrono::seconds(60);
constexpr auto kDeputyPause = std::chrono::seconds(30);  // between two starts
constexpr double kRequeueAnswer_s = 60;

std::filesystem::path beat_file(const std::filesystem::path& launch_directory) {
  return launch_directory / "alive";
}

// Opens the file: network file systems then ask the server instead of their cache.
std::string beat_of(const std::filesystem::path& launch_directory) {
  std::ifstream file(beat_file(launch_directory));
  std::string text;
  std::getline(file, text);
  return text;
}

}  // namespace

DeputyKeeper::DeputyKeeper(const JobDescription& job) : job_(job) {}

DeputyKeeper::~DeputyKeeper() {
  if (deputy_ <= 0) return;
  try {
    end_session(deputy_);
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
  }
}

void DeputyKeeper::work(const std::vector<std::string>& nodes) {
  const auto now = Clock::now();
  if (nodes.empty()) return;
  if (now >= next_beat_) {
    next_beat_ = now + kDeputyBeat;
    // In place: a rename would give the file another number, which network file systems cache.
    std::ofstream(beat_file(job_.directory())) << ++beats_ << "\n";
  }
  if (deputy_ > 0 && session_is_over(deputy_)) {
    end_session(deputy_);
    deputy_ = 0;
  }
  if (deputy_ > 0 || now < next_start_) return;
  next_start_ = now + kDeputyPause;
  try {
    deputy_ = start_session(
        {"srun", "--overlap", "--nodes=1", "--ntasks=1", "--gres=none", "--mpi=none",
         "--nodelist=" + nodes.front(), job_.program, "launch", "--deputy", job_.run_dir},
        job_.directory() / "deputy.log");
  } catch (const std::exception& error) {
    log_warning("no deputy of the supervisor: {}", error.what());
  }
}

bool watch_supervisor(const std::filesystem::path& launch_directory,
                      std::chrono::duration<double> patience, const std::function<bool()>& ended) {
  std::string last = beat_of(launch_directory);
  auto changed = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - changed < patience) {
    if (ended && ended()) return false;
    std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(patience / 4, kDeputyBeat));
    const std::string beat = beat_of(launch_directory);
    if (beat == last) continue;
    last = beat;
    changed = std::chrono::steady_clock::now();
  }
  return true;
}

int run_deputy(const std::filesystem::path& run_dir) {
  const bool lost = watch_supervisor(run_dir / "launch", kDeputyPatience,
                                     [&] { return read_exit_code(run_dir).has_value(); });
  const char* const job = std::getenv("SLURM_JOB_ID");
  if (!lost || job == nullptr) return exit_code::kFinished;
  log_warning("the supervisor gives no sign of life: putting job {} back into the queue", job);
  const ChildOutput output = run_captured({"scontrol", "requeue", job}, kRequeueAnswer_s);
  if (output.code == 0) return exit_code::kFinished;
  log_message(LogLevel::Error, fmt::format("scontrol requeue {}: {}", job, output.error));
  return exit_code::kFailure;
}

}  // namespace kintsugi
