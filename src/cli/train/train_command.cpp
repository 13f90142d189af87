#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/train/dry_run.h"
#include "cli/train/preflight.h"
#include "comm/launch_environment.h"
#include "core/build_info.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "train/engine_options.h"
#include "train/job_energy.h"
#include "train/run_history.h"
#include "train/staged_run.h"

namespace kintsugi {

namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = "auto";
  bool check = false;
  bool profiled = false;
  std::string profile;     // ProfileRequest; empty: its defaults
  bool overwrite = false;  // the file of the profile
  bool dry_run = false;
  DryRunOptions plan = {};
};

// The options and the build that must be the same on all ranks.
Facts command_facts(const TrainArguments& arguments) {
  return {{"the version", fmt::format("{} ({})", program_version(), program_commit())},
          {"the build", build_id()},
          {"--check", arguments.check ? "true" : "false"},
          {"--resume", arguments.resume},
          {"--profile", arguments.profiled ? "given " + arguments.profile : "not given"}};
}

// Keys that do not change what a rank computes and may differ between nodes.
bool may_differ(const std::string& key) {
  return key == "gpu.device" || key == "gpu.matmul_cache" || key == "threads";
}

Facts config_facts(const RunConfig& config) {
  Facts facts = config_values(config);
  std::erase_if(facts, [](const auto& fact) { return may_differ(fact.first); });
  facts.emplace_back("the device in use", to_string(device_in_use(config.device)));
  return facts;
}

// The fingerprints of the files that a stage names.
void add_data_facts(const Trainer& trainer, Facts& facts) {
  const std::string title = trainer.config().stage_title();
  const auto add = [&](const char* what, const std::string& value) {
    facts.emplace_back(title.empty() ? what : fmt::format("{} in {}", what, title), value);
  };
  const RunData& data = trainer.data();
  add("the fingerprint of the tokenizer", data.tokenizer().fingerprint());
  add("the fingerprint of the training data", data.fingerprint());
  add("the fingerprint of the held-out data", data.held_out_fingerprint());
}

// gpu.deterministic implies comm.deterministic.
CommConfig comm_of(const RunConfig& config) {
  CommConfig comm = config.comm;
  comm.deterministic |= config.gpu.deterministic;
  return comm;
}

// Kept alive until the job has handled an error: pending collectives may still use this memory.
struct TrainParts {
  std::optional<RunConfig> config;
  std::unique_ptr<Backend> backend;
  std::optional<JobEnergy> energy;  // of the whole job
  std::optional<JobGroups> groups;
  std::optional<StepProfile> profile;
  std::optional<StagedRun> run;  // destroyed first: it may still wait for its groups
};

// Writes where all ranks were when one was lost, for an engineer: flight.jsonl.
void keep_positions(const std::filesystem::path& directory,
                    const std::vector<std::string>& positions) {
  if (positions.empty()) return;
  std::ofstream file(directory / "flight.jsonl");
  for (const std::string& position : positions) file << position << "\n";
}

// Completes or chooses the layout of one stage. All ranks call it.
void settle_layout(StageConfig& stage, Job& job, Backend& backend) {
  std::string layout;
  job.together([&] {
    try {
      if (!stage.layout_auto) layout_on(stage, job.world().size());
      if (stage.layout_auto && job.world().rank() == 0)
        layout =
            to_yaml(automatic_layout(stage, backend, job.world().size(), job.world().local_size()));
    } catch (const UserError& error) {
      if (stage.stage_name.empty()) throw;
      user_error("stage {} ({}): {}", stage.stage + 1, stage.stage_name, error.what());
    }
  });
  if (stage.layout_auto) read_layout(job.broadcast_text(layout), stage.layout);
  stage.layout_auto = false;
}

// Finished stages may have been trained on another number of ranks.
void settle_layouts(RunConfig& config, std::int64_t first, Job& job, Backend& backend) {
  if (config.stages.empty()) return settle_layout(config, job, backend);
  for (StageConfig& stage : config.stages)
    if (stage.stage >= first) settle_layout(stage, job, backend);
}

// The last step of a run that does not continue another one.
std::int64_t last_step(const RunConfig& config) {
  std::int64_t steps = config.stages.empty() ? config.total_steps() : 0;
  for (const StageConfig& stage : config.stages) steps += stage.total_steps();
  return steps;
}

