#include "parallel/layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <numeric>
#include <sstream>
#include <tuple>

#include "core/error.h"
#include "core/units.h"
#include "model/metrics.h"

namespace kintsugi {
namespace {

// The head's time relative to a layer's, estimated from the FLOPs of their matmuls.
double head_in_layers(const ModelConfig& config) {
  ModelConfig one = config;
  one.layers = 1;
  const ModelSpec model = model_spec(one);
  return 2.0 * static_cast<double>(model.head.vocab_size * config.hidden_size) /
         forward_flops(model.layers.front(), model.hidden_size, 0).linear;
}

}  // namespace

std::vector<int> balanced_split(const ModelConfig& config, int chunks) {
  if (config.layers < chunks)
    user_error("{} layers cannot be split into {} pipeline chunks: use fewer stages or chunks",
               config.layers, chunks);
  const double head = head_in_layers(config);
  std::vector<int> split(static_cast<std::size_t>(chunks), 1);
  for (std::int64_t assigned = chunks; assigned < config.layers; ++assigned) {
    const auto order = [&](int chunk) {  // the smallest gets the next layer
      const bool first = chunk == 0, last = chunk == chunks - 1;
      const double time = split[chunk] + 1 + (last ? head : 0.0);
      return std::tuple(time, first || last, chunk);
    };
    int best = 0;
    for (int chunk = 1; chunk < chunks; ++chunk)
      if (order(chunk) < order(best)) best = chunk;
    ++split[best];
  }
  return split;
}

std::vector<int> checked_split(const ModelConfig& config, int chunks, std::vector<int> split) {
  if (split.empty()) return balanced_split(config, chunks);
  const int sum = std::accumulate(split.begin(), split.end(), 0);
  if (static_cast<int>(split.size()) != chunks || sum != config.layers ||
      *std::ranges::min_element(split) < 1)
    user_error(
        "layout.split is {}: it must have {} numbers (pp × chunks) of at least 1 with the sum {} "
        "(layers), such as {}",
        fmt::join(split, ","), chunks, config.layers,
        fmt::join(balanced_split(config, chunks), ","));
  return split;
}

std::vector<int> parse_split(const std::string& text) {
  constexpr std::int64_t kMostLayers = 1'000'000;  // per chunk; sums of them fit an int
  std::vector<int> layers;
  if (text == "auto") return layers;
  std::istringstream fields(text);
  for (std::string field; std::getline(fields, field, ',');) {
    try {
      const std::int64_t count = parse_count(field);
      if (count < 1 || count > kMostLayers) user_error("{} layers", count);
      layers.push_back(static_cast<int>(count));
    } catch (const UserError&) {
      layers.clear();
      break;
    }
  }
  if (layers.empty())
    user_error("'{}' is not a split: auto, or the layers of each pipeline chunk, like 7,9,9,7",
               text);
  return layers;
}

std::vector<StageLayers> stage_layers(const std::vector<int>& split, int stages, int rank) {
  const int chunks = static_cast<int>(split.size());
  std::vector<StageLayers> ranges;
  for (int chunk = rank; chunk < chunks; chunk += stages) {
    const int first = std::accumulate(split.begin(), split.begin() + chunk, 0);
    ranges.push_back({.first_layer = first,
                      .last_layer = first + split[chunk],
                      .embedding = chunk == 0,
                      .head = chunk == chunks - 1});
  }
  return ranges;
}

namespace {

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 1; i <= n; ++i)
    if (n % i == 0) all.push_back(i);
  return all;
}

// The largest divisor of n not above `target` and the smallest not below it: "4 or 8".
std::string nearest_divisors(std::int64_t n, std::int64_t target, std::int64_t times = 1) {
  std::int64_t below = 1, above = n;
  for (const std::int64_t divisor : divisors(n)) {
    if (divisor <= target) below = divisor;
    if (divisor >= target) {
      above = divisor;
      break;
    }
  }
  return below == above ? fmt::format("{}", times * below)
                        : fmt::format("{} or {}", times * below, times * above);
}

