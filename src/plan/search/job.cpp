#include "plan/search/job.h"

#include <fmt/format.h>

#include "model/slice.h"

namespace kintsugi {

Grid grid_of(const PlanJob& job, const PlanLayout& l) {
  return {.tp = l.tp,
          .cp = l.cp,
          .dp = l.dp,
          .pp = l.pp,
          .shard_group = l.zero == 0 ? 1 : l.shard_group,
          .kv_copies = kv_copies(job.model.kv_heads, l.tp)};
}

LayoutRequest request_of(const PlanJob& job, const PlanLayout& l) {
  return {.tp = l.tp,
          .cp = l.cp,
          .pp = l.pp,
          .dp = l.dp,
          .chunks = l.chunks,
          .schedule = l.schedule,
          .split = job.split,
          .sequence_parallel = l.sequence_parallel,
          .zero = l.zero,
          .shard_group = l.shard_group,
          .batch = job.batch,
          .micro = l.micro,
          .length = job.length,
          .model = job.model};
}

std::int64_t micro_batches_of(const PlanJob& job, const PlanLayout& l) {
  return job.batch / (l.dp * l.micro);
}

std::string to_string(const PlanLayout& l) {
  std::string text = fmt::format("tp{} pp{} dp{} micro{}", l.tp, l.pp, l.dp, l.micro);
  if (l.cp > 1) text += fmt::format(" cp{}", l.cp);
  if (l.pp > 1) text += fmt::format(" {}", to_string(l.schedule));
  if (l.chunks > 1) text += fmt::format(" chunks{}", l.chunks);
  text += fmt::format(" zero{}", l.zero);
  if (l.shard_group > 0) text += fmt::format("/{}", l.shard_group);
  if (l.sequence_parallel) text += " sp";
  if (l.recompute != Recompute::None) {
    text += fmt::format(" recompute-{}", to_string(l.recompute));
    if (l.recompute_every > 1) text += fmt::format("/{}", l.recompute_every);
  }
  return text;
}

}  // namespace kintsugi
