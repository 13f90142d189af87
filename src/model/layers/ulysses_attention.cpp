#include "model/layers/ulysses_attention.h"

#include <algorithm>

namespace kintsugi {
namespace {

// (tokens, heads, dim), whose heads are adjacent or not, as (ranks, tokens, …): the heads of each
// rank.
Tensor split_heads(const Tensor& x, std::int64_t heads_each) {
  const std::int64_t dim = x.extent(2);
  if (x.stride(1) == dim) return x.join_last().split_last(heads_each * dim).transpose(0, 1);
  return x.transpose(0, 1).split_first(heads_each).transpose(1, 2);
}

}  // namespace

UlyssesAttention::UlyssesAttention(Backend& backend, Arena& arena, Communicator& group,
                                   const ContextAttentionSizes& sizes, DType dtype, bool training,
                                   Tensor alibi_slopes)
    : backend_(&backend), group_(&group), sizes_(sizes), training_(training) {
  const std::int64_t ranks = group.size();
  KINTSUGI_CHECK(ranks > 1 && sizes.heads % ranks == 0 && sizes.heads % sizes.kv_heads == 0 &&
                     (sizes.kv_heads % ranks == 0 || ranks % sizes.kv_heads == 0),
                 "{} heads over {} on {} ranks", sizes.heads, sizes.kv_heads, ranks);
  const std::int64_t heads = sizes.heads / ranks,
                     kv_heads = std::max<std::int64_t>(1, sizes.kv_heads / ranks);
  if (alibi_slopes) slopes_ = alibi_slopes.rows(group.rank() * heads, heads);
  parts_ = {{{.heads = heads, .dim = sizes.head_dim},
             {.heads = kv_heads, .dim = sizes.head_dim},
             {.heads = kv_heads, .dim = sizes.value_dim},
             {.heads = heads, .dim = sizes.value_dim},
             {.heads = training ? heads : 0, .dim = sizes.value_dim}}};
  std::int64_t elements = 0;
  for (Part& part : parts_) {
    part.first = elements;
    elements += sizes.sequences * all_tokens() * part.heads * part.dim;
  }
  for (Tensor* const buffer : {&outgoing_, &incoming_})
    *buffer = arena.allocate(Region::Communication, "heads of all tokens", dtype, {elements});
}

Tensor UlyssesAttention::by_rank(const Tensor& buffer, Name name, std::int64_t sequences) const {
  const Part& part = parts_[name];
  const Shape shape{group_->size(), sequences * sizes_.length, part.heads * part.dim};
  return buffer.rows(part.first, shape.elements()).view(shape);
}

Tensor UlyssesAttention::by_sequence(const Tensor& buffer, Name name,
                                     std::int64_t sequences) const {
  return by_rank(buffer, name, sequences)
      .view({sequences, all_tokens(), parts_[name].heads, parts_[name].dim});
}

Tensor UlyssesAttention::whole_by_rank(const Tensor& buffer, Name name,
                                       std::int64_t sequences) const {
  return by_rank(buffer, name, sequences)
      .view({sequences, group_->size(), sizes_.length, parts_[name].heads * parts_[name].dim})
      .transpose(0, 1);
}

Communicator::Work UlyssesAttention::start_to_heads(Name name, const Tensor& x) const {
  const Part& part = parts_[name];
  const std::int64_t sequences = x.extent(0), copies = group_->size() * part.heads / x.extent(2);
  const Tensor to = by_rank(outgoing_, name, sequences), from = x.flatten_first();
  if (copies > 1) {  // one head for each rank
    backend_->copy(to.split_first(copies), from.transpose(0, 1).repeat(1, copies));
  } else {
    const Tensor heads = split_heads(from, part.heads);
    backend_->copy(heads.rank() == 4 ? to.split_last(part.dim) : to, heads);
  }
  return group_->all_to_all(by_rank(incoming_, name, sequences), to);
}

Tensor UlyssesAttention::finish_to_heads(Name name, Communicator::Work work,
                                         std::int64_t sequences) const {
  group_->wait(work);
  if (sequences == 1) return by_sequence(incoming_, name, sequences);
  backend_->copy(
      whole_by_rank(outgoing_, name, sequences),
      by_rank(incoming_, name, sequences)
          .view({group_->size(), sequences, sizes_.length, parts_[name].heads * parts_[name].dim}));
  return by_sequence(outgoing_, name, sequences);
}

Communicator::Work UlyssesAttention::start_to_tokens(Name name, std::int64_t sequences) const {
  const Tensor to = by_rank(outgoing_, name, sequences);
  if (sequences > 1)
    backend_->copy(
        to.view({group_->size(), sequences, sizes_.length, parts_[name].heads * parts_[name].dim}),
        whole_by_rank(incoming_, name, sequences));
  return group_->all_to_all(by_rank(incoming_, name, sequences), to);
}

void UlyssesAttention::finish_to_tokens(const Tensor& x, Name name, Communicator::Work work) const {
  group_->wait(work);
  const Part& part = parts_[name];
  const std::int64_t kv_heads = x.extent(2), copies = group_->size() * part.heads / kv_heads;
  const Tensor to = x.flatten_first(), from = by_rank(incoming_, name, x.extent(0));
  if (copies > 1) {
    const Tensor of_heads = from.split_first(copies);  // (kv_heads, copies, tokens, dim)
    for (std::int64_t head = 0; head < kv_heads; ++head)
      backend_->sum_heads(to.select(1, head), of_heads.select(0, head).transpose(0, 1));
  } else {
    const Tensor heads = split_heads(to, part.heads);
    backend_->copy(heads, heads.rank() == 4 ? from.split_last(part.dim) : from);
  }
}

void UlyssesAttention::check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                             const Tensor& lse) const {
  const std::int64_t sequences = q.extent(0), length = sizes_.length;
  KINTSUGI_CHECK(sequences <= sizes_.sequences && q.dtype() == outgoing_.dtype() &&
                     q.shape() == (Shape{sequences, length, sizes_.heads, sizes_.head_dim}) &&
                     k.shape() == (Shape{sequences, length, sizes_.kv_heads, sizes_.head_dim}) &&
                     v.shape() == (Shape{sequences, length, sizes_.kv_heads, sizes_.value_dim}) &&
                     out.shape() == (Shape{sequences, length, sizes_.heads, sizes_.value_dim}) &&
                     lse.shape() == (Shape{sequences, sizes_.heads, length}),
                 "attention of queries {} over keys {} and values {}, results {}, log-sum-exp {}",
                 to_string(q.shape()), to_string(k.shape()), to_string(v.shape()),
                 to_string(out.shape()), to_string(lse.shape()));
}

