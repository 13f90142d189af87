#include "launch/job_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

using Words = std::vector<std::string>;

CpuSet reserved_cores(const Machine& machine) {
  if (!machine.launch.reserved_cores) return {};
  try {
    return parse_ranges(*machine.launch.reserved_cores);
  } catch (const UserError& error) {
    user_error("machine {}: launch.reserved_cores: {}", machine.name, error.what());
  }
}

std::optional<Topology> topology_for(const Machine& machine, const std::optional<Topology>& given) {
  if (given) return given;
  if (machine.topology.empty()) return {};
  return parse_topology(machine.topology, "machine " + machine.name);
}

// The value of --cpu-bind; empty: the option is left out.
std::string cpu_bind(const Machine& machine, const LaunchOptions& options, int ranks,
                     const std::optional<Topology>& topology) {
  const CpuSet reserved = reserved_cores(machine);
  if (!options.cpu_bind.empty()) {
    if (options.cpu_bind == "none" || options.cpu_bind == "cores") return options.cpu_bind;
    const RankCpus masks = parse_cpu_bind(options.cpu_bind);
    if (!topology)
      user_error(
          "--cpu-bind cannot be checked: machine {} has no topology; give --topology FILE (lstopo "
          "--of xml on a node)",
          machine.name);
    check_masks(masks, *topology, reserved, ranks, "--cpu-bind");
    return to_cpu_bind(masks);
  }
  switch (machine.launch.cpu_binding) {
    case CpuBinding::Masks: {
      if (!topology)
        user_error("machine {}: launch.cpu_binding: masks needs a topology", machine.name);
      const RankCpus masks = bind_ranks(*topology, reserved, ranks);
      check_masks(masks, *topology, reserved, ranks, "the masks of " + machine.name);
      return to_cpu_bind(masks);
    }
    case CpuBinding::Cores:
      return "cores";
    case CpuBinding::None:
      return "none";
    case CpuBinding::Slurm:
      return "";
  }
  return "";
}

void check_cores(const Machine& machine, std::int64_t ranks, const Topology& topology) {
  const CpuSet reserved = reserved_cores(machine), cores = topology.cores();
  const auto usable =
      std::count_if(cores.begin(), cores.end(), [&](int core) { return !reserved.contains(core); });
  const std::int64_t asked = machine.launch.cpus_per_task * ranks;
  if (asked > usable)
    user_error("machine {}: launch.cpus_per_task {} x {} ranks, but a node has {} usable cores",
               machine.name, machine.launch.cpus_per_task, ranks, usable);
}

Words container_words(const ContainerSpec& spec, const std::string& image, const JobPaths& paths) {
  Words words = {spec.runtime == ContainerRuntime::Apptainer ? "apptainer" : "singularity", "exec"};
  words.insert(words.end(), spec.options.begin(), spec.options.end());
  Words binds = spec.binds;
  binds.push_back(paths.working_directory);
  binds.push_back(paths.run_dir);
  words.push_back("--bind");
  words.push_back(fmt::format("{}", fmt::join(binds, ",")));
  words.push_back("--pwd");
  words.push_back(paths.working_directory);
  words.push_back(image);
  return words;
}

Words srun_words(const Machine& machine, const std::string& bind, const JobDescription& job) {
  const LaunchSpec& spec = machine.launch;
  Words words = {"srun",
                 "--nodes={nodes}",
                 "--ntasks={ranks}",
                 fmt::format("--ntasks-per-node={}", job.ranks_per_node),
                 "--exclude={exclude}",
                 "--nodelist={nodelist}",
                 "--kill-on-bad-exit=1",
                 "--overlap"};  // a step with a dead node keeps its other nodes busy for minutes
  // Since Slurm 22.05 srun does not inherit this one from the job.
  if (spec.cpus_per_task > 0)
    words.push_back(fmt::format("--cpus-per-task={}", spec.cpus_per_task));
  if (!bind.empty()) words.push_back("--cpu-bind=" + bind);
  if (spec.mpi) words.push_back("--mpi=" + *spec.mpi);
  return words;
}

