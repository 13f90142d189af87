#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/launch/acceptance.h"
#include "cli/options.h"
#include "cli/train/preflight.h"
#include "core/child_output.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/units.h"
#include "train/config/keys.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

struct AcceptArguments {
  std::string output, machine, launch, device = "auto", probe;
  std::int64_t ranks = 0, node_ranks = 0;
  std::string budget = "15min";
  std::vector<std::string> parts = {};
  bool overwrite = false, share_gpu = false;
};

// ---- the probe: what all ranks measure in one launch

// Kept alive until the job has handled an error: pending collectives may still use this memory.
struct ProbeParts {
  std::unique_ptr<Backend> backend;
  DeviceWorld devices;
};

void probe(const AcceptArguments& arguments, Job& job, ProbeParts& parts) {
  auto& [backend, devices] = parts;
  const OutputRule rule{.overwrite = arguments.overwrite};
  DoctorOptions options;
  ProbeLoad load;
  job.together([&] {
    if (job.world().rank() == 0) check_output_file("--probe", arguments.probe, rule);
    backend = make_backend(YamlScalar<DeviceChoice>::parse(arguments.device),
                           threads_for(0, job.world()), {}, job.world().local_rank());
    options = options_of_rank(job, *backend, threads_for(0, job.world()));
    if (options.gpu.empty()) return;
    options.device = {DType::BF16, 4096, 4096, 5, 256 << 20};
    options.links.bytes = 32 << 20;
    load = {.bytes = {64 << 10, 1 << 20, 16 << 20, 256 << 20},
            .matmul = 4096,
            .precision = DType::BF16};
  });
  options.directory = fs::path(arguments.probe).parent_path();
  options.budget_s = 60;
  CommConfig comm;
  comm.allow_sockets = true;  // trials refuse them
  comm.share_gpu = options.share_gpu = arguments.share_gpu;
  devices = make_device_world(job.world(), *backend, comm,
                              [&job](const RankFailure& failure) { job.abort(failure); });
  World& world = devices.gpus ? *devices.gpus : job.world();
  const double begin_s = steady_seconds();
  const Diagnosis diagnosis = diagnose(job.world(), world, *backend, options);
  ProbeFacts own;
  own.groups = measure_groups(job.world(), world, *backend,
                              probed_grids(job.world().size(), job.world().local_size()), load,
                              steady_seconds);
  own.overlap = measure_overlap(job.world(), world, *backend, load, steady_seconds);
  own.seconds = steady_seconds() - begin_s;
  const std::vector<std::string> texts = texts_at_first(job.control(), to_json_text({own}));
  job.together([&] {
    if (job.world().rank() > 0) return;
    std::vector<ProbeFacts> ranks;
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      ranks.push_back(probe_facts_of(texts[rank], fmt::format("rank {}", rank)).front());
      ranks.back().rank = diagnosis.ranks[rank];
    }
    write_output_file("--probe", arguments.probe, rule, to_json_text(ranks));
  });
}

// ---- the test

const DirectoryKind kReport = {
    "a report of kintsugi accept", "acceptance.json", [](const std::string& file) {
      return file == "acceptance.json" || file == "acceptance.html" || file == "machine.yaml";
    }};

std::int64_t slurm_number(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoll(text);
}

// Before anything is started: whether this program has the device at all.
void check_device(const std::string& device) {
  const GpuVendor vendor = device == "cuda"  ? GpuVendor::Nvidia
                           : device == "hip" ? GpuVendor::Amd
                                             : GpuVendor::None;
  if (const std::string why = why_undriven(vendor); !why.empty())
    user_error("--device {}: this program cannot use it: {}", device, why);
}

AcceptOptions options_of(const AcceptArguments& arguments, const fs::path& directory) {
  const std::int64_t tasks = slurm_number("SLURM_NTASKS"), nodes = slurm_number("SLURM_NNODES");
  const std::int64_t ranks = arguments.ranks > 0 ? arguments.ranks : tasks;
  if (ranks == 0) user_error("give --ranks: how many ranks the test starts in all");
  const std::int64_t node_ranks = arguments.node_ranks > 0 ? arguments.node_ranks
                                  : nodes > 0              ? (ranks + nodes - 1) / nodes
                                                           : ranks;
  const std::string& launch = arguments.launch;
  if (!launch.empty() && ranks > 1 && launch.find("{ranks}") == std::string::npos)
    user_error(
        "--launch '{}' has no {{ranks}}: trials on one rank are compared with trials on {}, so "
        "write it where the number of ranks belongs",
        launch, ranks);
  check_device(arguments.device);
  if (ranks % node_ranks != 0)
    user_error("--ranks {} are not whole nodes of {} ranks (--ranks-per-node)", ranks, node_ranks);
  AcceptOptions options{.ranks = static_cast<int>(ranks),
                        .node_ranks = static_cast<int>(node_ranks),
                        .launch = arguments.launch,
                        .machine = arguments.machine,
                        .device = arguments.device,
                        .share_gpu = arguments.share_gpu,
                        .budget_s = parse_duration_s(arguments.budget),
                        .directory = fs::absolute(directory)};
  if (options.launch.empty() && ranks > 1)
    options.launch = nodes > 0 ? "srun --overlap -N {nodes} -n {ranks}" : "mpirun -np {ranks}";
  const std::vector<std::string>& parts =
      arguments.parts.empty() ? accept_parts() : arguments.parts;
  options.parts.insert(parts.begin(), parts.end());
  return options;
}

