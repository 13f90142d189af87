#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/launch/acceptance.h"
#include "cli/launch/array_launch.h"
#include "cli/launch/prepare.h"
#include "cli/launch/submit.h"
#include "cli/launch/watch.h"
#include "cli/options.h"
#include "core/child_output.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/units.h"
#include "launch/child_session.h"
#include "launch/matrix.h"
#include "launch/slurm.h"
#include "launch/supervisor.h"
#include "report/runs/run_status.h"
#include "train/config/config.h"
#include "train/startup.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

void submit(std::vector<PreparedRun>& runs) {
  require_slurm();
  check_partitions(runs);
  submit_runs(runs);
  for (const PreparedRun& run : runs)
    fmt::print("submitted job {}: {}\n", run.job.job_ids.back(), run.job.run_dir);
  fmt::print("follow it: kintsugi launch --follow {}\n", runs.front().job.run_dir);
}

// Prints what would be submitted.
void print_runs(const std::vector<PreparedRun>& runs, bool explain) {
  for (const PreparedRun& run : runs) {
    if (explain) {
      fmt::print("{}{}", &run == &runs.front() ? "" : "\n", run.explanation);
      continue;
    }
    fmt::print(
        "{}{}\n# The supervisor starts the ranks with:\n#   {}\n",
        &run == &runs.front() ? "" : "\n", run.script,
        fmt::join(rank_command(run.job, {.nodes = run.job.nodes}, {"train", run.job.config}), " "));
  }
}

struct LaunchArguments {
  LaunchRequest request = {};
  std::string time, signal;  // durations; empty: the defaults
  std::string status, cancel, follow, collect, accept, supervise, deputy;  // directories
  std::vector<std::string> parts = {};  // of --accept; empty: all
  bool now = false;
  bool show_topology = false;
  std::string csv, markdown;
  bool overwrite = false;
  std::string array;                           // size of job arrays; empty: none
  std::int64_t cpus = 0;                       // of their tasks
  std::vector<std::string> words, after = {};  // their command without its first word; job ids
};

// The task is the first option of a list that was given, or else a launch. Other options than those
// it takes are refused.
void refuse_idle_options(const CLI::App& command, const std::string& config) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> tasks = {
      {"--status", {}},
      {"--cancel", {"--now"}},
      {"--follow", {}},
      {"--collect", {"--csv", "--markdown", "--overwrite"}},
      {"--accept",
       {"--machine", "--nodes", "--ranks-per-node", "--time", "--account", "--partition", "--qos",
        "--exclude", "--cpu-bind", "--topology", "--name", "--print", "--allow-undriven-gpus",
        "--parts"}},
      {"--array",
       {"config", "words", "--machine", "--time", "--account", "--partition", "--qos", "--exclude",
        "--name", "--print", "--explain", "--signal", "--no-requeue", "--after", "--cpus"}},
      {"--supervise", {}},
      {"--deputy", {}},
      {"--show-topology", {"--topology", "--machine"}},
      {"--local", {"config", "--ranks", "--set", "--name", "--max-jobs", "--print"}}};
  std::vector<std::string> given;
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0) given.push_back(option->get_name());
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& [task, takes] : tasks) {
    if (!has(given, task)) continue;
    for (const std::string& name : given)
      if (name != task && !has(takes, name))
        user_error("{} has no effect with {}: remove one of them",
                   name == "config" ? "the configuration " + config : name, task);
    return;
  }
  for (const std::string& name : given)
    if (has({"--ranks", "--now", "--parts", "--csv", "--markdown", "--overwrite", "--after",
             "--cpus"},
            name))
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

void note_unknown_gpus(const LaunchRequest& request) {
  if (const Machine machine = load_machine(request.machine);
      machine.gpu.vendor == GpuVendor::Unknown)
    log_note(
        "{} does not say whose GPUs {} has (gpu.vendor: nvidia, amd or none): it was not checked "
        "whether this program can use them",
        request.machine, machine.name);
}

void end_with(int exit_code) {
  if (exit_code != 0) throw CLI::RuntimeError(exit_code);
}