// The words that start the ranks of a Slurm job: JobDescription::launcher. Checks --cpu-bind and
// the machine's own masks. UserError otherwise.
std::vector<std::string> launcher_of(const Machine& machine, const LaunchOptions& options,
                                     const JobDescription& job, const JobPaths& paths,
                                     const std::optional<Topology>& given) {
  const LaunchSpec& spec = machine.launch;
  const std::optional<Topology> topology = topology_for(machine, given);
  if (topology) check_cores(machine, job.ranks_per_node, *topology);
  const std::string bind =
      cpu_bind(machine, options, static_cast<int>(job.ranks_per_node), topology);
  Words words;
  if (spec.launcher == JobLauncher::Srun) {
    words = srun_words(machine, bind, job);
  } else {
    if (!options.cpu_bind.empty())
      user_error("--cpu-bind is an option of srun, but {} starts ranks with mpirun", machine.name);
    words = {"mpirun", "-np", "{ranks}", "--map-by",
             fmt::format("ppr:{}:node", job.ranks_per_node)};
  }
  words.insert(words.end(), spec.launcher_options.begin(), spec.launcher_options.end());
  if (!options.container.empty())
    for (std::string& word : container_words(spec.container, options.container, paths))
      words.push_back(std::move(word));
  return words;
}

constexpr double kHour_s = 3600;
constexpr std::int64_t kMostJobs = 1000;  // of a chain: Slurm's default MaxArraySize is 1001

// In double quotes for bash: $NAME is expanded, nothing else.
std::string expanded_in_shell(const std::string& text) {
  std::string quoted = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : ' ';
    const bool name = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z') || next == '_';
    if (c == '"' || c == '\\' || c == '`' || (c == '$' && !name)) quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

// Adds an #SBATCH line.
void add(std::string& header, const std::string& option) { header += "#SBATCH --" + option + "\n"; }
template <class T>
void add(std::string& header, const char* option, const T& value) {
  header += fmt::format("#SBATCH --{}={}\n", option, value);
}

void add_resources(std::string& header, const Machine& machine, const LaunchOptions& options,
                   const JobDescription& job) {
  const LaunchSpec& spec = machine.launch;
  add(header, "nodes", job.nodes + job.spare_nodes);
  if (job.spare_nodes > 0) add(header, "no-kill");
  add(header, "ntasks-per-node", job.ranks_per_node);
  if (spec.cpus_per_task > 0) add(header, "cpus-per-task", spec.cpus_per_task);
  if (spec.gpu_request == GpuRequest::GpusPerNode) add(header, "gpus-per-node", machine.node.gpus);
  if (spec.gpu_request == GpuRequest::Gres)
    add(header, "gres", fmt::format("gpu:{}", machine.node.gpus));
  if (spec.exclusive) add(header, "exclusive");
  if (spec.hint) add(header, "hint", *spec.hint);
  if (spec.network) add(header, "network", *spec.network);
  if (!options.exclude.empty()) add(header, "exclude", options.exclude);
  for (const std::string& option : spec.slurm_options) add(header, option.substr(2));
}

// `saves`: the ranks want a signal before the end of the job.
std::string header_of(const Machine& machine, const LaunchOptions& options, const JobPaths& paths,
                      const JobDescription& job, bool saves) {
  const JobTime time = job_time(machine, options);
  std::string header;
  add(header, "job-name", job.name);
  if (!options.account.empty()) add(header, "account", options.account);
  const std::string partition =
      !options.partition.empty() ? options.partition : machine.launch.partition.value_or("");
  if (!partition.empty()) add(header, "partition", partition);
  add_resources(header, machine, options, job);
  if (time.job_s > 0) add(header, "time", slurm_time(time.job_s));
  if (time.jobs > 1) add(header, "array", fmt::format("0-{}%1", time.jobs - 1));
  add(header, options.no_requeue ? "no-requeue" : "requeue");
  if (saves) add(header, "signal", fmt::format("USR1@{:.0f}", time.signal_s));
  add(header, "chdir", paths.working_directory);
  add(header, "output", job.directory().string() + "/slurm-%j.out");
  add(header, "open-mode", "append");
  return header;
}

// Slurm and the ranks choose GPUs of AMD by ROCR_VISIBLE_DEVICES; what a login shell says in the
// others counts among those that this one leaves.
constexpr const char* kVisibleDevices =
    "unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL  # of the login shell\n";

std::string environment_of(const Machine& machine, const JobDescription& job, bool container) {
  const LaunchSpec& spec = machine.launch;
  std::string text;
  if (!spec.modules.empty())
    text += fmt::format("module load {} || exit 2\n", fmt::join(spec.modules, " "));
  if (machine.gpu.vendor == GpuVendor::Amd) text += kVisibleDevices;
  for (const auto& [name, value] : job.environment)
    text += fmt::format("export {}={}\n", name, expanded_in_shell(value));
  if (container)
    text += "unset SINGULARITY_BIND APPTAINER_BIND  # of a container around this job\n";
  if (container && spec.mpi == "pmix")
    text += "export PMIX_MCA_psec=^munge  # there is no munge inside of the container\n";
  return text.empty() ? "" : "\n" + text;
}

constexpr const char* kEndTime = R"(
# When this job ends, in Unix seconds, so that the run can plan its saves.
end=$(squeue --noheader --jobs="{}" --format=%e 2>/dev/null | head -n 1)
if [ -n "$end" ] && KINTSUGI_END_TIME=$(date --date="$end" +%s 2>/dev/null); then
  export KINTSUGI_END_TIME
fi
)";

