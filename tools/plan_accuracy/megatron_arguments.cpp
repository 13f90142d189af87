#include "plan_accuracy/megatron_arguments.h"

#include <cmath>
#include <map>
#include <sstream>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {
namespace {

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// A row's cells, and its other arguments: "name=value name name=value".
class Arguments {
 public:
  Arguments(const CsvTable& table, std::size_t row) : table_(table), row_(row) {
    std::istringstream words(table.at(row, "other_args"));
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      other_[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
    }
  }
  const std::string& cell(const char* column) const { return table_.at(row_, column); }
  bool flag(const char* column) const { return !cell(column).empty(); }
  double number(const char* column, double otherwise) const {
    return table_.quantity(row_, column, otherwise);
  }
  int whole(const char* column, int otherwise) const {
    return static_cast<int>(number(column, otherwise));
  }
  bool other(const char* name) const { return other_.count(name) > 0; }
  std::string text(const char* name) const { return other(name) ? other_.at(name) : ""; }
  double other_number(const char* name, double otherwise) const {
    if (!other(name)) return otherwise;
    double value = 0;
    try {
      value = parse_real(other_.at(name));
    } catch (const UserError&) {
      user_error("{} line {}: {} is '{}', which is not a number", table_.source(),
                 table_.line(row_), name, other_.at(name));
    }
    return table_.checked_quantity(row_, name, value);
  }

