// Compares a rank's planned memory, by region, with the formulas of the literature, for models and
// layouts too large to run in a test: parameters as in Megatron (Shoeybi et al. 2019), 2 + 4 + 12
// bytes each in bf16 and sharded as in ZeRO (Rajbhandari et al. 2020), activations counted tensor
// by tensor as in Korthikanti et al. (2022) but without the attention matrix, micro-batches in
// flight as in PipeDream-Flush, Megatron's interleaving (Narayanan et al. 2021) and ZB-H1 (Qi et
// al. 2023).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "support/family_traits.h"
#include "support/parallel_run.h"

namespace kintsugi {
namespace {

constexpr double kChunk = 512;  // tokens per chunk of logits
using Bytes = std::array<double, kRegions>;

struct Plan {
  std::string model;
  RankLayout layout;
  std::int64_t length = 4096;
  int micro_batches = 1;
  Recompute recompute = Recompute::None;
  int every = 1;
  std::int64_t micro = 1;
};

Bytes planned(const Plan& plan, const Coordinates& coordinates) {
  const Training training{.model = load_preset(plan.model),
                          .precision = DType::BF16,
                          .sequences = plan.micro * plan.micro_batches * plan.layout.dp,
                          .micro = plan.micro,
                          .length = plan.length,
                          .recompute = plan.recompute,
                          .recompute_every = plan.every};
  EngineOptions options = training.engine(plan.layout);
  options.classifier_chunk = static_cast<std::int64_t>(kChunk);
  const auto backend = make_cpu_backend(1);
  PlanningAllocator memory;
  const Groups groups = planned_groups(grid_of(options.layout, options.model), coordinates);
  const Engine engine(*backend, memory, options, groups);
  Bytes bytes;
  for (int region = 0; region < kRegions; ++region)
    bytes[static_cast<std::size_t>(region)] =
        static_cast<double>(engine.arena().bytes(static_cast<Region>(region)));
  return bytes;
}

// ---- the formulas

class Formula {
 public:
  Formula(const Plan& plan, int stage)
      : plan_(plan), model_(load_preset(plan.model)), stage_(stage) {}

  Bytes bytes() const {
    Bytes all = {};
    const auto at = [&](Region region) -> double& { return all[static_cast<std::size_t>(region)]; };
    const int zero = plan_.layout.zero;
    const bool whole_gradients = zero < 2 || zero_bubble();
    at(Region::Weights) = 2 * parameters() / (zero == 3 ? n_ : 1);
    at(Region::Gradients) = 4 * parameters() / (whole_gradients ? 1 : n_);
    at(Region::Optimizer) = 12 * parameters() / (zero >= 1 ? n_ : 1);
    at(Region::Activations) = activations();
    at(Region::Workspace) = workspace();
    at(Region::Communication) = communication(!whole_gradients);
    return all;
  }

 private:
  bool first() const { return stage_ == 0; }
  bool last() const { return stage_ == p_ - 1; }
  bool zero_bubble() const { return p_ > 1 && kind() == PipelineKind::ZeroBubbleH1; }
  PipelineKind kind() const { return plan_.layout.schedule; }

  // ---- parameters of a rank

  double layer_parameters() const {
    const double matrices = h_ * qkv_ + a_ * d_ * h_ + (gated_ ? 3 : 2) * h_ * f_;
    const double biases = (traits_.qkv_bias ? qkv_ : 0) + (traits_.linear_bias ? 2 * h_ + f_ : 0);
    return matrices + biases + 2 * norm_ + (traits_.qk_norm ? 2 * d_ : 0);
  }
  double table() const { return static_cast<double>(model_.vocab_size) / t_ * h_; }
  double outer_vectors() const {  // of the embedding, without its table
    return (traits_.embedding_norm ? 2 * h_ : 0) +
           (traits_.positions == PositionKind::Learned
                ? static_cast<double>(model_.max_positions) * h_
                : 0);
  }
  double parameters() const {
    double sum = layers_ * layer_parameters();
    if (first()) sum += table() + outer_vectors();
    if (last()) sum += norm_ + (model_.tied && p_ == 1 ? 0 : table());
    return sum;
  }

