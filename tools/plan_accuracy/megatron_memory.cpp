#include "plan_accuracy/megatron_memory.h"

#include <algorithm>

namespace kintsugi {
namespace {

using Kind = MegatronRun::Kind;

struct Parameters {
  double dense = 0, experts = 0;
};

double attention_parameters(const BlockShape& b, const MegatronRun& r) {
  const double matrices = b.hidden * (b.qkv + b.query) / r.tp;
  const double norm = 2 * b.hidden, biases = r.biased ? b.qkv / r.tp + b.hidden : 0;
  return matrices + norm + biases;
}

double feed_forward_parameters(const BlockShape& b, const MegatronRun& r) {
  const double in = b.gated ? 2 : 1;
  const double biases = r.biased ? in * b.ffn / r.tp + b.hidden : 0;
  return (in + 1) * b.hidden * b.ffn / r.tp + 2 * b.hidden + biases;
}

Parameters parameters_of(const MegatronRun& r) {
  const BlockShape& b = r.block;
  const double table = r.vocabulary * b.hidden / r.tp;
  Parameters p;
  p.dense = 2 * b.hidden + table;  // final norm, head
  const double matrices = b.gated ? 3 : 2;
  if (r.experts.count > 0) {
    const MegatronExperts& e = r.experts;
    const double router = e.count * b.hidden;
    const double shared = matrices * b.hidden * e.shared / r.tp;
    p.dense += r.layers * (attention_parameters(b, r) + 2 * b.hidden + router + shared);
    p.experts = r.layers * e.count / e.ep * matrices * b.hidden * e.ffn / e.etp;
  } else {
    p.dense += r.layers * (attention_parameters(b, r) + feed_forward_parameters(b, r));
  }
  if (r.kind == Kind::EncoderDecoder)  // cross-attention, and the encoder
    p.dense += r.layers * attention_parameters(b, r) + 2 * b.hidden +
               r.encoder_layers * (attention_parameters(b, r) + feed_forward_parameters(b, r));
  if (r.kind == Kind::EncoderDecoder) p.dense += r.vocabulary / r.tp;  // T5's head has a bias
  if (r.pp == 1) p.dense += r.positions * b.hidden + (r.tied ? 0 : table);
  return p;
}

// Activation bytes of one token in one MoE layer, without attention. Assumes balanced routing.
double expert_bytes(const MegatronRun& r, double rows) {
  const BlockShape& b = r.block;
  const MegatronExperts& e = r.experts;
  // Tokens routed to a rank's experts per token of its tensor group.
  const double routed = e.top * (r.sequence_parallel ? static_cast<double>(e.etp) / r.tp : 1.0);
  // Input, output of the first matmul, activation, and activation times router weight.
  const double per_token = 2 * b.hidden + (b.gated ? 8 : 6) * e.ffn / e.etp;
  double bytes = (4 + (r.dropout ? 1 : 0)) * b.hidden / rows + routed * per_token;
  bytes += 12 * e.count / rows;  // the router's logits, probabilities and map
  if (e.shared > 0) bytes += (b.gated ? 6 : 4) * e.shared / r.tp + 2 * b.hidden;
  return bytes;
}

BlockOptions block_options(const MegatronRun& r, double rows, double keys) {
  BlockOptions options{.tp = static_cast<double>(r.tp), .rows = rows, .length = keys};
  options.dropout = r.dropout;
  options.fused_attention = r.attention != MegatronRun::Attention::Unfused;
  // Megatron's dimensions are (token, sequence, …); with one sequence the order does not matter.
  options.copies_output = r.attention == MegatronRun::Attention::Flash && r.micro > 1;
  return options;
}

// Activation bytes of one micro-batch in encoder and decoder.
double encoder_decoder_bytes(const MegatronRun& r, double rows) {
  const BlockShape& b = r.block;
  const double decoded = r.micro * r.length / r.cp, encoded = r.micro * r.encoder_length / r.cp;
  const BlockOptions to_encoder = block_options(r, rows, r.encoder_length);
  BlockShape cross = b;  // queries of the decoder's tokens, keys and values of the encoder's
  cross.qkv = b.query;
  const double keys = 2 * (b.qkv - b.query) / r.tp;
  return r.encoder_layers * encoded * block_bytes(b, to_encoder) +
         r.layers * (decoded * (block_bytes(b, block_options(r, rows, r.length)) +
                                attention_bytes(cross, to_encoder)) +
                     encoded * keys);
}

}  // namespace

MegatronMemory megatron_memory(const MegatronRun& r) {
  const BlockShape& b = r.block;
  const double rows = r.sequence_parallel ? r.tp : 1;
  const double tokens = r.micro * r.length / r.cp;
  const Parameters p = parameters_of(r);
  const double whole = r.weight_bytes + r.gradient_bytes;
  MegatronMemory m;
  const auto states = [&](double parameters, double shards) {
    return parameters * (whole / (r.shards_all ? shards : 1) + r.optimizer_bytes / shards);
  };
  m.states = states(p.dense, r.shards) + states(p.experts, r.expert_shards);
  m.libraries = r.library_bytes;

  const BlockOptions options = block_options(r, rows, r.length);
  const double layer = r.experts.count > 0 ? attention_bytes(b, options) + expert_bytes(r, rows)
                                           : block_bytes(b, options);
  const double kept = r.recompute_all ? 2 * b.hidden / rows : layer;
  const double flight = chunks_in_flight({r.pp, r.pp - 1, r.chunks, r.micro_batches}) / r.chunks;
  m.activations = flight * r.layers * tokens * kept;
  if (r.kind == Kind::EncoderDecoder) m.activations = encoder_decoder_bytes(r, rows);
  // Logits, and an fp32 copy that becomes the gradient in place. The fused loss saves time, not
  // memory: when compiled, it writes logits minus maximum to another tensor.
  const double logits = tokens * r.vocabulary / r.tp * (r.fused_loss ? 10 : 6);
  m.loss = std::max(logits, r.recompute_all ? tokens * layer : 0);

  const double first = r.micro * r.encoder_length / r.cp + tokens;
  m.ends = first * 4 * b.hidden / rows;  // final norm: input and output
  if (r.pp == 1 && r.dropout) m.ends += first * b.hidden / rows;
  if (r.mask) m.ends += r.micro * r.length * r.length / r.cp;
  // Messages: received, sent and being received.
  if (r.pp > 1) m.ends += 3 * tokens * 2 * b.hidden / rows;
  // Deferred weight gradients keep the gradients of the logits and the inputs of the head.
  m.ends += std::min(r.deferred, r.micro_batches) * tokens * 2 * (r.vocabulary / r.tp + b.hidden);
  // The weights of two layers and the head are gathered at a time.
  if (r.shards_all) {
    const double table = r.vocabulary * b.hidden / r.tp;
    m.ends += r.weight_bytes * (2 * (p.dense - table + p.experts) / r.layers + table);
  }
  // Megatron's own attention keeps a buffer for the scores of one layer.
  const double longest = std::max(r.length, r.encoder_length);
  if (!r.transformer_engine) m.ends += 2 * r.micro * longest / r.cp * b.heads * longest / r.tp;
  return m;
}

}  // namespace kintsugi
