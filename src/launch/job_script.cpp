#include "launch/job_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/error.h"
#include "core/units.h"
#include "launch/job_launcher.h"

namespace kintsugi {
namespace {

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

// Whether a limit of the machine holds for jobs of this partition and QoS: it names them, or names
// none while none was asked for or known.
bool holds(const LaunchSpec& spec, const JobLimit& limit, const LaunchOptions& options) {
  const auto asked = [&](const std::string& given, std::string JobLimit::*name,
                         const std::string& usual) {
    if (given.empty() || given == usual) return (limit.*name).empty() || limit.*name == usual;
    const bool listed =
        std::ranges::any_of(spec.limits, [&](const JobLimit& one) { return one.*name == given; });
    return listed ? limit.*name == given : (limit.*name).empty();
  };
  // The QoS of a limit need not be asked for: the job gets it.
  return asked(options.partition, &JobLimit::partition, spec.partition.value_or("")) &&
         (options.qos.empty() || limit.qos == options.qos);
}

// The position of the first limit that allows this many nodes; nullopt: none is known. UserError if
// no job can have them.
std::optional<std::size_t> limit_of(const Machine& machine, const LaunchOptions& options,
                                    std::int64_t nodes) {
  std::int64_t most = 0;
  const std::vector<JobLimit>& limits = machine.launch.limits;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    if (!holds(machine.launch, limits[i], options)) continue;
    if (nodes <= limits[i].nodes) return i;
    most = std::max(most, limits[i].nodes);
  }
  if (most == 0) return {};
  user_error("{} for one job, but {} has jobs of at most {}", format_number(nodes, "node"),
             machine.name, format_number(most, "node"));
}

// --qos, or the QoS that jobs of this size need, with the reason.
ScriptPart qos_of(const Machine& machine, const LaunchOptions& options) {
  if (!options.qos.empty()) return because("--qos", options.qos);
  const auto limit = limit_of(machine, options, options.nodes + options.spare_nodes);
  if (!limit) return {};
  return from_machine(machine.launch.limits[*limit].qos, fmt::format("launch.limits[{}]", *limit));
}

// Collects the lines of a script.
class Header {
 public:
  ScriptParts parts = {};

  void add(ScriptPart part) {
    part.text = "#SBATCH --" + part.text + "\n";
    parts.push_back(std::move(part));
  }
  template <class T>
  void option(const char* name, const T& value, std::string reason) {
    add(because(std::move(reason), fmt::format("{}={}", name, value)));
  }
  template <class T>
  void machine(const char* name, const T& value, std::string key, std::string reason = "") {
    add(from_machine(fmt::format("{}={}", name, value), std::move(key), std::move(reason)));
  }
};

void add_options(Header& header, const Machine& machine, const LaunchOptions& options) {
  if (!options.exclude.empty())
    header.option("exclude", options.exclude, "--exclude, and the node ledger (kintsugi doctor)");
  const std::vector<std::string>& given = machine.launch.slurm_options;
  for (std::size_t i = 0; i < given.size(); ++i)
    header.add(from_machine(given[i].substr(2), fmt::format("launch.slurm_options[{}]", i)));
}

void add_resources(Header& header, const Machine& machine, const LaunchOptions& options,
                   const JobDescription& job) {
  const LaunchSpec& spec = machine.launch;
  header.option("nodes", job.nodes + job.spare_nodes,
                job.spare_nodes > 0
                    ? fmt::format("--nodes {} and --spare-nodes {}", job.nodes, job.spare_nodes)
                    : fmt::format("--nodes {}", job.nodes));
  if (job.spare_nodes > 0)
    header.add(because("--spare-nodes: the job goes on without a failed node", "no-kill"));
  if (options.ranks_per_node > 0)
    header.option("ntasks-per-node", job.ranks_per_node, "--ranks-per-node");
  else
    header.machine("ntasks-per-node", job.ranks_per_node, "node.gpus", "one rank per GPU");
  if (spec.cpus_per_task > 0)
    header.machine("cpus-per-task", spec.cpus_per_task, "launch.cpus_per_task");
  if (spec.gpu_request == GpuRequest::GpusPerNode)
    header.machine("gpus-per-node", machine.node.gpus, "launch.gpu_request");
  if (spec.gpu_request == GpuRequest::Gres)
    header.machine("gres", fmt::format("gpu:{}", machine.node.gpus), "launch.gpu_request");
  if (spec.exclusive) header.add(from_machine("exclusive", "launch.exclusive"));
  if (spec.hint) header.machine("hint", *spec.hint, "launch.hint");
  if (spec.network) header.machine("network", *spec.network, "launch.network");
  add_options(header, machine, options);
}

void add_time(Header& header, const Machine& machine, const LaunchOptions& options,
              const JobTime& time) {
  const auto limit = limit_of(machine, options, options.nodes + options.spare_nodes);
  const bool full = limit && time.job_s >= machine.launch.limits[*limit].time_h * kHour_s;
  if (time.job_s > 0 && full)
    header.machine("time", slurm_time(time.job_s), fmt::format("launch.limits[{}]", *limit),
                   "the longest job of this size");
  else if (time.job_s > 0)
    header.option("time", slurm_time(time.job_s), "--time");
  if (time.jobs > 1)
    header.option("array", fmt::format("0-{}%1", time.jobs - 1),
                  "--time is longer than one job: a chain, one job after the other");
}

}  // namespace

