#include "support/layout_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "parallel/layout.h"
#include "support/late_backend.h"

namespace kintsugi {
namespace {

std::size_t at(int value) { return static_cast<std::size_t>(value); }

const std::array<FactorLevels, kFactors>& all_levels() {
  static const std::array<FactorLevels, kFactors> all = [] {
    std::array<FactorLevels, kFactors> f;
    const std::vector<std::string> switched = {"0", "1"};
    f[kPp] = {"pp", {}, {1, 2, 3, 4}};
    f[kChunks] = {"chunks", {}, {1, 2, 3}};
    f[kSchedule] = {"schedule", {"gpipe", "1f1b", "interleaved", "zb-h1"}, {1, 0, 3, 2}};
    f[kLayers] = {"layers", {}, {1, 2, 3, 4, 5, 12}};
    f[kMicroBatches] = {"passes", {}, {1, 2, 3, 4, 6}};
    f[kSplit] = {"split", {"balanced", "front", "back"}, {0, 1, 2}};
    f[kTp] = {"tp", {}, {1, 2, 3, 4, 8}};
    f[kHeads] = {"heads", {}, {4, 2, 6, 8}};
    f[kFamily] = {"family", tiny_models(), {}};
    for (int i = 0; i < static_cast<int>(tiny_models().size()); ++i) f[kFamily].levels.push_back(i);
    f[kSequenceParallel] = {"sp", switched, {0, 1}};
    f[kCp] = {"cp", {}, {1, 2, 3, 4}};
    f[kContext] = {"context", {"ring", "ulysses"}, {0, 1}};
    f[kLength] = {"length", {}, {8, 7, 12, 24}};
    f[kDp] = {"dp", {}, {1, 2, 3, 4, 8, 16}};
    f[kZero] = {"zero", {}, {0, 1, 2, 3}};
    f[kShardGroup] = {"shard_group", {}, {0, 1, 2, 4}};
    f[kExperts] = {"experts", {}, {1, 2, 4}};
    f[kDispatch] = {"dispatch", {"all-gather", "all-to-all"}, {0, 1}};
    f[kCapacity] = {"capacity", switched, {0, 1}};
    f[kMicro] = {"micro", {}, {1, 2, 3}};
    f[kUneven] = {"uneven", switched, {0, 1}};
    f[kDropout] = {"dropout", switched, {0, 1}};
    f[kDocuments] = {"documents", switched, {0, 1}};
    f[kMasked] = {"masked", switched, {0, 1}};
    f[kRecompute] = {"recompute", {"none", "selective", "full"}, {0, 1, 2}};
    f[kRecomputeEvery] = {"recompute_every", {}, {1, 2}};
    f[kOffload] = {"offload", {"none", "state", "gradients", "both"}, {0, 1, 2, 3}};
    f[kMuon] = {"muon", switched, {0, 1}};
    f[kPrecision] = {"precision", {"fp64", "fp32"}, {0, 1}};
    f[kSteps] = {"steps", {}, {4}};
    return f;
  }();
  return all;
}

// Layers of each chunk: the first or the last gets all remaining layers.
std::vector<int> given_split(const LayoutCase& one) {
  if (one[kSplit] == 0) return {};
  std::vector<int> split(at(one[kPp] * one[kChunks]), 1);
  const int over = one[kLayers] - static_cast<int>(split.size());
  (one[kSplit] == 1 ? split.front() : split.back()) += over;
  return split;
}

// With zb-h1, gradients are complete only at the end of a step and cannot be offloaded.
bool can_offload(const LayoutCase& one) { return one[kOffload] < 2 || one[kSchedule] != 3; }

// Cases with a choice that changes nothing are not valid.
bool has_effect(const LayoutCase& c) {
  const auto open = [&](std::size_t factor) { return c[factor] == LayoutCase::kOpen; };
  const auto is_simplest = [&](std::size_t factor) {
    return open(factor) || c[factor] == levels_of(factor).levels.front();
  };
  if (c[kPp] == 1 && !(is_simplest(kSchedule) && is_simplest(kSplit))) return false;
  if (!is_simplest(kSplit) && !open(kLayers) && !open(kPp) && !open(kChunks) &&
      c[kLayers] <= c[kPp] * c[kChunks])
    return false;
  if (c[kMicro] == 1 && !is_simplest(kUneven)) return false;
  return c[kRecompute] != 0 || is_simplest(kRecomputeEvery);
}

// What the rules ask of a family, read once: they are asked millions of times.
struct FamilyRules {
  bool experts = false;
  bool attention = true;
  int kv_heads = 0;    // the same for any number of heads
  int kv_divisor = 1;  // of the number of heads
};
const FamilyRules& rules_of(int family) {
  static const std::vector<FamilyRules> all = [] {
    std::vector<FamilyRules> rules;
    for (const std::string& name : tiny_models()) {
      const bool half = name == "llama-gqa" || name == "qwen2" || name == "olmo3" ||
                        name == "mixtral" || name == "glm4_moe";
      rules.push_back({.experts = tiny_model(name, 1).experts.has_value(),
                       .attention = name != "retnet",
                       .kv_heads = name == "qwen3" ? 1 : 0,
                       .kv_divisor = half ? 2 : 1});
    }
    return rules;
  }();
  return all[at(family)];
}

int kv_heads_of(int family, int heads) {
  const FamilyRules& rules = rules_of(family);
  return rules.kv_heads > 0 ? rules.kv_heads : heads / rules.kv_divisor;
}

// Each rank has as many experts as another, and a copy of all of them is on whole shard groups or
// inside of one. There are as many experts as heads.
bool may_spread_experts(const LayoutCase& c) {
  const auto known = [&](std::size_t factor) { return c[factor] != LayoutCase::kOpen; };
  if (c[kExperts] == 1 && c[kDispatch] == 1) return false;
  if (c[kCapacity] == 1 && c[kCp] > 1) return false;
  // What spreads over two data ranks is the least that an all-to-all needs.
  const int experts = !known(kExperts) && c[kDispatch] == 1 ? 2 : c[kExperts];
  if (experts <= 1 && c[kCapacity] <= 0) return true;
  if (known(kFamily) && !rules_of(c[kFamily]).experts) return false;
  if (experts <= 1) return true;
  if (known(kHeads) && known(kTp) && c[kHeads] % (c[kTp] * experts) != 0) return false;
  if (!known(kCp) || !known(kDp)) return true;
  const int data = c[kCp] * c[kDp];
  if (data % experts != 0) return false;
  if (!known(kZero) || !known(kShardGroup)) return true;
  const int shard = c[kZero] == 0 ? 1 : c[kShardGroup] == 0 ? data : c[kShardGroup];
  return shard % experts == 0 || experts % shard == 0;
}

// With Ulysses, each of cp ranks has some of the query heads of a tensor rank, and equally many
// key-value heads or one of them.
bool may_share_heads(const LayoutCase& c) {
  const auto known = [&](std::size_t factor) { return c[factor] != LayoutCase::kOpen; };
  if (c[kContext] != 1) return true;
  if (c[kCp] == 1 || (known(kFamily) && !rules_of(c[kFamily]).attention)) return false;
  if (!known(kCp) || !known(kTp) || !known(kHeads)) return true;
  if (c[kHeads] % (c[kTp] * c[kCp]) != 0) return false;
  if (!known(kFamily)) return true;
  const int kv = std::max(1, kv_heads_of(c[kFamily], c[kHeads]) / c[kTp]);
  return kv % c[kCp] == 0 || c[kCp] % kv == 0;
}

}  // namespace

const FactorLevels& levels_of(std::size_t factor) { return all_levels()[factor]; }

LayoutCase::LayoutCase() {
  for (std::size_t f = 0; f < kFactors; ++f) values[f] = levels_of(f).levels.front();
}

RankLayout LayoutCase::layout() const {
  return {.dp = values[kDp],
          .zero = values[kZero],
          .shard_group = values[kShardGroup],
          .experts = values[kExperts],
          .dispatch = static_cast<Dispatch>(values[kDispatch]),
          .tp = values[kTp],
          .cp = values[kCp],
          .context = static_cast<ContextMethod>(values[kContext]),
          .pp = values[kPp],
          .chunks = values[kChunks],
          .schedule = static_cast<PipelineKind>(values[kSchedule]),
          .sequence_parallel = values[kSequenceParallel] == 1,
          .split = given_split(*this)};
}

Training LayoutCase::training() const {
  const std::int64_t micro = values[kMicro];
  Training training{
      .model = tiny_model(tiny_models()[at(values[kFamily])], values[kLayers], values[kHeads]),
      .precision = values[kPrecision] == 0 ? DType::F64 : DType::F32,
      .sequences = values[kDp] * (values[kMicroBatches] * micro - values[kUneven]),
      .micro = micro,
      .length = values[kLength],
      .recompute = static_cast<Recompute>(values[kRecompute]),
      .recompute_every = values[kRecomputeEvery],
      .dropout = values[kDropout] == 0 ? 0.0 : 0.2,
      .documents = values[kDocuments] == 1,
      .masked = values[kMasked] == 1};
  // The last bit of fp32 may decide between two experts.
  if (training.model.experts) training.precision = DType::F64;
  if (values[kCapacity] == 1) training.model.balance.capacity = 0.8;
  if (values[kMuon] == 1) {
    training.optimizer.kind = OptimizerKind::Muon;
    training.optimizer.muon.precision = DType::F32;  // bf16 would hide differences
  }
  if (values[kOffload] == 0) return training;
  training.offload = {.on = values[kOffload] != 2,
                      .gradients = values[kOffload] >= 2,
                      .update = UpdateLocation::Device,
                      .block_elements = 208};
  training.backend = [](int threads) -> std::unique_ptr<Backend> {
    return std::make_unique<LateBackend>(threads);
  };
  return training;
}

// ---- text form

std::string to_string(const LayoutCase& one) {
  std::string text;
  const auto add = [&](std::size_t factor) {
    const auto& [name, names, levels] = levels_of(factor);
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name,
                        names.empty() ? std::to_string(one[factor]) : names[at(one[factor])]);
  };
  for (const std::size_t extent : {kTp, kCp, kDp, kPp}) add(extent);
  for (std::size_t f = 0; f < kFactors; ++f)
    if (f != kTp && f != kCp && f != kDp && f != kPp && one[f] != LayoutCase()[f]) add(f);
  return text;
}

