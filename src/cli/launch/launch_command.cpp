#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/launch/prepare.h"
#include "cli/launch/submit.h"
#include "cli/launch/watch.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/units.h"
#include "launch/deputy.h"
#include "launch/supervisor.h"
#include "report/runs/run_status.h"

namespace kintsugi {
namespace {

struct LaunchArguments {
  LaunchRequest request = {};
  std::string time, signal;                                        // durations; empty: the defaults
  std::string status, cancel, follow, collect, supervise, deputy;  // directories
  bool now = false;
  bool show_topology = false;
  std::string csv, markdown;
  bool overwrite = false;
};

// The task is the first option of this list that was given, or else a launch. Other options than
// those it takes are refused.
struct LaunchTask {
  std::string selected_by;
  std::vector<std::string> takes;
};
const std::vector<LaunchTask>& launch_tasks() {
  static const std::vector<LaunchTask> all = {
      {"--status", {}},
      {"--cancel", {"--now"}},
      {"--follow", {}},
      {"--collect", {"--csv", "--markdown", "--overwrite"}},
      {"--supervise", {}},
      {"--deputy", {}},
      {"--show-topology", {"--topology", "--machine"}},
      {"--local", {"config", "--ranks", "--set", "--name", "--max-jobs", "--print"}},
  };
  return all;
}
const std::vector<std::string>& not_for_slurm() {
  static const std::vector<std::string> all = {"--ranks", "--now", "--csv", "--markdown",
                                               "--overwrite"};
  return all;
}

void refuse_idle_options(const CLI::App& command) {
  std::vector<std::string> given;
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0) given.push_back(option->get_name());
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const LaunchTask& task : launch_tasks()) {
    if (!has(given, task.selected_by)) continue;
    for (const std::string& name : given)
      if (name != task.selected_by && !has(task.takes, name))
        user_error("{} has no effect with {}: remove one of them", name, task.selected_by);
    return;
  }
  for (const std::string& name : given)
    if (has(not_for_slurm(), name))
      user_error("{} has no effect here: see kintsugi launch --help", name);
}

void collect(const LaunchArguments& arguments) {
  // An earlier table may be in the directory of the runs.
  const auto is_table = [](const std::filesystem::path& path) {
    return begins_with(path, table_of({}).csv()) || begins_with(path, table_of({}).markdown());
  };
  const OutputRule rule{arguments.overwrite, {arguments.collect}, is_table};
  const std::string &csv = arguments.csv, &markdown = arguments.markdown;
  if (!csv.empty()) check_output_file("--csv", csv, rule);
  if (!markdown.empty()) check_output_file("--markdown", markdown, rule);
  refuse_same_output("--csv", csv, "--markdown", markdown);
  const Table table = table_of(collect_runs(arguments.collect));
  if (!csv.empty()) write_output_file("--csv", csv, rule, table.csv());
  if (!markdown.empty()) write_output_file("--markdown", markdown, rule, table.markdown());
  if (csv.empty() && markdown.empty()) fmt::print("{}", table.text());
}

void print_topology(const LaunchRequest& request) {
  Topology topology;
  if (!request.machine.empty()) {
    const Machine machine = load_machine(request.machine);
    if (machine.topology.empty()) user_error("machine {} has no topology", machine.name);
    topology = parse_topology(machine.topology, "machine " + machine.name);
  } else {
    topology = request.topology.empty() || request.topology == "this"
                   ? topology_of_this_machine()
                   : load_topology(request.topology);
  }
  fmt::print("{}\n", fmt::join(to_lines(topology), "\n"));
}

void note_unknown_gpus(const LaunchRequest& request, const std::vector<PreparedRun>& runs) {
  if (request.local || !wants_gpus(runs)) return;
  if (const Machine machine = load_machine(request.machine);
      machine.gpu.vendor == GpuVendor::Unknown)
    log_note(
        "{} does not say whose GPUs {} has (gpu.vendor: nvidia, amd or none): it was not "
        "checked whether this program can use them",
        request.machine, machine.name);
}

