#include "launch/job_launcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

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

std::string joined_binds(const ContainerSpec& spec, const JobPaths& paths, bool twice) {
  Words binds = spec.binds;
  for (const std::string& path : {paths.working_directory, paths.run_dir}) binds.push_back(path);
  if (twice)
    for (std::string& bind : binds) bind += ":" + bind;
  return fmt::format("{}", fmt::join(binds, ","));
}

// Apptainer is a program before ours. Of the others, srun has options.
ScriptParts container_words(const ContainerSpec& spec, const std::string& image,
                            const JobPaths& paths) {
  const std::string runtime(kEnumWords<ContainerRuntime>[static_cast<std::size_t>(spec.runtime)]);
  ScriptParts words;
  const auto add = [&](const std::string& word, const std::string& reason) {
    words.push_back(because(reason, word));
  };
  const std::string key = "launch.container.", given = "--container";
  if (spec.runtime == ContainerRuntime::Edf) {
    words.push_back(from_machine("--environment=" + image, key + "runtime", given));
  } else if (spec.runtime == ContainerRuntime::Pyxis) {
    words.push_back(from_machine("--container-image=" + image, key + "runtime", given));
    words.push_back(from_machine("--container-mounts=" + joined_binds(spec, paths, true),
                                 key + "binds", "with the folders of the run"));
    add("--container-workdir=" + paths.working_directory, "relative paths of the configuration");
  } else {
    words.push_back(from_machine(runtime, key + "runtime", given));
    add("exec", given);
  }
  for (const std::string& option : spec.options)
    words.push_back(from_machine(option, key + "options"));
  if (spec.runtime == ContainerRuntime::Edf || spec.runtime == ContainerRuntime::Pyxis)
    return words;
  words.push_back(from_machine("--bind", key + "binds"));
  add(joined_binds(spec, paths, false), "the machine's, and the folders of the run");
  add("--pwd", "relative paths of the configuration");
  add(paths.working_directory, "the folder in which the job was submitted");
  add(image, given);
  return words;
}

ScriptParts srun_words(const Machine& machine, const LaunchOptions& options,
                       const std::string& bind, const JobDescription& job) {
  const LaunchSpec& spec = machine.launch;
  ScriptParts words = {
      from_machine("srun", "launch.launcher"),
      because("the supervisor may choose fewer nodes after failures", "--nodes={nodes}"),
      because("one per GPU of these nodes", "--ntasks={ranks}"),
      because("the layout counts on equal nodes",
              fmt::format("--ntasks-per-node={}", job.ranks_per_node)),
      because("nodes that failed, if there are any", "--exclude={exclude}"),
      because("nodes that the supervisor chose, if it did", "--nodelist={nodelist}"),
      because("a rank that fails ends the others, so that the supervisor can start them again",
              "--kill-on-bad-exit=1"),
      because("a step with a dead node keeps its other nodes busy for minutes", "--overlap")};
  if (spec.cpus_per_task > 0)
    words.push_back(from_machine(fmt::format("--cpus-per-task={}", spec.cpus_per_task),
                                 "launch.cpus_per_task",
                                 "since Slurm 22.05 srun does not take it from the job"));
  if (!bind.empty() && !options.cpu_bind.empty())
    words.push_back(because("--cpu-bind", "--cpu-bind=" + bind));
  else if (!bind.empty())
    words.push_back(from_machine("--cpu-bind=" + bind, "launch.cpu_binding"));
  if (const MpiChoice mpi = mpi_of(spec, !options.container.empty()); !mpi.value.empty())
    words.push_back(from_machine("--mpi=" + mpi.value, mpi.key));
  return words;
}

}  // namespace

MpiChoice mpi_of(const LaunchSpec& spec, bool container) {
  if (container && spec.container.mpi) return {*spec.container.mpi, "launch.container.mpi"};
  return {spec.mpi.value_or(""), "launch.mpi"};
}

ScriptParts launcher_parts(const Machine& machine, const LaunchOptions& options,
                           const JobDescription& job, const JobPaths& paths,
                           const std::optional<Topology>& given) {
  const LaunchSpec& spec = machine.launch;
  const std::optional<Topology> topology = topology_for(machine, given);
  if (topology) check_cores(machine, job.ranks_per_node, *topology);
  const std::string bind =
      cpu_bind(machine, options, static_cast<int>(job.ranks_per_node), topology);
  ScriptParts words;
  if (spec.launcher == JobLauncher::Srun) {
    words = srun_words(machine, options, bind, job);
  } else {
    if (!options.cpu_bind.empty())
      user_error("--cpu-bind is an option of srun, but {} starts ranks with mpirun", machine.name);
    words = {from_machine("mpirun", "launch.launcher"), because("all ranks", "-np"),
             because("one per GPU of the nodes", "{ranks}"),
             because("the layout counts on equal nodes", "--map-by"),
             because("ranks per node", fmt::format("ppr:{}:node", job.ranks_per_node))};
  }
  for (std::size_t i = 0; i < spec.launcher_options.size(); ++i)
    words.push_back(
        from_machine(spec.launcher_options[i], fmt::format("launch.launcher_options[{}]", i)));
  if (!options.container.empty())
    for (ScriptPart& word : container_words(spec.container, options.container, paths))
      words.push_back(std::move(word));
  return words;
}

}  // namespace kintsugi