ScriptParts header_start(const Machine& machine, const LaunchOptions& options,
                         const JobDescription& job) {
  Header header;
  header.option("job-name", job.name, "--name, or the run directory");
  if (!options.account.empty())
    header.option("account", options.account, "--account, or SBATCH_ACCOUNT");
  if (!options.partition.empty())
    header.option("partition", options.partition, "--partition");
  else if (machine.launch.partition)
    header.machine("partition", *machine.launch.partition, "launch.partition");
  if (ScriptPart qos = qos_of(machine, options); !qos.text.empty()) {
    qos.text = "qos=" + qos.text;
    header.add(qos);
  }
  return std::move(header.parts);
}

ScriptParts header_options(const Machine& machine, const LaunchOptions& options) {
  Header header;
  add_options(header, machine, options);
  return std::move(header.parts);
}

ScriptParts header_time(const Machine& machine, const LaunchOptions& options) {
  Header header;
  add_time(header, machine, options, job_time(machine, options));
  return std::move(header.parts);
}

namespace {

// `saves`: the ranks want a signal before the end of the job.
ScriptParts header_of(const Machine& machine, const LaunchOptions& options, const JobPaths& paths,
                      const JobDescription& job, bool saves) {
  const JobTime time = job_time(machine, options);
  Header header{.parts = header_start(machine, options, job)};
  add_resources(header, machine, options, job);
  add_time(header, machine, options, time);
  if (options.no_requeue)
    header.add(because("--no-requeue", "no-requeue"));
  else
    header.add(because("Slurm starts the job again if a node fails", "requeue"));
  if (saves && time.signal_s != machine.launch.signal_s)
    header.option("signal", fmt::format("USR1@{:.0f}", time.signal_s),
                  "--signal, or the time that a save takes: the ranks save");
  else if (saves)
    header.machine("signal", fmt::format("USR1@{:.0f}", time.signal_s), "launch.signal_s",
                   "the ranks save before the end of the job");
  header.option("chdir", paths.working_directory, "relative paths of the configuration");
  header.option("output", job.directory().string() + "/slurm-%j.out", "beside the run");
  header.option("open-mode", "append", "a job that starts again keeps its output");
  return std::move(header.parts);
}

// Slurm and the ranks choose GPUs of AMD by ROCR_VISIBLE_DEVICES; what a login shell says in the
// others counts among those that this one leaves.
constexpr const char* kVisibleDevices =
    "unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL  # of the login shell\n";

}  // namespace

ScriptParts environment_of(const Machine& machine, const JobDescription& job, bool container) {
  const LaunchSpec& spec = machine.launch;
  ScriptParts parts;
  if (!spec.modules.empty())
    parts.push_back(from_machine(
        fmt::format("module load {} || exit 2\n", fmt::join(spec.modules, " ")), "launch.modules"));
  if (machine.gpu.vendor == GpuVendor::Amd)
    parts.push_back(
        because("they would choose again among the GPUs of ROCR_VISIBLE_DEVICES", kVisibleDevices));
  for (std::size_t i = 0; i < job.environment.size(); ++i) {
    const auto& [name, value] = job.environment[i];
    const bool always = i < spec.environment.size();
    parts.push_back(
        from_machine(fmt::format("export {}={}\n", name, expanded_in_shell(value)),
                     (always ? "launch.environment." : "launch.multi_node_environment.") + name));
  }
  if (container)
    parts.push_back(
        because("binds of the container in which launch ran would be used again",
                "unset SINGULARITY_BIND APPTAINER_BIND  # of a container around this job\n"));
  if (container && mpi_of(spec, container).value == "pmix")
    parts.push_back(
        because("PMIx in the container would ask for munge",
                "export PMIX_MCA_psec=^munge  # there is no munge inside of the container\n"));
  if (!parts.empty()) parts.front().text = "\n" + parts.front().text;
  return parts;
}