AttentionOptions UlyssesAttention::options(double scale, const Tensor& document_start,
                                           std::int64_t window) const {
  return {
      .scale = scale, .alibi_slopes = slopes_, .document_start = document_start, .window = window};
}

Tensor UlyssesAttention::lse_of_heads(const Tensor& lse) const {
  return lse.view({lse.extent(0), parts_[kQ].heads, all_tokens()});
}

void UlyssesAttention::forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, double scale,
                               Tensor document_start, std::int64_t window) const {
  check(q, k, v, out, lse);
  const std::int64_t sequences = q.extent(0);
  const Communicator::Work sent_q = start_to_heads(kQ, q), sent_k = start_to_heads(kK, k),
                           sent_v = start_to_heads(kV, v);
  const Tensor all_q = finish_to_heads(kQ, sent_q, sequences),
               all_k = finish_to_heads(kK, sent_k, sequences),
               all_v = finish_to_heads(kV, sent_v, sequences);
  backend_->attention_forward(by_sequence(results_buffer(sequences), kOut, sequences),
                              lse_of_heads(lse), all_q, all_k, all_v,
                              options(scale, document_start, window));
  finish_to_tokens(out, kOut, start_to_tokens(kOut, sequences));
}

void UlyssesAttention::backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out,
                                Tensor lse, Tensor q, Tensor k, Tensor v, double scale,
                                Tensor document_start, std::int64_t window) const {
  check(q, k, v, out, lse);
  KINTSUGI_CHECK(training_, "this attention was not built for training");
  const std::int64_t sequences = q.extent(0);
  const std::array<Tensor, kParts> inputs = {q, k, v, out, dout};
  std::array<Communicator::Work, kParts> sent;
  std::array<Tensor, kParts> all;
  for (const Name name : {kQ, kK, kV, kOut, kDout}) sent[name] = start_to_heads(name, inputs[name]);
  for (const Name name : {kQ, kK, kV, kOut, kDout})
    all[name] = finish_to_heads(name, sent[name], sequences);
  const Tensor& results = results_buffer(sequences);
  backend_->attention_backward(
      by_sequence(results, kQ, sequences), by_sequence(results, kK, sequences),
      by_sequence(results, kV, sequences), all[kDout], all[kOut], lse_of_heads(lse), all[kQ],
      all[kK], all[kV], options(scale, document_start, window));
  const std::array<Tensor, 3> gradients = {dq, dk, dv};
  for (const Name name : {kQ, kK, kV}) sent[name] = start_to_tokens(name, sequences);
  for (const Name name : {kQ, kK, kV}) finish_to_tokens(gradients[name], name, sent[name]);
}

}  // namespace kintsugi