void launch(LaunchArguments& arguments) {
  LaunchRequest& request = arguments.request;
  if (request.config.empty())
    user_error("give a configuration, or one of --status, --follow, --cancel and --collect");
  if (!arguments.time.empty()) request.options.time_s = parse_duration_s(arguments.time);
  if (!arguments.signal.empty()) request.options.signal_s = parse_duration_s(arguments.signal);
  const char* const account = std::getenv("SBATCH_ACCOUNT");
  if (request.options.account.empty() && account != nullptr) request.options.account = account;
  if (!request.options.container.empty())
    request.options.container = std::filesystem::absolute(request.options.container).string();
  PreparedRuns runs = prepare_runs(request);
  if (request.print || !request.local) {
    request.print ? print_runs(runs.list) : submit_runs(runs.list);
    return note_unknown_gpus(request, runs.list);
  }
  if (const int code = run_locally(runs.list); code != 0) throw CLI::RuntimeError(code);
}

void run_launch(const CLI::App& command, LaunchArguments& arguments) {
  refuse_idle_options(command);
  if (!arguments.status.empty()) return show_runs(arguments.status);
  if (!arguments.cancel.empty()) return cancel_runs(arguments.cancel, arguments.now);
  if (!arguments.follow.empty()) return follow_run(arguments.follow);
  if (!arguments.collect.empty()) return collect(arguments);
  if (arguments.show_topology) return print_topology(arguments.request);
  if (!arguments.deputy.empty()) {
    if (const int code = run_deputy(arguments.deputy); code != 0) throw CLI::RuntimeError(code);
    return;
  }
  if (arguments.supervise.empty()) return launch(arguments);
  if (const int code = Supervisor(load_job(arguments.supervise)).run(); code != 0)
    throw CLI::RuntimeError(code);
}

void add_slurm_options(CLI::App& command, LaunchArguments& arguments) {
  LaunchRequest& request = arguments.request;
  LaunchOptions& options = request.options;
  const CLI::Validator nodes = whole_number(between(1, 1e7));
  command.add_option("--machine", request.machine,
                     "The machine: a name (kintsugi plan machines) or a YAML file");
  command.add_option("--nodes", options.nodes, "Nodes that train")
      ->transform(nodes)
      ->capture_default_str();
  command
      .add_option("--spare-nodes", options.spare_nodes,
                  "Nodes in addition that replace failed ones")
      ->transform(whole_number(between(0, 1e7)));
  command
      .add_option("--min-nodes", options.min_nodes,
                  "The run may continue on this many nodes (default: on all)")
      ->transform(nodes);
  command
      .add_option("--ranks-per-node", options.ranks_per_node, "Default: one for each GPU of a node")
      ->transform(nodes);
  command
      .add_option("--time", arguments.time,
                  "How long the run may take: 48h, 30min. More than the machine allows for one job "
                  "becomes a chain of jobs (default: one job of the longest time)")
      ->type_name("TIME")
      ->transform(duration(between(1, 1e9)));
  command.add_option("--account", options.account, "The project that pays (or SBATCH_ACCOUNT)");
  command.add_option("--partition", options.partition, "Instead of the machine's partition");
  command.add_option("--container", options.container,
                     "Run the ranks in this image (Apptainer, Singularity)");
  command.add_flag("--requeue", options.requeue,
                   "Put the job back into the queue at its time limit until the run is finished, "
                   "instead of a chain");
  command.add_flag("--no-requeue", options.no_requeue,
                   "Do not start the job again after the failure of a node");
  command
      .add_option("--signal", arguments.signal,
                  "How long before the end of the job it is told to save (default: the machine's, "
                  "or longer for large models)")
      ->type_name("TIME")
      ->transform(duration(between(1, kLongestSignal_s)));
  command.add_option("--exclude", options.exclude, "Nodes that must not be used: n7,n[10-12]");
  command.add_option("--cpu-bind", options.cpu_bind,
                     "Instead of the machine's binding: none, cores, or mask_cpu: and one mask per "
                     "rank of a node, which are checked");
  command.add_option("--topology", request.topology,
                     "Instead of the machine's topology: a file (text, or lstopo --of xml), or "
                     "this: of this machine");
}

