#include "launch/array_jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/units.h"
#include "launch/slurm.h"

namespace kintsugi {
namespace {

// The program saves what it has at a signal, which takes seconds.
constexpr double kSignal_s = 60;

double signal_of(const LaunchOptions& options) {
  return options.signal_s > 0 ? options.signal_s : kSignal_s;
}

std::string elements_of(const WorkStage& stage, std::int64_t tasks, std::int64_t at_once) {
  std::set<std::int64_t> numbers;
  if (stage.units) {
    for (const std::size_t unit : stage.missing)
      numbers.insert(static_cast<std::int64_t>(unit) % tasks);
  } else {
    for (std::int64_t task = 0; task < tasks; ++task) numbers.insert(task);
  }
  const bool limited = at_once > 0 && at_once < std::ssize(numbers);
  return number_ranges(numbers) + (limited ? fmt::format("%{}", at_once) : "");
}

// A task that was told to stop has saved. As an element of an array it is not $SLURM_JOB_ID, which
// may be the number of the whole array.
constexpr const char* kRunTask = R"(
stop=
trap 'stop=1; kill -TERM "$program" 2>/dev/null' USR1
{} --job "{}/{}" &
program=$!
wait "$program"
code=$?
if [ -n "$stop" ]; then
  wait "$program"
  code=$?
fi
)";

constexpr const char* kQueueAgain = R"(
if [ "$code" -eq 75 ] && [ -n "$stop" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt 20 ]; then
  scontrol requeue "{}" && exit 0
fi
)";

void append(ScriptParts& parts, ScriptParts more) {
  parts.insert(parts.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
}

ScriptPart option(ScriptPart part) {
  part.text = "#SBATCH --" + part.text + "\n";
  return part;
}

ScriptParts cores_of(const LaunchSpec& spec, std::int64_t cpus) {
  ScriptParts parts = {option(because("a task is one process", "nodes=1")),
                       option(because("a task is one process", "ntasks=1"))};
  if (cpus > 0) {
    parts.push_back(option(because("--cpus", fmt::format("cpus-per-task={}", cpus))));
  } else if (spec.exclusive) {
    parts.push_back(option(from_machine("exclusive", "launch.exclusive")));
    parts.push_back(option(because("all memory of the node", "mem=0")));
  } else if (spec.cpus_per_task > 0) {
    parts.push_back(option(
        from_machine(fmt::format("cpus-per-task={}", spec.cpus_per_task), "launch.cpus_per_task")));
  }
  if (spec.hint)
    parts.push_back(option(from_machine(fmt::format("hint={}", *spec.hint), "launch.hint")));
  return parts;
}

ScriptParts array_header(const Machine& machine, const LaunchOptions& options,
                         const JobPaths& paths, const ArrayRequest& request,
                         const JobDescription& description, const ArrayJob& job) {
  ScriptParts parts = {because(
      "", fmt::format("#!/bin/bash\n# {} on {}: {}, by kintsugi launch.\n", description.name,
                      one_line(machine.name), format_number(job.tasks, "task")))};
  const auto add = [&](const std::string& text, std::string reason) {
    parts.push_back(option(because(std::move(reason), text)));
  };
  append(parts, header_start(machine, options, description));
  append(parts, cores_of(machine.launch, request.cpus));
  ScriptParts more = header_options(machine, options);
  std::erase_if(more, [&](const ScriptPart& part) {  // that of the machine's GPU nodes
    return part.text.starts_with("#SBATCH --mem");
  });
  append(parts, std::move(more));
  append(parts, header_time(machine, options));
  const bool array = !job.elements.empty();
  if (array) add("array=" + job.elements, "--array; tasks without missing units are left out");
  if (options.no_requeue)
    add("no-requeue", "--no-requeue");
  else
    add("requeue", "Slurm starts a task again if its node fails");
  add(fmt::format("signal=B:USR1@{:.0f}", signal_of(options)),
      "--signal: this script is told, before the end of its time");
  add("chdir=" + paths.working_directory, "relative paths of the command");
  add(fmt::format("output={}/slurm-{}-{}.out", description.directory().string(), job.stage,
                  array ? "%A_%a" : "%j"),
      "beside the results");
  add("open-mode=append", "a task that starts again keeps its output");
  return parts;
}

}  // namespace