LayoutCase parse_layout_case(std::string_view text) {
  LayoutCase one;
  const auto read = [&](std::string_view word) {
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals),
                           value = equals == word.npos ? "" : word.substr(equals + 1);
    for (std::size_t f = 0; f < kFactors; ++f) {
      if (name != levels_of(f).name) continue;
      const auto& names = levels_of(f).names;
      const auto found = std::find(names.begin(), names.end(), value);
      if (found != names.end()) {
        one.values[f] = static_cast<int>(found - names.begin());
        return;
      }
      const char* const end = value.data() + value.size();
      const auto [stopped, error] = std::from_chars(value.data(), end, one.values[f]);
      if (!names.empty() || error != std::errc() || stopped != end || one.values[f] < 0)
        user_error("'{}' is not a value of {}{}", value, name,
                   names.empty() ? "" : fmt::format(": use {}", fmt::join(names, ", ")));
      return;
    }
    user_error("'{}' is not a factor of a case: give factors like tp=2", word);
  };
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    if (space != 0) read(text.substr(0, space));
    text = space == text.npos ? "" : text.substr(space + 1);
  }
  return one;
}

std::string command_for(const LayoutCase& one) {
  return fmt::format("make fuzz-layouts CASE='{}'", to_string(one));
}

// ---- validity

