#include "cli/launch/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <set>

#include "cli/backends.h"
#include "cli/train/dry_run.h"
#include "core/child_output.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "core/yaml_document.h"
#include "launch/job_launcher.h"
#include "launch/matrix.h"
#include "launch/node_ledger.h"
#include "launch/slurm.h"
#include "model/config.h"
#include "plan/costs/footprint.h"
#include "train/checkpoint/branches.h"
#include "train/engine_options.h"
#include "train/run_data.h"
#include "train/run_history.h"
#include "train/run_tasks.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr double kSaveReserve = 1.5;  // times the estimated save
constexpr double kStepReserve_s = 60;

// Calls `check` with every stage; its errors name the stage.
template <class Check>
void for_each_stage(const RunConfig& run, Check&& check) {
  for (std::int64_t i = 0; i < run.stage_count(); ++i) {
    RunConfig stage = run.at_stage(i);
    try {
      check(stage);
    } catch (const UserError& error) {
      if (stage.stage_title().empty()) throw;
      user_error("{}: {}", stage.stage_title(), error.what());
    }
  }
}

void check_layouts(const RunConfig& run, std::int64_t ranks, const std::string& whose) {
  for_each_stage(run, [&](const RunConfig& stage) {
    if (stage.layout_auto) return;
    try {
      layout_on(stage, static_cast<int>(ranks));
    } catch (const UserError& error) {
      user_error("{} ({}): {}", whose, format_number(ranks, "rank"), error.what());
    }
  });
}

void check_data(const RunConfig& run) {
  for_each_stage(run, [](RunConfig& stage) {
    // Packing a corpus is long work, and checks nothing more.
    if (!stage.on_examples()) stage.data.packing = Packing::Windows;
    const RunData data(stage, PackingFiles::Read);
    if (!stage.train.eval_tasks.empty()) RunTasks(stage, data.tokenizer());
  });
}

// A checkpoint in run.dir must be one of this model.
void check_checkpoint(const RunConfig& run) {
  const auto latest = peek_latest_checkpoint(fs::path(run.run.dir) / "checkpoints");
  if (latest) return check_saved_model(*latest, run.model);
  if (run.run.from) start_of_branch(run);
}

}  // namespace

void check_not_active(const fs::path& run_dir) {
  if (!fs::exists(job_file(run_dir)) || !slurm_is_here()) return;
  for (const SlurmJobState& job : job_states(load_job(run_dir).job_ids))
    user_error("{} has an active job, {} ({}): wait for it, or kintsugi launch --cancel {}",
               run_dir.string(), job.id, job.state, run_dir.string());
}