// What the run reads: a profile must not replace it.
std::vector<std::filesystem::path> files_of(const StageConfig& config) {
  std::vector<std::filesystem::path> files = {config.data.tokenizer};
  for (const DataSource& source : config.data.train) files.push_back(source.path);
  for (const ValidSource& source : config.data.valid) files.push_back(source.path);
  files.push_back(config.model_init);
  return files;
}

void check_profile(const ProfileRequest& request, const RunConfig& config, const World& world) {
  const int ranks = world.size();
  if (world.rank() == 0) {
    check_profile_file(request, files_of(config));
    for (const StageConfig& stage : config.stages) check_profile_file(request, files_of(stage));
  }
  if (request.first_rank >= ranks)
    user_error("--profile ranks={}: the run has {}",
               range_text(request.first_rank, request.last_rank), format_number(ranks, "rank"));
  if (!config.run.from && request.first_step > last_step(config))
    user_error("--profile steps={}: the run has {}",
               range_text(request.first_step, request.last_step),
               format_number(last_step(config), "step"));
}

void check_energy_root(const RunConfig& config) {
  std::error_code unknown;
  if (!std::filesystem::is_directory(config.energy.root, unknown))
    user_error("energy.root {}: no such directory; it holds sys/… as on a machine",
               config.energy.root);
}

JobEnergy::Options energy_options(const RunConfig& config, Backend& backend) {
  return {.search = {.root = config.energy.root, .node_w = config.energy.node_w},
          .sample_s = config.energy.sample_s,
          .node = node_name(),
          .gpu = backend.device().pci,
          .gpu_model = backend.device().name,
          .power = {.power_limit_w = config.energy.power_limit_w,
                    .gpu_clock_mhz = static_cast<int>(config.energy.gpu_clock_mhz),
                    .baseline_steps = config.energy.baseline_steps}};
}

// The stage to continue with, from the files that rank 0 sees.
std::int64_t first_stage(const RunConfig& config, Job& job) {
  std::string number;
  job.together([&] {
    if (job.world().rank() == 0) number = std::to_string(stage_to_train(config));
  });
  return std::stoll(job.broadcast_text(number));
}

// Rank 0 makes or verifies the indexes of packed data; the other ranks then only map them. Returns
// whether there are any.
bool pack_documents(const RunConfig& config, std::int64_t first, Job& job) {
  std::vector<RunConfig> packed;
  for (std::int64_t i = first; i < config.stage_count(); ++i)
    if (RunConfig stage = config.at_stage(i); stage.data.packed())
      packed.push_back(std::move(stage));
  if (packed.empty()) return false;
  job.together([&] {
    for (RunConfig& stage : packed)
      if (job.world().rank() == 0) RunData(stage, PackingFiles::Verify);
  });
  return true;
}

// For the report of rank 0: the facility, and the prediction for the layouts.
void add_context(const RunConfig& config, Job& job, JobEnergy& energy) {
  job.together([&] {
    if (job.world().rank() > 0) return;
    EnergyContext context = energy_context(config, job.world().size(),
                                           device_in_use(config.device) != DeviceChoice::Cpu);
    if (!context.planned.empty()) log_info("{}", prediction_text(context));
    energy.set_context(std::move(context));
  });
}

// Every rank reads a regular file itself. A pipe is read by rank 0 only: it can be read once, and
// launchers pass standard input to rank 0.
std::string configuration_text(const std::string& path, Job& job) {
  const bool stream = job.broadcast_text(is_stream(path) ? "stream" : "file") == "stream";
  std::string text;
  job.together([&] {
    if (stream && job.world().rank() > 0) return;
    text = read_text_file(path);
    if (stream && text.empty())
      user_error("{} is empty: give a configuration{}", path,
                 job.world().size() > 1 ? " (launchers pass standard input to rank 0 only)" : "");
  });
  return stream ? job.broadcast_text(text) : text;
}

