#include "cli/dry_run.h"

#include <fmt/format.h>

#include "cli/plan_output.h"
#include "core/error.h"
#include "core/units.h"
#include "train/trainer.h"

namespace kintsugi {

PlanJob plan_job(const RunConfig& config) {
  return {.model = config.model,
          .length = config.data.sequence_length,
          .batch = config.batch.global,
          .precision = config.train.precision,
          .reduce_in_bf16 = config.comm.reduce == DType::BF16,
          .documents = config.data.document_mask,
          .moments = config.optimizer.moments,
          .classifier_chunk = config.train.classifier_chunk,
          .checkpoint_every = config.train.checkpoint_every,
          .split = config.layout.split_layers()};
}

void dry_run(const RunConfig& config, const DryRunOptions& options) {
  if (options.machine.empty())
    user_error("--dry-run needs --machine: on which? kintsugi plan --machines lists some");
  if (config.layout.automatic)
    user_error("--dry-run needs a layout with numbers: kintsugi plan --model finds one");
  const Machine machine = load_machine(options.machine);
  const LayoutConfig& c = config.layout;
  const std::int64_t model = c.tp * c.cp * c.pp;
  const std::int64_t ranks = options.gpus > 0 ? options.gpus : model * c.dp.value_or(1);
  if (ranks > machine.gpus())
    user_error("{} ranks, but {} has {} GPUs", ranks, machine.name, machine.gpus());
  const Grid grid = fit_layout(layout_request(config), static_cast<int>(ranks));
  const PlanLayout layout{.tp = grid.tp,
                          .cp = grid.cp,
                          .pp = grid.pp,
                          .dp = grid.dp,
                          .chunks = static_cast<int>(c.chunks),
                          .schedule = c.schedule,
                          .micro = config.batch.micro,
                          .zero = static_cast<int>(c.zero),
                          .shard_group = static_cast<int>(c.shard_group),
                          .sequence_parallel = c.sequence_parallel,
                          .recompute = c.recompute,
                          .recompute_every = static_cast<int>(c.recompute_every)};
  Planner planner(plan_job(config), machine);
  const Evaluation e = planner.evaluate(layout);
  const double tokens = static_cast<double>(config.total_steps() * config.tokens_per_step());
  fmt::print(
      "{}\n{}", explained(planner, e, tokens),
      e.fits ? fmt::format("It fits: {} of {} on the fullest rank.\n", format_bytes(e.memory_bytes),
                           format_bytes(machine.gpu.memory_gb * 1e9))
             : "");
  if (!e.fits)
    user_error("it does not fit: stage {} needs {}, a GPU of {} has {}", e.fullest_stage,
               format_bytes(e.memory_bytes), machine.name,
               format_bytes(machine.gpu.memory_gb * 1e9));
}

}  // namespace kintsugi
