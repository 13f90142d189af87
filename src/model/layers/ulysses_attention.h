#pragma once

#include <array>
#include <cstdint>

#include "model/layers/context_attention.h"

namespace kintsugi {

// An all-to-all gives every rank the tokens of all ranks for its part of the heads. Attention to
// them is that of one rank alone. Another all-to-all gives the results back to the ranks of the
// tokens. If there are fewer key-value heads than ranks, neighbouring ranks have the same one, and
// its gradients are summed.
class UlyssesAttention final : public ContextAttention {
 public:
  // Allocates all memory. The ranks divide the heads; of ranks and key-value heads, one divides the
  // other. alibi_slopes (heads), fp32; empty: none.
  UlyssesAttention(Backend& backend, Arena& arena, Communicator& group,
                   const ContextAttentionSizes& sizes, DType dtype, bool training,
                   Tensor alibi_slopes = {});

  // document_start (sequences, ranks * length), int32, of the whole sequences. lse has this rank's
  // heads of all tokens.
  void forward(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, double scale,
               Tensor document_start, std::int64_t window) const override;
  void backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor out, Tensor lse, Tensor q,
                Tensor k, Tensor v, double scale, Tensor document_start,
                std::int64_t window) const override;

 private:
  // A tensor that is exchanged, with its memory in both buffers: elements [first, first + …).
  struct Part {
    std::int64_t first = 0;
    std::int64_t heads = 0, dim = 0;  // of each rank
  };
  static constexpr std::size_t kParts = 5;
  enum Name : std::size_t { kQ, kK, kV, kOut, kDout };

  std::int64_t all_tokens() const { return group_->size() * sizes_.length; }
  // (ranks, tokens, heads * dim): what is sent to each rank, or received from it.
  Tensor by_rank(const Tensor& buffer, Name name, std::int64_t sequences) const;
  // (sequences, all tokens, heads, dim)
  Tensor by_sequence(const Tensor& buffer, Name name, std::int64_t sequences) const;
  // The same memory as by_sequence, as (ranks, sequences, length, heads * dim).
  Tensor whole_by_rank(const Tensor& buffer, Name name, std::int64_t sequences) const;

  // From tokens with all heads to heads with all tokens: starts the all-to-all; waits for it and
  // returns (sequences, all tokens, heads, dim).
  Communicator::Work start_to_heads(Name name, const Tensor& x) const;
  Tensor finish_to_heads(Name name, Communicator::Work work, std::int64_t sequences) const;
  // And back. The results are by_sequence() of results_buffer().
  const Tensor& results_buffer(std::int64_t sequences) const {
    return sequences == 1 ? outgoing_ : incoming_;
  }
  Communicator::Work start_to_tokens(Name name, std::int64_t sequences) const;
  void finish_to_tokens(const Tensor& x, Name name, Communicator::Work work) const;

  void check(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
             const Tensor& lse) const;
  AttentionOptions options(double scale, const Tensor& document_start, std::int64_t window) const;
  Tensor lse_of_heads(const Tensor& lse) const;

  Backend* backend_;
  Communicator* group_;
  ContextAttentionSizes sizes_;
  bool training_;
  Tensor slopes_;  // of this rank's heads
  std::array<Part, kParts> parts_;
  // What is sent and received. Of a single sequence, what is received from the ranks is in the
  // order of the tokens, and so are results that will be sent. Several are reordered into the other
  // buffer.
  Tensor outgoing_, incoming_;
};

}  // namespace kintsugi
