#pragma once

#include <string>

#include "plan/search/csv.h"
#include "plan_accuracy/block_bytes.h"

namespace kintsugi {

// The arguments of a Megatron-LM run, from columns with Megatron's names (memory.csv), as far as
// they determine the memory of the last rank, which writes the log.
struct MegatronExperts {
  double count = 0, top = 1, ffn = 0, shared = 0;
  int ep = 1, etp = 1;
  bool grouped = false;  // grouped GEMM
};

struct MegatronRun {
  enum class Kind { Decoder, EncoderDecoder };
  enum class Attention { Unfused, Fused, Flash };  // Flash needs another dimension order

  Kind kind = Kind::Decoder;
  BlockShape block = {};
  MegatronExperts experts = {};
  double layers = 0;  // of the decoder on the last stage
  double encoder_layers = 0, encoder_length = 0;
  double length = 0, vocabulary = 0;  // padded
  double positions = 0;               // learned positions
  bool biased = true, tied = true, dropout = true;

  int tp = 1, pp = 1, cp = 1, chunks = 1;
  bool sequence_parallel = false;
  double micro = 1, micro_batches = 1;
  double weight_bytes = 2, gradient_bytes = 4, optimizer_bytes = 12;
  double shards = 1, expert_shards = 1;  // ranks that shard the optimizer
  bool shards_all = false;               // also weights and gradients: Megatron FSDP

  bool recompute_all = false;
  bool fused_loss = false;
  double deferred = 0;  // micro-batches with deferred weight gradients of the head
  Attention attention = Attention::Fused;
  bool transformer_engine = true;
  bool mask = true;          // the data loader creates an attention mask
  double library_bytes = 0;  // cuBLAS workspaces of torch and Transformer Engine

  std::string problem = {};  // why there is no prediction
};

MegatronRun read_megatron_run(const CsvTable& table, std::size_t row);

}  // namespace kintsugi
