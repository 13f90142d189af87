#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/grid.h"
#include "core/collective.h"
#include "parallel/layout.h"
#include "support/family_traits.h"
#include "support/parallel_run.h"

namespace kintsugi {

inline double all_reduced(double bytes, double ranks) { return 2 * bytes * (ranks - 1) / ranks; }
inline double gathered_or_scattered(double bytes, double ranks) {
  return bytes * (ranks - 1) / ranks;
}

// Bytes by group and kind of call; missing entries are 0.
using Sent = std::map<std::pair<std::string, Collective>, double>;

// Elements of each bucket, padded so that `shard` ranks have equal multiples of 16.
inline std::vector<double> padded(const ParameterSet& set, int shard) {
  std::vector<double> buckets;
  for (const Bucket& bucket : set.buckets()) {
    std::int64_t elements = bucket.end - bucket.begin;
    if (shard > 1) elements = ((elements + shard - 1) / shard + 15) / 16 * 16;
    buckets.push_back(static_cast<double>(elements * shard));
  }
  return buckets;
}

inline double sum(const std::vector<double>& values, std::size_t from, std::size_t to) {
  double total = 0;
  for (std::size_t i = from; i < to; ++i) total += values[i];
  return total;
}

// Elements that ZeRO 3 gathers in a step of `micro_batches` on one stage. Layers alternate between
// two slots, so the last two are still in memory when the backward begins, and the first two when
// the next micro-batch begins; those between are gathered in forward and backward. Embedding and
// head, if tied, have their own slots and are gathered once. Otherwise they share one slot: the
// head is gathered for every micro-batch; so is the embedding, and once more per step if the
// backward needs its norm.
inline double gathered(const std::vector<double>& b, const ModelConfig& model,
                       double micro_batches) {
  const std::size_t layers = b.size() - 2;
  const double embedding = b.front(), head = b.back();
  const double middle_backward = layers > 2 ? sum(b, 1, layers - 1) : 0,
               middle_forward = layers > 2 ? sum(b, 3, layers + 1) : 0;
  double elements = sum(b, 1, layers + 1) + micro_batches * middle_backward +
                    (micro_batches - 1) * middle_forward;
  if (model.tied)
    elements += embedding + head;
  else if (traits_of(model.family).embedding_norm)
    elements += embedding + micro_batches * (head + embedding);
  else
    elements += micro_batches * (head + embedding);
  return elements;
}

// Bytes that a rank sends in a step, in Megatron's terms: t tensor, c context and p pipeline ranks,
// N data ranks (r replicas of n shards each). A micro-batch has T = b·s / c tokens on a rank, and
// the residual stream R = T / t rows with sequence parallelism (sp), else R = T. h is the hidden
// size, w and W the bytes of an activation and of an accumulator, Ψ the elements of a rank's model
// shard. A rank of a ring of g sends for x bytes:
//   AR(x) = 2 x (g - 1) / g     AG(x) = RS(x) = x (g - 1) / g     a message: x
//
//   each micro-batch           tp                              tp with sp
//     layer, forward           2 AR(Thw)                       2 AG(Thw) + 2 RS(Thw)
//     layer, backward          2 AR(Thw)                       4 AG(Thw) + 2 RS(Thw)
//     layer, halved backward   2 AR(Thw)                       6 AG(Thw) + 2 RS(Thw)
//     layer, full recompute    AR(Thw)                         2 AG(Thw) + RS(Thw)
//                              (in each half, if the backward is halved; 0 if selective)
//     embedding                AR(Thw)                         RS(Thw) + AG(Thw)
//     head                     AR(Thw) + AG(3TtW)              AG(Thw) + RS(Thw) + AG(3TtW)
//     layer, cp                forward and recomputed forward: c - 1 messages of 2 T kv d w / t
//                              backward: c - 1 of the same and c - 1 of 2 T kv d W / t
//     layer, cp with Ulysses   with H = heads / t, K = max(kv / t, c) and an all-to-all that sends
//                              A2A(x) = x (c - 1) / c
//                              forward and recomputed forward: A2A(T d w (2 H + 2 K))
//                              backward: A2A(T d w (4 H + 4 K))
//     chunk of a pipeline, pp  Rhw to the next chunk, Rhw back to the previous one
//   each step
//     tp      AR of W · (gains of q and k; with sp also the other norms, biases of row-parallel
//             matrices, learned positions): all tp ranks hold them, with partial gradients
//     kv      AR of W · 2 h d (with biases: 2 (h + 1) d) per layer, among the ranks that hold the
//             same key-value head, because there are fewer of those than ranks
//     tied    AR of W · V h / t between the first and the last stage
//     shard   ZeRO 1: RS(ΨW) + AG(Ψw); 2: m RS(ΨW) + AG(Ψw); 3: m RS(ΨW) + AG(gathered w)
//             (halved backwards: RS once)
//     replica AR of W · (the owned shard of Ψ)
//     copy    AR(W), the squared gradient norm over t · p · n ranks
//     world   2 AR(8): the number of counted tokens, and the loss
class StepVolume {
 public:
  StepVolume(const RankLayout& layout, const Training& training, const Coordinates& coordinates)
      : layout_(layout),
        training_(training),
        model_(training.model),
        ranges_(stage_layers(checked_split(model_, layout.pp * layout.chunks, layout.split),
                             layout.pp, coordinates.pp)),
        set_(model_, model_shard(ranges_, training.layout(layout), coordinates)),
        coordinates_(coordinates) {}

