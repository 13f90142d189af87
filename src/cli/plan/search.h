#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/output_file.h"
#include "plan/search/search.h"

namespace CLI {
class App;
}

namespace kintsugi {

inline constexpr std::string_view kNoFailures = "none";  // --node-mtbf none

// kintsugi plan --model … --machine … --gpus …: searches the best layouts.
struct PlanSearchOptions {
  std::string model = {}, machine = {};
  std::string config = {};  // a run's configuration, instead of a model
  std::string gpus = {}, nodes = {}, batch = {}, tokens = {};
  std::int64_t length = 0;              // 0: the model's maximum, at most 8192
  std::int64_t checkpoint_every = 250;  // steps, the default of train; 0: never
  std::string precision = "bf16";
  std::string optimizer = "adamw";
  double imbalance = kUsualImbalance;
  bool checkpoints_given = false;  // checkpoint_every is not the default
  // Failures of nodes: durations, or kNoFailures; empty: as the machine says, or the usual.
  std::string node_mtbf = {}, save_time = {}, restart_time = {}, repair_time = {};
  std::string rank_by = "time";
  SearchLimits limits = {};
  double eur_per_gpu_hour = -1;  // -1: the machine's
  int explain = 0;               // explain the n-th best layout; 0: print the table
  bool best_given = false;       // with `explain`: print the table too
  std::string emit = {}, data = {}, tokenizer = {}, svg = {}, scaling = {};
  std::string simulate = {}, replay = {};  // the network; a file for kintsugi-simulate
  bool as_json = false, overwrite = false;

  OutputRule output_rule() const { return {overwrite, {model, machine, config}}; }
};
// --tp, --cp, …: only some layouts.
void add_search_limits(CLI::App& command, SearchLimits& limits);
void add_offload_option(CLI::App& command, SearchLimits& limits);
// Parses the value of an option as an integer of at least 1; UserError otherwise.
std::int64_t count_of(const char* option, const std::string& text);

void plan_search(PlanSearchOptions options);
// kintsugi plan --config …: searches layouts for each stage of a run, with its own sequence length,
// batch and tokens, and adds up the first layouts.
void plan_run(PlanSearchOptions options);
}  // namespace kintsugi
