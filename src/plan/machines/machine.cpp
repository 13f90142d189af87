#include "plan/machines/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/units.h"
#include "core/yaml_reader.h"
#include "plan/machines/descriptions.h"

namespace kintsugi {

// ---- the keys. Upper limits keep results within the range of a double.

constexpr Range kRate = between(0, 1e9);
constexpr Range kEfficiency = {.low = 0, .high = 1, .low_open = true};
constexpr Range kCount = between(1, 1e7);
constexpr std::array<std::string_view, 3> kAssumedKeys = {"storage_gb_s", "node.storage_gb_s",
                                                          "gpu.gemm_efficiency"};

template <class V>
void describe(V& v, GpuSpec& c) {
  v("name", c.name);
  v("vendor", c.vendor);
  v("bf16_tflops", c.bf16_tflops, kRate);
  v("fp16_tflops", c.fp16_tflops, kRate);
  v("fp8_tflops", c.fp8_tflops, kRate);
  v("fp32_tflops", c.fp32_tflops, kRate);
  v("memory_gb", c.memory_gb, kRate);
  v("memory_gb_s", c.memory_gb_s, kRate);
  v("gemm_efficiency", c.gemm_efficiency, kEfficiency);
  v("attention_efficiency", c.attention_efficiency, kEfficiency);
  v("memory_efficiency", c.memory_efficiency, kEfficiency);
  v("gemm_depth", c.gemm_depth, between(0, 1e6));
  v("gemm_fill", c.gemm_fill, between(0, 1e6));
  v("gemm_heat", c.gemm_heat, between(0, 1));
  v("attention_depth", c.attention_depth, between(0, 1e6));
  v("launch_us", c.launch_us, between(0, 1e6));
  v("speeds", c.speeds, Range{.low = 0, .high = 1000, .low_open = true});
  v("multiprocessors", c.multiprocessors, kCount);
  v("own_gb", c.own_gb, kRate);
  v("margin", c.margin, between(0, 0.5));
  v("tdp_w", c.tdp_w, kRate);
  v("active_w", c.active_w, kRate);
  v("wait_w", c.wait_w, kRate);
  v("idle_w", c.idle_w, kRate);
}

template <class V>
void describe(V& v, NodeSpec& c) {
  v("gpus", c.gpus, kCount);
  v("module_gpus", c.module_gpus, kCount);
  v("module_gb_s", c.module_gb_s, kRate);
  v("link_gb_s", c.link_gb_s, kRate);
  v("latency_us", c.latency_us, between(0, 1e6));
  v("host_w", c.host_w, kRate);
  v("storage_gb_s", c.storage_gb_s, kRate);
  v("loader_mtokens_s", c.loader_mtokens_s, kRate);
  v("host_memory_gb", c.host_memory_gb, kRate);
  v("host_link_gb_s", c.host_link_gb_s, kRate);
  v("mtbf_h", c.mtbf_h, kRate);
}

template <class V>
void describe(V& v, NetworkSpec& c) {
  v("gb_s", c.gb_s, kRate);
  v("latency_us", c.latency_us, between(0, 1e6));
  v("crowded_nodes", c.crowded_nodes, kRate);
  v("crowding", c.crowding, between(0, 2));
}

template <class V>
void describe(V& v, FacilitySpec& c) {
  v("pue", c.pue, between(1, 10));
  v("kg_co2_per_kwh", c.kg_co2_per_kwh, between(0, 10));
  v("kg_co2_per_kwh_market", c.kg_co2_per_kwh_market, between(0, 10));
  v("co2_source", c.co2_source);
  v("eur_per_gpu_hour", c.eur_per_gpu_hour, between(0, 1e6));
}

template <class V>
void describe(V& v, Machine& c) {
  v("name", c.name);
  v("nodes", c.nodes, kCount);
  v("gpu", c.gpu);
  v("node", c.node);
  v("network", c.network);
  v("storage_gb_s", c.storage_gb_s, kRate);
  v("assumed", c.assumed);
  v("facility", c.facility);
  v("topology", c.topology);
  v("launch", c.launch);
}

// The user's file: under the name of a built-in machine, keys that replace its own.
struct SiteMachines {
  std::vector<std::string> names = {};
  std::vector<Machine> machines = {};  // of these names
};

template <class V>
void describe(V& v, SiteMachines& c) {
  for (std::size_t i = 0; i < c.names.size(); ++i) v(c.names[i].c_str(), c.machines[i]);
}

namespace {

void require(double value, const std::string& source, const char* key, const char* meaning) {
  if (value <= 0)
    user_error("{}: {} is missing or 0, and must be above 0: {}", source, key, meaning);
}

void check(Machine& m, const std::string& source) {
  require(m.gpu.bf16_tflops, source, "gpu.bf16_tflops",
          "the dense matmul peak of one GPU, such as 312");
  require(m.gpu.memory_gb, source, "gpu.memory_gb", "the memory of one GPU, such as 80");
  require(m.gpu.memory_gb_s, source, "gpu.memory_gb_s",
          "the memory bandwidth of one GPU, such as 2039");
  if (m.node.gpus % m.node.module_gpus != 0)
    user_error("{}: node.gpus {} is not a multiple of node.module_gpus {}", source, m.node.gpus,
               m.node.module_gpus);
  if (m.node.module_gpus > 1)
    require(m.node.module_gb_s, source, "node.module_gb_s",
            "the bandwidth between the GPUs of a module, per GPU and direction");
  if (m.node.gpus > m.node.module_gpus)
    require(m.node.link_gb_s, source, "node.link_gb_s",
            "the bandwidth between the GPUs of a node, per GPU and direction, such as 300");
  if (m.nodes > 1)
    require(m.network.gb_s, source, "network.gb_s",
            "the bandwidth between nodes, per GPU and direction, such as 25");
  require(m.gpu.tdp_w, source, "gpu.tdp_w", "the power of one busy GPU in W, such as 400");
  if (m.gpu.idle_w > m.gpu.busy_w())
    user_error("{}: gpu.idle_w {} is more than the {} W of a busy GPU", source, m.gpu.idle_w,
               m.gpu.busy_w());
  if (m.gpu.wait_w >= 0 && (m.gpu.wait_w < m.gpu.idle_w || m.gpu.wait_w > m.gpu.busy_w()))
    user_error(
        "{}: gpu.wait_w {} is not between the {} W of an idle GPU and the {} W of a busy one",
        source, m.gpu.wait_w, m.gpu.idle_w, m.gpu.busy_w());
  for (const std::string& key : m.assumed) {
    if (std::find(kAssumedKeys.begin(), kAssumedKeys.end(), key) == kAssumedKeys.end())
      user_error("{}: assumed has '{}', which is not {}", source, key, joined(kAssumedKeys));
    if ((key == kAssumedKeys[0] && m.storage_gb_s == 0) ||
        (key == kAssumedKeys[1] && m.node.storage_gb_s == 0))
      user_error("{}: assumed names {}, but {} has no value: give it, or remove the name", source,
                 key, key);
  }
  check_launch(m.launch, source);
  if (m.gpu.fp16_tflops == 0) m.gpu.fp16_tflops = m.gpu.bf16_tflops;
  if (m.gpu.fp32_tflops == 0) m.gpu.fp32_tflops = m.gpu.bf16_tflops / 16;
}

}  // namespace

double GpuSpec::tflops(DType precision) const {
  switch (precision) {
    case DType::BF16:
      return bf16_tflops;
    case DType::F16:
      return fp16_tflops;
    case DType::F8:
      return fp8_tflops;
    case DType::F32:
      return fp32_tflops;
    case DType::F64:
      return fp32_tflops / 2;
    default:
      failure("no matmuls in {}", to_string(precision));
  }
}

double GpuSpec::speed(std::string_view operation) const {
  const auto found = std::ranges::find(speeds, operation, &std::pair<std::string, double>::first);
  return found == speeds.end() ? 1 : found->second;
}

// More than idle, because kernels of collectives poll. The fraction is assumed.
double GpuSpec::waiting_w() const {
  constexpr double kOfActive = 0.3;
  return wait_w >= 0 ? wait_w : idle_w + kOfActive * (busy_w() - idle_w);
}

std::string GpuSpec::memory_text() const {
  const std::string all = format_bytes(memory_gb * 1e9);
  return margin > 0 ? fmt::format("{}, less {:.3g} % as a margin", all, 100 * margin) : all;
}

bool Machine::assumes(std::string_view key) const {
  return std::find(assumed.begin(), assumed.end(), key) != assumed.end();
}

StorageRate storage_of(const Machine& machine, double nodes) {
  constexpr double kOfNetwork = 0.1;
  if (machine.storage_gb_s <= 0) return {};
  const bool known = machine.node.storage_gb_s > 0;
  const double node =
      known ? machine.node.storage_gb_s
            : kOfNetwork * machine.network.gb_s * static_cast<double>(machine.node.gpus);
  if (node <= 0 || nodes * node >= machine.storage_gb_s)
    return {machine.storage_gb_s, machine.assumes("storage_gb_s")};
  return {nodes * node, !known || machine.assumes("node.storage_gb_s")};
}

Machine parse_machine(const std::string& text, const std::string& source) {
  Machine machine;
  read_document(YamlDocument(text, source), machine);
  check(machine, source);
  return machine;
}

std::string to_yaml(const Machine& machine) {
  Machine copy = machine;
  // Unknown values are left out.
  const FacilitySpec& facility = copy.facility;
  const std::vector<std::pair<const char*, double>> optional = {
      {"wait_w:", copy.gpu.wait_w},
      {"host_w:", copy.node.host_w},
      {"pue:", facility.pue},
      {"kg_co2_per_kwh:", facility.kg_co2_per_kwh},
      {"kg_co2_per_kwh_market:", facility.kg_co2_per_kwh_market},
      {"co2_source:", facility.co2_source.empty() ? -1 : 0},
      {"eur_per_gpu_hour:", facility.eur_per_gpu_hour}};
  YamlWriter writer;
  describe(writer, copy);
  std::string text;
  std::istringstream lines(writer.text());
  for (std::string line; std::getline(lines, line);) {
    const bool unknown = std::any_of(optional.begin(), optional.end(), [&](const auto& one) {
      return one.second < 0 && line.find(one.first) != std::string::npos;
    });
    const std::string key = line.substr(std::min(line.find_first_not_of(' '), line.size()));
    const bool unnamed = key == "partition:" || key == "qos:";  // in a limit
    if (!unknown && !unnamed) text += line + "\n";
  }
  return text;
}

std::vector<std::string> machine_names() { return names_of(embedded_machines()); }

Machine load_machine(const std::string& name_or_path) {
  const auto [yaml, source] =
      find_description("machine", embedded_machines(), name_or_path, kMachineHint);
  SiteMachines site{.names = machine_names()};
  const auto name = std::ranges::find(site.names, name_or_path);
  if (name == site.names.end()) return parse_machine(yaml, source);
  const std::optional<DescriptionText> file = site_machines();
  if (!file) return parse_machine(yaml, source);
  site.machines.resize(site.names.size());
  Machine& machine = site.machines[static_cast<std::size_t>(name - site.names.begin())];
  read_document(YamlDocument(yaml, source), machine);
  read_document(YamlDocument(file->yaml, file->source), site);
  check(machine, fmt::format("{}: {}", file->source, name_or_path));
  return machine;
}

}  // namespace kintsugi