  // ---- activations

  // One layer, one micro-batch. The residual stream and the norm outputs, twice each, have the
  // rank's rows; the rest has its heads and columns.
  double layer_activations(Recompute recompute) const {
    const double stream = 2 * R_ * h_;
    if (recompute == Recompute::Full) return stream;
    double sum = 2 * stream + 2 * T_ * (qkv_ + a_ * d_ + (gated_ ? 2 : 1) * f_) + 4 * T_ * a_ +
                 2 * 4 * R_ * statistics_;
    if (traits_.qk_norm) sum += (a_ + kv_) * T_ * (2 * d_ + 4);
    return recompute == Recompute::Selective ? sum : sum + 2 * stream + 2 * T_ * f_;
  }
  double all_layers() const {
    double sum = 0;
    for (int layer = 0; layer < static_cast<int>(layers_); ++layer)
      sum += layer_activations(layer % plan_.every == 0 ? plan_.recompute : Recompute::None);
    return sum;
  }
  // Micro-batches between forward and backward. Interleaved: in units of all chunks of a rank.
  double in_flight() const {
    if (p_ == 1) return 1;
    switch (kind()) {
      case PipelineKind::GPipe:
        return m_;
      case PipelineKind::OneForwardOneBackward:
        return std::min(m_, p_ - stage_);
      case PipelineKind::ZeroBubbleH1:
        return std::min(m_, p_);
      case PipelineKind::Interleaved:
        return std::min(m_ * v_, 2 * (p_ - stage_ - 1) + (v_ - 1) * p_ + 1) / v_;
    }
    return 0;
  }
  double activations() const {
    const double stream = 2 * R_ * h_, n = in_flight();
    double sum = n * all_layers();
    sum += last() && v_ == 1 ? stream : 2 * stream;  // the head's input, or two outputs for sending
    if (!first() && n < m_ && !zero_bubble())        // inputs that are received early
      sum += (kind() == PipelineKind::Interleaved && !last() ? 2 : 1) * stream;
    // Embedding: the first chunk has twice as many micro-batches as stages when the second chunk
    // starts.
    const double embedded =
        p_ > 1 && kind() == PipelineKind::Interleaved ? std::min(m_, 2 * p_) : n;
    if (first() && traits_.embedding_norm) sum += embedded * (stream + 2 * 4 * R_);
    if (zero_bubble())  // kept for backward_weight: rank r delays r of them
      sum += std::min(m_, stage_ + 1.0) * layers_ *
             (2 * T_ * (qkv_ + (gated_ ? 2 : 1) * f_) + 2 * stream);
    return sum + 4 * T_;
  }

  // ---- workspace

  double workspace() const {
    const bool split = R_ < T_;
    const double stream = 2 * T_ * h_, own = 2 * R_ * h_;
    double sum = 2 * stream + (split ? stream + 2 * own : 0);  // a branch and its gradient
    sum += 2 * T_ * (qkv_ + a_ * d_ + (gated_ ? 3 : 1) * f_);  // gradients of a layer
    if (last()) sum += 2 * kChunk * std::ceil(table() / h_ / 64) * 64;
    if (traits_.positions == PositionKind::Rope) sum += 4 * static_cast<double>(plan_.length) * d_;
    sum += gradients_in_flight() * own;
    if (plan_.recompute == Recompute::Selective) sum += own + 2 * T_ * f_;
    if (plan_.recompute == Recompute::Full) sum += layer_activations(Recompute::None) - 2 * own;
    sum += 4 * T_ * (2 * (p_ > 1 ? m_ : 1) + 1);  // tokens, targets, positions
    if (ulysses()) sum += 4 * T_;
    if (c_ > 1 && !ulysses()) {
      const double queries = T_ * a_ * d_, keys = T_ * kv_ * d_;
      sum += 4 * T_ + (2 + 4 + 4) * queries + 4 * T_ * a_ + 2 * 2 * keys;
      if (traits_.positions == PositionKind::Alibi) sum += 4 * T_ * c_;
    }
    return sum;
  }
  bool ulysses() const { return plan_.layout.context == ContextMethod::Ulysses; }
  // Gradients of the residual stream: one in use, one more being sent to the previous stage. In
  // GPipe, the head's gradients of all micro-batches.
  double gradients_in_flight() const {
    if (p_ == 1) return 1;
    if (kind() == PipelineKind::GPipe && last()) return m_ + 1;
    if (kind() == PipelineKind::GPipe) return first() ? 1 : 3;
    if (kind() == PipelineKind::Interleaved) return 3;  // and one being received
    return first() ? 1 : 2;
  }

