#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "energy/carbon.h"
#include "plan/machines/launch_spec.h"
#include "tensor/dtype.h"

namespace kintsugi {

// Whose GPUs a machine has. None: it has no GPUs, and `gpu` describes its CPU cores.
enum class GpuVendor : std::uint8_t { Unknown, None, Nvidia, Amd };
template <>
inline constexpr EnumWords<4> kEnumWords<GpuVendor> = {"unknown", "none", "nvidia", "amd"};

// One accelerator as the job scheduler counts it: a GPU, or one of the two dies of an MI250X.
// Efficiencies are fractions of the specified peak that the best case reaches.
struct GpuSpec {
  std::string name = {};
  GpuVendor vendor = GpuVendor::Unknown;
  double bf16_tflops = 0;  // dense matmul peak
  double fp16_tflops = 0;  // 0: the same as bf16
  double fp8_tflops = 0;   // 0: no fp8
  double fp32_tflops = 0;
  double memory_gb = 0;  // 10^9 bytes that programs can allocate, less than the data sheet's
  double memory_gb_s = 0;
  double gemm_efficiency = 0.75;       // large matmuls
  double attention_efficiency = 0.45;  // fused attention with heads of 128
  double memory_efficiency = 0.8;      // memory-bound kernels
  double gemm_depth = 200;             // steps of the sum at which a matmul reaches half of that
  double gemm_fill = 0.3;              // waves of tiles lost at the start and the end of a matmul
  // At the power limit, clocks fall where matmuls are much of the time: they take 1 + gemm_heat x
  // (their fraction of a micro-batch - 0.7) times as long.
  double gemm_heat = 0;
  double attention_depth = 0;  // as gemm_depth, in keys
  double launch_us = 4;        // the shortest kernel, including the gap to the next
  // Operations of this engine by name, where measured: relative to what the efficiencies say.
  std::vector<std::pair<std::string, double>> speeds = {};
  std::int64_t multiprocessors = 100;
  double own_gb = 2;  // memory used by context and libraries
  // Fraction of memory_gb that a planned layout leaves free: workspaces of libraries took up to 0.6
  // GiB more than planned on an H200, and NCCL's buffers have not been measured.
  double margin = 0.02;
  double tdp_w = 0;
  double active_w = 0;  // mean while training; 0: the same as tdp_w
  double wait_w = -1;   // while waiting for other GPUs; -1: unknown, see waiting_w()
  double idle_w = 0;

  double tflops(DType precision) const;
  double speed(std::string_view operation) const;  // 1: not in `speeds`
  double busy_w() const { return active_w > 0 ? active_w : tdp_w; }
  double waiting_w() const;
  double usable_bytes() const { return memory_gb * (1 - margin) * 1e9; }
  std::string memory_text() const;  // "79.10 GiB, less 2 % as a margin"
};

// Bandwidths are per GPU and direction.
struct NodeSpec {
  std::int64_t gpus = 1;
  std::int64_t module_gpus = 1;  // GPUs in one package, with faster links
  double module_gb_s = 0;
  double link_gb_s = 0;
  double latency_us = 1.5;      // of one hop
  double host_w = -1;           // power of the node without the GPUs; -1: unknown
  double storage_gb_s = 0;      // what one node can write to the storage; 0: see storage_of()
  double loader_mtokens_s = 0;  // million tokens/s that the host can load; 0: unlimited
  double host_memory_gb = 0;    // of the node; 0: unknown
  double host_link_gb_s = 0;    // between a GPU and host memory; 0: unknown
  double mtbf_h = 0;            // mean time between failures that end a job; 0: unknown
};

struct NetworkSpec {
  double gb_s = 0;
  double latency_us = 6;  // of one hop
  // Congestion: collectives over n nodes get gb_s / (1 + (n / crowded_nodes) ^ crowding). 0 nodes:
  // no congestion.
  double crowded_nodes = 0;
  double crowding = 1;
};

struct Machine {
  std::string name = {};
  std::int64_t nodes = 1;
  GpuSpec gpu = {};
  NodeSpec node = {};
  NetworkSpec network = {};
  double storage_gb_s = 0;  // of all ranks of a job together; 0: unknown
  // Keys whose values are assumptions, which outputs then say: storage_gb_s, node.storage_gb_s,
  // gpu.gemm_efficiency.
  std::vector<std::string> assumed = {};
  FacilitySpec facility = {};
  // NUMA domains of a node, one text each, as launch/topology.h parses them; empty: unknown.
  std::vector<std::string> topology = {};
  LaunchSpec launch = {};

  std::int64_t gpus() const { return nodes * node.gpus; }
  bool assumes(std::string_view key) const;
};

// What a job on this many nodes can write at, at most what these nodes can send. A node whose
// storage_gb_s is not known is assumed to write with a tenth of its network.
struct StorageRate {
  double gb_s = 0;  // 0: unknown
  bool assumed = false;
};
StorageRate storage_of(const Machine& machine, double nodes);

// Parses a machine description. UserError for unknown keys, missing keys and values out of range.
Machine parse_machine(const std::string& text, const std::string& source);
std::string to_yaml(const Machine& machine);
// Loads a file or a built-in description (machines/*.yaml).
Machine load_machine(const std::string& name_or_path);
std::vector<std::string> machine_names();

}  // namespace kintsugi
