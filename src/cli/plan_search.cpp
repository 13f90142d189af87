#include "cli/plan_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/plan_output.h"
#include "core/error.h"
#include "core/file.h"
#include "core/units.h"
#include "plan/footprint.h"
#include "plan/scaling.h"
#include "train/config.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kUsualSequence = 8192;
constexpr std::int64_t kUsualTokens = 4'000'000;  // of a step, where no batch is given

PlanJob job_of(const PlanSearchOptions& options) {
  PlanJob job{.model = resolve_model(options.model)};
  job.length = options.length > 0
                   ? options.length
                   : std::min(kUsualSequence, std::max<std::int64_t>(job.model.max_positions, 1));
  if (job.model.traits().positions == PositionKind::Learned && job.length > job.model.max_positions)
    user_error("--length {}: the model has {} positions", job.length, job.model.max_positions);
  job.precision = parse_precision(options.precision);
  job.checkpoint_every = options.checkpoint_every;
  return job;
}

void write_checked(const char* option, const std::string& path, const std::string& content) {
  check_folder(option, path);
  write_file_atomically(path, content);
}

[[noreturn]] void nothing_fits(const Planner& planner, const SearchLimits& limits,
                               const SearchResult& result) {
  const Machine& machine = planner.machine();
  const PlanJob& job = planner.job();
  if (result.layouts == 0)
    user_error(
        "no layout of {} GPUs divides {} heads, {} layers and a batch of {} sequences: try a "
        "number "
        "of GPUs with more divisors, or another --batch",
        limits.gpus, job.model.heads, job.model.layers, job.batch);
  const int enough = fewest_gpus(job, machine, limits);
  const std::string remedy =
      enough > 0 ? fmt::format("{} GPUs would do", enough)
                 : fmt::format(
                       "no part of this machine ({} GPUs) would do: one with {} per GPU "
                       "would",
                       machine.gpus(), format_bytes(result.smallest.memory_bytes));
  user_error("none of {} layouts fits {} GPUs with {}: the least that one needs is {} ({}); {}",
             result.layouts, limits.gpus, format_bytes(machine.gpu.memory_gb * 1e9),
             format_bytes(result.smallest.memory_bytes), to_string(result.smallest.layout), remedy);
}

void show_scaling(const PlanSearchOptions& options, const PlanJob& job, const Machine& machine) {
  if (options.scaling != "strong" && options.scaling != "weak")
    user_error("--scaling is '{}': strong or weak", options.scaling);
  std::vector<int> gpus;
  for (int count = options.limits.gpus; count >= 1; count /= 2) {
    gpus.insert(gpus.begin(), count);
    if (count % 2 != 0 || gpus.size() == 8) break;
  }
  const bool strong = options.scaling == "strong";
  PlanJob first = job;
  if (!strong) first.batch = std::max<std::int64_t>(1, job.batch * gpus.front() / gpus.back());
  const auto rows = scaling(first, machine, options.limits,
                            strong ? ScalingKind::Strong : ScalingKind::Weak, gpus);
  if (rows.empty()) user_error("nothing fits {} GPUs or fewer", options.limits.gpus);
  fmt::print("{}", scaling_table(rows));
  if (!options.svg.empty())
    write_checked("--svg", options.svg,
                  scaling_svg(rows, fmt::format("{} on {}, {} scaling", options.model, machine.name,
                                                options.scaling)));
}

}  // namespace

std::int64_t count_of(const char* option, const std::string& text) {
  try {
    const std::int64_t value = parse_count(text);
    if (value < 1) user_error("it must be 1 or more");
    return value;
  } catch (const UserError& error) {
    user_error("{} {}: {}", option, text, error.what());
  }
}

void check_folder(const char* option, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    user_error("{} {}: there is no directory {}", option, path, folder.string());
}