// `trace` is nullptr without --profile.
RunOutcome train(const TrainArguments& arguments, Job& job, Startup& startup, TrainParts& parts,
                 Trace* trace) {
  auto& [config, backend, energy, groups, profile, run] = parts;
  const auto compare = [&](const Facts& facts, Startup& times) {
    job.check_agreement(facts);
    times.mark("compare ranks");
  };
  compare(command_facts(arguments), startup);
  if (trace != nullptr)  // in its own together(): only rank 0 checks the file
    job.together([&] {
      ProfileRequest request = parse_profile_request(arguments.profile);
      request.overwrite = arguments.overwrite;
      if (job.world().rank() == 0) check_profile_file(request, {arguments.config});
      profile.emplace(*trace, std::move(request));
    });
  const std::string text = configuration_text(arguments.config, job);
  job.together([&] { config = parse_run_config(text, arguments.config, arguments.overrides); });
  startup.mark("read configuration");
  compare(config_facts(*config), startup);
  job.together([&] {
    config = with_past_batches(std::move(*config));
    resolve_tokenizer(*config);
    if (config->energy.enabled) check_energy_root(*config);
    if (profile) check_profile(profile->request(), *config, job.world());
    if (config->stages.empty() && !config->layout_auto) layout_on(*config, job.world().size());
    backend = make_backend(config->device, threads_for(config->threads, job.world()), config->gpu,
                           job.world().local_rank(), trace);
  });
  if (config->energy.enabled) {
    energy.emplace(job.control(), energy_options(*config, *backend));
    job.on_exit(energy->power_restorer());
    job.together([&] { energy->check_power(); });
    startup.mark("find meters");
  }
  const std::int64_t first = first_stage(*config, job);
  settle_layouts(*config, first, job, *backend);
  if (energy) add_context(*config, job, *energy);
  job.on_stop_request([](const std::string& reason) { request_stop(reason); });
  job.set_limits(config->comm.silence_s, config->comm.timeout_s);
  const auto groups_of = [&](const RunConfig& stage) -> const Groups& {
    job.together([&] {
      const Grid grid = grid_of(layout_on(stage, job.world().size()), stage.model);
      if (groups && groups->get().grid == grid) return;
      groups.reset();
      groups.emplace(job, *backend, grid, comm_of(stage), trace);
    });
    return groups->get();
  };
  groups_of(config->at_stage(first));
  if (!groups->description().empty()) log_info("{}", groups->description());
  startup.mark("init device");
  if (config->preflight.enabled && job.world().size() > 1) {
    run_preflight(config->at_stage(first), job, *backend, groups->devices());
    startup.mark("preflight");
  }
  if (pack_documents(*config, first, job)) startup.mark("pack documents");
  Facts facts = config_facts(*config);
  job.together([&] {
    run.emplace(*backend, *config, first, groups_of, startup, [&](Trainer& trainer) {
      add_data_facts(trainer, facts);
      if (energy) trainer.meter_with(*energy);
      if (arguments.check) trainer.preview(trainer.config().stage == first);
    });
  });
  compare(facts, run->trainer().startup());
  if (arguments.check) {
    log_info("check passed: configuration, data and memory are OK");
    return RunOutcome::Finished;
  }
  if (profile) run->trainer().profile_with(*profile);
  const auto watch = [&](Trainer* trainer) {
    if (trainer == nullptr) return job.on_failure({});
    if (energy) trainer->meter_with(*energy);
    job.on_failure([trainer](const RankFailure& failure, const auto& positions) {
      keep_positions(trainer->directory(), positions);
      return trainer->note_failure(failure);
    });
  };
  const RunOutcome outcome =
      run->run(arguments.resume == "auto" ? ResumeMode::Auto : ResumeMode::Never, watch);
  if (outcome == RunOutcome::Stopped) job.set_stopped(run->trainer().stop_cause());
  if (outcome == RunOutcome::Finished)
    log_info("finished; the run is in {}", run->trainer().directory().string());
  if (profile) profile->report();
  job.on_failure({});
  return outcome;
}

void run_train(const TrainArguments& arguments) {
  if (arguments.dry_run) {
    if (another_rank_reports()) return;
    return dry_run(load_run_config(arguments.config, arguments.overrides), arguments.plan);
  }
  Startup startup;
  Trace trace;
  Trace* const recorder = arguments.profiled ? &trace : nullptr;
  if (recorder != nullptr) prepare_gpu_profile();  // before MPI, which may start the GPU's runtime
  Job job(recorder);
  startup.mark("init ranks");
  TrainParts parts;
  RunOutcome outcome = RunOutcome::Finished;
  job.run([&] { outcome = train(arguments, job, startup, parts, recorder); });
  if (outcome == RunOutcome::Stopped) throw CLI::RuntimeError(exit_code::kStopped);
}