void check_batch(const Layout& l, const Workload& work) {
  if (work.batch % l.dp != 0) {
    const std::int64_t unit = l.dp * l.micro_batch, below = work.batch / unit * unit;
    user_error(
        "batch.global is {}, which is not a multiple of {} data ranks: use {}{}, or start {} ranks",
        work.batch, l.dp, below > 0 ? fmt::format("{} or ", below) : "", below + unit,
        nearest_divisors(work.batch, l.dp, l.tp * l.cp * l.pp));
  }
  const std::int64_t each = work.batch / l.dp;
  if (each % l.micro_batch != 0)
    user_error(
        "batch.micro is {}, which does not divide the {} sequences per data rank (batch.global {} "
        "/ "
        "dp {}): use batch.micro {}",
        l.micro_batch, each, work.batch, l.dp,
        nearest_divisors(each, std::min(l.micro_batch, each)));
}

void check_ramp(const Layout& l, const Workload& work) {
  if (work.ramp_start == 0) return;
  const std::int64_t unit = l.dp * l.micro_batch;
  const auto check = [&](const char* key, std::int64_t sequences) {
    const std::int64_t below = sequences / unit * unit;
    if (sequences == below) return;
    user_error("{} is {}, which is not a multiple of {} (dp {} × batch.micro {}): use {}{}", key,
               sequences, unit, l.dp, l.micro_batch, below > 0 ? fmt::format("{} or ", below) : "",
               below + unit);
  };
  check("batch.ramp.start", work.ramp_start);
  if (work.ramp_start < work.batch) check("batch.ramp.increment", work.ramp_increment);
}

std::int64_t kv_heads_of_rank(const ModelConfig& m, std::int64_t tp) {
  return m.kv_heads * kv_copies(m.kv_heads, static_cast<int>(tp)) / tp;
}

}  // namespace

bool fits_ulysses(const ModelConfig& m, std::int64_t tp, std::int64_t cp) {
  const std::int64_t kv = kv_heads_of_rank(m, tp);
  return m.positions() != PositionKind::Retention && m.heads % (tp * cp) == 0 &&
         (kv % cp == 0 || cp % kv == 0);
}

void check_tensor_ranks(const ModelConfig& m, std::int64_t tp, const std::string& name) {
  if (tp == 1) return;
  const std::int64_t parts = m.feed_forward_parts();
  if (m.heads % tp != 0 || parts % tp != 0)
    user_error("{} is {}, which must divide the model's {} heads and {}: use {}", name, tp, m.heads,
               m.feed_forward_text(),
               nearest_divisors(std::gcd(m.heads, parts), std::min<std::int64_t>(tp, m.heads)));
  if (m.kv_heads % tp != 0 && tp % m.kv_heads != 0)
    user_error("{} is {}, and the model has {} key-value heads: one must divide the other", name,
               tp, m.kv_heads);
  const std::int64_t rows = (m.vocab_size + tp - 1) / tp;
  if ((tp - 1) * rows >= m.vocab_size)
    user_error("{} is {}, too many for a vocabulary of {}: the last rank would have no tokens",
               name, tp, m.vocab_size);
}

