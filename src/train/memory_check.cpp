#include "train/memory_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/host/free_memory.h"
#include "core/units.h"
#include "model/parameter_set.h"
#include "train/checkpoint/snapshot.h"
#include "train/engine_options.h"

namespace kintsugi {
namespace {

std::string bytes_text(std::size_t bytes) { return format_bytes(static_cast<double>(bytes)); }

void check_host(const MemoryNeed& need, const Backend& backend, const StageConfig& config,
                int node_ranks) {
  const auto ranks = static_cast<std::size_t>(node_ranks);
  if (need.host * ranks <= backend.available_host_bytes()) return;
  user_error(
      "this run offloads {} to host memory{}, but only {} of host memory is free: offload less, "
      "shard the optimizer state over more ranks with layout.zero{} or use a smaller model",
      bytes_text(need.host), node_ranks > 1 ? fmt::format(" on each of {} ranks", node_ranks) : "",
      bytes_text(backend.available_host_bytes()),
      config.optimizer.moments == DType::F32 ? ", set optimizer.moments: bf16" : "");
}

bool is_valid(const StageConfig& config, int ranks) {
  try {
    layout_on(config, ranks);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// The memory that one rank may use. If the device is the host, the ranks of a node share its free
// memory; the limits of the process itself apply to each rank.
std::size_t available_per_rank(Backend& backend, int node_ranks) {
  const std::size_t available = backend.available_bytes();
  if (&backend.host_memory() != &backend || node_ranks == 1) return available;
  const std::size_t per_rank = free_memory() / static_cast<std::size_t>(node_ranks);
  return std::min(available, per_rank - std::min(per_rank, backend.own_bytes()));
}

// "24 GiB (1 GiB of it for libraries)"
std::string need_text(const MemoryNeed& need) {
  const std::string all = bytes_text(need.on_device());
  if (need.libraries == 0) return all;
  return fmt::format("{} ({} of it for libraries)", all, bytes_text(need.libraries));
}

// A larger number of parameters per rank fits nowhere today. The plan of their memory, block by
// block, would take long, so that a typo in a size must not get there.
constexpr double kMostPlannedElements = 1ull << 37;

// The weights are sharded over all ranks at best.
void refuse_impossible(Backend& backend, const StageConfig& config, const Groups& groups) {
  double elements = 0;  // may be more than 64 bits hold
  const ParameterSet set(config.model);
  for (const Parameter& parameter : set.parameters())
    elements += static_cast<double>(parameter.shape.elements());
  const double ranks = groups.ranks();
  if (elements / ranks <= kMostPlannedElements) return;
  const double bytes = elements * static_cast<double>(size_of(config.train.precision)),
               available = static_cast<double>(available_per_rank(backend, groups.node_ranks));
  if (bytes / ranks <= available) return;
  user_error(
      "this model has {} parameters: its weights alone take {} on each rank, and {} is free: use a "
      "smaller model, or at least {} ranks",
      format_count(elements), format_bytes(bytes / ranks), format_bytes(available),
      format_count(std::ceil(bytes / std::max(available, 1.0))));
}

// The divisors of `number` up to `most`, the largest first.
std::vector<std::int64_t> divisors_up_to(std::int64_t number, std::int64_t most) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t small = 1; small <= number / small; ++small) {
    if (number % small != 0) continue;
    for (const std::int64_t divisor : {small, number / small})
      if (divisor <= most) divisors.push_back(divisor);
  }
  std::sort(divisors.rbegin(), divisors.rend());
  return divisors;
}

constexpr int kDefaultNodeRanks = 8;  // GPUs per node
constexpr std::int64_t kMaxRanks = 1 << 16;

// Proposes a larger number of ranks on which the run fits, with a layout; "" if none is found. Only
// the first two stages and the last stage of a pipeline are checked: they need most memory.
std::string propose_ranks(Backend& backend, const StageConfig& config, const Groups& groups,
                          std::size_t needed, std::size_t available) {
  const bool on_cpu = &backend.host_memory() == &backend;
  const int node = on_cpu ? groups.node_ranks : std::max(kDefaultNodeRanks, groups.node_ranks);
  StageConfig candidate = config;
  std::size_t used = 0;
  const auto candidate_fits = [&](const Layout& layout) {
    candidate.layout = layout;
    const Grid grid = grid_of(layout, config.model);
    used = 0;
    for (const int stage : {0, 1, grid.pp - 1}) {
      if (stage >= grid.pp) continue;
      const MemoryNeed need =
          planned_memory(backend, candidate, planned_groups(grid, {.pp = stage}));
      if (!fits(need, backend, groups.node_ranks)) return false;
      used = std::max(used, need.on_device());
    }
    return true;
  };
  Layout open = config.layout;
  open.dp = 0;
  // A lower bound: fewer ranks cannot hold the memory that this rank needs.
  const auto least = static_cast<std::int64_t>(needed / std::max<std::size_t>(available, 1));
  for (std::int64_t ranks = 2 * groups.ranks(); ranks <= kMaxRanks; ranks *= 2) {
    if (ranks < least * groups.ranks()) continue;
    try {
      const Layout found =
          choose_layout(open, workload_of(config), static_cast<int>(ranks), node, candidate_fits);
      return fmt::format(
          "start {} ranks with the same memory each (mpirun -np {} …): with batch.micro: {} and "
          "layout: {{tp: {}, pp: {}, zero: {}, recompute: full}} each would take {}",
          ranks, ranks, config.layout.micro_batch, found.tp, found.pp, found.zero,
          bytes_text(used));
    } catch (const UserError&) {
      if (ranks > 64 * least * groups.ranks()) break;  // memory is not the problem
    }
  }
  return "";
}

}  // namespace

LibraryUse library_use(const StageConfig& config, const Groups& groups) {
  const Grid& grid = groups.grid;
  LibraryUse use{.attention_elements = config.layout.micro_batch * config.data.sequence_length /
                                       grid.cp * config.model.heads / grid.tp *
                                       config.model.head_dim};
  for (const GroupSpec& spec : group_specs())
    use.groups += !spec.on_host && groups[spec.kind].size() > 1 ? 1 : 0;
  return use;
}

std::string memory_table(const Arena& arena, const Backend& backend) {
  return fmt::format("{}\n  {:<14}{:>12}  the backend and its libraries", arena.table(), "backend",
                     bytes_text(backend.own_bytes()));
}

MemoryNeed planned_memory(Backend& backend, const StageConfig& config, const Groups& groups) {
  refuse_impossible(backend, config, groups);
  PlanningAllocator nothing;
  const Engine engine(backend, nothing, engine_options(config, groups.ranks()), groups);
  const std::size_t device = engine.arena().total_bytes(),
                    host = engine.arena().total_bytes(Side::Host);
  const std::size_t libraries = library_bytes(backend, library_use(config, groups));
  const bool on_cpu = &backend.host_memory() == &backend;
  return on_cpu ? MemoryNeed{device + host, 0, libraries} : MemoryNeed{device, host, libraries};
}

bool fits(const MemoryNeed& need, Backend& backend, int node_ranks) {
  return need.on_device() <= available_per_rank(backend, node_ranks) &&
         (need.host == 0 ||
          need.host * static_cast<std::size_t>(node_ranks) <= backend.available_host_bytes());
}

SnapshotPlan plan_snapshot(Backend& backend, const StageConfig& config, const Groups& groups) {
  if (!config.train.save || !config.train.async_save) return {};
  const MemoryNeed need = planned_memory(backend, config, groups);
  PlanningAllocator nothing;
  Engine engine(backend, nothing, engine_options(config, groups.ranks()), groups);
  const bool on_cpu = &backend.host_memory() == &backend;
  const std::size_t used = on_cpu ? need.on_device() : need.host;
  const std::size_t most =
      on_cpu ? available_per_rank(backend, groups.node_ranks)
             : backend.available_host_bytes() / static_cast<std::size_t>(groups.node_ranks);
  return {.bytes = Snapshot::bytes_of(engine), .available = most - std::min(most, used)};
}

void check_memory(Backend& backend, const StageConfig& config, const Groups& groups) {
  const MemoryNeed need = planned_memory(backend, config, groups);
  if (need.host > 0) check_host(need, backend, config, groups.node_ranks);
  const std::size_t available = available_per_rank(backend, groups.node_ranks);
  if (need.on_device() <= available) return;
  const std::string problem =
      fmt::format("this run needs {} and {} is free", need_text(need), bytes_text(available));
  // Find the smallest change that fits: more recomputation, then smaller micro-batches.
  StageConfig smaller = config;
  const std::int64_t sequences = config.batch.global / groups.grid.dp;
  for (const std::int64_t micro_batch : divisors_up_to(sequences, config.layout.micro_batch)) {
    smaller.layout.micro_batch = micro_batch;
    if (!is_valid(smaller, groups.ranks())) continue;
    for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
      if (recompute < config.layout.recompute) continue;
      smaller.layout.recompute = recompute;
      if (const MemoryNeed less = planned_memory(backend, smaller, groups);
          less.on_device() <= available)
        user_error("{}: batch.micro: {} with layout.recompute: {} would take {}", problem,
                   smaller.layout.micro_batch, to_string(recompute), bytes_text(less.on_device()));
    }
  }
  smaller.layout.micro_batch = 1;
  if (!is_valid(smaller, groups.ranks())) smaller.layout.micro_batch = config.layout.micro_batch;
  const MemoryNeed least = planned_memory(backend, smaller, groups);
  const auto propose_offload = [&](bool OffloadConfig::*key, const char* setting) {
    if (smaller.offload.*key) return;
    smaller.offload.*key = true;
    const MemoryNeed less = planned_memory(backend, smaller, groups);
    if (less.host > 0 && fits(less, backend, groups.node_ranks))
      user_error(
          "{}: batch.micro: {} with layout.recompute: full and {} would take {} and {} of "
          "host memory",
          problem, smaller.layout.micro_batch, setting, bytes_text(less.on_device()),
          bytes_text(less.host));
  };
  propose_offload(&OffloadConfig::optimizer, "offload.optimizer: true");
  if (config.layout.pp == 1 || config.layout.schedule != PipelineKind::ZeroBubbleH1)
    propose_offload(&OffloadConfig::gradients, "offload: {optimizer: true, gradients: true}");
  smaller.offload = config.offload;
  const std::string more = propose_ranks(backend, smaller, groups, least.on_device(), available);
  user_error(
      "{}: even batch.micro: {} with layout.recompute: full would take {}, so {}use a smaller "
      "model{}{}",
      problem, smaller.layout.micro_batch, bytes_text(least.on_device()),
      more.empty() ? "" : more + "; or ",
      groups.ranks() > 1 ? ", shard it with layout.zero, tp or pp" : "",
      config.optimizer.moments == DType::F32 ? ", a shorter sequence or optimizer.moments: bf16"
                                             : " or a shorter sequence");
}

}  // namespace kintsugi