  Sent sent() const {
    Sent all;
    if (t_ > 1) add_tensor(all);
    if (c_ > 1) add_context(all);
    if (layout_.pp > 1) add_pipeline(all);
    add_copies(all);
    add_data(all);
    all[{"copy", Collective::AllReduce}] = all_reduced(W_, t_ * layout_.pp * layout_.shard());
    all[{"world", Collective::AllReduce}] = 2 * all_reduced(8, layout_.ranks());
    return all;
  }
  // The sum over a shard group: its distribution over the ranks depends on where tensors begin.
  Sent summed_over_shard() const {
    Sent sums = sent();
    for (auto& [key, bytes] : sums) bytes *= layout_.shard();
    sums[{"tp", Collective::AllReduce}] -= (layout_.shard() - 1) * all_reduced(tp_copies(), t_);
    sums[{"kv", Collective::AllReduce}] /= layout_.shard();
    sums[{"tied", Collective::AllReduce}] /= layout_.shard();
    sums[{"replica", Collective::AllReduce}] /= layout_.shard();
    return sums;
  }
  // How often ZeRO 3 gathers an element, on average.
  double gathers_per_element() const {
    const std::vector<double> buckets = padded(set_, layout_.shard());
    return gathers(buckets) / sum(buckets, 0, buckets.size());
  }

 private:
  bool embeds() const { return ranges_.front().embedding; }
  bool has_head() const { return ranges_.back().head; }
  bool halved() const { return layout_.pp > 1 && layout_.schedule == PipelineKind::ZeroBubbleH1; }
  double layers() const {
    double count = 0;
    for (const StageLayers& range : ranges_) count += range.last_layer - range.first_layer;
    return count;
  }
  // Layer forwards that the backward recomputes.
  double repeated() const {
    double count = 0;
    for (const StageLayers& range : ranges_)
      for (int layer = range.first_layer; layer < range.last_layer; ++layer)
        count += training_.recompute == Recompute::Full && layer % training_.recompute_every == 0;
    return count * (halved() ? 2 : 1);
  }

  void add_tensor(Sent& all) const {
    const double l = layers(), full = repeated(), e = embeds(), o = has_head();
    const double stream = T_ * h_ * w_;
    double gathers = 0;
    if (layout_.sequence_parallel) {
      gathers = gathered_or_scattered(
          m_ * stream * (l * (2 + (halved() ? 6 : 4)) + 2 * full + e + o), t_);
      all[{"tp", Collective::ReduceScatter}] =
          gathered_or_scattered(m_ * stream * (4 * l + full + e + o), t_);
    } else {
      all[{"tp", Collective::AllReduce}] = all_reduced(m_ * stream * (4 * l + full + e + o), t_);
    }
    all[{"tp", Collective::AllGather}] =
        gathers + gathered_or_scattered(o * m_ * 3 * T_ * t_ * W_, t_);
  }
  void add_context(Sent& all) const {
    const double kv = static_cast<double>(std::max<std::int64_t>(1, model_.kv_heads / layout_.tp));
    if (layout_.context == ContextMethod::Ulysses) {
      const double heads = static_cast<double>(model_.heads) / t_ + std::max(kv, c_);
      all[{"cp", Collective::AllToAll}] =
          m_ * gathered_or_scattered(T_ * d_ * w_ * heads, c_) * (6 * layers() + 2 * repeated());
      return;
    }
    const double pair = 2 * T_ * kv * d_;
    all[{"cp", Collective::Send}] =
        m_ * (c_ - 1) * pair * (layers() * (2 * w_ + W_) + repeated() * w_);
  }
  void add_pipeline(Sent& all) const {
    const double rows = layout_.sequence_parallel ? T_ / t_ : T_;
    const double activations = static_cast<double>(ranges_.size()) - has_head();
    const double gradients = static_cast<double>(ranges_.size()) - embeds();
    all[{"pp", Collective::Send}] = m_ * rows * h_ * w_ * (activations + gradients);
  }

