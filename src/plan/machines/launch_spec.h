#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/yaml_reader.h"

namespace kintsugi {

// How jobs start on a machine: the section `launch` of a machine file. The defaults suit a Slurm
// cluster of which nothing else is known.

enum class JobLauncher : std::uint8_t { Srun, Mpirun };
enum class GpuRequest : std::uint8_t { GpusPerNode, Gres, None };
// Masks: one CPU mask per rank, from the topology. Cores: Slurm binds ranks to cores. None: ranks
// may use all cores of the job. Slurm: nothing is said, Slurm's own default.
enum class CpuBinding : std::uint8_t { Masks, Cores, None, Slurm };
// Pyxis (enroot) and Edf (the container engine of CSCS) are options of srun.
enum class ContainerRuntime : std::uint8_t { Apptainer, Singularity, Pyxis, Edf };

// Jobs of up to `nodes` nodes may take `time_h` hours. The first limit that fits a job is used.
struct JobLimit {
  std::int64_t nodes = 0;
  double time_h = 0;
  std::string partition = {};  // only there; empty: in the machine's partition
  std::string qos = {};        // that such jobs need; empty: the default
  bool operator==(const JobLimit&) const = default;
};

struct ContainerSpec {
  ContainerRuntime runtime = ContainerRuntime::Apptainer;
  std::vector<std::string> options = {};  // such as --rocm
  std::vector<std::string> binds = {};    // directories of the host
  std::optional<std::string> mpi = {};    // --mpi of srun in a container; empty: as outside
  bool operator==(const ContainerSpec&) const = default;
};

struct LaunchSpec {
  using Variables = std::vector<std::pair<std::string, std::string>>;

  std::optional<std::string> partition = {};
  bool account_needed = false;
  std::vector<JobLimit> limits = {};  // of one partition and QoS: by increasing nodes
  bool exclusive = true;
  GpuRequest gpu_request = GpuRequest::GpusPerNode;
  std::int64_t cpus_per_task = 0;  // 0: Slurm's default
  CpuBinding cpu_binding = CpuBinding::None;
  std::optional<std::string> reserved_cores = {};  // that no rank may use: "0,8,16-17"
  std::optional<std::string> hint = {};            // nomultithread
  std::optional<std::string> network = {};
  std::vector<std::string> slurm_options = {};  // of sbatch, such as --ear=on
  std::vector<std::string> modules = {};
  Variables environment = {};             // values may have $NAME
  Variables multi_node_environment = {};  // only for jobs of several nodes
  JobLauncher launcher = JobLauncher::Srun;
  std::optional<std::string> mpi = {};             // --mpi of srun
  std::vector<std::string> launcher_options = {};  // of srun or mpirun
  ContainerSpec container = {};
  double startup_s = 120;  // until the first step
  double signal_s = 300;   // before its end, the job is told to save
  bool operator==(const LaunchSpec&) const = default;
};

template <>
inline constexpr EnumWords<2> kEnumWords<JobLauncher> = {"srun", "mpirun"};
template <>
inline constexpr EnumWords<3> kEnumWords<GpuRequest> = {"gpus-per-node", "gres", "none"};
template <>
inline constexpr EnumWords<4> kEnumWords<CpuBinding> = {"masks", "cores", "none", "slurm"};
template <>
inline constexpr EnumWords<4> kEnumWords<ContainerRuntime> = {"apptainer", "singularity", "pyxis",
                                                              "edf"};

inline constexpr double kLongestSignal_s = 65535;  // of sbatch --signal

template <class V>
void describe(V& v, JobLimit& c) {
  v("nodes", c.nodes, between(1, 1e7));
  v("time_h", c.time_h, between(0.01, 1e5));
  v("partition", c.partition);
  v("qos", c.qos);
}

template <class V>
void describe(V& v, ContainerSpec& c) {
  v("runtime", c.runtime);
  v("options", c.options);
  v("binds", c.binds);
  v("mpi", c.mpi);
}

template <class V>
void describe(V& v, LaunchSpec& c) {
  v("partition", c.partition);
  v("account_needed", c.account_needed);
  v("limits", c.limits);
  v("exclusive", c.exclusive);
  v("gpu_request", c.gpu_request);
  v("cpus_per_task", c.cpus_per_task, between(0, 1 << 16));
  v("cpu_binding", c.cpu_binding);
  v("reserved_cores", c.reserved_cores);
  v("hint", c.hint);
  v("network", c.network);
  v("slurm_options", c.slurm_options);
  v("modules", c.modules);
  v("environment", c.environment);
  v("multi_node_environment", c.multi_node_environment);
  v("launcher", c.launcher);
  v("mpi", c.mpi);
  v("launcher_options", c.launcher_options);
  v("container", c.container);
  v("startup_s", c.startup_s, between(0, 1e6));
  v("signal_s", c.signal_s, between(1, kLongestSignal_s));
}

// UserError that names `source` and the key: a variable with an impossible name, an option that the
// script would not read as one word, limits in the wrong order.
void check_launch(const LaunchSpec& launch, const std::string& source);

}  // namespace kintsugi
