#include "train/records/run_files.h"

#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/log.h"
#include "model/metrics.h"
#include "parallel/schedule_timing.h"

namespace kintsugi {
namespace {

using RecordJson = nlohmann::ordered_json;

// Generated text may end within a character.
std::string record_line(const RecordJson& json) {
  return json.dump(-1, ' ', false, RecordJson::error_handler_t::replace) + "\n";
}

}  // namespace

void RunFiles::warn_once(const char* name, const auto& work) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    try {
      work();
    } catch (const std::exception& error) {
      if (!lost_.insert(name).second) return;
      log_warning("{}: the run continues, but {} is incomplete", error.what(), name);
    }
  } catch (...) {  // no memory for the warning
  }
}

RunFiles::RunFiles(const std::filesystem::path& directory) noexcept : directory_(directory) {
  for (const char* name : {"samples.jsonl", "events.jsonl", "fp8.jsonl", "experts.jsonl"})
    warn_once(name, [&] { drop_partial_line(directory_ / name); });
}

void RunFiles::write(const char* name, std::string_view text) noexcept {
  warn_once(name, [&] { write_file_atomically(directory_ / name, text); });
}

void RunFiles::append(const char* name, std::string_view text) noexcept {
  warn_once(name, [&] { append_to_file(directory_ / name, text); });
}

void RunFiles::write_ranks(std::int64_t step, const std::vector<double>& seconds) noexcept {
  warn_once("ranks.json", [&] {
    RecordJson json = {{"step", step}, {"seconds", RecordJson::array()}};
    // Microseconds are enough, and keep the file of ten thousand ranks short.
    for (const double one : seconds) json["seconds"].push_back(std::round(one * 1e6) / 1e6);
    write_file_atomically(directory_ / "ranks.json", record_line(json), OnDisk::Later);
  });
}

void RunFiles::add_samples(std::int64_t step, double time_s,
                           const std::vector<TextSample>& samples) noexcept {
  warn_once("samples.jsonl", [&] {
    std::string lines;
    for (const TextSample& one : samples)
      lines += record_line(
          {{"step", step}, {"prompt", one.prompt}, {"text", one.text}, {"time_s", time_s}});
    append_to_file(directory_ / "samples.jsonl", lines);
  });
}

namespace {

using LayoutJson = nlohmann::ordered_json;

// A pipeline with as many micro-batches as can be drawn: a multiple of its stages, which an
// interleaved one needs. None if even one micro-batch per stage would be too much: fewer of them
// would show only the bubble.
PipelineShape drawn_shape(const PipelineShape& shape) {
  PipelineShape drawn = shape;
  const int per_micro_batch = 3 * shape.stages * shape.chunks;
  const int most = kMostDrawnActions / per_micro_batch;
  drawn.micro_batches = shape.micro_batches;
  if (shape.micro_batches > most) drawn.micro_batches = most / shape.stages * shape.stages;
  return drawn;
}

const char* kind_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::Forward:
      return "forward";
    case ActionKind::Backward:
      return "backward";
    case ActionKind::BackwardInput:
      return "backward_input";
    default:
      return "backward_weight";
  }
}

LayoutJson actions_json(const PipelineSchedule& schedule, const PipelineTiming& timing) {
  LayoutJson actions = LayoutJson::array();
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank)
    for (std::size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Action& action = schedule.ranks[rank][i];
      if (!is_compute(action.kind)) continue;
      const Span& span = timing.spans[rank][i];
      actions.push_back({{"stage", rank},
                         {"kind", kind_name(action.kind)},
                         {"micro_batch", action.micro_batch},
                         {"chunk", action.chunk},
                         {"begin", span.start},
                         {"end", span.end}});
    }
  return actions;
}

