#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/shared_library.h"
#include "energy/meters/sysfs.h"
#include "launch/doctor/measure.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

// Names of chips by their PCI device (pci.ids).
constexpr std::pair<std::string_view, std::string_view> kChips[] = {
    {"0x738c", "MI100"},  {"0x7408", "MI250X"}, {"0x740c", "MI250"},  {"0x740f", "MI210"},
    {"0x74a0", "MI300A"}, {"0x74a1", "MI300X"}, {"0x74a5", "MI325X"},
};

// ---- the GPUs

// Accelerators of AMD in the order of their addresses: display controllers other than those of a
// screen (0x0300), and processing accelerators.
std::vector<fs::path> amd_devices(const fs::path& root) {
  std::vector<fs::path> devices;
  const fs::path folder = root / "sys/bus/pci/devices";
  for (const std::string& name : names_in(folder)) {
    const std::string kind = read_small_file(folder / name / "class").text;
    if (read_small_file(folder / name / "vendor").text == "0x1002" &&
        (kind.starts_with("0x0302") || kind.starts_with("0x0380") || kind.starts_with("0x12")))
      devices.push_back(folder / name);
  }
  return devices;
}

// What the compute driver says of a GPU.
struct DriverNode {
  std::string target;
  int compute_units = 0;
};

