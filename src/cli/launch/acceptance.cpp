#include "cli/launch/acceptance.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/train/dry_run.h"
#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/statistics.h"
#include "core/units.h"
#include "core/yaml_document.h"
#include "launch/trial_jobs.h"
#include "plan/search/planner.h"
#include "report/run_report.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr int kLossSteps = 3, kWarmUp = 3;
constexpr double kGrace_s = 10;  // a trial that began in time may end this much later
constexpr double kHangs = 4;     // times the expected time: then a trial that is cut has failed

double steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Text with some structure, the same on every machine.
std::string corpus() {
  constexpr const char* kWords[] = {"the", "river", "carries", "gold", "over", "stone", "and",
                                    "a",   "bowl",  "mends",   "its",  "old",  "seam",  "slowly"};
  std::string text;
  std::uint32_t state = 1;
  for (int i = 0; i < 60000; ++i) {
    state = state * 1664525u + 1013904223u;
    text += kWords[(state >> 16) % std::size(kWords)];
    text += i % 9 == 8 ? ".\n" : " ";
  }
  return text;
}

double median_after(const std::vector<double>& values, std::size_t first) {
  std::vector<double> rest;
  for (std::size_t i = first; i < values.size(); ++i)
    if (std::isfinite(values[i])) rest.push_back(values[i]);
  return rest.empty() ? 0 : median(rest);
}

// What the backend of a run counts beside its tensors; not the context of a GPU.
double backend_bytes(const fs::path& run) {
  const auto layout = nlohmann::json::parse(read_text_file(run / "layout.json"), nullptr, false);
  const auto at = nlohmann::json::json_pointer("/memory/backend_bytes");
  return layout.is_object() ? layout.value(at, 0.0) : 0;
}

// The models whose step times are compared with the plan.
struct StandardModel {
  const char* name;
  int length;
};
constexpr StandardModel kGpuModels[] = {
    {"gpt2-1.5b", 1024}, {"llama-1b", 2048}, {"llama-8b", 4096}};
constexpr StandardModel kSmallModels[] = {{"gpt2-tiny", 64}, {"llama-tiny", 64}, {"moe-tiny", 64}};

}  // namespace

const std::vector<std::string>& accept_parts() {
  static const std::vector<std::string> parts = {"losses", "recovery", "calibrate", "speed",
                                                 "pairs"};
  return parts;
}

Acceptance::Acceptance(AcceptOptions options)
    : options_(std::move(options)),
      trials_(options_.launch, options_.node_ranks, options_.directory),
      begin_s_(steady_s()) {
  if (!options_.machine.empty()) given_ = load_machine(options_.machine);
  write_file_atomically(options_.directory / kCorpus, corpus(), OnDisk::Later);
  report_.program = fmt::format("kintsugi {} ({})", program_version(), build_id());
  report_.device = "unknown device";
  report_.machine = given_ ? given_->name : "this host";
  report_.launch = options_.launch;
  report_.ranks = options_.ranks;
  report_.nodes = (options_.ranks + options_.node_ranks - 1) / options_.node_ranks;
  report_.budget_s = options_.budget_s;
}

double Acceptance::elapsed_s() const { return steady_s() - begin_s_; }

void Acceptance::leave_out(const std::string& what, const std::string& why) {
  report_.left_out.push_back(fmt::format("{}: {}", what, why));
  // Pairs are as many as there is time for.
  if (part_ != "pairs") report_.missing.insert(part_);
}

bool Acceptance::has_time(const std::string& what, double needed_s) {
  expected_s_ = needed_s;
  if (StopSignals::received() != nullptr) return false;  // run() says so once
  if (elapsed_s() + needed_s <= options_.budget_s) return true;
  leave_out(what, fmt::format("no time within {} (about {} needed)",
                              format_duration(options_.budget_s), format_duration(needed_s)));
  return false;
}

void Acceptance::add(const AcceptChecks& checks) {
  for (const AcceptCheck& one : checks) {
    if (one.verdict == Verdict::Fail)  // the report at the end has all of them
      log_warning("{}, {}: {}: {}", one.part, one.name, to_string(one.verdict), one.text);
    report_.checks.push_back(one);
  }
}

void Acceptance::add_failed(AcceptCheck check, const AcceptTrial& trial, const char* remedy) {
  if (was_cut(trial)) {
    if (StopSignals::received() == nullptr)
      leave_out(fmt::format("{}, {}", check.part, check.name), trial.problem());
    return;
  }
  check.verdict = Verdict::Fail;
  check.text = trial.problem();
  check.remedy = remedy;
  if (trial.end)
    for (const Culprit& culprit : trial.end->failure.culprits) {
      check.ranks.push_back(culprit.rank);
      check.nodes.push_back(culprit.node);
    }
  add({check});
}