void add_profile_option(CLI::App& command, TrainArguments& arguments) {
  const AddOption add(command);
  command
      .add_option_function<std::string>(
          "--profile",
          [&arguments](const std::string& text) {
            arguments.profiled = true;
            arguments.profile = text;
          },
          "Record steps of the run: steps=20-25,ranks=0-7,file=PATH or some of these (default: the "
          "third and fourth step of this process, at most 16 ranks, a file in profiles/ of "
          "run.dir). on-request: those that kintsugi ctl asks for")
      ->type_name("STEPS")
      ->expected(0, 1);
  add("--overwrite", arguments.overwrite,
      "With --profile file=PATH: replace this file if it exists");
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model from a YAML configuration");
  const AddOption add(*command);
  add("config", arguments->config, "The configuration of the run: a YAML file", kRequired);
  add("--set", arguments->overrides, "Override a value: --set optimizer.lr=3e-4 (repeatable)",
      TypeName{"KEY=VALUE"}, kRepeatable);
  add("--resume", arguments->resume,
      "auto: resume from the latest checkpoint in run.dir if there is one; never: refuse a run.dir "
      "that already holds a run",
      CLI::IsMember({"auto", "never"}), kShowDefault);
  add_profile_option(*command, *arguments);
  add("--check", arguments->check,
      "Check configuration, data, memory and run directory as a start does, then stop");
  CLI::Option* dry =
      add("--dry-run", arguments->dry_run,
          "Predict whether the run fits a machine and how long it takes there; train nothing");
  add("--machine", arguments->plan.machine,
      "With --dry-run: a machine's name (kintsugi plan machines) or YAML file")
      ->needs(dry);
  add("--gpus", arguments->plan.gpus,
      "With --dry-run: number of GPUs (default: as many as the layout needs)",
      whole_number(between(1, INT32_MAX)))
      ->needs(dry);
  command->footer(
      "Example:\n"
      "  kintsugi train examples/demo.yaml --set 'data.train=[{path: my.txt}]' --set "
      "run.dir=runs/mine\n"
      "\n"
      "From the weights of another model:\n"
      "  kintsugi train run.yaml --set 'model={init: models/Llama-3.1-8B}'\n"
      "\n"
      "From a checkpoint of another run, with its optimizer state and step number; train.steps\n"
      "counts the steps of the new run:\n"
      "  kintsugi train decay.yaml --set run.dir=runs/decay --set run.from=runs/stable\n"
      "\n"
      "In stages, each with its own data, length, schedule and layout (docs/stages.md):\n"
      "  kintsugi train examples/stages.yaml\n"
      "\n"
      "On several ranks:\n"
      "  mpirun -np 8 kintsugi train run.yaml --set layout.zero=2\n"
      "  mpirun -np 8 kintsugi train run.yaml --set layout.tp=2 --set layout.pp=2\n"
      "  mpirun -np 8 kintsugi train run.yaml --set layout=auto\n"
      "\n"
      "A profile of some steps, for kintsugi report --profile (docs/profiling.md):\n"
      "  mpirun -np 4 kintsugi train run.yaml --set layout.zero=3 --profile steps=20-25\n"
      "\n"
      "On SIGTERM, SIGUSR1, SIGHUP or Ctrl-C, before the end of its job, or when a file named "
      "stop\n"
      "appears in its directory, the run finishes the step, saves a checkpoint and exits with "
      "code\n"
      "75 (docs/recovery.md). The same command then resumes it:\n"
      "  touch runs/demo/stop\n"
      "  kintsugi train run.yaml --set run.time_limit=2h\n"
      "Exit codes: 0 finished, 75 stopped and can be resumed, 3 diverged, 1 failed (try again),\n"
      "2 a mistake in the command, the configuration or a file.");
  command->callback([arguments] { run_train(*arguments); });
}

}  // namespace kintsugi
