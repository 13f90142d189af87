#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan/search.h"
#include "cli/train/dry_run.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/units.h"
#include "core/yaml_document.h"
#include "launch/trial_jobs.h"
#include "model/metrics.h"
#include "plan/search/interval.h"
#include "plan/search/trial_log.h"
#include "plan/search/tuning_report.h"
#include "train/config/config.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr auto kTrialPollInterval = std::chrono::milliseconds(20);
constexpr std::size_t kSameErrors = 5;  // this many first trials with the same error end the tuning

struct PlanTuneOptions {
  std::string config = {};                  // the run's YAML file
  std::vector<std::string> overrides = {};  // --set
  std::string machine = {}, gpus = {};
  SearchLimits limits = {};
  int trials = 30;
  int steps = 6;
  int at_once = 1;
  std::string launch = {};  // empty: mpirun, or no launcher for one rank
  std::string timeout = "5min";
  double within = 2;
  std::string log = {}, emit = {};
  bool overwrite = false;
};

OutputRule output_rule(const PlanTuneOptions& o) { return {o.overwrite, {o.config, o.machine}}; }

void check_options(const PlanTuneOptions& o) {
  if (!built_with_dlib()) PointSearch says_so({1}, {});
  if (is_stream(o.config))
    user_error("{}: give a regular file, because every trial reads it", o.config);
  if (o.machine.empty())
    user_error("kintsugi plan tune needs --machine: the planner uses it to choose the layouts");
  if (o.gpus.empty()) user_error("kintsugi plan tune needs --gpus: the number of ranks of a trial");
  if (!o.emit.empty()) check_output_file("--emit", o.emit, output_rule(o));
  if (!o.log.empty()) {  // an older log is continued
    OutputRule rule = output_rule(o);
    rule.overwrite = true;
    check_output_file("--log", o.log, rule);
  }
  refuse_same_output("--emit", o.emit, "--log", o.log);
}

// Describes everything that trials must have in common to be compared, except their layouts.
std::string job_text(const PlanJob& job, const RunConfig& config, const std::string& machine,
                     int gpus) {
  std::string precision(to_string(job.precision));
  if (job.model.fp8.on()) precision += " with fp8 " + fp8_yaml(job.model.fp8);
  return fmt::format("{} parameters in {} layers, {} x {} tokens, {}, moments {}{}, {} ranks of {}",
                     count_parameters(ParameterSet(job.model)).total, job.model.layers, job.batch,
                     job.length, precision, to_string(job.optimizer.moments),
                     offloads(config.offload) ? ", offloaded" : "", gpus, machine);
}

// A tuning run: the search and its trials so far.
class Tuning {
 public:
  // `interval` says how far the prediction of a layout may be from what is measured.
  using IntervalText = std::function<std::string(const Evaluation&)>;
  Tuning(const PlanTuneOptions& options, std::vector<Evaluation> candidates, IntervalText interval,
         TrialLog& log)
      : options_(options),
        tuner_(std::move(candidates)),
        interval_(std::move(interval)),
        log_(log) {
    for (const Trial& trial : log.known()) {
      const auto candidate = tuner_.find(trial.layout);
      if (!candidate) {
        ++outside_;
        continue;
      }
      tuner_.report(*candidate, trial.result);
      trials_.push_back(trial);
    }
    started_ = static_cast<int>(trials_.size());
    progress_.start_at(started_);
    if (started_ + outside_ > 0)
      log_note("{}: {} trials are known, {} others are outside this search", options.log, started_,
               outside_);
  }

  const std::vector<Trial>& trials() const { return trials_; }

  // Returns false if a signal to this process or to a trial ended the tuning.
  bool run(TrialJobs& jobs) {
    const StopSignals signals;
    while (StopSignals::received() == nullptr) {
      start_some(jobs);
      if (jobs.running() == 0) return true;
      const auto ended = jobs.poll();
      if (ended && ended->stopped) break;
      if (ended)
        take(*ended, jobs);
      else
        std::this_thread::sleep_for(kTrialPollInterval);
    }
    jobs.stop();
    return false;
  }

 private:
  void start_some(TrialJobs& jobs) {
    while (jobs.running() < options_.at_once && started_ < options_.trials) {
      const auto candidate = tuner_.next();
      if (!candidate) return;
      running_[++started_] = *candidate;
      jobs.start(started_, tuner_.candidates()[*candidate].layout);
    }
  }