bool Acceptance::was_cut(const AcceptTrial& trial) const {
  return trial.stopped || (!trial.in_time && trial.seconds < kHangs * expected_s_);
}

fs::path Acceptance::run_of(const std::string& name) const {
  return options_.directory / "runs" / name;
}

AcceptTrial Acceptance::start(const std::string& name, int ranks,
                              const std::vector<std::string>& arguments,
                              const std::function<void(const std::string&)>& meanwhile) const {
  const double left_s = std::max(options_.budget_s - elapsed_s(), 0.0);
  return trials_.run(name, ranks, arguments, left_s + kGrace_s, meanwhile);
}

AcceptTrial Acceptance::train(const std::string& name, const std::string& file, int ranks,
                              const std::vector<std::string>& overrides,
                              const std::function<void(const std::string&)>& meanwhile) const {
  std::vector<std::string> words = {"train", file, "--set",
                                    "run.dir=" + yaml_quoted(run_of(name).string())};
  for (const std::string& text : overrides) {
    words.emplace_back("--set");
    words.push_back(text);
  }
  return start(name, ranks, words, meanwhile);
}

std::string Acceptance::write_config(const std::string& name, const std::string& sections) const {
  const fs::path file = options_.directory / (name + ".yaml");
  write_file_atomically(
      file,
      fmt::format("run: {{seed: 7, tensorboard: false, prometheus: false, node_ledger: {}}}\n"
                  "device: {}\ncomm: {{share_gpu: {}}}\n{}",
                  yaml_quoted((options_.directory / "nodes.json").string()), options_.device,
                  options_.share_gpu, sections),
      OnDisk::Later);
  return file.string();
}

// ---- groups and links

bool Acceptance::probe() {
  part_ = "machine";
  const fs::path file = options_.directory / "probe.json";
  std::vector<std::string> words = {"accept", "--probe", file.string(), "--device",
                                    options_.device};
  if (options_.share_gpu) words.emplace_back("--share-gpu");
  const AcceptTrial trial = start("probe", options_.ranks, words);
  const char* const remedy = "run kintsugi doctor with the same launch command";
  if (!trial.ran()) {
    add_failed({.part = "machine", .name = "probe"}, trial, remedy);
    return false;
  }
  if (!fs::exists(file)) {
    add({{.part = "machine",
          .name = "probe",
          .verdict = Verdict::Fail,
          .text = fmt::format("the launch command ended without an error, but no rank has written "
                              "what it measured; see {}",
                              trial.log.string()),
          .remedy = remedy}});
    return false;
  }
  ranks_ = probe_facts_of(read_text_file(file), file.string());
  add(judge_ranks(ranks_, options_.ranks));
  if (!report_.checks.empty()) return false;
  launch_s_ = std::max(trial.seconds - ranks_.front().seconds, 0.0);
  std::vector<RankFacts> ranks;
  for (const ProbeFacts& one : ranks_) ranks.push_back(one.rank);
  gpus_ = !ranks.front().binding.gpu.empty();
  report_.device = ranks.front().device.name;
  report_.nodes = static_cast<int>(NodeGroups(nodes_of(ranks)).names.size());
  // Ranks on CPU cores or on one GPU wait for each other and for other programs: only very slow
  // ones fail.
  const DoctorLimits limits{.failed = own_gpus() ? 0.85 : 0.2};
  Findings findings = judge_binding(ranks, options_.share_gpu);
  for (const Findings& more :
       {judge_devices(ranks, limits, {}), judge_links(ranks, limits, {}),
        judge_directory(ranks, options_.directory.string(), 0, 0), judge_hosts(ranks, limits)})
    findings.insert(findings.end(), more.begin(), more.end());
  add(judge_doctor(findings));
  add(judge_members(ranks_));
  add(judge_bandwidths(ranks_, {}));
  add(judge_overlap(ranks_, {}));
  report_.bandwidths = bandwidths_of(ranks_);
  return true;
}

// ---- losses