void read_array_size(const std::string& text, ArrayRequest& request) {
  constexpr std::int64_t kMostTasks = 1'000'000;
  const std::size_t percent = text.find('%');
  const auto number = [&](const std::string& part) {
    const std::int64_t value = parse_count(part);
    if (value < 1 || value > kMostTasks)
      user_error("--array {}: give 1 to {} tasks, such as 100, or 100%20 for 20 at once", text,
                 kMostTasks);
    return value;
  };
  request.tasks = number(text.substr(0, percent));
  if (percent != std::string::npos) request.at_once = number(text.substr(percent + 1));
}

std::vector<ArrayJob> array_jobs(const WorkPlan& plan, const ArrayRequest& request) {
  std::int64_t most = 0;
  bool known = true;
  std::string counts;
  for (const WorkStage& stage : plan.stages) {
    known = known && stage.units.has_value();
    const auto units = static_cast<std::int64_t>(stage.units.value_or(0));
    most = std::max(most, units);
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", stage.name, units);
  }
  if (known && request.tasks > most)
    user_error("--array {}, but there are fewer units ({}): give {} or less", request.tasks, counts,
               most);
  std::vector<ArrayJob> jobs;
  for (const WorkStage& stage : plan.stages) {
    if (stage.units && stage.missing.empty()) continue;
    const auto units =
        static_cast<std::int64_t>(stage.units.value_or(static_cast<std::size_t>(request.tasks)));
    ArrayJob& job = jobs.emplace_back(ArrayJob{.stage = stage.name});
    job.tasks = std::min(request.tasks, units);
    if (job.tasks > 1) job.elements = elements_of(stage, job.tasks, request.at_once);
  }
  return jobs;
}

JobDescription describe_arrays(const Machine& machine, const LaunchOptions& options,
                               const JobPaths& paths) {
  check_job(machine, options, paths);
  const JobTime time = job_time(machine, options);
  if (time.jobs > 1)
    user_error("--time {} is more than a job of {} may take: tasks that are stopped go on later",
               format_duration(options.time_s), machine.name);
  const double signal_s = signal_of(options);
  if (time.job_s > 0 && time.job_s <= signal_s)
    user_error("--time {} is too short: a task is told to stop {} before its end",
               format_duration(time.job_s), format_duration(signal_s));
  return {.name = options.name,
          .run_dir = paths.run_dir,
          .config = {},
          .program = paths.program,
          .machine = machine.name,
          .environment = machine.launch.environment};
}

ScriptParts array_script_parts(const Machine& machine, const LaunchOptions& options,
                               const JobPaths& paths, const ArrayRequest& request,
                               const ArrayJob& job, bool one_stage) {
  const bool array = !job.elements.empty();
  JobDescription description = describe_arrays(machine, options, paths);
  if (!one_stage) description.name += "-" + job.stage;
  ScriptParts parts = array_header(machine, options, paths, request, description, job);
  append(parts, environment_of(machine, description, false));
  std::vector<std::string> words = {paths.program};
  words.insert(words.end(), request.command.begin(), request.command.end());
  if (!one_stage) words.insert(words.end(), {"--stage", job.stage});
  parts.push_back(because(
      "the task does its units; those that are finished are left alone",
      fmt::format(kRunTask, quoted_words(words), array ? "$SLURM_ARRAY_TASK_ID" : "0", job.tasks)));
  if (!options.no_requeue)
    parts.push_back(
        because("75: stopped before the end of its time; it continues",
                fmt::format(kQueueAgain, array ? "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
                                               : "$SLURM_JOB_ID")));
  parts.push_back(because("what Slurm sees", "exit \"$code\"\n"));
  return parts;
}

}  // namespace kintsugi