void add_task_options(CLI::App& command, LaunchArguments& arguments) {
  LaunchRequest& request = arguments.request;
  command
      .add_option("--set", request.overrides,
                  "Override a value: --set optimizer.lr=3e-4 (repeatable)")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command.add_option("--name", request.options.name,
                     "Name of the job (default: that of the run directory)");
  command.add_flag("--print", request.print,
                   "Check everything and print the script; write nothing");
  command.add_flag("--allow-undriven-gpus", request.allow_undriven_gpus,
                   "Submit also if this program cannot use the GPUs of the machine");
  command.add_flag("--local", request.local, "Run on this machine instead of Slurm");
  command.add_option("--ranks", request.ranks, "With --local: number of ranks (mpirun)")
      ->transform(whole_number(between(1, 4096)))
      ->capture_default_str();
  command.add_option("--max-jobs", request.max_jobs, "Refuse a matrix with more cells")
      ->transform(whole_number(between(1, kMostCells)))
      ->capture_default_str();
  command
      .add_option("--status", arguments.status,
                  "Show the job and the state of a run, or of all runs of a matrix")
      ->type_name("RUN_DIR");
  command.add_option("--follow", arguments.follow, "Print the log of a run until its job ends")
      ->type_name("RUN_DIR");
  command
      .add_option("--cancel", arguments.cancel,
                  "Ask the job of a run, or all of a matrix, to save and stop")
      ->type_name("RUN_DIR");
  command.add_flag("--now", arguments.now, "With --cancel: end it at once, without a save");
  command.add_option("--collect", arguments.collect, "One table of all runs of a matrix")
      ->type_name("DIR");
  command.add_option("--csv", arguments.csv, "With --collect: write the table to this file")
      ->type_name("FILE");
  command.add_option("--markdown", arguments.markdown, "The same as a Markdown table")
      ->type_name("FILE");
  add_overwrite_option(command, arguments.overwrite);
  command.add_flag("--show-topology", arguments.show_topology,
                   "Print the NUMA domains, cores and GPUs of this machine, of --machine or of "
                   "--topology FILE, in the form of machine files");
  command.add_option("--supervise", arguments.supervise, "Used by job scripts: runs a job")
      ->type_name("RUN_DIR");
  command
      .add_option("--deputy", arguments.deputy,
                  "Used by the supervisor: requeues the job if the supervisor's node dies")
      ->type_name("RUN_DIR");
}

}  // namespace

void add_launch_command(CLI::App& app) {
  auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* command = app.add_subcommand(
      "launch", "Submit runs to Slurm, or run them here; watch and collect them");
  command->add_option("config", arguments->request.config,
                      "The configuration of the run, with or without matrix: a YAML file");
  add_slurm_options(*command, *arguments);
  add_task_options(*command, *arguments);
  command->footer(
      "Examples:\n"
      "  kintsugi launch run.yaml --machine juwels-booster --nodes 16 --time 10d --account "
      "project_1 "
      "--print\n"
      "  kintsugi launch run.yaml --machine juwels-booster --nodes 16 --spare-nodes 1 --time 10d "
      "--account project_1\n"
      "  kintsugi launch run.yaml --local --ranks 4\n"
      "  kintsugi launch --follow runs/mine\n"
      "  kintsugi launch --status runs/mine\n"
      "  kintsugi launch --cancel runs/mine\n"
      "\n"
      "A matrix of runs, one after the other on this machine, and its results:\n"
      "  kintsugi launch examples/matrix.yaml --local\n"
      "  kintsugi launch --collect runs/matrix --markdown matrix.md\n"
      "\n"
      "The topology of this node, for a machine file:\n"
      "  kintsugi launch --show-topology\n"
      "\n"
      "Everything is checked before anything is written or submitted: docs/launch.md.\n"
      "Exit codes: those of train with --local; otherwise 0 submitted, 1 failure, 2 a mistake.");
  command->callback([command, arguments] { run_launch(*command, *arguments); });
}

}  // namespace kintsugi
