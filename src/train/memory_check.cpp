#include "train/memory_check.h"

#include <algorithm>
#include <string>

#include "core/free_memory.h"
#include "core/units.h"
#include "train/engine_options.h"

namespace kintsugi {
namespace {

std::string in_words(std::size_t bytes) { return format_bytes(static_cast<double>(bytes)); }

void check_host(const MemoryNeed& need, const Backend& backend, const RunConfig& config,
                int node_ranks) {
  const auto ranks = static_cast<std::size_t>(node_ranks);
  if (need.host * ranks <= backend.available_host_bytes()) return;
  user_error(
      "this run offloads {} to host memory{} and {} of that is free: offload less, share the "
      "optimizer's state among more ranks with layout.zero{} or take a smaller model",
      in_words(need.host), node_ranks > 1 ? fmt::format(" on each of {} ranks", node_ranks) : "",
      in_words(backend.available_host_bytes()),
      config.optimizer.moments == DType::F32 ? ", set optimizer.moments: bf16" : "");
}

// Whether the layout's rules allow it, too.
bool is_valid(const RunConfig& config, int ranks) {
  try {
    layout_on(config, ranks);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// What one rank may take: where the device is the host, the ranks of a node share it, but not each
// one's own limits.
std::size_t share_of(Backend& backend, int node_ranks) {
  const std::size_t available = backend.available_bytes();
  if (&backend.host_memory() != &backend || node_ranks == 1) return available;
  const std::size_t share = free_memory() / static_cast<std::size_t>(node_ranks);
  return std::min(available, share - std::min(share, backend.own_bytes()));
}

// "24 GiB (1 GiB of it for libraries)"
std::string need_in_words(const MemoryNeed& need) {
  const std::string all = in_words(need.on_device());
  if (need.libraries == 0) return all;
  return fmt::format("{} ({} of it for libraries)", all, in_words(need.libraries));
}

constexpr int kUsualNode = 8;  // GPUs
constexpr std::int64_t kMostRanks = 1 << 16;

// A number of ranks like this one that the run fits on, with their layout; "" if none is found. The
// first and the last stages of a pipeline need most.
std::string enough_ranks(Backend& backend, const RunConfig& config, const Groups& groups,
                         std::size_t needed, std::size_t available) {
  const bool processor = &backend.host_memory() == &backend;
  const int node = processor ? groups.node_ranks : std::max(kUsualNode, groups.node_ranks);
  RunConfig there = config;
  std::size_t taken = 0;
  const auto fits_there = [&](const Layout& tried) {
    there.layout = tried;
    const Grid grid = grid_of(tried, config.model);
    taken = 0;
    for (const int stage : {0, 1, grid.pp - 1}) {
      if (stage >= grid.pp) continue;
      const MemoryNeed need = planned_memory(backend, there, planned_groups(grid, {.pp = stage}));
      if (!fits(need, backend, groups.node_ranks)) return false;
      taken = std::max(taken, need.on_device());
    }
    return true;
  };
  Layout open = config.layout;
  open.dp = 0;
  // Fewer cannot hold what this rank would have to hold.
  const auto least = static_cast<std::int64_t>(needed / std::max<std::size_t>(available, 1));
  for (std::int64_t ranks = 2 * groups.ranks(); ranks <= kMostRanks; ranks *= 2) {
    if (ranks < least * groups.ranks()) continue;
    try {
      const Layout found =
          choose_layout(open, work_of(config), static_cast<int>(ranks), node, fits_there);
      return fmt::format(
          "start {} ranks with as much memory each (mpirun -np {} …): with batch.micro: {} and "
          "layout: {{tp: {}, pp: {}, zero: {}, recompute: full}} each would take {}",
          ranks, ranks, config.layout.micro_batch, found.tp, found.pp, found.zero, in_words(taken));
    } catch (const UserError&) {
      if (ranks > 64 * least * groups.ranks()) break;  // something else is in the way
    }
  }
  return "";
}

}  // namespace

LibraryUse library_use(const RunConfig& config, const Groups& groups) {
  const Grid& grid = groups.grid;
  LibraryUse use{.attention_elements = config.layout.micro_batch * config.data.sequence_length /
                                       grid.cp * config.model.heads / grid.tp *
                                       config.model.head_dim};
  for (const GroupSpec& spec : group_specs())
    use.groups += !spec.on_host && groups[spec.kind].size() > 1 ? 1 : 0;
  return use;
}

std::string memory_table(const Arena& arena, const Backend& backend) {
  return fmt::format("{}\n  {:<14}{:>12}  of the backend and its libraries", arena.table(),
                     "beside it", in_words(backend.own_bytes()));
}

MemoryNeed planned_memory(Backend& backend, const RunConfig& config, const Groups& groups) {
  PlanningAllocator nothing;
  const Engine engine(backend, nothing, engine_options(config, groups.ranks()), groups);
  const std::size_t device = engine.arena().total_bytes(),
                    host = engine.arena().total_bytes(Side::Host);
  const std::size_t libraries = library_bytes(backend, library_use(config, groups));
  const bool one = &backend.host_memory() == &backend;
  return one ? MemoryNeed{device + host, 0, libraries} : MemoryNeed{device, host, libraries};
}

bool fits(const MemoryNeed& need, Backend& backend, int node_ranks) {
  return need.on_device() <= share_of(backend, node_ranks) &&
         (need.host == 0 ||
          need.host * static_cast<std::size_t>(node_ranks) <= backend.available_host_bytes());
}

void check_memory(Backend& backend, const RunConfig& config, const Groups& groups) {
  const MemoryNeed need = planned_memory(backend, config, groups);
  if (need.host > 0) check_host(need, backend, config, groups.node_ranks);
  const std::size_t available = share_of(backend, groups.node_ranks);
  if (need.on_device() <= available) return;
  const std::string problem =
      fmt::format("this run needs {} and {} is free", need_in_words(need), in_words(available));
  // The least change that fits: recompute more, then smaller micro-batches.
  RunConfig smaller = config;
  const std::int64_t sequences = config.batch.global / groups.grid.dp;
  for (smaller.layout.micro_batch = config.layout.micro_batch; smaller.layout.micro_batch >= 1;
       --smaller.layout.micro_batch) {
    if (sequences % smaller.layout.micro_batch != 0 || !is_valid(smaller, groups.ranks())) continue;
    for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
      if (recompute < config.layout.recompute) continue;
      smaller.layout.recompute = recompute;
      if (const MemoryNeed less = planned_memory(backend, smaller, groups);
          less.on_device() <= available)
        user_error("{}: batch.micro: {} with layout.recompute: {} would take {}", problem,
                   smaller.layout.micro_batch, to_string(recompute), in_words(less.on_device()));
    }
  }
  smaller.layout.micro_batch = 1;
  if (!is_valid(smaller, groups.ranks())) smaller.layout.micro_batch = config.layout.micro_batch;
  const MemoryNeed least = planned_memory(backend, smaller, groups);
  const auto propose_offload = [&](bool OffloadConfig::*what, const char* words) {
    if (smaller.offload.*what) return;
    smaller.offload.*what = true;
    const MemoryNeed less = planned_memory(backend, smaller, groups);
    if (less.host > 0 && fits(less, backend, groups.node_ranks))
      user_error(
          "{}: batch.micro: {} with layout.recompute: full and {} would take {} and {} of "
          "host memory",
          problem, smaller.layout.micro_batch, words, in_words(less.on_device()),
          in_words(less.host));
  };
  propose_offload(&OffloadConfig::optimizer, "offload.optimizer: true");
  if (config.layout.pp == 1 || config.layout.schedule != PipelineKind::ZeroBubbleH1)
    propose_offload(&OffloadConfig::gradients, "offload: {optimizer: true, gradients: true}");
  smaller.offload = config.offload;
  const std::string more = enough_ranks(backend, smaller, groups, least.on_device(), available);
  user_error(
      "{}: even batch.micro: {} with layout.recompute: full would take {}, so {}take a smaller "
      "model{}{}",
      problem, smaller.layout.micro_batch, in_words(least.on_device()),
      more.empty() ? "" : more + "; or ",
      groups.ranks() > 1 ? ", share it with layout.zero, tp or pp" : "",
      config.optimizer.moments == DType::F32 ? ", a shorter sequence or optimizer.moments: bf16"
                                             : " or a shorter sequence");
}

}  // namespace kintsugi