void plan_search(PlanSearchOptions options) {
  if (options.machine.empty())
    user_error("--model needs --machine: a name ({}…) or a YAML file", "frontier, dgx-h100, ");
  if (options.gpus.empty()) user_error("--model needs --gpus: how many there are");
  const Machine machine = load_machine(options.machine);
  PlanJob job = job_of(options);
  const std::int64_t gpus = count_of("--gpus", options.gpus);
  if (gpus > machine.gpus()) user_error("--gpus {}: {} has {}", gpus, machine.name, machine.gpus());
  options.limits.gpus = static_cast<int>(gpus);
  options.limits.rank_by = parse_rank_by(options.rank_by);
  if (options.limits.rank_by == RankBy::Cost && machine.facility.eur_per_gpu_hour < 0)
    user_error("--rank-by cost: facility.eur_per_gpu_hour of {} is missing", machine.name);
  // Without a batch: about four million tokens that divide well.
  job.batch = options.batch.empty()
                  ? std::max<std::int64_t>(1, kUsualTokens / job.length / gpus) * gpus
                  : count_of("--batch", options.batch);
  if (job.batch > 100'000'000) user_error("--batch {} is more than any run had", job.batch);
  const double tokens =
      options.tokens.empty() ? 0 : static_cast<double>(count_of("--tokens", options.tokens));
  if (!options.scaling.empty()) return show_scaling(options, job, machine);

  Planner planner(job, machine);
  options.limits.best = std::max(options.limits.best, options.explain);
  const SearchResult result = search_layouts(planner, options.limits);
  if (result.best.empty()) nothing_fits(planner, options.limits, result);
  const auto chosen = static_cast<std::size_t>(std::max(1, options.explain)) - 1;
  if (chosen >= result.best.size())
    user_error("--explain {}: only {} layouts fit", options.explain, result.best.size());
  const Evaluation& one = result.best[chosen];
  // The engine's own rules have the last word.
  fit_layout(request_of(job, one.layout), one.layout.ranks());
  if (!options.emit.empty()) {
    const std::string yaml = training_yaml(planner, one, options.model, options.data, tokens);
    parse_run_config(yaml, options.emit);
    write_checked("--emit", options.emit, yaml);
  }
  if (options.as_json)
    fmt::print("{}", search_json(result, planner, tokens));
  else if (options.explain > 0)
    fmt::print("{}", explained(planner, one, tokens));
  else
    fmt::print("{}{}", best_table(result, planner, tokens), misses_table(result));
}

void list_machines() {
  for (const std::string& name : machine_names()) {
    const Machine machine = load_machine(name);
    fmt::print("{:<18}{:>6} nodes x {} {}\n", name, machine.nodes, machine.node.gpus,
               machine.gpu.name);
  }
}

void plan_calculus(const PlanCalculusOptions& o) {
  if (o.machine.empty()) user_error("--parameters needs --machine: its peak is needed");
  const Machine machine = load_machine(o.machine);
  const auto optional = [](const char* name, const std::string& text) {
    return text.empty() ? 0.0 : static_cast<double>(count_of(name, text));
  };
  ComputeCalculus c{.parameters = optional("--parameters", o.parameters),
                    .tokens = optional("--tokens", o.tokens),
                    .gpus = optional("--gpus", o.gpus),
                    .days = o.days,
                    .peak_flops = machine.gpu.bf16_tflops * 1e12,
                    .mfu = o.mfu,
                    .flops_per_parameter = o.flops_per_parameter};
  c = solve(c);
  const double gpu_mwh = gpu_joule(c, machine.gpu.busy_w()) / 3.6e9;
  const double host_mwh =
      c.gpus / static_cast<double>(machine.node.gpus) * machine.node.host_w * c.days * 24 / 1e6;
  const double facility_mwh = (gpu_mwh + host_mwh) * machine.facility.pue;
  fmt::print(
      "{} parameters, {} tokens ({:.1f} per parameter), {:.0f} GPUs, {:.1f} days at an MFU of "
      "{:.1f} %\n{:.1f} MWh in GPUs, {:.1f} in nodes, {:.1f} with the facility",
      format_count(c.parameters), format_count(c.tokens), c.tokens / c.parameters, c.gpus, c.days,
      100 * c.mfu, gpu_mwh, gpu_mwh + host_mwh, facility_mwh);
  // Both levels: many reports count the GPUs' energy with the PUE, a meter counts the nodes'.
  if (const double factor = machine.facility.kg_co2_per_kwh; factor >= 0)
    fmt::print("; {:.1f} t CO2e for the GPUs with PUE, {:.1f} t for the nodes with PUE",
               gpu_mwh * machine.facility.pue * factor, facility_mwh * factor);
  fmt::print("\n");
}

}  // namespace kintsugi