void launch(LaunchArguments& arguments) {
  LaunchRequest& request = arguments.request;
  if (request.config.empty())
    user_error(
        "give a configuration, or one of --status, --follow, --cancel, --collect and "
        "--accept");
  if (!arguments.time.empty()) request.options.time_s = parse_duration_s(arguments.time);
  if (!arguments.signal.empty()) request.options.signal_s = parse_duration_s(arguments.signal);
  request.options.account = or_variable(request.options.account, "SBATCH_ACCOUNT");
  if (!request.options.container.empty())
    request.options.container = std::filesystem::absolute(request.options.container).string();
  request.print = request.print || request.explain;
  PreparedRuns runs = prepare_runs(request);
  if (request.print || !request.local) {
    request.print ? print_runs(runs.list, request.explain) : submit(runs.list);
    if (!request.local && wants_gpus(runs.list)) note_unknown_gpus(request);
    return;
  }
  end_with(run_locally(runs.list));
}

constexpr double kAcceptJob_s = 1200, kAcceptPart = 0.75;  // of the job's time; the rest is reserve

// Submits a job that runs kintsugi accept. What the trials and the report are called is checked by
// that, in the job.
void launch_accept(LaunchArguments& arguments) {
  const LaunchRequest& request = arguments.request;
  LaunchOptions options = request.options;
  if (request.machine.empty())
    user_error("give --machine (kintsugi plan machines lists the built-in ones)");
  const Machine machine = load_machine(request.machine);
  const fs::path output = fs::absolute(arguments.accept).lexically_normal();
  const fs::path trials = output.string() + "-trials";
  for (const fs::path& directory : {output, trials})
    if (fs::exists(directory))
      user_error("--accept {}: {} exists: choose another name", arguments.accept,
                 directory.string());
  check_driven(request, machine,
               "the test would run on CPU cores: --allow-undriven-gpus submits it as it is");
  options.account = or_variable(options.account, "SBATCH_ACCOUNT");
  options.no_requeue = true;
  if (options.name.empty()) options.name = "accept";
  options.time_s = arguments.time.empty() ? kAcceptJob_s : parse_duration_s(arguments.time);
  const JobPaths paths{.run_dir = trials.string(),
                       .program = own_program().string(),
                       .working_directory = fs::current_path().string()};
  const std::optional<Topology> topology = topology_given(request);
  const JobDescription job = describe_job(machine, options, paths, topology);
  if (job.chain > 1)
    user_error("--time {} is more than a job of {} may take", arguments.time, machine.name);
  const bool file = fs::exists(request.machine);
  const DeviceChoice device = device_for(request, machine, DeviceChoice::Auto);
  std::vector<std::string> words = {
      paths.program,      "accept",
      "--output",         output.string(),
      "--machine",        file ? fs::absolute(request.machine).string() : request.machine,
      "--device",         std::string(to_string(device)),
      "--ranks",          std::to_string(job.ranks()),
      "--ranks-per-node", std::to_string(job.ranks_per_node),
      "--budget",         fmt::format("{:.0f}s", kAcceptPart * options.time_s),
      "--launch",         launcher_text(job)};
  if (!arguments.parts.empty())
    words.insert(words.end(), {"--parts", fmt::format("{}", fmt::join(arguments.parts, ","))});
  const std::string script = command_script(machine, options, paths, job, words);
  if (request.print) {
    fmt::print("{}", script);
    return note_unknown_gpus(request);
  }
  require_slurm();
  check_partition(
      slurm_partitions(),
      options.partition.empty() ? machine.launch.partition.value_or("") : options.partition,
      job.nodes, options.time_s);
  NewFiles files;
  files.create_folders(job.directory());
  files.write(job.directory() / "job.sh", script);
  const std::string id = submit_job(job.directory() / "job.sh");
  files.keep();
  note_unknown_gpus(request);
  fmt::print("submitted job {}; its report will be {}\n", id,
             (output / "acceptance.html").string());
}

void launch_array(LaunchArguments& arguments) {
  LaunchRequest& request = arguments.request;
  if (!arguments.time.empty()) request.options.time_s = parse_duration_s(arguments.time);
  if (!arguments.signal.empty()) request.options.signal_s = parse_duration_s(arguments.signal);
  request.options.account = or_variable(request.options.account, "SBATCH_ACCOUNT");
  request.print = request.print || request.explain;
  ArrayRequest array;
  array.cpus = arguments.cpus;
  read_array_size(arguments.array, array);
  if (!request.config.empty()) array.command.push_back(request.config);
  array.command.insert(array.command.end(), arguments.words.begin(), arguments.words.end());
  launch_arrays(request, array, arguments.after);
}

