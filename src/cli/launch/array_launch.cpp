#include "cli/launch/array_launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "cli/launch/submit.h"
#include "core/child_output.h"
#include "core/error.h"
#include "core/file_lock.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/units.h"
#include "launch/job_description.h"
#include "launch/slurm.h"
#include "train/startup.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr double kLook_s = 600;  // at thousands of files on a busy file system

void check_command(const Words& command) {
  if (command.size() < 2 || command[0] != "data" ||
      (command[1] != "curate" && command[1] != "dedup"))
    user_error(
        "--array runs data curate or data dedup: kintsugi launch --array 100 --machine NAME -- "
        "data dedup …");
  for (const std::string& word : command)
    for (const char* own : {"--job", "--stage", "--units", "--overwrite"})
      if (word == own || word.starts_with(std::string(own) + "="))
        user_error("{} {}", own,
                   std::string_view(own) == "--overwrite"
                       ? "would be given to each task: remove the output before"
                       : "is what launch gives to each task: leave it out");
}

// Asks the command itself, which checks its own options, inputs and output.
WorkPlan plan_of(const Words& command, bool later) {
  Words words = {own_program().string()};
  words.insert(words.end(), command.begin(), command.end());
  words.insert(words.end(), {"--units", later ? "later" : "now"});
  const ChildOutput answer = run_captured(words, kLook_s);
  const std::string name = fmt::format("kintsugi {} {}", command[0], command[1]);
  if (answer.timed_out)
    failure("{} has not said after {} what there is to do", name, format_duration(kLook_s));
  if (answer.code != 0) {
    constexpr std::string_view kError = "error: ";
    std::string text = answer.error.substr(0, answer.error.find('\n'));
    if (const std::size_t at = text.find(kError); at != std::string::npos)
      text.erase(0, at + kError.size());
    if (text.empty()) failure("{} has ended with exit code {}", name, answer.code);
    if (answer.code == 2) user_error("{}", text);
    failure("{}", text);
  }
  const auto plan = work_plan_of(answer.out);
  if (!plan) failure("{} has not said what there is to do", name);
  return *plan;
}

struct PreparedArrays {
  std::vector<ArrayJob> jobs;
  std::vector<ScriptParts> scripts;
  JobDescription description;
};

PreparedArrays prepare(const LaunchRequest& request, LaunchOptions& options,
                       const ArrayRequest& array, bool later) {
  const WorkPlan plan = plan_of(array.command, later);
  const Machine machine = load_machine(request.machine);
  const fs::path output = fs::absolute(plan.output).lexically_normal();
  const JobPaths paths{.run_dir = (output.has_filename() ? output : output.parent_path()).string(),
                       .program = own_program().string(),
                       .working_directory = fs::current_path().string()};
  if (options.name.empty()) options.name = slurm_name(fs::path(paths.run_dir).filename().string());
  PreparedArrays prepared{.jobs = array_jobs(plan, array),
                          .scripts = {},
                          .description = describe_arrays(machine, options, paths)};
  for (const ArrayJob& job : prepared.jobs)
    prepared.scripts.push_back(
        array_script_parts(machine, options, paths, array, job, plan.stages.size() == 1));
  return prepared;
}

// A job whose predecessor has failed would wait for ever.
Words dependency(const Words& after) {
  if (after.empty()) return {};
  return {fmt::format("--dependency=afterok:{}", fmt::join(after, ":")),
          "--kill-on-invalid-dep=yes"};
}

void print(const PreparedArrays& prepared, const LaunchRequest& request, const Words& after) {
  const MachineComments comments = machine_comments(request.machine);
  Words before = after;
  for (std::size_t i = 0; i < prepared.jobs.size(); ++i) {
    const ScriptParts& parts = prepared.scripts[i];
    fmt::print("{}{}", i == 0 ? "" : "\n",
               request.explain ? explained(parts, comments) : text_of(parts));
    if (!before.empty()) fmt::print("# submitted with: {}\n", fmt::join(dependency(before), " "));
    before = {fmt::format("JOB_{}", prepared.jobs[i].stage)};
  }
}

void submit(PreparedArrays& prepared, Words after) {
  JobDescription& description = prepared.description;
  const fs::path folder = description.directory();
  NewFiles files;
  files.create_folders(folder);
  std::string holder;
  const auto lock = FileLock::try_take(folder / "submit.lock", holder);
  if (!lock) user_error("{} is being submitted by {}", description.run_dir, holder);
  check_not_active(description.run_dir);
  description.submitted_s = static_cast<std::int64_t>(unix_time_s());
  files.write(job_file(description.run_dir), to_json(description));
  Words submitted;
  try {
    for (std::size_t i = 0; i < prepared.jobs.size(); ++i) {
      const ArrayJob& job = prepared.jobs[i];
      const fs::path script = folder / (job.stage + ".sh");
      files.write(script, text_of(prepared.scripts[i]));
      submitted.push_back(submit_job(script, dependency(after)));
      after = {submitted.back()};
      description.job_ids = submitted;
      save_job(description);
    }
  } catch (const std::exception&) {
    kill_jobs(submitted);
    throw;
  }
  files.keep();
  for (std::size_t i = 0; i < submitted.size(); ++i)
    fmt::print("submitted job {}: {}, {}\n", submitted[i], prepared.jobs[i].stage,
               format_number(prepared.jobs[i].tasks, "task"));
}

}  // namespace

void launch_arrays(const LaunchRequest& request, ArrayRequest array, const Words& after) {
  if (request.machine.empty())
    user_error("give --machine (kintsugi plan machines lists the built-in ones)");
  check_command(array.command);
  for (const std::string& id : after)
    if (id.empty() || id.find_first_not_of("0123456789") != std::string::npos)
      user_error("--after {}: expected the number of a job of Slurm", id);
  LaunchOptions options = request.options;
  PreparedArrays prepared = prepare(request, options, array, !after.empty());
  if (prepared.jobs.empty()) {
    log_info("{}: all units are done, there is nothing to submit", prepared.description.run_dir);
    return;
  }
  if (request.print) return print(prepared, request, after);
  require_slurm();
  const Machine machine = load_machine(request.machine);
  check_partition(
      slurm_partitions(),
      options.partition.empty() ? machine.launch.partition.value_or("") : options.partition, 1,
      job_time(machine, options).job_s);
  submit(prepared, after);
}

}  // namespace kintsugi