  double communication(bool layer_gradients) const {
    double sum = t_ > 1 && last() ? 3 * 4 * t_ * kChunk : 0;
    if (ulysses())
      sum += 2 * 2 * T_ * d_ * (3 * a_ + 2 * std::max(kv_, c_));
    else if (c_ > 1)
      sum += 2 * (2 + 4) * 2 * T_ * kv_ * d_;
    const double ends = model_.tied && p_ == 1 ? table() + outer_vectors() + norm_
                                               : std::max(first() ? table() + outer_vectors() : 0,
                                                          last() ? table() + norm_ : 0);
    const double slots = std::min(2.0, layers_) * layer_parameters() + ends;
    if (plan_.layout.zero == 3) sum += 2 * slots;
    if (layer_gradients) sum += 4 * slots;
    return sum + 4 * tensor_copies() / (plan_.layout.zero > 0 ? n_ : 1);
  }
  // Elements that all tensor ranks hold and all-reduce.
  double tensor_copies() const {
    if (t_ == 1) return 0;
    double sum = traits_.qk_norm ? layers_ * 2 * d_ : 0;
    if (R_ == T_) return sum;
    sum += layers_ * (2 * norm_ + (traits_.linear_bias ? 2 * h_ : 0));
    if (first() && traits_.embedding_norm) sum += 2 * h_;
    if (last()) sum += norm_;
    return sum;
  }

