#include "launch/accept/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "train/config/config.h"

namespace kintsugi {
namespace {

constexpr int kLargest = 8;  // of tp, cp and pp: heads and layers of the small models
constexpr std::int64_t kSequencesPerRank = 4;

// The largest power of two up to `most` that divides `ranks`.
int part_of(int ranks, int most) {
  int size = 1;
  while (2 * size <= most && ranks % (2 * size) == 0) size *= 2;
  return size;
}

const ModelConfig& small_model(bool experts) {
  const auto read = [](bool with_experts) {
    return parse_run_config(fmt::format("model: {}\ndata: {{train: [{{path: none.txt}}]}}\n",
                                        small_model_yaml(with_experts)),
                            "the small model")
        .model;
  };
  static const ModelConfig dense = read(false), mixture = read(true);
  return experts ? mixture : dense;
}

// With dp filled in; nothing if it does not divide.
std::optional<Layout> fitted(Layout layout, const Workload& work, int ranks, std::string* why) {
  try {
    layout.dp = 0;
    Layout fit = fit_layout(layout, work, ranks);
    check_grid(grid_of(fit, work.model), ranks);
    return fit;
  } catch (const UserError& error) {
    if (why != nullptr) *why = error.what();
    return {};
  }
}

bool runs(LossCase& one, int ranks) {
  const Workload work{small_model(one.experts), small_batch(ranks), kSmallLength};
  const auto layout = fitted(one.layout, work, ranks, nullptr);
  if (layout) one.layout = *layout;
  return layout.has_value();
}

// ---- pairs of values

constexpr std::size_t kFactors = 9;
using Values = std::array<int, kFactors>;

Values values_of(const LossCase& one) {
  const Layout& l = one.layout;
  const int shard = l.zero == 0 ? 0 : l.shard_group == 0 ? l.zero : 3 + l.zero;  // hybrids apart
  const int ep = l.expert_ranks() == 1 ? 0 : l.dispatch == Dispatch::AllGather ? 1 : 2;
  return {l.tp > 1,
          l.cp == 1 ? 0 : 1 + static_cast<int>(l.context),
          static_cast<int>(l.schedule) + (l.pp > 1 ? 10 : 0),
          shard,
          l.sequence_parallel,
          static_cast<int>(l.recompute),
          ep,
          one.experts,
          one.muon};
}

using Pair = std::array<int, 4>;  // two factors and their values
void add_pairs(const LossCase& one, std::set<Pair>& pairs) {
  const Values values = values_of(one);
  for (std::size_t a = 0; a < kFactors; ++a)
    for (std::size_t b = a + 1; b < kFactors; ++b)
      pairs.insert({static_cast<int>(a), values[a], static_cast<int>(b), values[b]});
}

std::string name_of(const LossCase& one) {
  const Layout& l = one.layout;
  std::string text = one.experts ? "experts" : "";
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : ", ") + word; };
  for (const auto& [word, size] : {std::pair("tp", l.tp), {"cp", l.cp}, {"pp", l.pp}, {"dp", l.dp}})
    if (size > 1) add(fmt::format("{} {}", word, size));
  if (l.context != ContextMethod::Ring) add(std::string(to_string(l.context)));
  if (l.expert_ranks() > 1)
    add(fmt::format("ep {}{}", l.ep, l.dispatch == Dispatch::AllToAll ? " all-to-all" : ""));
  if (l.zero > 0) add(fmt::format("zero {}", l.zero));
  if (l.shard_group > 0) add(fmt::format("shard group {}", l.shard_group));
  if (l.sequence_parallel) add("sequence parallel");
  if (l.pp > 1 && l.schedule != PipelineKind::OneForwardOneBackward)
    add(std::string(to_string(l.schedule)));
  if (l.recompute == Recompute::Selective) add("selective recompute");
  if (l.recompute == Recompute::Full) add("full recompute");
  if (one.muon) add("Muon");
  return text;
}