namespace {

void check_tensor(const Layout& l, const Workload& work) {
  if (l.tp == 1) {
    if (l.sequence_parallel)
      user_error(
          "layout.sequence_parallel splits rows over the tp ranks, but layout.tp is 1: raise tp or "
          "remove it");
    return;
  }
  check_tensor_ranks(work.model, l.tp, "layout.tp");
  if (l.sequence_parallel && work.length / l.cp % l.tp != 0)
    user_error(
        "data.sequence_length {}{} is not a multiple of layout.tp {}, which sequence_parallel "
        "needs: change one of them",
        work.length, l.cp > 1 ? fmt::format(" / cp {}", l.cp) : "", l.tp);
}

void check_context(const Layout& l, std::int64_t length) {
  const std::int64_t chunks = l.context_chunks(), below = length / chunks * chunks;
  if (l.cp > 1 && length != below)
    user_error(
        "data.sequence_length is {}, but layout.cp {} splits it into {} equal chunks: use {}{}",
        length, l.cp, chunks, below > 0 ? fmt::format("{} or ", below) : "", below + chunks);
}

void check_ulysses(const Layout& l, const ModelConfig& m) {
  if (l.context != ContextMethod::Ulysses) return;
  if (l.cp == 1) user_error("layout.context is ulysses, but layout.cp is 1: raise cp or remove it");
  if (m.positions() == PositionKind::Retention)
    user_error(
        "layout.context is ulysses, which shares the heads of attention, but family {} has "
        "retention: use ring",
        to_string(m.family));
  const std::int64_t heads = m.heads / l.tp, kv = kv_heads_of_rank(m, l.tp);
  if (heads % l.cp != 0)
    user_error("layout.cp is {}, which must divide the {} of a tensor rank with ulysses: use {}",
               l.cp, format_number(heads, "head"),
               nearest_divisors(heads, std::min<std::int64_t>(l.cp, heads)));
  if (!fits_ulysses(m, l.tp, l.cp))
    user_error(
        "layout.cp is {}, and a tensor rank has {} key-value heads: with ulysses one must divide "
        "the other",
        l.cp, kv);
}

void check_pipeline(const Layout& l, const Workload& work) {
  if (l.pp == 1) {
    if (l.chunks > 1)
      user_error("layout.chunks is {}, but layout.pp is 1: there is no pipeline to interleave",
                 l.chunks);
    if (!l.split.empty())
      user_error("layout.split is given, but layout.pp is 1: there is no pipeline to split");
    return;
  }
  // Check this first: a schedule with more stages than layers takes long to build.
  const std::int64_t chunks = std::int64_t{l.pp} * l.chunks;
  checked_split(work.model, static_cast<int>(std::min<std::int64_t>(chunks, INT_MAX)), l.split);
  // If the first two batches of a ramp and the last one follow the rules, so do the others.
  const std::int64_t start = work.ramp_start > 0 ? work.ramp_start : work.batch;
  const std::int64_t second = std::min(start + work.ramp_increment, work.batch);
  for (const std::int64_t batch : {work.batch, start, second}) {
    try {
      check_pipeline_shape({.kind = l.schedule,
                            .stages = l.pp,
                            .micro_batches = static_cast<int>(micro_batches_per_step(l, batch)),
                            .chunks = l.chunks});
    } catch (const UserError& error) {
      user_error("layout.schedule {}: {}{}", to_string(l.schedule),
                 work.ramp_start > 0 ? fmt::format("a step of {} sequences: ", batch) : "",
                 error.what());
    }
  }
}

// The values of layout.ep next to the given one that both the experts and the ranks allow: "4 or
// 8".
std::string nearest_expert_ranks(const Layout& l, std::int64_t experts) {
  std::int64_t below = 0, above = 0;
  for (const std::int64_t data : divisors(std::int64_t{l.cp} * l.dp)) {
    const std::int64_t ep = data * l.tp;
    if (experts % ep != 0) continue;
    if (ep < l.ep) below = ep;
    if (ep > l.ep && above == 0) above = ep;
  }
  if (below == 0 && above == 0) return "no ep";
  if (below == 0 || above == 0) return fmt::format("{}", below + above);
  return fmt::format("{} or {}", below, above);
}

void check_experts(const Layout& l, const ModelConfig& model) {
  if (l.dispatch != Dispatch::AllGather && l.expert_ranks() == 1)
    user_error(
        "layout.dispatch is {}, but all experts are on the {} tensor ranks of a token: raise "
        "layout.ep or remove it",
        to_string(l.dispatch), l.tp);
  if (model.balance.capacity > 0 && !model.experts)
    user_error("train.balance.capacity is {}, but the model has no experts: remove it",
               model.balance.capacity);
  if (model.balance.capacity > 0 && l.cp > 1)
    user_error(
        "train.balance.capacity limits the choices of whole sequences, but layout.cp {} splits "
        "them: remove one of the two",
        l.cp);
  if (l.ep == 0) return;
  if (!model.experts) user_error("layout.ep is {}, but the model has no experts: remove it", l.ep);
  const std::int64_t count = model.experts->count, most = std::int64_t{l.tp} * l.cp * l.dp;
  if (count % l.ep != 0)
    user_error("layout.ep is {}, which does not divide the model's {}: use {}", l.ep,
               format_number(count, "expert"), nearest_expert_ranks(l, count));
  if (l.ep % l.tp != 0 || most % l.ep != 0)
    user_error("layout.ep is {}, but experts are on {} times a divisor of {}{}: use {}", l.ep,
               format_number(l.tp, "tensor rank"), format_number(l.cp * l.dp, "data rank"),
               l.cp > 1 ? " (cp × dp)" : "", nearest_expert_ranks(l, count));
  if (!fits_shards(l))
    user_error(
        "layout.ep {} spreads experts over {} data ranks, but layout.shard_group is {}: one must "
        "divide the other",
        l.ep, l.expert_ranks(), l.shard_group);
}

void check_shards(const Layout& l) {
  const int shard = l.shard_group, data = l.dp * l.cp;
  if (shard > 0 && l.zero == 0)
    user_error(
        "layout.shard_group is {}, but layout.zero 0 shards nothing: set zero to 1, 2 or 3, "
        "or remove it",
        shard);
  if (shard > 0 && data % shard != 0)
    user_error("layout.shard_group is {}, which does not divide {} data ranks{}: use {}", shard,
               data, l.cp > 1 ? " (cp × dp)" : "", nearest_divisors(data, std::min(shard, data)));
}

}  // namespace