 private:
  const CsvTable& table_;
  std::size_t row_;
  std::map<std::string, std::string> other_;
};

// Options that change the memory and are not modelled, from the name of the test or its arguments.
std::string unknown_option(const Arguments& a) {
  const std::pair<const char*, const char*> names[] = {
      {"multimodal", "multimodal"},
      {"mimo", "multimodal"},
      {"bert", "BERT"},
      {"grpo", "reinforcement learning"},
      {"inference", "inference"},
      {"hybrid", "non-transformer layers"},
      {"retro", "retrieval"},
      {"nemotron", "non-transformer layers"},
      {"distill", "distillation"},
      {"cuda_graph", "CUDA graphs"},
      {"cudagraph", "CUDA graphs"},
  };
  for (const auto& [part, reason] : names)
    if (has(a.cell("case"), part)) return reason;
  const std::pair<const char*, const char*> options[] = {
      {"hybrid-layer-pattern", "non-transformer layers"},
      {"moe-layer-freq", "layers of different kinds"},
      {"mtp-num-layers", "layers of different kinds"},
      {"pipeline-model-parallel-layout", "a custom pipeline layout"},
      {"cuda-graph-impl", "CUDA graphs"},
      {"optimizer-cpu-offload", "an optimizer on the host"},
      {"use-torch-fsdp2", "torch FSDP"},
      {"delay-wgrad-compute", "deferred weight gradients"},
  };
  for (const auto& [option, reason] : options)
    if (a.other(option)) return reason;
  if (a.flag("fp8_format")) return "FP8";
  const std::string& sharded = a.cell("data_parallel_sharding_strategy");
  if (!sharded.empty() && sharded != "optim_grads_params") return "sharding strategy " + sharded;
  if (!sharded.empty() && a.flag("num_experts")) return "Megatron FSDP with experts";
  if (a.flag("multi_latent_attention")) return "multi-latent attention";
  if (a.other("optimizer") && a.text("optimizer") != "adam") return "an optimizer other than Adam";
  if (a.flag("recompute_modules")) return "recomputation of single modules";
  return "";
}

double tokens_of(const std::string& tokenizer) {
  const std::map<std::string, double> known = {
      {"gpt2-bpe", 50257}, {"bert-cased", 28996}, {"sentencepiece-256k", 256000}};
  const auto at = known.find(tokenizer);
  return at == known.end() ? 0 : at->second;
}

void read_model(const Arguments& a, MegatronRun& r) {
  BlockShape& b = r.block;
  b.hidden = a.number("hidden_size", 0);
  b.heads = a.number("num_attention_heads", 0);
  b.gated = a.flag("swiglu");
  const double kv = a.number("num_query_groups", b.heads);
  const double width = a.number("kv_channels", b.heads > 0 ? b.hidden / b.heads : 0);
  b.query = b.heads * width;
  b.qkv = (b.heads + 2 * kv) * width;
  // Megatron's default: two thirds of four times the hidden size, in multiples of 64.
  const double usual = b.gated ? std::floor(4 * b.hidden * 2 / 3 / 64) * 64 : 4 * b.hidden;
  b.ffn = a.number("ffn_hidden_size", usual);
  r.layers = a.number("num_layers", a.other_number("decoder-num-layers", 0));
  r.length = a.number("seq_length", a.other_number("decoder-seq-length", 0));
  if (has(a.cell("case"), "t5")) r.kind = MegatronRun::Kind::EncoderDecoder;
  if (r.kind == MegatronRun::Kind::EncoderDecoder) {
    r.encoder_layers = a.other_number("encoder-num-layers", r.layers);
    r.encoder_length = a.other_number("encoder-seq-length", r.length);
  }
  r.biased = !a.other("disable-bias-linear");
  r.tied = !a.flag("untie_embeddings_and_output_weights");
  // Megatron's default has dropout; recipes in the style of Llama and PaLM do not.
  const bool rotary = a.text("position-embedding-type") == "rope";
  const bool modern = b.gated ? a.text("normalization") == "RMSNorm" : rotary && !r.biased;
  r.dropout = !modern;
  const std::string positions = a.text("position-embedding-type");
  if (positions.empty() || positions == "learned_absolute")
    r.positions = a.other_number("max-position-embeddings", r.length);
  r.experts = {.count = a.number("num_experts", 0),
               .top = a.number("moe_router_topk", 2),
               .ffn = a.number("moe_ffn_hidden_size", b.ffn),
               .shared = a.other_number("moe-shared-expert-intermediate-size", 0),
               .ep = a.whole("expert_model_parallel_size", 1),
               .etp = static_cast<int>(a.other_number("expert-tensor-parallel-size", r.tp)),
               .grouped = a.other("moe-grouped-gemm")};
}

// Reads the vocabulary size and pads it so that the tensor ranks can shard it.
void read_vocabulary(const Arguments& a, MegatronRun& r) {
  double tokens = a.number("vocab_size", 0);
  if (tokens == 0) tokens = tokens_of(a.cell("tokenizer"));
  if (tokens == 0) {
    r.problem = "vocabulary not given";
    return;
  }
  // T5 has a hundred sentinel tokens.
  if (r.kind == MegatronRun::Kind::EncoderDecoder) tokens += 100;
  const double step = a.other_number("make-vocab-size-divisible-by", 128) * r.tp;
  if (step >= 1) r.vocabulary = std::ceil(tokens / step) * step;
}

// Reads the layers of the last stage and the number of chunks.
void read_pipeline(const Arguments& a, MegatronRun& r) {
  const double all = r.layers;
  const double first = a.other_number("decoder-first-pipeline-num-layers", 0);
  const double last = a.other_number("decoder-last-pipeline-num-layers", 0);
  // Embedding and loss can count as a layer each.
  const double ends = a.other("account-for-embedding-in-pipeline-split") ? 1 : 0;
  const double loss = a.other("account-for-loss-in-pipeline-split") ? 1 : 0;
  if (last > 0)
    r.layers = last;
  else if (first > 0 && r.pp > 1)
    r.layers = (all - first) / (r.pp - 1);
  else
    r.layers = (all + ends + loss) / r.pp - loss - (r.pp == 1 ? ends : 0);
  const double per_chunk = a.number("num_layers_per_virtual_pipeline_stage", 0);
  r.chunks = a.whole("num_virtual_stages_per_pipeline_rank", 1);
  if (per_chunk > 0 && r.pp > 1) r.chunks = static_cast<int>(r.layers / per_chunk);
  if (r.chunks < 1) r.chunks = 1;
}

void read_ranks(const Arguments& a, MegatronRun& r) {
  r.cp = a.whole("context_parallel_size", 1);
  const double batch = a.number("global_batch_size", 0);
  r.micro = a.number("micro_batch_size", 1);
  const MegatronExperts& e = r.experts;
  const double model = static_cast<double>(r.tp) * r.pp * r.cp;
  const double expert_model = e.count > 0 ? static_cast<double>(e.etp) * e.ep * r.pp : 1;
  double gpus = a.number("gpus_total", 0);
  constexpr double kNode = 8;
  if (gpus == 0 && std::max(model, expert_model) <= kNode) gpus = kNode;  // tests run on one node
  // Without a sharded optimizer the number of GPUs affects only the number of micro-batches.
  if (gpus == 0 && !a.flag("use_distributed_optimizer")) gpus = std::max(model, expert_model);
  if (batch == 0 || gpus < model || gpus < expert_model || r.micro < 1 || model < 1 || e.ep < 1 ||
      e.etp < 1) {
    r.problem = "number of GPUs or sequences not given";
    return;
  }
  const double dp = std::floor(gpus / model);
  r.micro_batches = std::max(1.0, std::floor(batch / (r.micro * dp)));
  r.shards_all = a.flag("data_parallel_sharding_strategy");
  if (!a.flag("use_distributed_optimizer") && !r.shards_all) return;
  const double copies = std::max(1.0, a.other_number("num-distributed-optimizer-instances", 1));
  r.shards = std::max(1.0, dp * r.cp / copies);
  r.expert_shards = std::max(1.0, gpus / expert_model / copies);
}

void read_precision(const Arguments& a, MegatronRun& r) {
  if (a.flag("fp16")) {
    r.gradient_bytes = 2;  // converted to fp32 after the backward
  } else if (!a.flag("bf16")) {
    r.weight_bytes = 4;
    r.optimizer_bytes = 8;
  } else {
    // Megatron's precision-aware optimizer.
    const auto bytes = [&](const char* name, double otherwise) {
      const std::string type = a.text(name);
      return type.empty() ? otherwise : type == "fp32" ? 4.0 : type == "fp8" ? 1.0 : 2.0;
    };
    if (a.other("grad-reduce-in-bf16")) r.gradient_bytes = 2;
    r.gradient_bytes = bytes("main-grads-dtype", r.gradient_bytes);
    r.optimizer_bytes =
        bytes("main-params-dtype", 4) + bytes("exp-avg-dtype", 4) + bytes("exp-avg-sq-dtype", 4);
  }
}

void read_kernels(const Arguments& a, MegatronRun& r) {
  const std::string& platform = a.cell("platform");
  const std::string& backend = a.cell("attention_backend");
  const bool hopper = has(platform, "h100") || has(platform, "h200");
  const bool blackwell = has(platform, "b200") || has(platform, "b300");
  const bool exact = a.flag("deterministic_mode");
  r.transformer_engine = a.cell("transformer_impl") != "local";
  const bool automatic = backend.empty() || backend == "auto";
  // These older tests had no deterministic fused attention.
  const bool old = has(platform, "dracooci") && exact && automatic;
  using Attention = MegatronRun::Attention;
  if (backend == "unfused" || backend == "local" || (automatic && !r.transformer_engine) || old)
    r.attention = Attention::Unfused;
  else if (backend == "flash" || (automatic && !hopper && !(blackwell && !exact)))
    r.attention =
        Attention::Flash;  // cuDNN is preferred on Hopper, and is deterministic only there
  if (a.cell("recompute_granularity") == "selective") r.attention = Attention::Fused;
  r.recompute_all = a.cell("recompute_granularity") == "full";
  r.fused_loss = a.other("cross-entropy-loss-fusion");
  // Megatron's tests defer two.
  if (has(a.cell("case"), "defer_embedding_wgrad") || a.other("defer-embedding-wgrad-compute"))
    r.deferred = a.other_number("wgrad-deferral-limit", 2);
  r.mask = !has(a.cell("case"), "no_create_attention_mask");
  // torch: one workspace for the forward thread and one for the backward thread, 32 MiB on Hopper
  // and in deterministic mode (CUBLAS_WORKSPACE_CONFIG=:4096:8). Transformer Engine: one, and four
  // more for grouped GEMM.
  constexpr double kMiB = 1 << 20;
  const bool large = hopper || blackwell;
  r.library_bytes = 2 * (large || exact ? 32 : 8.125) * kMiB;
  if (r.transformer_engine)
    r.library_bytes += (r.experts.grouped ? 5 : 1) * (large ? 32 : 4) * kMiB;
}

}  // namespace

MegatronRun read_megatron_run(const CsvTable& table, std::size_t row) {
  const Arguments a(table, row);
  MegatronRun r;
  r.problem = unknown_option(a);
  if (!r.problem.empty()) return r;
  r.tp = a.whole("tensor_model_parallel_size", 1);
  r.pp = a.whole("pipeline_model_parallel_size", 1);
  if (r.tp < 1 || r.pp < 1) {
    r.problem = "invalid layout";
    return r;
  }
  read_model(a, r);
  if (r.block.hidden < 1 || r.block.heads < 1 || r.layers < 1 || r.length < 1) {
    r.problem = "model sizes not given";
    return r;
  }
  if (r.kind == MegatronRun::Kind::EncoderDecoder && r.pp > 1) {
    r.problem = "encoder-decoder with a pipeline";
    return r;
  }
  read_vocabulary(a, r);
  if (!r.problem.empty()) return r;
  read_pipeline(a, r);
  read_ranks(a, r);
  r.sequence_parallel = a.flag("sequence_parallel") && r.tp > 1;
  read_precision(a, r);
  read_kernels(a, r);
  return r;
}

}  // namespace kintsugi