namespace {

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

std::string title_of(const JobDescription& job, const Machine& machine) {
  return fmt::format(
      "#!/bin/bash\n# {} on {}: {} x {}{}, by kintsugi launch.\n", job.name, one_line(machine.name),
      format_number(job.nodes, "node"), format_number(job.ranks_per_node, "rank"),
      job.spare_nodes > 0 ? fmt::format(" and {}", format_number(job.spare_nodes, "spare node"))
                          : "");
}

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
  check_word("--qos", o.qos, "-_.");
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

std::string slurm_name(std::string text) {
  for (char& c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.' &&
        c != '+')
      c = '-';
  return text.empty() ? "kintsugi" : text;
}

std::string slurm_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::ceil(seconds));
  const std::int64_t days = whole / 86400;
  return fmt::format("{}{:02}:{:02}:{:02}", days > 0 ? fmt::format("{}-", days) : "",
                     whole / 3600 % 24, whole / 60 % 60, whole % 60);
}

std::optional<double> time_limit_s(const Machine& machine, const LaunchOptions& options) {
  const auto limit = limit_of(machine, options, options.nodes + options.spare_nodes);
  if (!limit) return {};
  return machine.launch.limits[*limit].time_h * kHour_s;
}

JobTime job_time(const Machine& machine, const LaunchOptions& options) {
  const auto limit = time_limit_s(machine, options);
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

void check_job(const Machine& machine, const LaunchOptions& options, const JobPaths& paths) {
  check_options(machine, options);
  check_path("the run directory", paths.run_dir);
  check_path("the working directory", paths.working_directory);
}

JobDescription describe_job(const Machine& machine, const LaunchOptions& options,
                            const JobPaths& paths, const std::optional<Topology>& topology) {
  check_job(machine, options, paths);
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
  for (ScriptPart& word : launcher_parts(machine, options, job, paths, topology))
    job.launcher.push_back(std::move(word.text));
  return job;
}

ScriptParts job_script_parts(const Machine& machine, const LaunchOptions& options,
                             const JobPaths& paths, const JobDescription& job) {
  const bool chain = job.chain > 1;
  ScriptParts parts = {because("", title_of(job, machine))};
  const auto append = [&](ScriptParts more) {
    parts.insert(parts.end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
  };
  append(header_of(machine, options, paths, job, true));
  append(environment_of(machine, job, !options.container.empty()));
  append({because("Slurm has no variable for it",
                  fmt::format(kEndTime, chain ? "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
                                              : "$SLURM_JOB_ID"))});
  if (!options.first.empty())
    append({because("the command that prepares the run",
                    fmt::format("\n{} || exit\n", quoted_words(options.first)))});
  append({because("the supervisor starts the ranks, again if some fail",
                  supervised(job, paths.program)),
          because("the exit code that Slurm sees", kStatus)});
  if (chain || job.requeue || !options.no_requeue)
    append({because("--cancel and a file named stop end the run, time limits do not", kAsked)});
  if (chain) append({because("--time is longer than one job", kChain)});
  if (!chain && job.requeue) append({because("--requeue", kRequeue)});
  if (!chain && !options.no_requeue) append({because("--no-requeue was not given", kRetry)});
  append({because("kintsugi launch --status and --follow read it", fmt::format(kEnd, "status"))});
  return parts;
}

std::string job_script(const Machine& machine, const LaunchOptions& options, const JobPaths& paths,
                       const JobDescription& job) {
  return text_of(job_script_parts(machine, options, paths, job));
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
  return title_of(job, machine) + text_of(header_of(machine, options, paths, job, false)) +
         text_of(environment_of(machine, job, false)) + "\nexec " + quoted_words(command) + "\n";
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
