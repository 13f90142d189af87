#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace kintsugi {

// One accelerator as the scheduler hands it out: a GPU, or one of the two dies of an MI250X.
// Efficiencies are shares of the specification's figure that the best case reaches.
struct GpuSpec {
  std::string name = {};
  double bf16_tflops = 0;  // dense matrix products
  double fp16_tflops = 0;  // 0: as bf16
  double fp8_tflops = 0;   // 0: there is none
  double fp32_tflops = 0;
  double memory_gb = 0;  // 10^9 bytes
  double memory_gb_s = 0;
  double gemm_efficiency = 0.75;       // of large products
  double attention_efficiency = 0.45;  // of fused attention with heads of 128
  double memory_efficiency = 0.8;      // of kernels that only move bytes
  double launch_us = 4;                // the shortest kernel, with its gap
  std::int64_t multiprocessors = 100;
  double own_gb = 2;  // memory that the context and libraries keep
  double tdp_w = 0;
  double active_w = 0;  // mean while training; 0: as tdp_w
  double idle_w = 0;

  double tflops(DType precision) const;
  double busy_w() const { return active_w > 0 ? active_w : tdp_w; }
};

// Bandwidths are per GPU and direction.
struct NodeSpec {
  std::int64_t gpus = 1;
  std::int64_t module_gpus = 1;  // that share a package and its faster links
  double module_gb_s = 0;
  double link_gb_s = 0;
  double latency_us = 1.5;      // of one hop
  double host_w = -1;           // everything but the GPUs; -1: not known
  double loader_mtokens_s = 0;  // millions of tokens that the host makes ready; 0: any number
};

struct NetworkSpec {
  double gb_s = 0;
  double latency_us = 6;  // of one hop
  // Collectives over n nodes get gb_s / (1 + (n / crowded_nodes) ^ crowding); 0 nodes: never
  // crowded.
  double crowded_nodes = 0;
  double crowding = 1;
  // A job over n nodes meets slow messages with the chance 1 - exp(-n / stall_nodes); 0: never.
  // Each of its messages between pipeline stages then takes stall_ms longer.
  double stall_nodes = 0;
  double stall_ms = 0;
  double first_message_ms = 0;  // once a step, between two stages and in each direction
};

struct FacilitySpec {
  double pue = -1;               // -1: not known
  double kg_co2_per_kwh = -1;    // -1: not known
  double eur_per_gpu_hour = -1;  // -1: not known
};

struct Machine {
  std::string name = {};
  std::int64_t nodes = 1;
  GpuSpec gpu = {};
  NodeSpec node = {};
  NetworkSpec network = {};
  double storage_gb_s = 0;  // all ranks of a job together; 0: not known
  FacilitySpec facility = {};

  std::int64_t gpus() const { return nodes * node.gpus; }
};

// A machine's description; UserError for unknown keys, values out of range, and what is missing.
Machine parse_machine(const std::string& text, const std::string& source);
std::string to_yaml(const Machine& machine);
// A file, or the name of a built-in description (machines/*.yaml).
Machine load_machine(const std::string& name_or_path);
std::vector<std::string> machine_names();

}  // namespace kintsugi
