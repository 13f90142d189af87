#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/dry_run.h"
#include "cli/job.h"
#include "cli/worlds.h"
#include "core/log.h"
#include "parallel/layout.h"
#include "train/trainer.h"

namespace kintsugi {

namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = "auto";
  bool check = false;
  bool dry_run = false;
  DryRunOptions plan = {};
};

// Ranks of one node share its cores.
std::int64_t threads_for(const RunConfig& config, const World& world) {
  if (config.threads > 0 || world.local_size() == 1) return config.threads;
  return std::max<std::int64_t>(
      1, std::thread::hardware_concurrency() / static_cast<unsigned>(world.local_size()));
}

// Outlives an error until the job has dealt with it: collectives may be under way in its memory.
struct TrainParts {
  std::optional<RunConfig> config;
  std::unique_ptr<Backend> backend;
  std::optional<JobGroups> groups;
  std::optional<Trainer> trainer;  // goes first: it may still wait for its groups
};

void train(const TrainArguments& arguments, Job& job, Startup& startup, TrainParts& parts) {
  auto& [config, backend, groups, trainer] = parts;
  job.together([&] {
    config = load_run_config(arguments.config, arguments.overrides);
    if (!config->layout.automatic) fit_layout(layout_request(*config), job.world().size());
    backend = make_backend(config->device, threads_for(*config, job.world()), config->cuda,
                           job.world().local_rank());
    resolve_layout(*config, *backend, job.world().size(), job.world().local_size());
    groups.emplace(job, *backend, fit_layout(layout_request(*config), job.world().size()),
                   config->comm);
  });
  if (!groups->description().empty()) log_info("{}", groups->description());
  startup.mark("configuration and groups");
  job.together([&] { trainer.emplace(*backend, *config, groups->get(), startup); });
  if (arguments.check) {
    log_info("the configuration, the data and the memory are in order");
    return;
  }
  job.on_failure([&running = *trainer](const std::string& text) { running.note_failure(text); });
  const RunOutcome outcome =
      trainer->run(arguments.resume == "auto" ? ResumeMode::Auto : ResumeMode::Never);
  if (outcome == RunOutcome::Finished)
    log_info("finished; the run is in {}", trainer->directory().string());
  job.on_failure({});
}

void run_train(const TrainArguments& arguments) {
  if (arguments.dry_run)
    return dry_run(load_run_config(arguments.config, arguments.overrides), arguments.plan);
  Startup startup;
  Job job;
  startup.mark("joining the ranks");
  TrainParts parts;
  job.run([&] { train(arguments, job, startup, parts); });
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* command = app.add_subcommand("train", "Train a model as a YAML file describes");
  command->add_option("config", arguments->config, "The run's configuration")->required();
  command
      ->add_option("--set", arguments->overrides,
                   "Override a value: --set optimizer.lr=3e-4 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--resume", arguments->resume,
                   "auto: continue the latest checkpoint in run.dir if there is one; never: refuse "
                   "a directory that "
                   "holds a run")
      ->check(CLI::IsMember({"auto", "never"}))
      ->capture_default_str();
  command->add_flag("--check", arguments->check, "Check configuration, data and memory, then stop");
  CLI::Option* dry = command->add_flag("--dry-run", arguments->dry_run,
                                       "Say whether it fits a machine and how long it takes there");
  command
      ->add_option("--machine", arguments->plan.machine,
                   "With --dry-run: a machine's name or description (kintsugi plan --machines)")
      ->needs(dry);
  command
      ->add_option("--gpus", arguments->plan.gpus,
                   "With --dry-run: how many (default: as many as the layout says)")
      ->needs(dry);
  command->footer(
      "Example:\n"
      "  kintsugi train examples/demo.yaml --set 'data.train=[{path: my.txt}]' --set "
      "run.dir=runs/mine\n"
      "\n"
      "On several ranks:\n"
      "  mpirun -np 8 kintsugi train run.yaml --set layout.zero=2\n"
      "  mpirun -np 8 kintsugi train run.yaml --set layout.tp=2 --set layout.pp=2\n"
      "  mpirun -np 8 kintsugi train run.yaml --set layout=auto\n"
      "\n"
      "SIGTERM, SIGUSR1, SIGHUP and Ctrl-C finish the step, save a checkpoint and end with exit\n"
      "code 0; the same command then continues the run.");
  command->callback([arguments] { run_train(*arguments); });
}

}  // namespace kintsugi