// Sets `code`. A program that a signal killed has an exit code above 128.
constexpr const char* kSupervise = R"(
run={}
rm -f "$run/launch/exit_code" "$run/launch/asked_to_stop"
# The supervisor starts the ranks. It is started again only if it was killed or has crashed.
for attempt in {{1..20}}; do
  {} launch --supervise "$run"
  code=$?
  case $code in 134 | 135 | 136 | 137 | 139) sleep 1 ;; *) break ;; esac
done
)";

constexpr const char* kStatus = R"(
# For Slurm a stopped run is no failed job; some sites requeue all jobs that exit with 75.
status=$code
if [ "$code" -eq 75 ]; then status=0; fi
)";

// A stop that somebody asked for ends the run; one by the time limit does not. The run removes the
// stop file that it has obeyed; the supervisor then leaves another one.
constexpr const char* kAsked = R"(
asked_to_stop() { [ -e "$run/stop" ] || [ -e "$run/launch/asked_to_stop" ]; }
)";

constexpr const char* kRequeue =
    R"(# 75: stopped with a checkpoint. Back into the queue, unless somebody asked for the stop.
if [ "$code" -eq 75 ] && ! asked_to_stop; then
  scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
)";

constexpr const char* kRetry =
    R"(# 1: too few nodes are left. Slurm may have others.
if [ "$code" -eq 1 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 20 ] && ! asked_to_stop; then
  scontrol requeue "$SLURM_JOB_ID" && exit 1
fi
)";

constexpr const char* kChain =
    R"(# The next job of the array continues, unless the run has ended (0 finished, 2 mistake, 3 diverged,
# 4 no progress), somebody asked for the stop, or this is the last one.
case $code in
  0 | 2 | 3 | 4) ;;
  *) asked_to_stop || [ "$SLURM_ARRAY_TASK_ID" -eq "$SLURM_ARRAY_TASK_MAX" ] || exit "$status" ;;
esac
scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"
)";

constexpr const char* kEnd = R"(
if [ "$code" -eq 75 ]; then rm -f "$run/stop"; fi  # it was obeyed
for attempt in {{1..30}}; do  # a full disk may get space
  echo "$code" 2>/dev/null >"$run/launch/exit_code" && break
  [ -d "$run/launch" ] || break  # it was moved
  sleep 10
done
exit "${}"
)";

std::string supervised(const JobDescription& job, const std::string& program) {
  return fmt::format(kSupervise, shell_quoted(job.run_dir), shell_quoted(program));
}

