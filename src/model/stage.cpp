#include "model/stage.h"

#include <algorithm>

namespace kintsugi {

Stage::Stage(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
             const StageOptions& options)
    : backend_(&backend), config_(config), options_(options) {
  const DType dtype = store.dtype();
  const std::int64_t tokens = options.sequences * options.length;
  tables_ = allocate_position_tables(arena, config, dtype,
                                     std::max(options.max_positions, options.length));
  embedding_.emplace(backend, arena, store, config, tokens);

  const BlockStash shared = allocate_shared_stash(arena, config, dtype, options.sequences,
                                                  options.length, options.recompute);
  for (int layer = 0; layer < config.layers; ++layer) {
    blocks_.emplace_back(backend, store, config, layer, tables_);
    if (options.training || layer == 0)
      stashes_.push_back(allocate_stash(arena, config, dtype, options.sequences, options.length,
                                        options.recompute, shared));
  }
  workspace_ = allocate_workspace(arena, config, dtype, tokens, options.training);
  output_ = arena.allocate(Region::Activations, "last block's output", dtype,
                           {tokens, config.hidden_size});
  if (options.training)
    gradient_ = arena.allocate(Region::Workspace, "gradient of the residual stream", dtype,
                               {tokens, config.hidden_size});
  losses_ = arena.allocate(Region::Activations, "losses", accumulator_of(dtype), {tokens});
  const std::int64_t chunk =
      options.classifier_chunk > 0
          ? options.classifier_chunk
          : Head::default_chunk(backend.classifier_elements(), config.vocab_size, tokens);
  head_.emplace(backend, arena, store, config, tokens, chunk, options.training);
}

void Stage::prepare() { fill_position_tables(*backend_, tables_, config_); }

BlockStash Stage::stash(std::size_t layer, const MicroBatch& batch) const {
  return resize_stash(stashes_[options_.training ? layer : 0], config_, batch.sequences,
                      batch.length);
}

Tensor Stage::forward_blocks(const MicroBatch& batch, std::vector<KvCache>* caches) {
  const BlockWorkspace workspace = resize_workspace(workspace_, batch.tokens());
  const Tensor output = output_.rows(0, batch.tokens());
  embedding_->forward(stash(0, batch).input, batch);
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const BlockStash current = stash(layer, batch);
    const bool last = layer + 1 == blocks_.size();
    // A block writes straight into the next one's input. With one stash for all, that is its own
    // input, which it has finished reading by then.
    blocks_[layer].forward(last ? output : stash(layer + 1, batch).input, current, workspace, batch,
                           caches == nullptr ? nullptr : &(*caches)[layer]);
  }
  return output;
}

void Stage::forward_backward(const MicroBatch& batch, double gradient_scale, Tensor loss_sum) {
  const Tensor gradient = gradient_.rows(0, batch.tokens()),
               losses = losses_.rows(0, batch.tokens());
  head_->forward(losses, gradient, forward_blocks(batch, nullptr), batch, gradient_scale);
  backend_->sum(loss_sum, losses);
  const BlockWorkspace workspace = resize_workspace(workspace_, batch.tokens());
  for (std::size_t layer = blocks_.size(); layer-- > 0;)
    blocks_[layer].backward(gradient, stash(layer, batch), workspace, batch, options_.recompute);
  embedding_->backward(gradient, batch);
}

void Stage::evaluate(const MicroBatch& batch, Tensor loss_sum) {
  const Tensor losses = losses_.rows(0, batch.tokens());
  head_->forward(losses, {}, forward_blocks(batch, nullptr), batch, 0.0);
  backend_->sum(loss_sum, losses);
}

Tensor Stage::next_logits(const MicroBatch& batch, std::vector<KvCache>& caches) {
  return head_->logits(forward_blocks(batch, &caches).rows(batch.tokens() - 1, 1));
}

Tensor Stage::all_logits(const MicroBatch& batch) {
  return head_->logits(forward_blocks(batch, nullptr));
}

}  // namespace kintsugi