const RunSteps* Acceptance::one_rank(const LossCase& one) {
  const std::pair key(one.experts, one.muon);
  if (const auto known = references_.find(key); known != references_.end()) return &known->second;
  const std::string name =
      fmt::format("one-rank{}{}", one.experts ? "-experts" : "", one.muon ? "-muon" : "");
  const std::string file = write_config(
      name,
      fmt::format("model: {}\n"
                  "data: {{train: [{{path: {}}}], sequence_length: {}, valid_fraction: 0.1}}\n"
                  "batch: {{global: {}, micro: 1}}\n"
                  "optimizer: {{kind: {}, lr: 1e-3, min_lr: 1e-4, warmup_steps: 0}}\n"
                  "train: {{steps: {}, eval_every: 0, save: false, log_every: 1, "
                  "precision: fp32}}\n",
                  small_model_yaml(one.experts),
                  yaml_quoted((options_.directory / kCorpus).string()), kSmallLength,
                  small_batch(options_.ranks), one.muon ? "muon" : "adamw", kLossSteps));
  const AcceptTrial trial = train(name, file, 1, {"energy.enabled=false"});
  if (!trial.ran()) {
    add_failed({.part = "losses", .name = name}, trial, "see the log");
    return nullptr;
  }
  return &(references_[key] = read_steps(run_of(name)));
}

void Acceptance::judge_case(const LossCase& one, const std::string& name) {
  const RunSteps* const reference = one_rank(one);
  if (reference == nullptr) return;
  const fs::path file =
      options_.directory /
      fmt::format("one-rank{}{}.yaml", one.experts ? "-experts" : "", one.muon ? "-muon" : "");
  std::vector<std::string> overrides = layout_overrides(one.layout);
  overrides.emplace_back("energy.enabled=false");  // finding the meters takes longer than the steps
  const AcceptTrial trial = train(name, file.string(), options_.ranks, overrides);
  if (!trial.ran() && was_cut(trial))
    return add_failed({.part = "losses", .name = one.name}, trial, "");
  compared_.push_back(one);
  if (trial.ran())
    return add({judge_losses(one.name, one.group, read_steps(run_of(name)), *reference, {})});
  add_failed({.part = "losses", .name = one.name, .group = one.group}, trial,
             "see the log; kintsugi doctor checks nodes and links");
}

void Acceptance::losses(const std::vector<LossCase>& cases) {
  double needed_s = 2 * launch_s_;  // on one rank, and on all
  for (const LossCase& one : cases) {
    if (!has_time(part_ + ", " + one.name, needed_s)) continue;
    const double begin = elapsed_s();
    judge_case(one, fmt::format("losses-{:02}", compared_.size() + 1));
    needed_s = elapsed_s() - begin;
  }
}

// ---- checkpoints, a killed rank

void Acceptance::recovery() {
  RecoveryFacts facts;
  const int steps = own_gpus() ? 400 : 60, every = own_gpus() ? 50 : 10;
  const std::string file = write_config(
      "recovery",
      fmt::format("model: {{preset: {}}}\n"
                  "data: {{train: [{{path: {}}}], sequence_length: 64, valid_fraction: 0.1}}\n"
                  "batch: {{global: {}, micro: 1}}\n"
                  "optimizer: {{lr: 1e-3, min_lr: 1e-4, warmup_steps: 0}}\n"
                  "train: {{steps: {}, eval_every: 0, checkpoint_every: {}, log_every: 10, "
                  "precision: {}}}\n"
                  "layout: {{zero: {}}}\n",
                  own_gpus() ? "gpt2-124m" : "llama-tiny",
                  yaml_quoted((options_.directory / kCorpus).string()), options_.ranks, steps,
                  every, gpus_ ? "bf16" : "fp32", options_.ranks > 1 ? 1 : 0));
  const std::vector<std::string> same_bits = {"comm.deterministic=true", "gpu.deterministic=true"};
  const AcceptTrial whole = train("undisturbed", file, options_.ranks, same_bits);
  if (!whole.ran())
    return add_failed({.part = "recovery", .name = "undisturbed run"}, whole, "see the log");
  facts.undisturbed = read_checkpoint(run_of("undisturbed"));
  facts.save_s = read_run(run_of("undisturbed")).goodput.save_s().value_or(0);
  if (options_.ranks == 1) {
    facts.why_not = "needs several ranks";
    return add(judge_recovery(facts));
  }
  std::optional<int> killed;
  double killed_s = 0;
  const AcceptTrial broken =
      train("killed", file, options_.ranks, same_bits, [&](const std::string& supervisor) {
        if (killed || read_checkpoint(run_of("killed")).step == 0) return;
        killed = kill_one_rank(supervisor);
        killed_s = steady_s();
      });
  const AcceptCheck restart{.part = "recovery", .name = "killed rank"};
  const bool lost = broken.end && broken.end->failure.kind == FailureKind::Lost;
  if (killed ? broken.stopped && !lost : was_cut(broken)) return add_failed(restart, broken, "");
  if (!killed) {
    facts.why_not = "no rank but rank 0 ran on this machine while the run trained";
    return add(judge_recovery(facts));
  }
  facts.killed = *killed;
  facts.noticed = broken.end;
  facts.notice_s = steady_s() - killed_s;
  const AcceptTrial again = train("killed", file, options_.ranks, same_bits);
  if (was_cut(again)) return add_failed(restart, again, "");
  facts.restarted = again.ran();
  facts.restart_problem = again.problem();
  facts.recovered = read_checkpoint(run_of("killed"));
  if (const RunReport run = read_run(run_of("killed")); run.goodput.attempts().size() > 1)
    facts.restart_s = run.goodput.attempts().back().seconds.startup;
  add(judge_recovery(facts));
}