  void take(const TrialJobs::Ended& ended, const TrialJobs& jobs) {
    const std::size_t candidate = running_.at(ended.number);
    const Evaluation& e = tuner_.candidates()[candidate];
    tuner_.report(candidate, ended.result);
    trials_.push_back({e.layout, tokens_per_s(e), ended.result, ended.seconds});
    unlogged_.push_back(trials_.back());
    // Until one trial has run, a failure may be caused by the job and not by the layout.
    if (best_of(trials_))
      for (const Trial& trial : std::exchange(unlogged_, {})) log_.add(trial);
    show(ended.number, trials_.back(), interval_(e));
    progress_.set(static_cast<std::int64_t>(trials_.size()), options_.trials);
    // Such as a missing file or a wrong number of ranks: no layout would help.
    failures_.push_back(ended.result.failure);
    const bool same = std::all_of(failures_.begin(), failures_.end(), [&](const auto& text) {
      return !text.empty() && text == failures_.front();
    });
    if (same && failures_.size() == kSameErrors && !best_of(trials_))
      failure("the first {} trials failed with the same error: {} (full log: {})", kSameErrors,
              failures_.front(), jobs.log_of(ended.number).string());
  }

  void show(int number, const Trial& trial, const std::string& interval) const {
    const auto best = best_of(trials_);
    log_note("trial {}/{}  {}  predicted {} ± {}  {}  best {}", number, options_.trials,
             to_string(trial.layout), format_count(trial.predicted), interval,
             trial.result.ran()
                 ? fmt::format("measured {} tokens/s", format_count(trial.result.tokens_per_s))
                 : "failed: " + trial.result.failure,
             best ? format_count(best->result.tokens_per_s) : "–");
  }

  const PlanTuneOptions& options_;
  LayoutTuner tuner_;
  IntervalText interval_;
  TrialLog& log_;
  std::vector<Trial> trials_, unlogged_;
  std::vector<std::string> failures_;   // of each trial of this process; empty: it ran
  std::map<int, std::size_t> running_;  // trial number -> candidate
  int started_ = 0, outside_ = 0;
  Progress progress_{"tune", 0, "trials"};
};

// Writes the user's configuration with the best layout.
void emit(const PlanTuneOptions& o, const Trial& best) {
  std::vector<std::string> overrides = o.overrides;
  for (std::string& text : layout_overrides(best.layout)) overrides.push_back(std::move(text));
  const YamlDocument document(read_text_file(o.config), o.config, overrides);
  const std::string yaml = fmt::format(
      "# {} with the best layout found by tuning on {}: {:.0f} tokens/s measured.\n{}\n", o.config,
      format_number(best.layout.ranks(), "rank"), best.result.tokens_per_s,
      YAML::Dump(document.root()));
  OutputRule rule = output_rule(o);
  rule.is_private = has_secrets(parse_run_config(yaml, o.emit));
  write_output_file("--emit", o.emit, rule, yaml);
}

std::vector<Evaluation> candidates_of(const PlanTuneOptions& o, const RunConfig& config,
                                      const PlanJob& job, const Machine& machine, int gpus) {
  SearchLimits limits = o.limits;
  limits.gpus = gpus;
  TrialLimits range{.slower = o.within};
  // The memory model does not include offload.
  if (offloads(config.offload)) range.memory = std::numeric_limits<double>::infinity();
  if (config.offload.activations && limits.recompute.empty()) limits.recompute = "full";
  Planner planner(job, machine);
  std::vector<Evaluation> candidates = trial_candidates(planner, limits, range);
  if (config.offload.gradients)  // offload needs them earlier than zb-h1 completes them
    std::erase_if(candidates, [](const Evaluation& e) {
      return e.layout.schedule == PipelineKind::ZeroBubbleH1;
    });
  if (candidates.empty())
    user_error(
        "no layout of {} on {} is worth a trial: none is valid within the limits given, or "
        "all need more memory than a GPU of {} has ({})",
        o.config, format_number(gpus, "GPU"), machine.name,
        format_bytes(machine.gpu.memory_gb * 1e9));
  return candidates;
}