bool fits_shards(const Layout& l) {
  const int shard = l.zero == 0 ? 1 : l.shard_group == 0 ? l.cp * l.dp : l.shard_group;
  return shard % l.expert_ranks() == 0 || l.expert_ranks() % shard == 0;
}

std::string to_string(const Layout& l) {
  std::string text = fmt::format("tp{} pp{} dp{} micro{}", l.tp, l.pp, l.dp, l.micro_batch);
  if (l.cp > 1) text += fmt::format(" cp{}", l.cp);
  if (l.context != ContextMethod::Ring) text += fmt::format(" {}", to_string(l.context));
  if (l.pp > 1) text += fmt::format(" {}", to_string(l.schedule));
  if (l.chunks > 1) text += fmt::format(" chunks{}", l.chunks);
  if (!l.split.empty()) text += fmt::format(" split{}", fmt::join(l.split, ","));
  text += fmt::format(" zero{}", l.zero);
  if (l.shard_group > 0) text += fmt::format("/{}", l.shard_group);
  if (l.ep > 0) text += fmt::format(" ep{}", l.ep);
  if (l.dispatch != Dispatch::AllGather) text += fmt::format(" {}", to_string(l.dispatch));
  if (l.sequence_parallel) text += " sp";
  if (l.recompute != Recompute::None) {
    text += fmt::format(" recompute-{}", to_string(l.recompute));
    if (l.recompute_every > 1) text += fmt::format("/{}", l.recompute_every);
  }
  return text;
}

std::string to_flow_yaml(const Layout& l) {
  std::string context, experts;
  if (l.cp > 1) context = fmt::format(", context: {}", to_string(l.context));
  if (l.ep > 0) experts = fmt::format(", ep: {}, dispatch: {}", l.ep, to_string(l.dispatch));
  return fmt::format(
      "{{tp: {}, cp: {}{}, pp: {}, dp: {}, chunks: {}, zero: {}, shard_group: {}, "
      "sequence_parallel: {}, schedule: {}, recompute: {}, recompute_every: {}{}}}",
      l.tp, l.cp, context, l.pp, l.dp, l.chunks, l.zero, l.shard_group, l.sequence_parallel,
      to_string(l.schedule), to_string(l.recompute), l.recompute_every, experts);
}

