#include "model/stage.h"

#include <algorithm>

namespace kintsugi {

Stage::Stage(Backend& backend, Arena& arena, const ParameterStore& store, const ModelConfig& config,
             const StageOptions& options, BucketHooks* hooks)
    : backend_(&backend), hooks_(hooks), config_(config), options_(options) {
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
  told([](BucketHooks& hooks) { hooks.need_weights(0, Pass::Forward); });
  embedding_->forward(stash(0, batch).input, batch);
  if (!config_.tied) told([](BucketHooks& hooks) { hooks.done_with_weights(0); });
  for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
    const BlockStash current = stash(layer, batch);
    const bool last = layer + 1 == blocks_.size();
    const int bucket = static_cast<int>(layer) + 1;
    told([&](BucketHooks& hooks) { hooks.need_weights(bucket, Pass::Forward); });
    // A block writes straight into the next one's input. With one stash for all, that is its own
    // input, which it has finished reading by then.
    blocks_[layer].forward(last ? output : stash(layer + 1, batch).input, current, workspace, batch,
                           caches == nullptr ? nullptr : &(*caches)[layer]);
    told([&](BucketHooks& hooks) { hooks.done_with_weights(bucket); });
  }
  return output;
}

template <class F>
void Stage::with_head(const F& run) {
  told([&](BucketHooks& hooks) { hooks.need_weights(head_bucket(), Pass::Forward); });
  run();
  told([&](BucketHooks& hooks) { hooks.done_with_weights(head_bucket()); });
}

void Stage::forward_backward(const MicroBatch& batch, double gradient_scale, Tensor loss_sum) {
  const Tensor gradient = gradient_.rows(0, batch.tokens()),
               losses = losses_.rows(0, batch.tokens());
  const Tensor output = forward_blocks(batch, nullptr);
  with_head([&] {
    told([&](BucketHooks& hooks) {
      if (config_.tied) hooks.need_gradients(0);
      hooks.need_gradients(head_bucket());
    });
    head_->forward(losses, gradient, output, batch, gradient_scale);
    told([&](BucketHooks& hooks) { hooks.done_with_gradients(head_bucket()); });
  });
  backend_->sum(loss_sum, losses);
  const BlockWorkspace workspace = resize_workspace(workspace_, batch.tokens());
  for (std::size_t layer = blocks_.size(); layer-- > 0;) {
    const int bucket = static_cast<int>(layer) + 1;
    told([&](BucketHooks& hooks) {
      hooks.need_weights(bucket, Pass::Backward);
      hooks.need_gradients(bucket);
    });
    blocks_[layer].backward(gradient, stash(layer, batch), workspace, batch, options_.recompute);
    told([&](BucketHooks& hooks) {
      hooks.done_with_gradients(bucket);
      hooks.done_with_weights(bucket);
    });
  }
  // On the way back an embedding reads no weights but those of its norm.
  const bool gone = !config_.tied, needed = config_.traits().embedding_norm;
  told([&](BucketHooks& hooks) {
    if (gone && needed) hooks.need_weights(0, Pass::Backward);
    if (gone) hooks.need_gradients(0);
  });
  embedding_->backward(gradient, batch);
  told([&](BucketHooks& hooks) {
    hooks.done_with_gradients(0);
    if (!gone || needed) hooks.done_with_weights(0);
  });
}

void Stage::evaluate(const MicroBatch& batch, Tensor loss_sum) {
  const Tensor losses = losses_.rows(0, batch.tokens());
  const Tensor output = forward_blocks(batch, nullptr);
  with_head([&] { head_->forward(losses, {}, output, batch, 0.0); });
  if (config_.tied) told([](BucketHooks& hooks) { hooks.done_with_weights(0); });
  backend_->sum(loss_sum, losses);
}

Tensor Stage::next_logits(const MicroBatch& batch, std::vector<KvCache>& caches) {
  return head_->logits(forward_blocks(batch, &caches).rows(batch.tokens() - 1, 1));
}

Tensor Stage::all_logits(const MicroBatch& batch) {
  return head_->logits(forward_blocks(batch, nullptr));
}

}  // namespace kintsugi