namespace {

// From here on no other job can start in the run directory.
std::unique_ptr<RunLock> lock_run(const fs::path& run_dir) {
  try {
    auto lock = RunLock::for_launch(run_dir);
    check_not_active(run_dir);
    return lock;
  } catch (const UserError&) {
    check_not_active(run_dir);  // a job says more than a process on another node
    throw;
  }
}

// One save, as the planner estimates it; 0 if the machine's storage is unknown.
double save_seconds(const RunConfig& run, const StorageRate& storage, const Machine& machine,
                    double& gigabytes) {
  for_each_stage(run, [&](const RunConfig& stage) {
    const RunFootprint footprint = footprint_of({}, plan_job(stage), machine, 1);
    gigabytes = std::max(gigabytes, footprint.checkpoint_gb);
  });
  return storage.gb_s > 0 ? gigabytes / storage.gb_s : 0;
}

// Chooses how long before its end a job is told to save, and checks that a job can do anything.
void check_time(const RunConfig& run, const Machine& machine, LaunchOptions& options) {
  double gigabytes = 0;
  const StorageRate storage = storage_of(machine, static_cast<double>(options.nodes));
  const double save_s = save_seconds(run, storage, machine, gigabytes);
  const std::string save =
      fmt::format("a save of {:.3g} GB takes about {} at {}{:.3g} GB/s", gigabytes,
                  format_duration(save_s), storage.assumed ? "an assumed " : "", storage.gb_s);
  if (options.signal_s > 0 && options.signal_s < save_s)
    user_error("--signal {} is too short: {}", format_duration(options.signal_s), save);
  if (options.signal_s == 0)
    options.signal_s =
        std::ceil(std::max(machine.launch.signal_s, kSaveReserve * save_s + kStepReserve_s));
  if (options.signal_s > kLongestSignal_s)
    user_error("{}, more than Slurm can announce before the end of a job", save);
  const JobTime time = job_time(machine, options);
  const double least_s = machine.launch.startup_s + options.signal_s;
  if (time.job_s > 0 && time.job_s <= least_s)
    user_error(
        "a job of {} is too short for one save: start-up takes about {}, and it is told to save {} "
        "before its end{}; give a longer --time{}",
        format_duration(time.job_s), format_duration(machine.launch.startup_s),
        format_duration(options.signal_s), save_s > 0 ? " (" + save + ")" : "",
        save_s < options.signal_s ? ", or a shorter --signal" : "");
}

std::string name_for(const LaunchRequest& request, const RunConfig& run, const std::string& cell) {
  std::string name = request.options.name;
  if (name.empty())
    name = fs::path(run.run.dir).lexically_normal().filename().string();
  else if (!cell.empty())
    name += "-" + cell;
  return slurm_name(name);
}

JobPaths paths_for(const RunConfig& run) {
  fs::path directory = fs::absolute(run.run.dir).lexically_normal();
  if (!directory.has_filename()) directory = directory.parent_path();
  return {.run_dir = directory.string(),
          .program = own_program().string(),
          .working_directory = fs::current_path().string()};
}

RunConfig configuration(const LaunchRequest& request, const Matrix& matrix,
                        const MatrixCell& cell) {
  std::vector<std::string> overrides = cell.overrides;
  overrides.insert(overrides.end(), request.overrides.begin(), request.overrides.end());
  RunConfig config = parse_run_config(matrix.text, request.config, overrides);
  if (!cell.name.empty()) {
    overrides.push_back("run.dir=" + yaml_quoted((fs::path(config.run.dir) / cell.name).string()));
    config = parse_run_config(matrix.text, request.config, overrides);
  }
  resolve_tokenizer(config);
  return config;
}

PreparedRun prepare_local(const LaunchRequest& request, const MatrixCell& cell, RunConfig config) {
  PreparedRun run{.cell = cell.name, .config = std::move(config)};
  check_layouts(run.config, request.ranks, "--ranks");
  const JobPaths paths = paths_for(run.config);
  run.job = describe_local_job(request.ranks, name_for(request, run.config, cell.name), paths);
  run.script = local_script(run.job, paths);
  return run;
}

// The nodes in the ledger are left out, as those of --exclude.
void exclude_bad_nodes(const RunConfig& config, LaunchOptions& options) {
  const NodeLedger ledger(node_ledger_path(config.run.node_ledger.value_or(""), config.run.dir));
  const std::vector<std::string> nodes = ledger.excluded(std::time(nullptr));
  if (nodes.empty()) return;
  const std::string list = host_list(nodes);
  log_info("without {}: listed in {} (kintsugi doctor --nodes)", list, ledger.path().string());
  options.exclude += (options.exclude.empty() ? "" : ",") + list;
}

// The job compares its energy with the plan for this machine, unless the user has named another.
void set_energy_machine(const std::string& machine, RunConfig& config) {
  const std::vector<std::string> built_in = machine_names();
  const bool name = std::find(built_in.begin(), built_in.end(), machine) != built_in.end();
  const std::string given = name ? machine : fs::absolute(machine).lexically_normal().string();
  const auto set = [&](StageConfig& one) {
    if (!one.energy.machine) one.energy.machine = given;
  };
  set(config);
  for (StageConfig& stage : config.stages) set(stage);
}

// Ranks that cannot use the GPUs of their node would train on its CPU cores, unnoticed.
void check_gpus(const LaunchRequest& request, const Machine& machine,
                const std::vector<PreparedRun>& runs) {
  if (wants_gpus(runs))
    check_driven(request, machine,
                 "its ranks would train on CPU cores: say --set device=cpu if they shall, or "
                 "--allow-undriven-gpus to submit the job as it is");
}

PreparedRun prepare_slurm(const LaunchRequest& request, const Machine& machine,
                          const std::optional<Topology>& topology, const MatrixCell& cell,
                          RunConfig config) {
  PreparedRun run{.cell = cell.name, .config = std::move(config)};
  set_energy_machine(request.machine, run.config);
  run.config.device = device_for(request, machine, run.config.device);
  LaunchOptions options = request.options;
  options.name = name_for(request, run.config, cell.name);
  exclude_bad_nodes(run.config, options);
  const JobPaths paths = paths_for(run.config);
  run.job = describe_job(machine, options, paths, topology);
  check_layouts(run.config, run.job.ranks(), fmt::format("--nodes {}", run.job.nodes));
  check_layouts(run.config, run.job.min_nodes * run.job.ranks_per_node,
                fmt::format("--min-nodes {}", run.job.min_nodes));
  if (run.config.device != DeviceChoice::Cpu)
    for_each_stage(run.config, [&](const RunConfig& stage) {
      if (stage.layout_auto) return;
      for (const std::int64_t nodes : std::set{run.job.nodes, run.job.min_nodes})
        check_fits(stage, machine, static_cast<int>(nodes * run.job.ranks_per_node));
    });
  check_time(run.config, machine, options);
  run.job = describe_job(machine, options, paths, topology);
  run.script = job_script(machine, options, paths, run.job);
  if (request.explain) {
    const MachineComments comments = machine_comments(request.machine);
    run.explanation =
        explained(job_script_parts(machine, options, paths, run.job), comments) +
        "\n# The supervisor starts the ranks with these words, and the program after them:\n" +
        explained_words(launcher_parts(machine, options, run.job, paths, topology), comments);
  }
  run.allocated_nodes = run.job.nodes + run.job.spare_nodes;
  run.partition =
      options.partition.empty() ? machine.launch.partition.value_or("") : options.partition;
  run.job_s = job_time(machine, options).job_s;
  return run;
}

void check_request(const LaunchRequest& request) {
  if (!request.text && is_stream(request.config))
    user_error("{}: give a regular file, so that the job can be started again", request.config);
  if (!request.local && request.machine.empty())
    user_error("give --machine (kintsugi plan machines lists the built-in ones), or --local");
  if (!request.options.container.empty() && !fs::exists(request.options.container))
    user_error("--container {}: there is no such image", request.options.container);
  if (request.local && request.ranks > 1 && !request.print &&
      !run_captured({"mpirun", "--version"}, 30).found)
    user_error("mpirun is not installed on this machine: give --ranks 1");
}

}  // namespace