void run_launch(const CLI::App& command, LaunchArguments& arguments) {
  if (arguments.array.empty() && !arguments.words.empty())
    user_error("kintsugi launch does not take '{}' without --array; --help lists its arguments",
               arguments.words.front());
  refuse_idle_options(command, arguments.request.config);
  if (!arguments.status.empty()) return show_runs(arguments.status);
  if (!arguments.cancel.empty()) return cancel_runs(arguments.cancel, arguments.now);
  if (!arguments.follow.empty()) return follow_run(arguments.follow);
  if (!arguments.collect.empty()) return collect(arguments);
  if (!arguments.accept.empty()) return launch_accept(arguments);
  if (!arguments.array.empty()) return launch_array(arguments);
  if (arguments.show_topology) return print_topology(arguments.request);
  if (!arguments.deputy.empty()) return end_with(run_deputy(arguments.deputy));
  if (arguments.supervise.empty()) return launch(arguments);
  end_with(Supervisor(load_job(arguments.supervise)).run());
}

void add_slurm_options(CLI::App& command, LaunchArguments& arguments) {
  const AddOption add(command);
  LaunchRequest& request = arguments.request;
  LaunchOptions& options = request.options;
  const CLI::Validator nodes = whole_number(between(1, 1e7));
  add("--machine", request.machine, "The machine: a name (kintsugi plan machines) or a YAML file");
  add("--nodes", options.nodes, "Nodes that train", nodes, kShowDefault);
  add("--spare-nodes", options.spare_nodes, "Nodes in addition that replace failed ones",
      whole_number(between(0, 1e7)));
  add("--min-nodes", options.min_nodes, "The run may continue on this many nodes (default: on all)",
      nodes);
  add("--ranks-per-node", options.ranks_per_node, "Default: one for each GPU of a node", nodes);
  add("--time", arguments.time,
      "How long the run may take: 48h, 30min. More than the machine allows for one job becomes a "
      "chain of jobs (default: one job of the longest time)",
      TypeName{"TIME"}, duration(between(1, 1e9)));
  add("--account", options.account, "The project that pays (or SBATCH_ACCOUNT)");
  add("--partition", options.partition, "Instead of the machine's partition");
  add("--qos", options.qos, "Instead of the QoS that the machine's limits name");
  add("--container", options.container,
      "Run the ranks in this image (Apptainer, Singularity, pyxis), or by this EDF file");
  add("--requeue", options.requeue,
      "Put the job back into the queue at its time limit until the run is finished, instead of a "
      "chain");
  add("--no-requeue", options.no_requeue, "Do not start the job again after the failure of a node");
  add("--signal", arguments.signal,
      "How long before the end of the job it is told to save (default: the machine's, or longer "
      "for large models)",
      TypeName{"TIME"}, duration(between(1, kLongestSignal_s)));
  add("--exclude", options.exclude, "Nodes that must not be used: n7,n[10-12]");
  add("--cpu-bind", options.cpu_bind,
      "Instead of the machine's binding: none, cores, or mask_cpu: and one mask per rank of a "
      "node, which are checked");
  add("--topology", request.topology,
      "Instead of the machine's topology: a file (text, or lstopo --of xml), or this: of this "
      "machine");
}

void add_array_options(CLI::App& command, LaunchArguments& arguments) {
  const AddOption add(command);
  add("words", arguments.words, "With --array, after --: the command, such as data dedup …",
      TypeName{"COMMAND"});
  add("--array", arguments.array,
      "Run data curate or data dedup as job arrays of this many tasks, a stage after the other; "
      "100%20: at most 20 at once",
      TypeName{"TASKS"});
  add("--cpus", arguments.cpus,
      "With --array: cores of a task (default: the machine's cpus_per_task, or a whole node)",
      whole_number(between(1, 1 << 16)));
  add("--after", arguments.after,
      "With --array: begin when this job has ended well, which may make the inputs",
      TypeName{"JOB_ID"}, kRepeatable);
}

