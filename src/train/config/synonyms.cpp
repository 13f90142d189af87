#include "model/model_fields.h"
#include "train/config/checks.h"

namespace kintsugi {

std::vector<Synonym> run_config_synonyms() {
  std::vector<Synonym> all = {
      {"optimizer.lr", {"learning_rate", "max_lr", "base_lr", "peak_lr"}},
      {"optimizer.min_lr", {"min_learning_rate", "lr_min"}},
      {"optimizer.warmup_steps",
       {"num_warmup_steps", "lr_warmup_steps", "lr_warmup_iters", "warmup_iters"}},
      {"optimizer.schedule", {"lr_scheduler", "lr_scheduler_type", "lr_decay_style"}},
      {"optimizer.decay_steps", {"lr_decay_iters"}},
      {"optimizer.weight_decay", {"wd"}},
      {"optimizer.betas", {"adam_beta1", "adam_beta2", "beta1", "beta2", "adam_betas"}},
      {"optimizer.eps", {"adam_eps", "adam_epsilon", "epsilon"}},
      {"optimizer.clip",
       {"clip_grad", "grad_clip", "grad_clip_norm", "gradient_clipping", "gradient_clip_val",
        "max_grad_norm", "max_norm"}},
      {"train.steps",
       {"max_steps", "total_steps", "num_steps", "train_steps", "train_iters", "max_iters",
        "training_steps"}},
      {"train.tokens", {"max_tokens", "train_tokens"}},
      {"train.eval_every", {"eval_steps", "eval_interval"}},
      {"train.eval_batches", {"eval_iters"}},
      {"train.checkpoint_every",
       {"save_steps", "save_interval", "save_every", "checkpoint_interval"}},
      {"train.keep_checkpoints", {"save_total_limit"}},
      {"train.log_every", {"logging_steps", "log_interval"}},
      {"train.precision", {"bf16", "fp16", "fp32", "dtype", "torch_dtype", "mixed_precision"}},
      {"train.dropout", {"hidden_dropout"}},
      {"data.sequence_length",
       {"seq_length", "seq_len", "max_seq_len", "max_seq_length", "max_length", "block_size",
        "context_length", "context_size"}},
      {"data.train", {"data_path", "dataset", "train_data"}},
      {"data.tokenizer", {"tokenizer_path", "tokenizer_name", "tokenizer_model"}},
      {"batch.micro",
       {"per_device_train_batch_size", "train_micro_batch_size_per_gpu", "micro_batch_size",
        "local_batch_size", "mbs"}},
      {"batch.global",
       {"batch_size", "global_batch_size", "train_batch_size", "gbs",
        "gradient_accumulation_steps"}},
      {"batch.ramp.start", {"rampup_batch_size"}},
      {"layout.tp",
       {"tensor_parallel", "tensor_parallel_size", "tensor_parallel_degree",
        "tensor_model_parallel_size", "tp_size"}},
      {"layout.pp",
       {"pipeline_parallel", "pipeline_parallel_size", "pipeline_parallel_degree",
        "pipeline_model_parallel_size", "pp_size"}},
      {"layout.cp",
       {"context_parallel", "context_parallel_size", "context_parallel_degree", "cp_size"}},
      {"layout.dp", {"data_parallel", "data_parallel_size", "dp_size"}},
      {"layout.zero", {"zero_stage", "zero_optimization", "fsdp"}},
      {"layout.recompute",
       {"gradient_checkpointing", "activation_checkpointing", "recompute_granularity"}},
      {"layout.chunks", {"virtual_pipeline_model_parallel_size"}},
      {"layout.schedule", {"pipeline_schedule"}},
      {"run.dir", {"output_dir", "save_dir"}},
      {"run.seed", {"random_seed"}},
      {"threads", {"num_threads"}},
  };
  for (const Synonym& one : model_synonyms()) all.push_back({"model." + one.ours, one.theirs});
  return all;
}

}  // namespace kintsugi