// sbatch does not read these as part of a path or name.
void check_path(const std::string& what, const std::string& path) {
  for (const char c : path)
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7F || c == '%' || c == '"' || c == '\'' ||
        c == '\\' || c == '#')
      user_error(
          "{} {} has a character that Slurm does not accept in paths (space, %, quotes, backslash, "
          "#): choose another",
          what, path);
}

void check_word(const char* option, const std::string& value, std::string_view signs) {
  for (const char c : value)
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
          signs.find(c) != std::string_view::npos))
      user_error("{} '{}': use letters, digits and {}", option, value, signs);
}

void check_options(const Machine& machine, const LaunchOptions& o) {
  check_word("--account", o.account, "-_.");
  check_word("--partition", o.partition, "-_.,");
  check_word("--name", o.name, "-_.+=,");
  check_word("--exclude", o.exclude, "-_.,[]");
  if (o.account.empty() && machine.launch.account_needed)
    user_error("{} needs an account: give --account NAME, or set SBATCH_ACCOUNT", machine.name);
  if (o.nodes + o.spare_nodes > machine.nodes)
    user_error("--nodes {}{}, but {} has {}", o.nodes,
               o.spare_nodes > 0 ? fmt::format(" and --spare-nodes {}", o.spare_nodes) : "",
               machine.name, format_number(machine.nodes, "node"));
  if (o.min_nodes > o.nodes)
    user_error("--min-nodes {} is more than --nodes {}", o.min_nodes, o.nodes);
  if (o.requeue && o.no_requeue)
    user_error("--requeue and --no-requeue contradict each other: remove one");
  if (o.spare_nodes > 0 && machine.launch.launcher == JobLauncher::Mpirun)
    user_error("--spare-nodes needs srun, but {} starts ranks with mpirun", machine.name);
}

}  // namespace

std::string shell_quoted(const std::string& text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./=,:@+%").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string slurm_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  const std::int64_t days = whole / 86400;
  return fmt::format("{}{:02}:{:02}:{:02}", days > 0 ? fmt::format("{}-", days) : "",
                     whole / 3600 % 24, whole / 60 % 60, whole % 60);
}

std::optional<double> time_limit_s(const Machine& machine, std::int64_t nodes) {
  const std::vector<JobLimit>& limits = machine.launch.limits;
  if (limits.empty()) return {};
  for (const JobLimit& limit : limits)
    if (nodes <= limit.nodes) return limit.time_h * kHour_s;
  user_error("{} for one job, but {} has jobs of at most {}", format_number(nodes, "node"),
             machine.name, format_number(limits.back().nodes, "node"));
}

JobTime job_time(const Machine& machine, const LaunchOptions& options) {
  const auto limit = time_limit_s(machine, options.nodes + options.spare_nodes);
  JobTime time{.job_s = options.time_s > 0 ? options.time_s : limit.value_or(0),
               .signal_s = options.signal_s > 0 ? options.signal_s : machine.launch.signal_s};
  if (!limit || time.job_s <= *limit) return time;
  time.job_s = *limit;
  if (options.requeue) return time;
  // Each job spends some of its time to start, and stops before its end.
  const double lost_s = machine.launch.startup_s + time.signal_s;
  if (lost_s >= *limit)
    user_error("jobs of {} take at most {}, which start-up and the last save use up ({})",
               machine.name, format_duration(*limit), format_duration(lost_s));
  const double jobs = std::ceil(options.time_s / (*limit - lost_s));
  if (jobs > kMostJobs)
    user_error("--time {} needs {:.0f} jobs of {}: give less than {} jobs' time",
               format_duration(options.time_s), jobs, format_duration(*limit), kMostJobs);
  time.jobs = static_cast<std::int64_t>(jobs);
  return time;
}

std::int64_t ranks_per_node(const Machine& machine, const LaunchOptions& options) {
  if (options.ranks_per_node > machine.node.gpus)
    user_error("--ranks-per-node {}, but a node of {} has {}", options.ranks_per_node, machine.name,
               format_number(machine.node.gpus, "GPU"));
  return options.ranks_per_node > 0 ? options.ranks_per_node : machine.node.gpus;
}