// The nodes in sys/class/kfd/kfd/topology by PCI address. CPUs are nodes too, without a target. A
// process cannot read those of GPUs that its control group refuses.
std::map<std::string, DriverNode> driver_nodes(const fs::path& root) {
  std::map<std::string, DriverNode> nodes;
  const fs::path folder = root / "sys/class/kfd/kfd/topology/nodes";
  for (const std::string& name : names_in(folder)) {
    std::ifstream file(folder / name / "properties");
    std::map<std::string, std::uint64_t> values;
    std::string key;
    for (std::uint64_t value = 0; file >> key >> value;) values[key] = value;
    const std::uint64_t version = values["gfx_target_version"], place = values["location_id"];
    if (version == 0) continue;
    const std::uint64_t per_unit = std::max<std::uint64_t>(values["simd_per_cu"], 1);
    nodes[pci_address(
        static_cast<unsigned>(values["domain"]), static_cast<unsigned>(place >> 8 & 0xff),
        static_cast<unsigned>(place >> 3 & 0x1f), static_cast<unsigned>(place & 7))] = {
        .target = fmt::format("gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100),
        .compute_units = static_cast<int>(values["simd_count"] / per_unit)};
  }
  return nodes;
}

// In the order of their addresses the two dies of a module are neighbours, in one NUMA domain.
std::vector<AmdGpu> amd_gpus(const std::vector<fs::path>& devices,
                             const std::map<std::string, DriverNode>& nodes) {
  std::vector<AmdGpu> gpus;
  std::string last_numa;
  int modules = 0, last_dies = 0;  // of the last module, those that were seen
  for (const fs::path& device : devices) {
    const std::string id = read_small_file(device / "device").text,
                      numa = read_small_file(device / "numa_node").text;
    const auto chip = std::find_if(std::begin(kChips), std::end(kChips),
                                   [&](const auto& one) { return one.first == id; });
    AmdGpu gpu{.pci = pci_address(device.filename().string()),
               .name = chip != std::end(kChips) ? std::string(chip->second) : "device " + id,
               .target = ""};
    if (const auto node = nodes.find(gpu.pci); node != nodes.end()) {
      gpu.target = node->second.target;
      gpu.compute_units = node->second.compute_units;
    }
    const bool same = !gpus.empty() && gpus.back().name == gpu.name && last_numa == numa;
    const bool second = may_be_a_die(device) && same && last_dies == 1;
    last_dies = second ? 2 : 1;
    gpu.module = second ? modules - 1 : modules++;
    last_numa = numa;
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::string driver_problem(const fs::path& root) {
  const fs::path file = root / "dev/kfd";
  if (::access(file.c_str(), R_OK | W_OK) == 0) return "";
  return fmt::format("{}: {}: {}", file.string(), std::strerror(errno),
                     errno == EACCES
                         ? "ask for the groups render and video"
                         : "load the driver amdgpu, or start the container with its GPUs (--rocm)");
}

// ROCm leaves the GPUs of ROCR_VISIBLE_DEVICES, and HIP counts the others among those.
std::string hidden_gpus(const Environment& environment) {
  const std::optional<std::string> outer = environment("ROCR_VISIBLE_DEVICES");
  for (const char* name : {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}) {
    const std::optional<std::string> inner = environment(name);
    if (!inner) continue;
    const std::vector<int> chosen = parse_number_list(*inner);
    if (outer && !outer->empty() && !chosen.empty() &&
        chosen.back() > std::count(outer->begin(), outer->end(), ','))
      return fmt::format(
          "{}={} chooses among the GPUs that ROCR_VISIBLE_DEVICES={} leaves, which are fewer: "
          "unset {}",
          name, *inner, *outer, name);
  }
  return "";
}

// ---- ROCm

struct Wanted {
  std::string name;
  std::vector<std::string> files;
};

std::vector<Wanted> wanted_libraries(const Environment& environment, const fs::path& root) {
  std::vector<Wanted> all = {
      {"libamdhip64",
       {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}},
      {"libhipblaslt", {"libhipblaslt.so", "libhipblaslt.so.1", "libhipblaslt.so.0"}},
      {"librocblas", {"librocblas.so", "librocblas.so.5", "librocblas.so.4"}},
      {"librccl", {"librccl.so", "librccl.so.1"}},
  };
  // RCCL knows InfiniBand itself. The network cards of Slingshot need a plug-in.
  if (names_in(root / "sys/class/cxi").empty()) return all;
  Wanted plugin{"librccl-net", {"librccl-net.so", "libnccl-net.so"}};
  if (const auto given = environment("NCCL_NET_PLUGIN"); given && !given->empty())
    plugin.files =
        given->find('/') != std::string::npos
            ? std::vector{*given}
            : std::vector{"librccl-net-" + *given + ".so", "libnccl-net-" + *given + ".so", *given};
  all.push_back(std::move(plugin));
  return all;
}

std::string first_line_of(const fs::path& file) {
  std::ifstream text(file);
  std::string line;
  std::getline(text, line);
  return line;
}

// "6.2.4" of "6.2.4-134".
std::string version_in(const std::string& text) {
  return text.substr(0, text.find_first_not_of("0123456789."));
}

// Of the folder in which HIP was found, of HIP's file (libamdhip64.so.5.2.21153), or of opt/rocm.
std::string rocm_version(const fs::path& hip, const fs::path& root) {
  constexpr std::string_view kEnding = ".so.";
  std::error_code ignored;
  const fs::path file = hip.empty() ? hip : fs::canonical(hip, ignored);
  std::string version;
  if (!file.empty())
    version = version_in(first_line_of(file.parent_path().parent_path() / ".info/version"));
  const std::string name = file.filename().string();
  if (const std::size_t at = name.find(kEnding); version.empty() && at != std::string::npos) {
    const std::string numbers = version_in(name.substr(at + kEnding.size()));
    const std::size_t minor = numbers.find('.');
    version = numbers.substr(0, minor == std::string::npos ? minor : numbers.find('.', minor + 1));
  }
  return version.empty() ? version_in(first_line_of(root / "opt/rocm/.info/version")) : version;
}

void open_libraries(const Environment& environment, const fs::path& root, AmdFacts& facts) {
  // Closed together: they need each other.
  std::vector<std::unique_ptr<SharedLibrary>> open;
  fs::path hip;
  for (const Wanted& wanted : wanted_libraries(environment, root)) {
    std::string problem;
    try {
      open.push_back(std::make_unique<SharedLibrary>(
          root,
          LibraryNames{.files = wanted.files, .folders = {"opt/rocm/lib", "opt/rocm/lib64"}}));
      if (wanted.name == "libamdhip64") hip = open.back()->path();
    } catch (const Failure& error) {
      problem = error.what();
    }
    facts.libraries.push_back({wanted.name, problem});
  }
  facts.rocm = rocm_version(hip, root);
}

}  // namespace

AmdFacts measure_amd(bool node, const Environment& environment, const fs::path& root) {
  AmdFacts facts;
  const std::vector<fs::path> devices = amd_devices(root);
  if (devices.empty()) return facts;
  const std::map<std::string, DriverNode> nodes = driver_nodes(root);
  const std::vector<AmdGpu> gpus = amd_gpus(devices, nodes);
  for (std::size_t i = 0; i < gpus.size(); ++i)
    if (nodes.contains(gpus[i].pci)) facts.usable.push_back(static_cast<int>(i));
  facts.hidden = hidden_gpus(environment);
  if (!node) return facts;
  facts.gpus = gpus;
  facts.driver_problem = driver_problem(root);
  open_libraries(environment, root, facts);
  return facts;
}

}  // namespace kintsugi