// Each name once, and the number of its name for each rank.
void add_nodes(LayoutJson& json, const std::vector<std::string>& nodes) {
  std::map<std::string, std::size_t> numbers;
  LayoutJson names = LayoutJson::array(), of_rank = LayoutJson::array();
  for (const std::string& node : nodes) {
    const auto [found, is_new] = numbers.try_emplace(node, numbers.size());
    if (is_new) names.push_back(node);
    of_rank.push_back(found->second);
  }
  json["nodes"] = std::move(names);
  json["node_of_rank"] = std::move(of_rank);
}

LayoutJson memory_json(const Arena& arena, Backend& backend) {
  return {{"device", allocations_json(arena, Side::Device)},
          {"host", allocations_json(arena, Side::Host)},
          {"device_total", arena.total_bytes(Side::Device)},
          {"host_total", arena.total_bytes(Side::Host)},
          {"backend_bytes", backend.own_bytes()},
          {"available_bytes", backend.available_bytes()}};
}

LayoutJson model_json(const RunConfig& config) {
  const ModelSize size = count_parameters(ParameterSet(config.model));
  return {{"family", to_string(config.model.family)},
          {"parameters", size.total},
          {"trained_parameters", size.trained},
          {"layers", config.model.layers}};
}

}  // namespace

LayoutJson allocations_json(const Arena& arena, Side side) {
  LayoutJson listed = LayoutJson::array();
  std::array<std::size_t, kRegions> others = {};
  for (const Arena::Allocation& one : arena.list(side)) {
    if (listed.size() < kMostListed)
      listed.push_back(
          {{"region", to_string(one.region)}, {"name", one.name}, {"bytes", one.bytes}});
    else
      others[static_cast<std::size_t>(one.region)] += one.bytes;
  }
  for (std::size_t i = 0; i < others.size(); ++i)
    if (others[i] > 0)
      listed.push_back(
          {{"region", to_string(static_cast<Region>(i))}, {"name", "other"}, {"bytes", others[i]}});
  return listed;
}

LayoutJson pipeline_json(const PipelineShape& shape) {
  if (shape.stages == 1) return nullptr;
  const ActionTimes times{.forward = 1, .backward_input = 1, .backward_weight = 1};
  const PipelineTiming whole = simulate_pipeline(make_pipeline_schedule(shape), times);
  const PipelineShape drawn = drawn_shape(shape);
  LayoutJson json = {{"schedule", to_string(shape.kind)},
                     {"stages", shape.stages},
                     {"chunks", shape.chunks},
                     {"micro_batches", shape.micro_batches},
                     {"shown_micro_batches", drawn.micro_batches},
                     {"makespan", whole.makespan},
                     {"bubble", whole.bubble},
                     {"actions", LayoutJson::array()}};
  if (drawn.micro_batches == 0) return json;
  const PipelineSchedule schedule = make_pipeline_schedule(drawn);
  const PipelineTiming timing = simulate_pipeline(schedule, times);
  json["makespan"] = timing.makespan;
  json["actions"] = actions_json(schedule, timing);
  return json;
}

std::string layout_json(const LayoutFacts& facts) {
  const RunConfig& config = facts.config;
  const Grid& grid = facts.grid;
  const Layout& layout = config.layout;
  LayoutJson json = {{"ranks", grid.world()},
                     {"grid", {{"tp", grid.tp}, {"cp", grid.cp}, {"dp", grid.dp}, {"pp", grid.pp}}},
                     {"order", {"tp", "cp", "dp", "pp"}},
                     {"zero", layout.zero}};
  add_nodes(json, facts.nodes);
  json["memory"] = memory_json(facts.arena, facts.backend);
  json["pipeline"] = pipeline_json(
      {.kind = layout.schedule,
       .stages = grid.pp,
       .micro_batches = static_cast<int>(config.batch.global / (grid.dp * layout.micro_batch)),
       .chunks = layout.chunks});
  json["model"] = model_json(config);
  json["precision"] = to_string(config.train.precision);
  json["device"] = facts.backend.description();
  // Names of nodes and devices may contain invalid UTF-8.
  return json.dump(-1, ' ', false, LayoutJson::error_handler_t::replace) + "\n";
}

}  // namespace kintsugi
