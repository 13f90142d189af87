#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/eval/loaded_model.h"

namespace kintsugi {

// kintsugi eval --tasks and --store.
struct TaskRunArguments {
  std::vector<std::string> checkpoints, tasks, include_paths, stores;
  std::optional<std::int64_t> shots;
  std::optional<double> limit;
  std::uint64_t fewshot_seed = 1234;
  std::int64_t bootstrap = 100'000;
  std::string output;
  bool samples = true, json = false;
  EngineArguments engine;
};
void run_tasks(TaskRunArguments arguments);

}  // namespace kintsugi