void check_driven(const LaunchRequest& request, const Machine& machine,
                  const std::string& meaning) {
  const std::string why = why_undriven(machine);
  if (why.empty()) return;
  // A container has a program of its own.
  const bool other_program = !request.options.container.empty();
  if (!request.print && !request.allow_undriven_gpus && !other_program)
    user_error("{}; {}", why, meaning);
  log_warning("{}{}", why, other_program ? "; the one in the container must be able to" : "");
}

// With `auto`, ranks that find no GPU because a library is missing would compute on CPU cores,
// unnoticed. The program in a container is another one, which must be able to use the GPUs.
DeviceChoice device_for(const LaunchRequest& request, const Machine& machine, DeviceChoice device) {
  const GpuVendor vendor = machine.gpu.vendor;
  if (device != DeviceChoice::Auto || vendor == GpuVendor::None) return device;
  if (!drives_gpus(vendor).value_or(false) &&
      (vendor == GpuVendor::Unknown || request.options.container.empty()))
    return device;
  return vendor == GpuVendor::Amd ? DeviceChoice::Hip : DeviceChoice::Cuda;
}

std::optional<Topology> topology_given(const LaunchRequest& request) {
  if (request.topology.empty()) return {};
  return request.topology == "this" ? topology_of_this_machine() : load_topology(request.topology);
}

bool wants_gpus(const std::vector<PreparedRun>& runs) {
  return std::any_of(runs.begin(), runs.end(),
                     [](const PreparedRun& run) { return run.config.device != DeviceChoice::Cpu; });
}

PreparedRuns prepare_runs(const LaunchRequest& request) {
  check_request(request);
  const Matrix matrix =
      read_matrix(request.text ? *request.text : read_text_file(request.config), request.config);
  check_overrides(matrix, request.overrides);
  if (static_cast<std::int64_t>(matrix.cells.size()) > request.max_jobs)
    user_error("{} has a matrix of {} cells: raise --max-jobs, which is {}", request.config,
               matrix.cells.size(), request.max_jobs);
  const Machine machine = request.local ? Machine{} : load_machine(request.machine);
  const std::optional<Topology> topology = topology_given(request);
  const auto prepare = [&](const MatrixCell& cell) {
    RunConfig config = configuration(request, matrix, cell);
    PreparedRun run = request.local
                          ? prepare_local(request, cell, std::move(config))
                          : prepare_slurm(request, machine, topology, cell, std::move(config));
    if (!request.print && !request.in_job) run.lock = lock_run(run.job.run_dir);
    if (!request.data_later) check_data(run.config);
    check_checkpoint(run.config);
    return run;
  };
  PreparedRuns runs;
  for (const MatrixCell& cell : matrix.cells) try {
      runs.list.push_back(prepare(cell));
    } catch (const UserError& error) {
      if (cell.name.empty()) throw;
      user_error("cell {}: {}", cell.name, error.what());
    }
  if (!request.local) check_gpus(request, machine, runs.list);
  return runs;
}

}  // namespace kintsugi