Layout fit_layout(Layout l, const Workload& work, int ranks) {
  const std::int64_t model = std::int64_t{l.tp} * l.cp * l.pp;
  if (ranks < model)
    user_error(
        "layout.tp × cp × pp is {} × {} × {}, which needs {} ranks, and there {}: start {} with "
        "mpirun -np {} kintsugi train … (or srun -n {} kintsugi train …), or lower them",
        l.tp, l.cp, l.pp, model, ranks == 1 ? "is 1" : fmt::format("are {}", ranks), model, model,
        model);
  if (ranks % model != 0)
    user_error("layout.tp × cp × pp is {} × {} × {} = {}, which does not divide {}: use {}", l.tp,
               l.cp, l.pp, model, format_number(ranks, "rank"), nearest_divisors(ranks, model));
  const int dp = static_cast<int>(ranks / model);
  if (l.dp > 0 && l.dp != dp)
    user_error("layout.dp is {}, but {} it {}: set it to {} or auto, or start {}", l.dp,
               ranks == 1 ? "1 rank makes" : fmt::format("{} ranks make", ranks), dp, dp,
               format_number(l.dp * model, "rank"));
  l.dp = dp;
  check_batch(l, work);
  check_ramp(l, work);
  check_context(l, work.length);
  check_tensor(l, work);
  check_ulysses(l, work.model);
  check_pipeline(l, work);
  check_shards(l);
  check_experts(l, work.model);
  return l;
}

Grid grid_of(const Layout& l, const ModelConfig& model) {
  return {.tp = l.tp,
          .cp = l.cp,
          .dp = l.dp,
          .pp = l.pp,
          .shard_group = l.zero == 0 ? 1 : l.shard_group,  // with ZeRO 0 every rank has all of it
          .kv_copies = kv_copies(model.kv_heads, l.tp),
          .experts = l.expert_ranks()};
}

ModelShard model_shard(const std::vector<StageLayers>& ranges, const Layout& l,
                       const Coordinates& coordinates) {
  ModelShard shard{.tp = l.tp,
                   .tp_rank = coordinates.tp,
                   .sequence_parallel = l.sequence_parallel,
                   .experts = l.expert_ranks(),
                   .experts_rank = (coordinates.cp + l.cp * coordinates.dp) % l.expert_ranks(),
                   .embedding = ranges.front().embedding,
                   .head = ranges.back().head};
  for (const StageLayers& range : ranges)
    for (int layer = range.first_layer; layer < range.last_layer; ++layer)
      shard.layers.push_back(layer);
  return shard;
}

std::int64_t micro_batches_per_step(const Layout& l, std::int64_t batch) {
  return batch / (l.dp * l.micro_batch);
}

Layout choose_layout(const Layout& layout, const Workload& work, int ranks, int node,
                     const std::function<bool(const Layout&)>& fits) {
  std::string why;  // the error of the first invalid layout
  std::vector<Layout> candidates;
  for (const std::int64_t tp : divisors(node))
    for (const std::int64_t pp : divisors(ranks))
      for (const int zero : {0, 1}) {
        Layout one = layout;
        one.tp = static_cast<int>(tp);
        one.pp = static_cast<int>(pp);
        one.zero = zero;
        one.sequence_parallel = tp > 1 && work.length / layout.cp % tp == 0;
        candidates.push_back(one);
      }
  // Smallest tp × pp first; among equals, prefer tp, which stays inside the node.
  std::ranges::stable_sort(candidates, [](const auto& a, const auto& b) {
    return std::tuple(std::int64_t{a.tp} * a.pp, a.pp, a.zero) <
           std::tuple(std::int64_t{b.tp} * b.pp, b.pp, b.zero);
  });
  bool valid = false;
  for (const Layout& one : candidates) {
    try {
      const Layout fitted = fit_layout(one, work, ranks);
      if (one.zero == 1 && fitted.cp * fitted.dp == 1) continue;  // nothing to shard
      valid = true;
      if (fits(fitted)) return one;
    } catch (const UserError& error) {
      if (why.empty()) why = error.what();
    }
  }
  if (valid)
    user_error(
        "layout auto: no layout of {} ranks fits this model into their memory: start more "
        "ranks, use a smaller batch.micro, or give tp, pp, zero and recompute yourself",
        ranks);
  user_error("layout auto: no layout of {} ranks works: {}", ranks, why);
}

}  // namespace kintsugi
