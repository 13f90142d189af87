#include "model/whole_model.h"

namespace kintsugi {
namespace {

StageLayers all_layers(const ModelConfig& config) {
  return {.last_layer = static_cast<int>(config.layers)};
}

}  // namespace

WholeModel::WholeModel(Backend& backend, Arena& arena, const ParameterStore& store,
                       const ModelConfig& config, const StageOptions& options)
    : single_rank_("alone", &backend),
      scratch_(backend, arena, store, config, {&single_rank_, &single_rank_}, options),
      stage_(scratch_, arena, all_layers(config),
             allocate_stage_memory(scratch_, arena, 1, {all_layers(config)}), {}, nullptr) {
  const Shape size{scratch_.size().tokens(), config.hidden_size};
  output_ = arena.allocate(Region::Activations, "last block's output", store.dtype(), size);
  if (options.training)
    gradient_ =
        arena.allocate(Region::Workspace, "gradient of the residual stream", store.dtype(), size);
}

Tensor WholeModel::forward(const MicroBatch& batch) {
  const Tensor output = output_.rows(0, batch.tokens());
  stage_.forward(batch, 0, output);
  return output;
}

void WholeModel::forward_backward(const MicroBatch& batch, double gradient_scale, Tensor loss_sum) {
  const Tensor gradient = gradient_.rows(0, batch.tokens());
  MicroBatch scaled = batch;
  scaled.gradient_scale = gradient_scale;
  stage_.loss(scaled, forward(scaled), gradient, loss_sum);
  stage_.backward(scaled, 0, gradient);
}

void WholeModel::evaluate(const MicroBatch& batch, Tensor loss_sum) {
  stage_.loss(batch, forward(batch), {}, loss_sum);
}

Tensor WholeModel::all_logits(const MicroBatch& batch) {
  return stage_.head().logits(scratch_.run(batch), forward(batch));
}

Tensor WholeModel::hidden_states(const MicroBatch& batch) {
  return stage_.head().hidden_states(scratch_.run(batch), forward(batch));
}

}  // namespace kintsugi
