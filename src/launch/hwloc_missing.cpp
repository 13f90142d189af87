// Replaces hwloc_topology.cpp where the hwloc library is not installed.
#include "core/error.h"
#include "launch/topology.h"

namespace kintsugi {

Topology read_hwloc_xml(const std::filesystem::path& file) {
  user_error(
      "{} needs hwloc, which this program was built without: install libhwloc-dev and build again, "
      "or write the topology as text (docs/launch.md)",
      file.string());
}

Topology topology_of_this_machine() {
  user_error(
      "the topology of this machine needs hwloc, which this program was built without: install "
      "libhwloc-dev and build again");
}

}  // namespace kintsugi
