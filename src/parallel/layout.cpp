#include "parallel/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "core/error.h"

namespace kintsugi {
namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 1; i <= n; ++i)
    if (n % i == 0) all.push_back(i);
  return all;
}

// The largest divisor of n not above `wanted` and the smallest not below it: "4 or 8".
std::string nearest_divisors(std::int64_t n, std::int64_t wanted) {
  std::int64_t below = 1, above = n;
  for (const std::int64_t divisor : divisors(n)) {
    if (divisor <= wanted) below = divisor;
    if (divisor >= wanted) {
      above = divisor;
      break;
    }
  }
  return below == above ? fmt::format("{}", below) : fmt::format("{} or {}", below, above);
}

void check_batch(const LayoutRequest& r, std::int64_t dp) {
  if (r.batch % dp != 0) {
    const std::int64_t unit = dp * r.micro, below = r.batch / unit * unit;
    user_error(
        "batch.global is {}, which {} data ranks cannot share evenly: use {}{}, or start {} ranks",
        r.batch, dp, below > 0 ? fmt::format("{} or ", below) : "", below + unit,
        nearest_divisors(r.batch, dp));
  }
  const std::int64_t each = r.batch / dp;
  if (each % r.micro != 0)
    user_error(
        "batch.micro is {}, but a rank's share of batch.global {} among {} data ranks is {}: use "
        "batch.micro {}",
        r.micro, r.batch, dp, each, nearest_divisors(each, std::min(r.micro, each)));
}

}  // namespace

Grid fit_layout(const LayoutRequest& r, int ranks) {
  const std::int64_t model = r.tp * r.cp * r.pp;
  if (ranks % model != 0)
    user_error("layout.tp × cp × pp is {} × {} × {} = {}, which does not divide {} ranks: use {}",
               r.tp, r.cp, r.pp, model, ranks, nearest_divisors(ranks, model));
  const std::int64_t dp = ranks / model;
  if (r.dp && *r.dp != dp)
    user_error(
        "layout.dp is {}, but {} ranks were started, which makes {}: set it to {} or auto, "
        "or start {} ranks",
        *r.dp, ranks, dp, dp, *r.dp * model);
  check_batch(r, dp);
  std::int64_t shard = r.shard_group;
  if (shard > 0 && r.zero == 0)
    user_error(
        "layout.shard_group is {}, but layout.zero 0 shards nothing: set zero to 1, 2 or 3, "
        "or remove it",
        shard);
  if (shard > 0 && dp % shard != 0)
    user_error("layout.shard_group is {}, which does not divide {} data ranks: use {}", shard, dp,
               nearest_divisors(dp, std::min(shard, dp)));
  if (r.zero == 0) shard = 1;  // every rank holds everything
  return {.tp = static_cast<int>(r.tp),
          .cp = static_cast<int>(r.cp),
          .dp = static_cast<int>(dp),
          .pp = static_cast<int>(r.pp),
          .shard_group = static_cast<int>(shard)};
}

}  // namespace kintsugi
