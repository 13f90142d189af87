#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
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
    user_error("{} is no topology that hwloc reads: write it with lstopo --of xml", source);
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

}  // namespace

Topology read_hwloc_xml(const std::filesystem::path& file) {
  const Hwloc hwloc;
  if (hwloc_topology_set_xml(hwloc.get(), file.c_str()) != 0)
    user_error("{} is no topology that hwloc reads: write it with lstopo --of xml", file.string());
  return loaded(hwloc, file.string());
}

Topology topology_of_this_machine() { return loaded(Hwloc(), "this machine"); }

}  // namespace kintsugi
