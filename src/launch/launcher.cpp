#include "launch/launcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "launch/binding.h"

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
  const std::size_t usable = topology.cores().size() - reserved_cores(machine).size();
  const std::int64_t asked = machine.launch.cpus_per_task * ranks;
  if (asked > static_cast<std::int64_t>(usable))
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

}  // namespace

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

}  // namespace kintsugi