void add_task_options(CLI::App& command, LaunchArguments& arguments) {
  const AddOption add(command);
  LaunchRequest& request = arguments.request;
  add("--set", request.overrides, "Override a value: --set optimizer.lr=3e-4 (repeatable)",
      TypeName{"KEY=VALUE"}, kRepeatable);
  add("--name", request.options.name, "Name of the job (default: that of the run directory)");
  add("--print", request.print, "Check everything and print the script; write nothing");
  add("--explain", request.explain,
      "As --print, and say of each line why it is there: the machine file, an option, or a rule of "
      "this program");
  add("--allow-undriven-gpus", request.allow_undriven_gpus,
      "Submit also if this program cannot use the GPUs of the machine");
  add("--local", request.local, "Run on this machine instead of Slurm");
  add("--ranks", request.ranks, "With --local: number of ranks (mpirun)",
      whole_number(between(1, 4096)), kShowDefault);
  add("--max-jobs", request.max_jobs, "Refuse a matrix with more cells",
      whole_number(between(1, kMostCells)), kShowDefault);
  add("--status", arguments.status,
      "Show the job and the state of a run, or of all runs of a matrix", TypeName{"RUN_DIR"});
  add("--follow", arguments.follow, "Print the log of a run until its job ends",
      TypeName{"RUN_DIR"});
  add("--cancel", arguments.cancel, "Ask the job of a run, or all of a matrix, to save and stop",
      TypeName{"RUN_DIR"});
  add("--now", arguments.now, "With --cancel: end it at once, without a save");
  add("--collect", arguments.collect, "One table of all runs of a matrix", TypeName{"DIR"});
  add("--csv", arguments.csv, "With --collect: write the table to this file", TypeName{"FILE"});
  add("--markdown", arguments.markdown, "The same as a Markdown table", TypeName{"FILE"});
  add_overwrite_option(command, arguments.overwrite);
  add("--show-topology", arguments.show_topology,
      "Print the NUMA domains, cores and GPUs of this machine, of --machine or of --topology FILE, "
      "in the form of machine files");
  add("--accept", arguments.accept,
      "Submit a job that tests the program and the plan on --nodes nodes of --machine, and writes "
      "its report to this directory (kintsugi accept; 20 min unless --time is given)",
      TypeName{"DIR"});
  add_accept_parts(command, arguments.parts);
  add("--supervise", arguments.supervise, "Used by job scripts: runs a job", TypeName{"RUN_DIR"});
  add("--deputy", arguments.deputy,
      "Used by the supervisor: requeues the job if the supervisor's node dies",
      TypeName{"RUN_DIR"});
}

}  // namespace

void add_launch_command(CLI::App& app) {
  auto arguments = std::make_shared<LaunchArguments>();
  CLI::App* command = app.add_subcommand(
      "launch", "Submit runs to Slurm, or run them here; watch and collect them");
  const AddOption add(*command);
  add("config", arguments->request.config,
      "The configuration of the run, with or without matrix: a YAML file");
  add_array_options(*command, *arguments);
  add_slurm_options(*command, *arguments);
  add_task_options(*command, *arguments);
  command->footer(
      "Examples:\n"
      "  kintsugi launch run.yaml --machine juwels-booster --nodes 16 --time 10d --account "
      "project_1 --print\n"
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
      "An acceptance test of two nodes:\n"
      "  kintsugi launch --accept accept --machine leonardo --nodes 2 --account project_1\n"
      "\n"
      "A deduplication, in 100 tasks on CPU nodes:\n"
      "  kintsugi launch --machine leonardo --partition dcgp_usr_prod --array 100 --time 1h -- "
      "data "
      "dedup 'corpus/*.jsonl.zst' --output dedup\n"
      "\n"
      "The topology of this node, for a machine file:\n"
      "  kintsugi launch --show-topology\n"
      "\n"
      "Everything is checked before anything is written or submitted: docs/launch.md.\n"
      "Exit codes: those of train with --local; otherwise 0 submitted, 1 failure, 2 a mistake.");
  command->callback([command, arguments] { run_launch(*command, *arguments); });
}

}  // namespace kintsugi