  const Plan& plan_;
  ModelConfig model_;
  FamilyTraits traits_ = traits_of(model_.family);
  int stage_;
  double t_ = plan_.layout.tp, c_ = plan_.layout.cp, p_ = plan_.layout.pp, v_ = plan_.layout.chunks;
  double n_ = plan_.layout.shard(), m_ = plan_.micro_batches;
  double layers_ = static_cast<double>(model_.layers) / p_;
  double T_ = static_cast<double>(plan_.micro * plan_.length) / c_;
  double R_ = plan_.layout.sequence_parallel ? T_ / t_ : T_;
  double h_ = static_cast<double>(model_.hidden_size), d_ = static_cast<double>(model_.head_dim);
  double a_ = static_cast<double>(model_.heads) / t_;
  double kv_ = std::max(1.0, static_cast<double>(model_.kv_heads) / t_);
  double f_ = static_cast<double>(model_.ffn_size) / t_, qkv_ = (a_ + 2 * kv_) * d_;
  bool gated_ = traits_.activation == ActivationKind::Swiglu;
  double statistics_ = traits_.norm == NormKind::Layer ? 2 : 1;  // per row
  double norm_ = statistics_ * h_;
};

void expect_plan(const Plan& plan) {
  const RankLayout& layout = plan.layout;
  for (int stage = 0; stage < layout.pp; ++stage) {
    const Bytes expected = Formula(plan, stage).bytes();
    for (const int last : {0, 1}) {  // first and last rank of the other dimensions
      const Bytes actual = planned(plan, {.tp = last * (layout.tp - 1),
                                          .cp = last * (layout.cp - 1),
                                          .dp = last * (layout.dp - 1),
                                          .pp = stage});
      for (std::size_t region = 0; region < kRegions; ++region)
        EXPECT_NEAR(actual[region], expected[region], 0.02 * expected[region] + 1e4)
            << to_string(static_cast<Region>(region)) << " on stage " << stage << ": " << plan.model
            << ", " << to_string(layout) << ", recompute " << to_string(plan.recompute) << " every "
            << plan.every << ", " << plan.micro_batches << " micro-batches, "
            << actual[region] / expected[region];
    }
  }
}

// ---- layouts

class LayoutMemory : public testing::TestWithParam<const char*> {};

TEST_P(LayoutMemory, OfTensorRanks) {
  for (const int tp : {2, 4, 8})
    for (const bool sp : {false, true}) {
      if (load_preset(GetParam()).heads % tp != 0) continue;
      for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
        const RankLayout layout{.tp = tp, .sequence_parallel = sp};
        expect_plan({.model = GetParam(), .layout = layout, .recompute = recompute});
        expect_plan({.model = GetParam(),
                     .layout = layout,
                     .length = 2048,
                     .recompute = recompute,
                     .every = 2,
                     .micro = 3});
      }
    }
}

TEST_P(LayoutMemory, OfContextRanks) {
  for (const RankLayout& layout :
       {RankLayout{.cp = 2}, RankLayout{.cp = 8}, RankLayout{.tp = 2, .cp = 2},
        RankLayout{.tp = 4, .cp = 4, .sequence_parallel = true},
        RankLayout{.cp = 2, .context = ContextMethod::Ulysses},
        RankLayout{.cp = 4, .context = ContextMethod::Ulysses},
        RankLayout{.tp = 2, .cp = 2, .context = ContextMethod::Ulysses, .sequence_parallel = true}})
    for (const Recompute recompute : {Recompute::None, Recompute::Full})
      expect_plan({.model = GetParam(), .layout = layout, .length = 16384, .recompute = recompute});
}

// Equal stages, so that every rank has layers / p.
std::vector<int> even_split(const std::string& model, int chunks) {
  const auto layers = static_cast<int>(load_preset(model).layers);
  return std::vector<int>(static_cast<std::size_t>(chunks), layers / chunks);
}

TEST_P(LayoutMemory, OfPipelines) {
  for (const PipelineKind kind :
       {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward, PipelineKind::ZeroBubbleH1})
    for (const int tp : {1, 4})
      for (const int micro_batches : {3, 16})
        for (const Recompute recompute : {Recompute::None, Recompute::Full})
          expect_plan({.model = GetParam(),
                       .layout = {.tp = tp,
                                  .pp = 4,
                                  .schedule = kind,
                                  .sequence_parallel = tp > 1,
                                  .split = even_split(GetParam(), 4)},
                       .micro_batches = micro_batches,
                       .recompute = recompute});
}

TEST_P(LayoutMemory, OfInterleavedPipelines) {
  for (const int pp : {2, 4})
    for (const int chunks : {2, 3}) {
      if (load_preset(GetParam()).layers % (pp * chunks) != 0) continue;
      for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full})
        expect_plan({.model = GetParam(),
                     .layout = {.tp = 2,
                                .pp = pp,
                                .chunks = chunks,
                                .schedule = PipelineKind::Interleaved,
                                .sequence_parallel = chunks == 3,
                                .split = even_split(GetParam(), pp * chunks)},
                     .micro_batches = 16,
                     .recompute = recompute});
    }
}

TEST_P(LayoutMemory, OfAllTogether) {
  for (const int zero : {0, 1, 2, 3})
    for (const PipelineKind kind :
         {PipelineKind::OneForwardOneBackward, PipelineKind::ZeroBubbleH1}) {
      RankLayout layout{.dp = 2,
                        .zero = zero,
                        .tp = 2,
                        .cp = 2,
                        .pp = 4,
                        .schedule = kind,
                        .sequence_parallel = true,
                        .split = even_split(GetParam(), 4)};
      expect_plan({.model = GetParam(),
                   .layout = layout,
                   .length = 8192,
                   .micro_batches = 8,
                   .recompute = Recompute::Selective});
      if (zero == 0) continue;
      layout.dp = 16;
      layout.shard_group = 8;  // in several copies
      expect_plan({.model = GetParam(), .layout = layout, .micro_batches = 8});
    }
}

INSTANTIATE_TEST_SUITE_P(Models, LayoutMemory,
                         testing::Values("gpt-22b", "llama-8b", "qwen2.5-7b", "qwen3-8b",
                                         "bloom-560m"));

}  // namespace
}  // namespace kintsugi
