#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/train/dry_run.h"
#include "cli/worlds.h"
#include "comm/launch_environment.h"
#include "core/build_id.h"
#include "core/build_info.h"
#include "core/file.h"
#include "core/log.h"
#include "train/trainer.h"

namespace kintsugi {

namespace {

struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;
  std::string resume = "auto";
  bool check = false;
  std::string trace;  // a file; empty: none
  std::string trace_steps = "3-4";
  bool dry_run = false;
  DryRunOptions plan = {};
};

// Ranks of one node share its cores.
std::int64_t threads_for(const RunConfig& config, const World& world) {
  if (config.threads > 0 || world.local_size() == 1) return config.threads;
  return std::max<std::int64_t>(
      1, std::thread::hardware_concurrency() / static_cast<unsigned>(world.local_size()));
}

// What all ranks must have been given alike, before anything depends on it.
Facts command_facts(const TrainArguments& arguments) {
  return {{"the version", fmt::format("{} ({})", program_version(), program_commit())},
          {"the build", build_id()},
          {"--check", arguments.check ? "true" : "false"},
          {"--resume", arguments.resume},
          {"--trace", arguments.trace},
          {"--trace-steps", arguments.trace_steps}};
}

// Nothing that a rank computes depends on these, and machines may differ in them.
bool may_differ(const std::string& key) {
  return key == "cuda.device" || key == "cuda.matmul_cache" || key == "threads";
}

Facts config_facts(const RunConfig& config) {
  Facts facts = config_values(config);
  std::erase_if(facts, [](const auto& fact) { return may_differ(fact.first); });
  facts.emplace_back("the device in use", to_string(device_in_use(config.device)));
  return facts;
}

// What the files hold that the configuration names.
Facts data_facts(const RunConfig& config, const RunData& data) {
  Facts facts = config_facts(config);
  facts.emplace_back("the fingerprint of the tokenizer", data.tokenizer().fingerprint());
  facts.emplace_back("the fingerprint of the training data", data.fingerprint());
  facts.emplace_back("the fingerprint of the held-out data", data.held_out_fingerprint());
  return facts;
}

// A run that is to be deterministic on its GPUs is so between them.
CommConfig comm_of(const RunConfig& config) {
  CommConfig comm = config.comm;
  comm.deterministic |= config.cuda.deterministic;
  return comm;
}

// Outlives an error until the job has dealt with it: collectives may be under way in its memory.
struct TrainParts {
  std::optional<RunConfig> config;
  std::unique_ptr<Backend> backend;
  std::optional<JobGroups> groups;
  std::optional<StepTrace> step_trace;
  std::optional<Trainer> trainer;  // goes first: it may still wait for its groups
};

// Every rank reads the file by itself, but a pipe can be read once, and launchers give standard
// input to rank 0 alone.
std::string configuration_text(const std::string& path, Job& job) {
  const bool stream = job.of_first(is_stream(path) ? "stream" : "file") == "stream";
  std::string text;
  job.together([&] {
    if (stream && job.world().rank() > 0) return;
    text = read_text_file(path);
    if (stream && text.empty())
      user_error("{} holds no configuration: it is empty{}", path,
                 job.world().size() > 1 ? " (launchers give standard input to rank 0 alone)" : "");
  });
  return stream ? job.of_first(text) : text;
}

// `trace` is nullptr where none was asked for.
void train(const TrainArguments& arguments, Job& job, Startup& startup, TrainParts& parts,
           Trace* trace) {
  auto& [config, backend, groups, step_trace, trainer] = parts;
  const auto compare = [&](const Facts& facts, Startup& times) {
    job.check_agreement(facts);
    times.mark("comparing the ranks");
  };
  compare(command_facts(arguments), startup);
  TraceRequest request;
  if (trace != nullptr)  // by itself: what only rank 0 finds
    job.together([&] {
      request = trace_request(arguments.trace, arguments.trace_steps);
      if (job.world().rank() == 0) check_writable(request.file);
    });
  const std::string text = configuration_text(arguments.config, job);
  std::string layout;  // that rank 0 chose, where it is left to the program
  job.together([&] {
    config = parse_run_config(text, arguments.config, arguments.overrides);
    if (trace != nullptr && request.first > config->total_steps())
      user_error("--trace-steps {}: the run has {} steps", arguments.trace_steps,
                 config->total_steps());
  });
  startup.mark("configuration and groups");
  compare(config_facts(*config), startup);
  job.together([&] {
    resolve_tokenizer(*config);
    if (!config->layout_auto) layout_on(*config, job.world().size());
    backend = make_backend(config->device, threads_for(*config, job.world()), config->cuda,
                           job.world().local_rank(), trace);
    if (config->layout_auto && job.world().rank() == 0)
      layout = to_yaml(
          automatic_layout(*config, *backend, job.world().size(), job.world().local_size()));
  });
  if (config->layout_auto) read_layout(job.of_first(layout), config->layout);
  config->layout_auto = false;
  job.together([&] {
    groups.emplace(job, *backend, grid_of(layout_on(*config, job.world().size()), config->model),
                   comm_of(*config), trace);
  });
  if (!groups->description().empty()) log_info("{}", groups->description());
  startup.mark("configuration and groups");
  job.together([&] { trainer.emplace(*backend, *config, groups->get(), startup); });
  compare(data_facts(trainer->config(), trainer->data()), trainer->startup());
  if (arguments.check) {
    trainer->preview();
    log_info("check passed: configuration, data and memory are OK");
    return;
  }
  if (trace != nullptr) trainer->trace_with(step_trace.emplace(*trace, request, groups->get()));
  job.on_failure([&running = *trainer](const std::string& text) { running.note_failure(text); });
  const RunOutcome outcome =
      trainer->run(arguments.resume == "auto" ? ResumeMode::Auto : ResumeMode::Never);
  if (outcome == RunOutcome::Finished)
    log_info("finished; the run is in {}", trainer->directory().string());
  job.on_failure({});
}

void run_train(const TrainArguments& arguments) {
  if (arguments.dry_run) {
    if (another_rank_reports()) return;
    return dry_run(load_run_config(arguments.config, arguments.overrides), arguments.plan);
  }
  Startup startup;
  Trace trace;
  Trace* const wanted = arguments.trace.empty() ? nullptr : &trace;
  Job job(wanted);
  startup.mark("joining the ranks");
  TrainParts parts;
  job.run([&] { train(arguments, job, startup, parts, wanted); });
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
  CLI::Option* trace =
      command
          ->add_option("--trace", arguments->trace,
                       "Write a timeline of some steps, of all ranks, to this file (for Perfetto)")
          ->type_name("FILE")
          ->check([](const std::string& file) {
            return file.empty() ? "the name of a file is needed" : "";
          });
  command
      ->add_option("--trace-steps", arguments->trace_steps,
                   "Which steps of this process, counted from 1")
      ->type_name("A-B")
      ->needs(trace)
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
      ->transform(whole_number(between(1, INT32_MAX)))
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
      "A timeline of steps 3 and 4, with communication beside compute:\n"
      "  mpirun -np 4 kintsugi train run.yaml --set layout.zero=3 --trace steps.json\n"
      "\n"
      "SIGTERM, SIGUSR1, SIGHUP and Ctrl-C finish the step, save a checkpoint and end with exit\n"
      "code 0; the same command then continues the run.");
  command->callback([arguments] { run_train(*arguments); });
}

}  // namespace kintsugi