JobDescription describe_job(const Machine& machine, const LaunchOptions& options,
                            const JobPaths& paths, const std::optional<Topology>& topology) {
  check_options(machine, options);
  check_path("the run directory", paths.run_dir);
  check_path("the working directory", paths.working_directory);
  const LaunchSpec& spec = machine.launch;
  JobDescription job{.name = options.name,
                     .run_dir = paths.run_dir,
                     .config = paths.run_dir + "/launch/config.yaml",
                     .program = options.container.empty() ? paths.program : "kintsugi",
                     .machine = machine.name,
                     .ranks_per_node = ranks_per_node(machine, options),
                     .nodes = options.nodes,
                     .spare_nodes = options.spare_nodes,
                     .min_nodes = options.min_nodes > 0 ? options.min_nodes : options.nodes,
                     .environment = spec.environment,
                     .requeue = options.requeue,
                     .chain = job_time(machine, options).jobs};
  if (job.nodes > 1)
    job.environment.insert(job.environment.end(), spec.multi_node_environment.begin(),
                           spec.multi_node_environment.end());
  job.launcher = launcher_of(machine, options, job, paths, topology);
  return job;
}

std::string job_script(const Machine& machine, const LaunchOptions& options, const JobPaths& paths,
                       const JobDescription& job) {
  const bool chain = job.chain > 1;
  std::string text = fmt::format(
      "#!/bin/bash\n# {} on {}: {} x {}{}, by kintsugi launch.\n", job.name, machine.name,
      format_number(job.nodes, "node"), format_number(job.ranks_per_node, "rank"),
      job.spare_nodes > 0 ? fmt::format(" and {}", format_number(job.spare_nodes, "spare node"))
                          : "");
  text += header_of(machine, options, paths, job, true);
  text += environment_of(machine, job, !options.container.empty());
  text +=
      fmt::format(kEndTime, chain ? "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" : "$SLURM_JOB_ID");
  if (!options.first.empty()) text += fmt::format("\n{} || exit\n", quoted_words(options.first));
  text += supervised(job, paths.program) + kStatus;
  if (chain || job.requeue || !options.no_requeue) text += kAsked;
  if (chain) text += kChain;
  if (!chain && job.requeue) text += kRequeue;
  if (!chain && !options.no_requeue) text += kRetry;
  return text + fmt::format(kEnd, "status");
}

std::string quoted_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

std::string launcher_text(const JobDescription& job) {
  std::string text;
  for (const std::string& word : job.launcher)
    if (word.find("{exclude}") == std::string::npos && word.find("{nodelist}") == std::string::npos)
      text += (text.empty() ? "" : " ") + shell_quoted(word);
  return text;
}

std::string command_script(const Machine& machine, const LaunchOptions& options,
                           const JobPaths& paths, const JobDescription& job,
                           const std::vector<std::string>& command) {
  std::string text =
      fmt::format("#!/bin/bash\n# {} on {}: {} x {}, by kintsugi launch.\n", job.name, machine.name,
                  format_number(job.nodes, "node"), format_number(job.ranks_per_node, "rank"));
  text += header_of(machine, options, paths, job, false) + environment_of(machine, job, false) +
          "\nexec " + quoted_words(command);
  return text + "\n";
}

JobDescription describe_local_job(std::int64_t ranks, const std::string& name,
                                  const JobPaths& paths) {
  JobDescription job{.name = name,
                     .run_dir = paths.run_dir,
                     .config = paths.run_dir + "/launch/config.yaml",
                     .program = paths.program,
                     .machine = "this machine",
                     .ranks_per_node = ranks,
                     .local = true};
  if (ranks > 1) job.launcher = {"mpirun", "-np", "{ranks}"};
  return job;
}

std::string local_script(const JobDescription& job, const JobPaths& paths) {
  return fmt::format(
             "#!/bin/bash\n# {} on this machine: {}, by kintsugi launch.\ncd {} || exit 1\n",
             job.name, format_number(job.ranks(), "rank"), shell_quoted(paths.working_directory)) +
         "trap : INT TERM USR1 HUP  # the supervisor handles them; this script waits for it\n" +
         supervised(job, paths.program) + fmt::format(kEnd, "code");
}

}  // namespace kintsugi
