#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "energy/meter.h"

namespace kintsugi {

struct MeterSearch {
  // Holds sys/…; another root than / is a recorded tree, for which no command is run and only
  // libraries below it are loaded.
  std::filesystem::path root = "/";
  // PCI addresses of the GPUs to meter ("0000:1b:00.0"): gpu0 is the first one. An empty list:
  // none. nullopt: all GPUs of the node, numbered as the source does.
  std::optional<std::vector<std::string>> gpus = {};
  double node_w = 0;  // of the whole node, for an estimate; 0: none

  bool without_gpus() const { return gpus && gpus->empty(); }
};
inline constexpr const char* kNoGpuInUse = "the run uses no GPU";

// What was found, and why other sources are not used.
struct FoundMeters {
  struct Missing {
    std::string source, reason;
    // Of a meter that is known but cannot be read: "package0". Empty: the source has no such meter.
    std::string scope = {};
    bool counted = false;  // by another meter of the source: the second die of a GPU module
  };
  std::vector<std::unique_ptr<Meter>> meters = {};
  std::vector<Missing> missing = {};
  int node_gpus = 0;  // all GPUs of the node, also those that this run does not use; 0: unknown
};

// Every meter of this node. Never throws for what a machine may have or lack. Sources are asked at
// the same time; one that does not answer within `limit_s` is missing, and its thread is left
// behind.
FoundMeters find_meters(const MeterSearch& search, double limit_s = 5);

}  // namespace kintsugi
