#pragma once

#include <cstddef>
#include <string>

#include "backend/backend.h"
#include "backend/library_memory.h"
#include "comm/grid.h"
#include "train/config/config.h"

namespace kintsugi {

// What a rank of a run takes: tensors, and what the backend's libraries take beside them. Where the
// device is the host, all of it is the device's.
struct MemoryNeed {
  std::size_t device = 0, host = 0, libraries = 0;
  std::size_t on_device() const { return device + libraries; }
};
LibraryUse library_use(const RunConfig& config, const Groups& groups);
// Found by building its engine on paper.
MemoryNeed planned_memory(Backend& backend, const RunConfig& config, const Groups& groups);

// The regions of an engine's memory, and what the backend takes beside them.
std::string memory_table(const Arena& arena, const Backend& backend);

// Whether a device and its share of a host with `node_ranks` of them have it.
bool fits(const MemoryNeed& need, Backend& backend, int node_ranks);

// UserError with the least change that fits, if there is one.
void check_memory(Backend& backend, const RunConfig& config, const Groups& groups);

}  // namespace kintsugi
