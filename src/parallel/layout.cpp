#include "parallel/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "model/slice.h"
#include "parallel/layer_split.h"

namespace kintsugi {
namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 1; i <= n; ++i)
    if (n % i == 0) all.push_back(i);
  return all;
}

// The largest divisor of n not above `wanted` and the smallest not below it: "4 or 8".
std::string nearest_divisors(std::int64_t n, std::int64_t wanted, std::int64_t times = 1) {
  std::int64_t below = 1, above = n;
  for (const std::int64_t divisor : divisors(n)) {
    if (divisor <= wanted) below = divisor;
    if (divisor >= wanted) {
      above = divisor;
      break;
    }
  }
  return below == above ? fmt::format("{}", times * below)
                        : fmt::format("{} or {}", times * below, times * above);
}

void check_batch(const LayoutRequest& r, std::int64_t dp) {
  if (r.batch % dp != 0) {
    const std::int64_t unit = dp * r.micro, below = r.batch / unit * unit;
    user_error(
        "batch.global is {}, which {} data ranks cannot share evenly: use {}{}, or start {} ranks",
        r.batch, dp, below > 0 ? fmt::format("{} or ", below) : "", below + unit,
        nearest_divisors(r.batch, dp, r.tp * r.cp * r.pp));
  }
  const std::int64_t each = r.batch / dp;
  if (each % r.micro != 0)
    user_error(
        "batch.micro is {}, but a rank's share of batch.global {} among {} data ranks is {}: use "
        "batch.micro {}",
        r.micro, r.batch, dp, each, nearest_divisors(each, std::min(r.micro, each)));
}

// Of what tp ranks share: heads, MLP columns and vocabulary.
void check_tensor(const LayoutRequest& r) {
  const ModelConfig& m = r.model;
  if (r.tp == 1) {
    if (r.sequence_parallel)
      user_error(
          "layout.sequence_parallel shares rows among tp ranks, and layout.tp is 1: raise tp or "
          "remove it");
    return;
  }
  if (m.heads % r.tp != 0 || m.ffn_size % r.tp != 0)
    user_error("layout.tp is {}, which must divide the model's {} heads and {} MLP columns: use {}",
               r.tp, m.heads, m.ffn_size,
               nearest_divisors(std::gcd(m.heads, m.ffn_size), std::min(r.tp, m.heads)));
  if (m.kv_heads % r.tp != 0 && r.tp % m.kv_heads != 0)
    user_error("layout.tp is {}, and the model has {} key-value heads: one must divide the other",
               r.tp, m.kv_heads);
  const std::int64_t share = (m.vocab_size + r.tp - 1) / r.tp;
  if ((r.tp - 1) * share >= m.vocab_size)
    user_error("layout.tp is {}, too many for a vocabulary of {}: the last rank would have none",
               r.tp, m.vocab_size);
  if (r.sequence_parallel && r.length / r.cp % r.tp != 0)
    user_error(
        "data.sequence_length {}{} is not a multiple of layout.tp {}, which sequence_parallel "
        "needs: change one of them",
        r.length, r.cp > 1 ? fmt::format(" / cp {}", r.cp) : "", r.tp);
}

void check_context(const LayoutRequest& r) {
  const std::int64_t chunks = 2 * r.cp, below = r.length / chunks * chunks;
  if (r.cp > 1 && r.length != below)
    user_error(
        "data.sequence_length is {}, but layout.cp {} cuts it into {} equal chunks: use {}{}",
        r.length, r.cp, chunks, below > 0 ? fmt::format("{} or ", below) : "", below + chunks);
}

void check_pipeline(const LayoutRequest& r, std::int64_t dp) {
  if (r.pp == 1) {
    if (r.chunks > 1)
      user_error("layout.chunks is {}, but layout.pp is 1: there is no pipeline to interleave",
                 r.chunks);
    if (!r.split.empty())
      user_error("layout.split is given, but layout.pp is 1: there is no pipeline to split");
    return;
  }
  // First: a schedule of more stages than there are layers takes long to make.
  checked_split(r.model, static_cast<int>(r.pp * r.chunks), r.split);
  const std::int64_t passes = r.batch / dp / r.micro;
  // The rules of the schedule itself, in its own words.
  try {
    make_pipeline_schedule({.kind = r.schedule,
                            .stages = static_cast<int>(r.pp),
                            .micro_batches = static_cast<int>(passes),
                            .chunks = static_cast<int>(r.chunks)});
  } catch (const UserError& error) {
    user_error("layout.schedule {}: {}", to_string(r.schedule), error.what());
  }
}

}  // namespace