// ---- the plan

void Acceptance::calibrate() {
  const fs::path file = options_.directory / "calibrated.yaml";
  std::vector<std::string> words = {"calibrate",   "--output", file.string(),
                                    "--overwrite", "--device", options_.device};
  if (!options_.machine.empty()) words.insert(words.end(), {"--machine", options_.machine});
  if (!gpus_) words.insert(words.end(), {"--models", "llama-tiny"});
  if (!own_gpus()) words.insert(words.end(), {"--effort", "0.1"});
  const AcceptTrial trial = start("calibrate", 1, words);
  if (!trial.ran())
    return add_failed({.part = "calibrate", .name = "device"}, trial,
                      "run kintsugi calibrate alone");
  machine_ = with_links(load_machine(file.string()), ranks_);
  std::string links;
  if (options_.node_ranks > 1)
    links += fmt::format(", links {:.3g} GB/s inside a node", machine_->node.link_gb_s);
  if (report_.nodes > 1)
    links += fmt::format(", {:.3g} GB/s between nodes", machine_->network.gb_s);
  add({{.part = "calibrate",
        .name = "device",
        .verdict = Verdict::Noted,
        .text = fmt::format("matmuls reach {:.0f} % of {:.4g} TFLOP/s{}",
                            100 * machine_->gpu.gemm_efficiency,
                            machine_->gpu.tflops(gpus_ ? DType::BF16 : DType::F32), links)}});
}

void Acceptance::predict(const RunConfig& config, const SpeedCase& one, SpeedFacts& facts) const {
  const auto evaluate = [&](const Machine& machine) {
    Planner planner(plan_job(config), machine);
    return planner.evaluate(one.layout);
  };
  if (machine_) facts.calibrated_s = evaluate(*machine_).step_s;
  const std::optional<Machine>& plan = given_ ? given_ : machine_;
  if (!plan) return;
  const Evaluation e = evaluate(with_links(*plan, {}));
  facts.planned_s = e.step_s;
  facts.planned_exposed_s = e.exposed_s();
  Planner planner(plan_job(config), *plan);
  double arena = 0;  // of the first stage, which rank 0 has
  const std::vector<RegionBytes> stages = planner.memory(one.layout);
  for (const std::int64_t bytes : stages.front()) arena += static_cast<double>(bytes);
  facts.planned_bytes = arena;
  if (gpus_ && !e.fits)
    facts.why_not =
        fmt::format("the plan says that it does not fit: {} of {}", format_bytes(e.memory_bytes),
                    format_bytes(plan->gpu.memory_gb * 1e9));
}

SpeedFacts Acceptance::measure_speed(const RunConfig& config, const std::string& file,
                                     const std::string& name, const SpeedCase& one) {
  SpeedFacts facts{.model = name,
                   .layout = one.name,
                   .layout_key = to_string(one.layout),
                   .why_not = one.why_not};
  if (!facts.why_not.empty()) return facts;
  predict(config, one, facts);
  if (!facts.why_not.empty()) return facts;
  const std::string run = fmt::format("speed-{:02}", report_.speed.size() + 1);
  const AcceptTrial trial = train(run, file, options_.ranks, layout_overrides(one.layout));
  if (!trial.ran()) {
    add_failed({.part = "speed", .name = facts.model + ", " + facts.layout}, trial, "see the log");
    facts.why_not = was_cut(trial) ? "there was no time" : "it failed";
    return facts;
  }
  const RunSteps steps = read_steps(run_of(run));
  facts.step_s = median_after(steps.step_s, kWarmUp);
  facts.memory_bytes = steps.memory_bytes;
  if (facts.planned_bytes > 0) facts.planned_bytes += backend_bytes(run_of(run));
  facts.comm_busy_s = median_after(steps.comm_busy_s, kWarmUp);
  facts.comm_wait_s = median_after(steps.comm_wait_s, kWarmUp);
  facts.tokens_per_s = static_cast<double>(config.batch.global * config.data.sequence_length) /
                       std::max(facts.step_s, 1e-9);
  return facts;
}

