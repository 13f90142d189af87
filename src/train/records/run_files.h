#pragma once

#include <filesystem>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "comm/grid.h"
#include "parallel/schedule.h"
#include "tensor/arena.h"
#include "train/config/config.h"

namespace kintsugi {

// A text that the model generated at a checkpoint.
struct TextSample {
  std::string prompt, text;
};

// The files of a run directory that only its viewers read: layout.json, ranks.json, samples.jsonl
// and events.jsonl. Rank 0 writes them. Thread-safe. Nothing here throws or ends a run: a file that
// cannot be written is one warning.
class RunFiles {
 public:
  // Removes incomplete last lines, which a crash has left.
  explicit RunFiles(const std::filesystem::path& directory) noexcept;

  void write_layout(std::string_view json) noexcept { write("layout.json", json); }
  // The mean time in which each rank computed in a step.
  void write_ranks(std::int64_t step, const std::vector<double>& seconds) noexcept;
  void add_samples(std::int64_t step, double time_s,
                   const std::vector<TextSample>& samples) noexcept;
  void add_event(std::string_view line) noexcept { append("events.jsonl", line); }
  void add_experts(std::string_view line) noexcept { append("experts.jsonl", line); }
  void add_fp8(std::string_view line) noexcept { append("fp8.jsonl", line); }

 private:
  void write(const char* name, std::string_view text) noexcept;
  void append(const char* name, std::string_view text) noexcept;
  void warn_once(const char* name, const auto& work) noexcept;

  std::filesystem::path directory_;
  std::mutex mutex_;
  std::set<std::string> lost_;  // names of files that were not written
};

// What layout.json says of a run, for its viewers. Its size does not depend on the length of the
// run: at most kMostListed allocations and kMostDrawnActions actions, and a few bytes per rank.
inline constexpr std::size_t kMostListed = 200;
inline constexpr int kMostDrawnActions = 4000;

struct LayoutFacts {
  const RunConfig& config;  // complete
  const Grid& grid;
  const Arena& arena;  // of rank 0
  Backend& backend;
  std::vector<std::string> nodes;  // the node of each rank
};
std::string layout_json(const LayoutFacts& facts);

// Its parts.

// The largest allocations of one side, and the rest of each region as "other".
nlohmann::ordered_json allocations_json(const Arena& arena, Side side);
// The times of all actions if a forward takes 1 and a backward 2. With many micro-batches the
// actions and the makespan are those of a step with fewer; the bubble is that of the whole step.
// A pipeline too large to draw has no actions. null without a pipeline.
nlohmann::ordered_json pipeline_json(const PipelineShape& shape);

}  // namespace kintsugi
