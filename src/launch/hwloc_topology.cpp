#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <tuple>

#include "core/error.h"
#include "launch/topology.h"

namespace kintsugi {
namespace {

class Hwloc {
 public:
  Hwloc() {
    if (hwloc_topology_init(&topology_) != 0) failure("hwloc cannot be initialized");
    hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  }
  ~Hwloc() { hwloc_topology_destroy(topology_); }
  Hwloc(const Hwloc&) = delete;
  Hwloc& operator=(const Hwloc&) = delete;

  hwloc_topology_t get() const { return topology_; }

 private:
  hwloc_topology_t topology_ = nullptr;
};

// Class and vendor of PCI: a display controller that is no graphics chip of a server's console.
bool is_accelerator(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  const bool display = pci.class_id >> 8 == 0x03, processing = pci.class_id >> 8 == 0x12;
  const bool vendor = pci.vendor_id == 0x10de || pci.vendor_id == 0x1002 || pci.vendor_id == 0x8086;
  return vendor && (display || processing);
}

// GPUs in the order of their PCI addresses; each is given to the first NUMA domain next to it.
void add_gpus(hwloc_topology_t hwloc, Topology& topology) {
  std::vector<hwloc_obj_t> devices;
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_pcidev(hwloc, device)) != nullptr;)
    if (is_accelerator(device->attr->pcidev)) devices.push_back(device);
  const auto address = [](hwloc_obj_t device) {
    const auto& pci = device->attr->pcidev;
    return std::tuple(pci.domain, pci.bus, pci.dev, pci.func);
  };
  std::sort(devices.begin(), devices.end(),
            [&](hwloc_obj_t a, hwloc_obj_t b) { return address(a) < address(b); });
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(hwloc, devices[i]);
    for (NumaDomain& domain : topology.domains)
      if (near != nullptr && near->nodeset != nullptr &&
          hwloc_bitmap_isset(near->nodeset, static_cast<unsigned>(domain.number)) != 0) {
        domain.gpus.insert(static_cast<int>(i));
        break;
      }
  }
}

NumaDomain domain_of(hwloc_topology_t hwloc, hwloc_obj_t node) {
  NumaDomain domain{.number = static_cast<int>(node->os_index)};
  int cpu = -1;
  while (node->cpuset != nullptr && (cpu = hwloc_bitmap_next(node->cpuset, cpu)) >= 0) {
    const hwloc_obj_t pu = hwloc_get_pu_obj_by_os_index(hwloc, static_cast<unsigned>(cpu));
    const hwloc_obj_t core =
        pu == nullptr ? nullptr : hwloc_get_ancestor_obj_by_type(hwloc, HWLOC_OBJ_CORE, pu);
    domain.core_of[cpu] = core == nullptr ? cpu : hwloc_bitmap_first(core->cpuset);
  }
  return domain;
}

Topology loaded(const Hwloc& hwloc, const std::string& source) {
  if (hwloc_topology_load(hwloc.get()) != 0)
    user_error("hwloc cannot read the topology of {}", source);
  Topology topology;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(hwloc.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    NumaDomain domain = domain_of(hwloc.get(), node);
    if (!domain.core_of.empty()) topology.domains.push_back(std::move(domain));
  }
  if (topology.domains.empty()) user_error("{} has no NUMA domain with cores", source);
  add_gpus(hwloc.get(), topology);
  return topology;
}

[[noreturn]] void refuse_file(const std::filesystem::path& file) {
  user_error("{} is no topology that hwloc reads: write it with lstopo --of xml", file.string());
}

constexpr unsigned kLoadLimit_s = 30;
constexpr std::size_t kMostText = 1 << 20;

// In the child process: writes the recorded form of the topology.
int write_lines(const std::filesystem::path& file, int output) {
  alarm(kLoadLimit_s);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const int quiet = open("/dev/null", O_WRONLY);
  dup2(quiet, STDERR_FILENO);
  try {
    const Hwloc hwloc;
    if (hwloc_topology_set_xml(hwloc.get(), file.c_str()) != 0) return 1;
    const std::string text = fmt::format("{}", fmt::join(to_lines(loaded(hwloc, "")), "\n"));
    return write(output, text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // namespace

// hwloc trusts its files, and crashes on damaged ones: another process reads them.
Topology read_hwloc_xml(const std::filesystem::path& file) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) failure("cannot make a pipe: {}", std::strerror(errno));
  const pid_t child = fork();
  if (child == 0) _exit(write_lines(file, ends[1]));
  close(ends[1]);
  std::string text;
  std::array<char, 4096> buffer;
  for (ssize_t got; child > 0 && (got = read(ends[0], buffer.data(), buffer.size())) != 0;) {
    if (got > 0 && text.size() < kMostText)
      text.append(buffer.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  if (child < 0) failure("cannot start a process: {}", std::strerror(errno));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) refuse_file(file);
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) lines.push_back(line);
  return parse_topology(lines, file.string());
}

Topology topology_of_this_machine() { return loaded(Hwloc(), "this machine"); }

}  // namespace kintsugi