struct Shards {
  int zero = 0;
  bool hybrid = false;
};
constexpr Shards kShards[] = {{0}, {1}, {2}, {3}, {1, true}, {2, true}, {3, true}};

struct ContextRanks {
  int cp = 1;
  ContextMethod method = ContextMethod::Ring;
};
constexpr ContextRanks kContexts[] = {{}, {2, ContextMethod::Ring}, {2, ContextMethod::Ulysses}};

void for_each_pipeline(const std::function<void(int pp, PipelineKind, int chunks)>& use) {
  use(1, PipelineKind::OneForwardOneBackward, 1);
  use(2, PipelineKind::OneForwardOneBackward, 1);
  use(2, PipelineKind::Interleaved, 2);
  use(2, PipelineKind::ZeroBubbleH1, 1);
}

// Every combination that runs, and in which each value has an effect.
std::vector<LossCase> candidates(int ranks) {
  std::vector<LossCase> all;
  const auto add = [&](LossCase one, const Shards& shards) {
    Layout& l = one.layout;
    const int model_ranks = l.tp * l.cp * l.pp;
    if (ranks % model_ranks != 0) return;
    const int data = ranks / model_ranks * l.cp;
    l.zero = shards.zero;
    if (shards.zero > 0 && data == 1) return;
    if (shards.hybrid) l.shard_group = part_of(data, data / 2);
    if (shards.hybrid && l.shard_group < 2) return;
    if (l.sequence_parallel && l.tp == 1) return;
    if (runs(one, ranks)) all.push_back(std::move(one));
  };
  for (const int tp : {1, 2})
    for (const ContextRanks& context : kContexts)
      for_each_pipeline([&](int pp, PipelineKind schedule, int chunks) {
        for (const Shards& shards : kShards)
          for (const bool sequence : {false, true})
            for (const Recompute recompute :
                 {Recompute::None, Recompute::Selective, Recompute::Full})
              for (int model = 0; model < 4; ++model)  // dense, experts, spread in two ways
                for (const bool muon : {false, true}) {
                  LossCase one{.experts = model > 0, .muon = muon};
                  one.layout = {.tp = tp,
                                .cp = context.cp,
                                .pp = pp,
                                .context = context.method,
                                .chunks = chunks,
                                .schedule = schedule,
                                .ep = model > 1 ? 2 * tp : 0,
                                .dispatch = model == 3 ? Dispatch::AllToAll : Dispatch::AllGather,
                                .sequence_parallel = sequence,
                                .recompute = recompute};
                  add(std::move(one), shards);
                }
      });
  return all;
}

}  // namespace

std::string small_model_yaml(bool experts) {
  return fmt::format(
      "{{family: {}, vocab_size: 256, hidden_size: 64, layers: 8, heads: 8, kv_heads: 8, "
      "ffn_size: 128, max_positions: 64{}}}",
      experts ? "qwen3_moe" : "llama",
      experts ? ", experts: {count: 4, chosen: 2, size: 64, normalize: true}" : "");
}

std::int64_t small_batch(int ranks) { return kSequencesPerRank * ranks; }
std::int64_t speed_batch(int ranks) { return kSequencesPerRank * ranks; }