  // Bytes of this stage's gradients that all tp ranks hold and all-reduce.
  double tp_copies() const {
    const FamilyTraits traits = traits_of(model_.family);
    const bool layer_norm = traits.norm == NormKind::Layer, sp = layout_.sequence_parallel;
    const double norm = layer_norm ? 2 * h_ : h_;
    double elements = traits.qk_norm ? layers() * 2 * d_ : 0;
    if (sp) elements += layers() * (2 * norm + (layer_norm ? 2 * h_ : 0));  // GPT-2's, BLOOM's bias
    if (sp && embeds() && traits.embedding_norm) elements += 2 * h_;
    if (sp && embeds() && traits.positions == PositionKind::Learned)
      elements += static_cast<double>(model_.max_positions) * h_;
    if (sp && has_head()) elements += norm;
    return elements * W_;
  }
  void add_copies(Sent& all) const {
    if (t_ > 1) all[{"tp", Collective::AllReduce}] += all_reduced(tp_copies(), t_);
    const double kv = static_cast<double>(model_.kv_heads), copies = t_ / kv;
    if (copies > 1) {  // each rank has one key-value head
      const double bias = traits_of(model_.family).qkv_bias ? 1 : 0;
      all[{"kv", Collective::AllReduce}] =
          all_reduced(layers() * 2 * (h_ + bias) * d_ * W_, copies);
    }
    const double vocabulary =
        static_cast<double>((model_.vocab_size + layout_.tp - 1) / layout_.tp);
    if (model_.tied && layout_.pp > 1 && (embeds() || has_head()))
      all[{"tied", Collective::AllReduce}] = all_reduced(vocabulary * h_ * W_, 2);
  }

  void add_data(Sent& all) const {
    const int n = layout_.shard(), r = layout_.replicas();
    const std::vector<double> buckets = padded(set_, n);
    const double psi = sum(buckets, 0, buckets.size());
    const double gradient = training_.reduce_in_bf16 ? 2 : W_;
    const double scatters = layout_.zero >= 2 && !halved() ? m_ : 1;
    all[{"shard", Collective::ReduceScatter}] = gathered_or_scattered(scatters * psi * gradient, n);
    all[{"shard", Collective::AllGather}] =
        gathered_or_scattered((layout_.zero == 3 ? gathers(buckets) : psi) * w_, n);
    // The sum over all owners.
    all[{"replica", Collective::AllReduce}] =
        all_reduced(static_cast<double>(set_.buffer_elements()) * gradient, r);
  }
  // Elements that ZeRO 3 gathers. On several stages, embedding, head and tied table each have their
  // own slot and are gathered once; two layers can be in memory at a time.
  double gathers(const std::vector<double>& buckets) const {
    if (layout_.pp == 1) return gathered(buckets, model_, m_);
    std::vector<double> blocks;
    double elements = 0;
    for (std::size_t i = 0; i < buckets.size(); ++i)
      if (set_.buckets()[i].role == Bucket::Role::Block)
        blocks.push_back(buckets[i]);
      else
        elements += buckets[i];
    std::array<int, 2> slots = {-1, -1};
    const auto use = [&](int block) {
      if (std::exchange(slots[static_cast<std::size_t>(block % 2)], block) == block) return;
      elements += blocks[static_cast<std::size_t>(block)];
    };
    const PipelineSchedule schedule = make_pipeline_schedule({.kind = layout_.schedule,
                                                              .stages = layout_.pp,
                                                              .micro_batches = static_cast<int>(m_),
                                                              .chunks = layout_.chunks});
    for (const Action& action : schedule.ranks[static_cast<std::size_t>(coordinates_.pp)]) {
      if (!is_compute(action.kind)) continue;
      int first = 0;
      for (int chunk = 0; chunk < action.chunk; ++chunk) first += blocks_of(chunk);
      const int last = first + blocks_of(action.chunk);
      const bool reads =
          action.kind != ActionKind::BackwardWeight || training_.recompute != Recompute::None;
      if (!reads) continue;
      for (int i = 0; i < last - first; ++i)
        use(action.kind == ActionKind::Forward ? first + i : last - 1 - i);
    }
    return elements;
  }
  int blocks_of(int chunk) const {
    const StageLayers& range = ranges_[static_cast<std::size_t>(chunk)];
    return range.last_layer - range.first_layer;
  }

  const RankLayout& layout_;
  const Training& training_;
  const ModelConfig& model_;
  std::vector<StageLayers> ranges_;
  ParameterSet set_;
  Coordinates coordinates_;
  double t_ = layout_.tp, c_ = layout_.cp;
  double m_ = static_cast<double>(training_.sequences / layout_.dp / training_.micro);
  double T_ = static_cast<double>(training_.micro * training_.length / layout_.cp);
  double h_ = static_cast<double>(model_.hidden_size), d_ = static_cast<double>(model_.head_dim);
  double w_ = static_cast<double>(size_of(training_.precision));
  double W_ = static_cast<double>(size_of(accumulator_of(training_.precision)));
};

}  // namespace kintsugi
