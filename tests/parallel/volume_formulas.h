#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/collective.h"
#include "comm/grid.h"
#include "parallel/layer_split.h"
#include "support/family_traits.h"
#include "support/parallel_run.h"

namespace kintsugi {

inline double all_reduced(double bytes, double ranks) { return 2 * bytes * (ranks - 1) / ranks; }
inline double gathered_or_scattered(double bytes, double ranks) {
  return bytes * (ranks - 1) / ranks;
}

// Bytes by group and kind of call; what is missing is nothing.
using Sent = std::map<std::pair<std::string, Collective>, double>;

// Elements of each bucket, filled up to equal parts of whole lines of 16 among `shard` ranks.
inline std::vector<double> padded(const ParameterSet& set, int shard) {
  std::vector<double> buckets;
  for (const Bucket& bucket : set.buckets()) {
    std::int64_t part = bucket.end - bucket.begin;
    if (shard > 1) part = ((part + shard - 1) / shard + 15) / 16 * 16;
    buckets.push_back(static_cast<double>(part * shard));
  }
  return buckets;
}

inline double sum(const std::vector<double>& values, std::size_t from, std::size_t to) {
  double total = 0;
  for (std::size_t i = from; i < to; ++i) total += values[i];
  return total;
}

// Elements that ZeRO-3 gathers in a step of `passes` on one stage. Layers alternate between two
// slots, so that the last two are still there when the way back begins, and the first two when the
// next pass does; those between are gathered on both ways. Embedding and head, if tied, have slots
// of their own and come once. If not, they take turns in one: the head comes in every pass; the
// embedding too, unless the way back needed it again, for its norm, and left it there.
inline double gathered(const std::vector<double>& b, const ModelConfig& model, double passes) {
  const std::size_t layers = b.size() - 2;
  const double embedding = b.front(), head = b.back();
  const double middle_back = layers > 2 ? sum(b, 1, layers - 1) : 0,
               middle_forth = layers > 2 ? sum(b, 3, layers + 1) : 0;
  double elements = sum(b, 1, layers + 1) + passes * middle_back + (passes - 1) * middle_forth;
  if (model.tied)
    elements += embedding + head;
  else if (traits_of(model.family).embedding_norm)
    elements += embedding + passes * (head + embedding);
  else
    elements += passes * (head + embedding);
  return elements;
}

// Per rank and step, in Megatron's terms: t, c, p ranks share matrices, sequences and layers, N
// data ranks (n of them one sharded copy, in r copies); a micro-batch has T = b·s / c tokens on a
// rank, of which R = T / t are its own between matrices with sequence parallelism (sp), else R = T;
// h is the hidden size, w and W the bytes of an activation and of a sum, Ψ the elements of a rank's
// part of the model. What a rank sends for x bytes in a group of g, on a ring:
//   AR(x) = 2 x (g - 1) / g     AG(x) = RS(x) = x (g - 1) / g     a message: x
//
//   each micro-batch           tp                              tp with sp
//     layer, forward           2 AR(Thw)                       2 AG(Thw) + 2 RS(Thw)
//     layer, backward          2 AR(Thw)                       4 AG(Thw) + 2 RS(Thw)
//     layer, halved backward   2 AR(Thw)                       6 AG(Thw) + 2 RS(Thw)
//     layer, full recompute    AR(Thw)                         2 AG(Thw) + RS(Thw)
//                              (in each half, if it is halved; none if it is selective)
//     embedding                AR(Thw)                         RS(Thw) + AG(Thw)
//     head                     AR(Thw) + AG(3TtW)              AG(Thw) + RS(Thw) + AG(3TtW)
//     layer, cp                forward and recomputed forward: c - 1 messages of 2 T kv d w / t
//                              backward: c - 1 of the same and c - 1 of 2 T kv d W / t
//     part of a pipeline, pp   Rhw to the next part, Rhw back to the one before
//   each step
//     tp      AR of W · (gains of q and k; with sp also the other norms, biases of row-parallel
//             matrices, learned positions): what all tp ranks hold, but each saw other rows of
//     kv      AR of W · 2 h d (with biases: 2 (h + 1) d) per layer, among the ranks that hold the
//     same
//             key-value head because there are fewer of those than ranks
//     tied    AR of W · V h / t between the first and the last stage
//     shard   ZeRO 1: RS(ΨW) + AG(Ψw); 2: m RS(ΨW) + AG(Ψw); 3: m RS(ΨW) + AG(gathered w)
//             (halved backwards: RS once)
//     replica AR of W · (the owned part of Ψ)
//     copy    AR(W), the square of the gradient norm over t · p · n ranks
//     world   2 AR(8): tokens that count, and the loss
class StepVolume {
 public:
  StepVolume(const RankLayout& layout, const Training& training, const Place& place)
      : layout_(layout),
        training_(training),
        model_(training.model),
        parts_(stage_parts(checked_split(model_, layout.pp * layout.chunks, layout.split),
                           layout.pp, place.pp)),
        set_(model_, slice_of(parts_, layout.tp, place.tp, layout.sequence_parallel)),
        place_(place) {}

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
  // Of the whole shard group: how it is spread in there depends on where tensors begin.
  Sent summed_over_shard() const {
    Sent sums = sent();
    for (auto& [key, bytes] : sums) bytes *= layout_.shard();
    sums[{"tp", Collective::AllReduce}] -= (layout_.shard() - 1) * all_reduced(tp_copies(), t_);
    sums[{"kv", Collective::AllReduce}] /= layout_.shard();
    sums[{"tied", Collective::AllReduce}] /= layout_.shard();
    sums[{"replica", Collective::AllReduce}] /= layout_.shard();
    return sums;
  }
  // How often ZeRO 3 gathers the model, on average over its elements.
  double gathers_per_element() const {
    const std::vector<double> buckets = padded(set_, layout_.shard());
    return gathers(buckets) / sum(buckets, 0, buckets.size());
  }