// The directory of the trials, with nothing of an earlier test in it, but with the folder `launch`
// of a job. UserError if it may not be emptied.
void prepare_trials(const fs::path& directory, bool overwrite) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) user_error("cannot create {} for the trials: {}", directory.string(), error.message());
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    if (entry.path().filename() != "launch") old.push_back(entry.path());
  if (old.empty()) return;
  if (!overwrite)
    user_error(
        "{} exists, with the trials of an earlier test: give --overwrite, or choose another "
        "--output",
        directory.string());
  if (!fs::exists(directory / Acceptance::kCorpus))
    user_error("{} is not a directory of trials of kintsugi accept: choose another --output",
               directory.string());
  const DirectoryLock lock(directory);  // no other test uses it
  for (const fs::path& path : old) fs::remove_all(path);
}

int accept(const AcceptArguments& arguments) {
  if (arguments.output.empty()) user_error("give --output: the directory of the report");
  fs::path output = fs::path(arguments.output).lexically_normal();
  if (!output.has_filename()) output = output.parent_path();
  const fs::path work = output.string() + "-trials";
  AcceptOptions options = options_of(arguments, work);
  if (!options.machine.empty()) load_machine(options.machine);
  if (fs::exists(options.machine)) options.machine = fs::absolute(options.machine).string();
  refuse_inputs_as_output("--output", output, {.inputs = {arguments.machine}});
  NewDirectory report(output, arguments.overwrite, kReport);
  prepare_trials(work, arguments.overwrite);
  const DirectoryLock lock(work);
  std::error_code error;
  const StopSignals signals;
  Acceptance test(options);
  test.run();
  fs::remove_all(work / "runs", error);
  report.write("acceptance.json", json_lines(report_json(test.report())));
  report.write("acceptance.html", report_html(test.report()));
  if (test.machine())
    report.write("machine.yaml",
                 fmt::format("# {}, with efficiencies and links measured by kintsugi accept on "
                             "{}.\n{}",
                             test.report().machine, format_number(options.ranks, "rank"),
                             to_yaml(*test.machine())));
  report.publish();
  fmt::print("{}{}\n", report_text(test.report()), (output / "acceptance.html").string());
  return verdict_of(test.report()) == Verdict::Pass ? exit_code::kFinished : exit_code::kFailure;
}

void run_accept(const AcceptArguments& arguments) {
  if (!arguments.probe.empty()) {
    Job job;
    ProbeParts parts;
    job.run([&] { probe(arguments, job, parts); });
    return;
  }
  if (const int code = accept(arguments); code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_accept_parts(CLI::App& command, std::vector<std::string>& parts) {
  AddOption{command}("--parts", parts,
                     fmt::format("Of the acceptance test only these, separated by commas: {}; "
                                 "groups and links are always measured",
                                 fmt::join(accept_parts(), ", ")),
                     CLI::IsMember(accept_parts()))
      ->delimiter(',');
}

void add_accept_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "accept", "Test the program and the plan on a machine: groups, speed, recovery, energy");
  const auto arguments = std::make_shared<AcceptArguments>();
  const AddOption add(*command);
  add("--output", arguments->output,
      "Write acceptance.html, acceptance.json and machine.yaml to this directory");
  add_overwrite_option(*command, arguments->overwrite);
  add("--ranks", arguments->ranks,
      "Ranks of a trial, on all nodes (default: those of the Slurm job)",
      whole_number(between(1, 1e6)));
  add("--ranks-per-node", arguments->node_ranks,
      "Ranks on each node (default: those of the Slurm job, or all)",
      whole_number(between(1, 1024)));
  add("--launch", arguments->launch,
      "Launch command; {ranks} (needed) and {nodes} are replaced (default: mpirun -np {ranks}, or "
      "srun "
      "--overlap -N {nodes} -n {ranks} in a Slurm job)");
  add("--machine", arguments->machine,
      "The machine of the plan: a name (kintsugi plan machines) or a YAML file (default: this host "
      "on cpu, h200 on GPUs)");
  add("--device", arguments->device, "auto (the default), cpu, cuda or hip",
      CLI::IsMember({"auto", "cpu", "cuda", "hip"}));
  add("--share-gpu", arguments->share_gpu, "Several ranks may use one GPU (comm.share_gpu)");
  add("--budget", arguments->budget,
      "What does not fit into this time is left out and named; a trial that has begun is ended "
      "10 s after it",
      TypeName{"TIME"}, duration(between(1, 1e6)), kShowDefault);
  add_accept_parts(*command, arguments->parts);
  CLI::Option* const probe =
      add("--probe", arguments->probe,
          "Only measure groups and links, on all ranks of this launch, and write the facts to this "
          "file");
  for (const char* other :
       {"--output", "--ranks", "--ranks-per-node", "--launch", "--machine", "--budget", "--parts"})
    probe->excludes(command->get_option(other));
  command->footer(
      "Examples:\n"
      "  kintsugi accept --ranks 4 --output accept            # this machine, mpirun\n"
      "  kintsugi accept --machine leonardo --output accept   # in a Slurm job\n"
      "\n"
      "Exit codes: 0 pass: no check failed and each part was done, 1 a check failed, or a part is\n"
      "incomplete (no time, stopped), 2 a mistake in the command. The trials' logs are in\n"
      "OUTPUT-trials. docs/accept.md explains each check.");
  command->callback([arguments] { run_accept(*arguments); });
}

}  // namespace kintsugi