bool valid(const LayoutCase& one) {
  const int ranks = one[kTp] * one[kCp] * one[kDp] * one[kPp];
  if (ranks < 1 || ranks > 16 || one[kMicro] < 1 || one[kMicroBatches] < 1 || one[kSteps] < 1 ||
      !has_effect(one) || !can_offload(one))
    return false;
  try {
    const Training training = one.training();
    // An engine accepts a smaller last micro-batch; fit_layout does not, so give it whole ones.
    const std::int64_t batch = std::int64_t{one[kDp]} * one[kMicroBatches] * one[kMicro];
    fit_layout(training.layout(one.layout()), {training.model, batch, training.length}, ranks);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

bool may_become_valid(const LayoutCase& c, bool affordable) {
  const auto known = [&](std::initializer_list<std::size_t> factors) {
    return std::none_of(factors.begin(), factors.end(),
                        [&](std::size_t f) { return c[f] == LayoutCase::kOpen; });
  };
  const auto at_least = [&](std::size_t factor) { return std::max(c[factor], 1); };
  if (at_least(kTp) * at_least(kCp) * at_least(kDp) * at_least(kPp) > 16) return false;
  // Few tokens, so that a step takes milliseconds.
  if (affordable && (at_least(kDp) * at_least(kMicroBatches) * at_least(kMicro) > 96 ||
                     at_least(kDp) * at_least(kMicroBatches) * at_least(kMicro) *
                             at_least(kLength) * at_least(kLayers) >
                         2400))
    return false;
  if (!has_effect(c) || !can_offload(c)) return false;
  if (known({kPp, kChunks}) && c[kChunks] > 1 && c[kPp] == 1) return false;
  if (known({kChunks, kSchedule}) && (c[kChunks] > 1) != (c[kSchedule] == 2)) return false;
  if (known({kLayers}) && c[kLayers] < at_least(kPp) * at_least(kChunks)) return false;
  if (known({kPp, kMicroBatches}) && c[kSchedule] == 2 && c[kMicroBatches] % c[kPp] != 0)
    return false;
  if (known({kTp, kHeads}) && c[kHeads] % c[kTp] != 0) return false;
  if (known({kTp, kHeads, kFamily})) {
    const int kv = kv_heads_of(c[kFamily], c[kHeads]);
    if (kv % c[kTp] != 0 && c[kTp] % kv != 0) return false;
  }
  if (c[kTp] == 1 && c[kSequenceParallel] == 1) return false;
  const int chunks = c[kContext] == 0 ? 2 : 1;  // of a context rank
  if (known({kCp, kContext, kLength}) && c[kCp] > 1 && c[kLength] % (chunks * c[kCp]) != 0)
    return false;
  if (!may_share_heads(c)) return false;
  if (known({kCp, kLength, kTp}) && c[kSequenceParallel] == 1 && c[kLength] / c[kCp] % c[kTp] != 0)
    return false;
  if (c[kShardGroup] > 0 && c[kZero] == 0) return false;
  if (known({kCp, kDp}) && c[kShardGroup] > 0 && c[kCp] * c[kDp] % c[kShardGroup] != 0)
    return false;
  return may_spread_experts(c);
}

}  // namespace kintsugi