void plan_tune(const PlanTuneOptions& o) {
  check_options(o);
  const double timeout_s = parse_duration_s(o.timeout);
  const RunConfig config = load_run_config(o.config, o.overrides);
  if (!config.stages.empty())
    user_error("{}: it has stages: give a configuration of one of them", o.config);
  const Machine machine = load_machine(o.machine);
  const auto gpus =
      static_cast<int>(std::min<std::int64_t>(count_of("--gpus", o.gpus), machine.gpus() + 1));
  if (gpus > machine.gpus())
    user_error("--gpus {}: {} has {}", o.gpus, machine.name, format_number(machine.gpus(), "GPU"));
  if (const std::string why = why_undriven(machine);
      !why.empty() && config.device != DeviceChoice::Cpu)
    log_warning("{}; trials on CPU cores do not tell which layout is best there", why);
  const PlanJob job = plan_job(config);
  TrialLog log(o.log, job_text(job, config, machine.name, gpus));
  const auto interval = [&](const Evaluation& e) {
    return step_intervals().of(step_kind(job, e, machine)).short_text();
  };
  Tuning tuning(o, candidates_of(o, config, job, machine, gpus), interval, log);

  const fs::path run = config.run.dir;
  const fs::path directory = (run.has_filename() ? run : run.parent_path()).string() + "-tune";
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) user_error("cannot create {} for the trials: {}", directory.string(), error.message());
  const DirectoryLock lock(directory);
  const std::string launch = !o.launch.empty() ? o.launch : gpus == 1 ? "" : "mpirun -np {ranks}";
  TrialJobs jobs({.config = o.config,
                  .overrides = o.overrides,
                  .launch = launch,
                  .steps = o.steps,
                  .timeout_s = timeout_s,
                  .directory = directory});
  const bool completed = tuning.run(jobs);

  const auto best = best_of(tuning.trials());
  if (!completed) log_note("stopped; running trials were ended and are not counted");
  if (!best)
    failure("none of {} succeeded{}: the logs are in {}",
            format_number(std::ssize(tuning.trials()), "trial"),
            tuning.trials().empty() ? "" : " (" + tuning.trials().back().result.failure + ")",
            directory.string());
  if (!o.emit.empty()) emit(o, *best);
  fmt::print("{}", tuning_table(tuning.trials()));
}

}  // namespace

void add_plan_tune(CLI::App& plan) {
  const auto o = std::make_shared<PlanTuneOptions>();
  CLI::App* command =
      plan.add_subcommand("tune", "Measure layouts of a configuration in short real runs");
  const AddOption add(*command);
  add("config", o->config, "Configuration of the run: a YAML file", kRequired);
  add("--machine", o->machine, "A machine's name (kintsugi plan machines) or YAML file");
  add("--gpus", o->gpus, "Number of ranks of a trial");
  add_search_limits(*command, o->limits);
  add("--trials", o->trials, "Number of trials, including those in --log",
      whole_number(between(1, 100000)), kShowDefault);
  add("--steps", o->steps, "Steps per trial; the first two are warm-up",
      whole_number(between(3, 1000000)), kShowDefault);
  add("--at-once", o->at_once, "Trials to run at the same time", whole_number(between(1, 1000)),
      kShowDefault);
  add("--launch", o->launch,
      "Launch command; {ranks} and {trial} are replaced (default: mpirun -np {ranks})");
  add("--trial-timeout", o->timeout, "Time limit of a trial", TypeName{"TIME"}, duration(above(0)),
      kShowDefault);
  add("--within", o->within, "Try layouts predicted to be at most this factor slower than the best",
      real_number(between(1, 1e9)), kShowDefault);
  add("--log", o->log,
      "Append all trials to this CSV file; layouts already in it are not repeated");
  add("--emit", o->emit, "Write the configuration with the best layout");
  add_overwrite_option(*command, o->overwrite);
  add("--set", o->overrides, "Override a value of the configuration (repeatable)",
      TypeName{"KEY=VALUE"}, kRepeatable);
  command->footer(
      "Example:\n"
      "  kintsugi plan tune run.yaml --machine dgx-h100 --gpus 16 --launch 'srun -n {ranks}' \\\n"
      "                     --log trials.csv --emit best.yaml");
  command->callback([o] { plan_tune(*o); });
}

}  // namespace kintsugi