void Acceptance::speed() {
  double needed_s = launch_s_;
  std::string energy_of;
  for (const StandardModel& model : own_gpus() ? kGpuModels : kSmallModels) {
    const std::string file = write_config(
        model.name,
        fmt::format("model: {{preset: {}}}\n"
                    "data: {{train: [{{path: {}}}], sequence_length: {}, valid_fraction: 0.1}}\n"
                    "batch: {{global: {}, micro: 1}}\n"
                    "optimizer: {{warmup_steps: 0}}\n"
                    "train: {{steps: {}, eval_every: 0, save: false, log_every: 1, "
                    "precision: {}}}\n",
                    model.name, yaml_quoted((options_.directory / kCorpus).string()), model.length,
                    speed_batch(options_.ranks), gpus_ ? 12 : 8, gpus_ ? "bf16" : "fp32"));
    RunConfig config = load_run_config(file, {});
    if (!gpus_) config.device = DeviceChoice::Cpu;
    const Workload work{config.model, config.batch.global, config.data.sequence_length};
    for (const SpeedCase& one : speed_cases(options_.ranks, options_.node_ranks, work)) {
      const std::string name = fmt::format("{}, {}", model.name, one.name);
      if (one.why_not.empty() && !has_time("speed, " + name, needed_s)) continue;
      const double begin = elapsed_s();
      report_.speed.push_back(measure_speed(config, file, model.name, one));
      if (!report_.speed.back().why_not.empty()) continue;
      needed_s = elapsed_s() - begin;
      energy_of = fmt::format("speed-{:02}", report_.speed.size());
    }
  }
  add(judge_speed(report_.speed, own_gpus(), {}));
  const RunSteps steps = energy_of.empty() ? RunSteps{} : read_steps(run_of(energy_of));
  std::set<std::string> gpus;
  for (const ProbeFacts& rank : ranks_)
    if (gpus_) gpus.insert(rank.rank.node + " " + rank.rank.binding.gpu);
  add(judge_energy(energy_of, steps, static_cast<int>(gpus.size()),
                   given_     ? given_->gpu
                   : machine_ ? machine_->gpu
                              : GpuSpec{}));
}

void Acceptance::run() {
  if (probe())
    do_parts();
  else if (report_.missing.empty() && StopSignals::received() == nullptr)
    report_.left_out.emplace_back("everything else: the ranks cannot be started");
  if (const char* signal = StopSignals::received()) {
    report_.left_out.push_back(fmt::format("everything after {}: stopped by {}", part_, signal));
    report_.missing.insert(part_);
  }
  report_.seconds = elapsed_s();
  report_.finished_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool Acceptance::has_result(const std::string& part) const {
  return std::any_of(report_.checks.begin(), report_.checks.end(), [&](const AcceptCheck& one) {
    // Of recovery, what is noted is not yet the test.
    return one.part == part && one.verdict != Verdict::NotMeasured &&
           (one.verdict != Verdict::Noted || part != "recovery");
  });
}

void Acceptance::do_parts() {
  const std::vector<LossCase> groups = group_cases(options_.ranks, options_.node_ranks),
                              further = pair_cases(options_.ranks, groups);
  const auto begins = [&](const char* part) {
    const bool now = wants(part) && StopSignals::received() == nullptr;
    if (now) part_ = part;
    if (now) log_note("{}, after {}", part, format_duration(elapsed_s()));
    return now;
  };
  const auto ends = [&](bool complete) {
    if (!complete) report_.missing.insert(part_);
  };
  if (begins("losses")) losses(groups), ends(groups.empty() || has_result("losses"));
  if (begins("recovery")) {
    if (has_time("recovery", 3 * launch_s_)) recovery();
    ends(options_.ranks == 1 || has_result("recovery"));  // one rank cannot lose another
  }
  if (begins("calibrate")) {
    if (has_time("calibrate", launch_s_)) calibrate();
    ends(has_result("calibrate"));
  }
  if (begins("speed")) speed(), ends(has_result("speed"));
  if (begins("pairs")) {
    const std::size_t before = compared_.size();
    losses(further);
    ends(further.empty() || compared_.size() > before);
  }
  const PairCount pairs = count_pairs(options_.ranks, compared_);
  if (pairs.possible > 0)
    report_.pairs_covered =
        static_cast<double>(pairs.covered) / static_cast<double>(pairs.possible);
  for (const std::string& part : accept_parts())
    if (!wants(part)) report_.left_out.push_back(part + ": not in --parts");
}

}  // namespace kintsugi