std::vector<LossCase> group_cases(int ranks, int node_ranks) {
  const int most = part_of(ranks, kLargest), experts = part_of(ranks, 4);
  const int hybrid = node_ranks > 1 && node_ranks < ranks ? node_ranks : part_of(ranks, ranks / 2);
  using Kind = PipelineKind;
  std::vector<LossCase> cases = {
      {.group = "shard", .layout = {}},
      {.group = "shard", .layout = {.zero = 1}},
      {.group = "shard", .layout = {.zero = 2}},
      {.group = "shard", .layout = {.zero = 3}},
      {.group = "tp", .layout = {.tp = most}},
      {.group = "tp", .layout = {.tp = most, .sequence_parallel = true}},
      {.group = "cp", .layout = {.cp = most}},
      {.group = "cp", .layout = {.cp = most, .context = ContextMethod::Ulysses}},
      {.group = "pp", .layout = {.pp = most}},
      {.group = "pp",
       .layout = {.pp = part_of(ranks, 4), .chunks = 2, .schedule = Kind::Interleaved}},
      {.group = "pp", .layout = {.pp = most, .schedule = Kind::ZeroBubbleH1}},
      {.group = "experts", .experts = true, .layout = {.ep = experts}},
      {.group = "experts",
       .experts = true,
       .layout = {.ep = experts, .dispatch = Dispatch::AllToAll}}};
  if (ranks == 1) return {};
  for (const int zero : {2, 3})
    if (hybrid > 1 && hybrid < ranks)
      cases.push_back({.group = "replica", .layout = {.zero = zero, .shard_group = hybrid}});
  std::vector<LossCase> valid;
  for (LossCase& one : cases) {
    if (most == 1 && one.group != "shard") continue;
    if (!runs(one, ranks)) continue;
    one.name = name_of(one);
    valid.push_back(std::move(one));
  }
  return valid;
}

std::vector<LossCase> pair_cases(int ranks, const std::vector<LossCase>& others) {
  std::vector<LossCase> all = candidates(ranks), chosen;
  std::set<Pair> covered;
  for (const LossCase& one : others) add_pairs(one, covered);
  std::vector<std::set<Pair>> pairs(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) add_pairs(all[i], pairs[i]);
  for (;;) {  // the one with the most new pairs
    std::size_t best = 0, most = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto fresh = static_cast<std::size_t>(std::count_if(
          pairs[i].begin(), pairs[i].end(), [&](const Pair& p) { return !covered.contains(p); }));
      if (fresh > most) best = i, most = fresh;
    }
    if (most == 0) return chosen;
    covered.insert(pairs[best].begin(), pairs[best].end());
    all[best].name = name_of(all[best]);
    chosen.push_back(all[best]);
  }
}

PairCount count_pairs(int ranks, const std::vector<LossCase>& cases) {
  std::set<Pair> possible, covered;
  for (const LossCase& one : candidates(ranks)) add_pairs(one, possible);
  for (const LossCase& one : cases) add_pairs(one, covered);
  std::erase_if(covered, [&](const Pair& pair) { return !possible.contains(pair); });
  return {covered.size(), possible.size()};
}

std::vector<SpeedCase> speed_cases(int ranks, int node_ranks, const Workload& work) {
  const int inside = part_of(ranks, std::min(std::max(node_ranks, 1), kLargest));
  const int stages = part_of(ranks, 4);
  const int hybrid = node_ranks > 1 && node_ranks < ranks ? node_ranks : 0;
  std::vector<SpeedCase> cases = {
      {"data, ZeRO 1", {.zero = ranks > 1 ? 1 : 0}},
      {"data, ZeRO 3", {.zero = 3, .shard_group = hybrid}},
      {"tensor", {.tp = inside, .zero = 1, .sequence_parallel = true}},
      {"pipeline", {.pp = stages, .zero = 1}},
      {"tensor and pipeline", {.tp = 2, .pp = 2, .zero = 1, .sequence_parallel = true}}};
  for (SpeedCase& one : cases) {
    Layout& l = one.layout;
    const bool alone = one.name != cases.front().name && l.tp * l.pp == 1 && ranks == 1;
    if (alone || (one.name == "tensor" && inside == 1) || (one.name == "pipeline" && stages == 1) ||
        ranks % (l.tp * l.pp) != 0) {
      one.why_not = one.layout.tp * one.layout.pp == 4 ? "needs a multiple of 4 ranks"
                                                       : "needs an even number of ranks";
      continue;
    }
    if (ranks == l.tp * l.pp) l.zero = 0;
    if (const auto layout = fitted(l, work, ranks, &one.why_not)) l = *layout;
  }
  return cases;
}

}  // namespace kintsugi
