#pragma once

#include <cstddef>
#include <string>

#include "backend/backend.h"
#include "backend/library_memory.h"
#include "comm/grid.h"
#include "train/config/config.h"

namespace kintsugi {

// Bytes that one rank needs: tensors in device and host memory, and the memory of the backend's
// libraries. On the CPU backend `host` is 0 and everything counts as device memory.
struct MemoryNeed {
  std::size_t device = 0, host = 0, libraries = 0;
  std::size_t on_device() const { return device + libraries; }
};
LibraryUse library_use(const StageConfig& config, const Groups& groups);
// Computed by constructing the engine with a PlanningAllocator.
MemoryNeed planned_memory(Backend& backend, const StageConfig& config, const Groups& groups);

// A table of the engine's memory regions and of the backend's own memory.
std::string memory_table(const Arena& arena, const Backend& backend);

// Whether the need fits a device, and its fraction of a host that `node_ranks` ranks use.
bool fits(const MemoryNeed& need, Backend& backend, int node_ranks);

// Host memory of one rank for saves in the background (train.async_save). Such a run is not refused
// if it does not fit: it trains without them.
struct SnapshotPlan {
  std::size_t bytes = 0, available = 0;
  bool fits() const { return bytes <= available; }
};
SnapshotPlan plan_snapshot(Backend& backend, const StageConfig& config, const Groups& groups);

// Throws UserError if the run does not fit; the message proposes the smallest change that fits.
void check_memory(Backend& backend, const StageConfig& config, const Groups& groups);

}  // namespace kintsugi