 private:
  bool embeds() const { return parts_.front().embedding; }
  bool has_head() const { return parts_.back().head; }
  bool halved() const { return layout_.pp > 1 && layout_.schedule == PipelineKind::ZeroBubbleH1; }
  double layers() const {
    double count = 0;
    for (const StagePart& part : parts_) count += part.last_layer - part.first_layer;
    return count;
  }
  // Forward passes through layers that the backward repeats.
  double repeated() const {
    double count = 0;
    for (const StagePart& part : parts_)
      for (int layer = part.first_layer; layer < part.last_layer; ++layer)
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
    const double pair = 2 * T_ * kv * d_;
    all[{"cp", Collective::Send}] =
        m_ * (c_ - 1) * pair * (layers() * (2 * w_ + W_) + repeated() * w_);
  }
  void add_pipeline(Sent& all) const {
    const double rows = layout_.sequence_parallel ? T_ / t_ : T_;
    const double forth = static_cast<double>(parts_.size()) - has_head();
    const double back = static_cast<double>(parts_.size()) - embeds();
    all[{"pp", Collective::Send}] = m_ * rows * h_ * w_ * (forth + back);
  }

  // Bytes of what all tp ranks hold and sum, of this stage.
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
    if (copies > 1) {  // each rank has one head of keys and of values
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
    // Of all owners together.
    all[{"replica", Collective::AllReduce}] =
        all_reduced(static_cast<double>(set_.buffer_elements()) * gradient, r);
  }
  // ZeRO-3's: on several stages, embedding, head and tied table are each alone in their slot and
  // come once; of the layers, two can be there at a time.
  double gathers(const std::vector<double>& buckets) const {
    if (layout_.pp == 1) return gathered(buckets, model_, m_);
    std::vector<double> blocks;
    double elements = 0;
    for (std::size_t i = 0; i < buckets.size(); ++i)
      if (set_.buckets()[i].role == Bucket::Role::Block)
        blocks.push_back(buckets[i]);
      else
        elements += buckets[i];
    std::array<int, 2> there = {-1, -1};
    const auto use = [&](int block) {
      if (std::exchange(there[static_cast<std::size_t>(block % 2)], block) == block) return;
      elements += blocks[static_cast<std::size_t>(block)];
    };
    const PipelineSchedule schedule = make_pipeline_schedule({.kind = layout_.schedule,
                                                              .stages = layout_.pp,
                                                              .micro_batches = static_cast<int>(m_),
                                                              .chunks = layout_.chunks});
    for (const Action& action : schedule.ranks[static_cast<std::size_t>(place_.pp)]) {
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
    const StagePart& part = parts_[static_cast<std::size_t>(chunk)];
    return part.last_layer - part.first_layer;
  }

  const RankLayout& layout_;
  const Training& training_;
  const ModelConfig& model_;
  std::vector<StagePart> parts_;
  ParameterSet set_;
  Place place_;
  double t_ = layout_.tp, c_ = layout_.cp;
  double m_ = static_cast<double>(training_.sequences / layout_.dp / training_.micro);
  double T_ = static_cast<double>(training_.micro * training_.length / layout_.cp);
  double h_ = static_cast<double>(model_.hidden_size), d_ = static_cast<double>(model_.head_dim);
  double w_ = static_cast<double>(size_of(training_.precision));
  double W_ = static_cast<double>(size_of(accumulator_of(training_.precision)));
};

}  // namespace kintsugi