Grid fit_layout(const LayoutRequest& r, int ranks) {
  const std::int64_t model = r.tp * r.cp * r.pp;
  if (ranks < model)
    user_error(
        "layout.tp × cp × pp is {} × {} × {}, which needs {} ranks, and {} started: start {} with "
        "mpirun -np {} kintsugi train … (or srun -n {} kintsugi train …), or lower them",
        r.tp, r.cp, r.pp, model, ranks == 1 ? "1 was" : fmt::format("{} were", ranks), model, model,
        model);
  if (ranks % model != 0)
    user_error("layout.tp × cp × pp is {} × {} × {} = {}, which does not divide {} ranks: use {}",
               r.tp, r.cp, r.pp, model, ranks, nearest_divisors(ranks, model));
  const std::int64_t dp = ranks / model, data = dp * r.cp;
  if (r.dp && *r.dp != dp)
    user_error(
        "layout.dp is {}, but {} ranks were started, which makes {}: set it to {} or auto, "
        "or start {} ranks",
        *r.dp, ranks, dp, dp, *r.dp * model);
  check_batch(r, dp);
  check_context(r);
  check_tensor(r);
  check_pipeline(r, dp);
  std::int64_t shard = r.shard_group;
  if (shard > 0 && r.zero == 0)
    user_error(
        "layout.shard_group is {}, but layout.zero 0 shards nothing: set zero to 1, 2 or 3, "
        "or remove it",
        shard);
  if (shard > 0 && data % shard != 0)
    user_error("layout.shard_group is {}, which does not divide {} data ranks{}: use {}", shard,
               data, r.cp > 1 ? " (cp × dp)" : "", nearest_divisors(data, std::min(shard, data)));
  if (r.zero == 0) shard = 1;  // every rank holds everything
  return {.tp = static_cast<int>(r.tp),
          .cp = static_cast<int>(r.cp),
          .dp = static_cast<int>(dp),
          .pp = static_cast<int>(r.pp),
          .shard_group = static_cast<int>(shard),
          .kv_copies = kv_copies(r.model.kv_heads, static_cast<int>(r.tp))};
}

LayoutRequest choose_layout(LayoutRequest request, int ranks, int node,
                            const std::function<bool(const LayoutRequest&, const Grid&)>& fits) {
  std::string why;  // the first thing that was wrong with a layout that is none
  std::vector<LayoutRequest> tries;
  for (const std::int64_t tp : divisors(node))
    for (const std::int64_t pp : divisors(ranks))
      for (const int zero : {0, 1}) {
        LayoutRequest one = request;
        one.tp = tp;
        one.pp = pp;
        one.zero = zero;
        one.sequence_parallel = tp > 1 && request.length / request.cp % tp == 0;
        tries.push_back(one);
      }
  // Little cutting first; the same amount of it rather inside the node.
  std::stable_sort(tries.begin(), tries.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.tp * a.pp, a.pp, a.zero) < std::tuple(b.tp * b.pp, b.pp, b.zero);
  });
  bool valid = false;
  for (const LayoutRequest& one : tries) {
    try {
      const Grid grid = fit_layout(one, ranks);
      if (one.zero == 1 && grid.data() == 1) continue;  // nothing to share
      valid = true;
      if (fits(one, grid)) return one;
    } catch (const UserError& error) {
      if (why.empty()) why = error.what();
    }
  }
  if (valid)
    user_error(
        "layout auto: no way to spread this model over {} ranks fits their memory: start more "
        "ranks, use a smaller batch.micro, or give tp, pp, zero and recompute yourself",
        ranks);
  user_error("layout auto: no layout of {} ranks works: {}", ranks, why);
}

}  // namespace kintsugi
