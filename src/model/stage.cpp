#include "model/stage.h"

#include <algorithm>

#include "model/context_cut.h"

namespace kintsugi {
namespace {

PassSize largest_pass(const StageOptions& options, const ModelGroups& groups) {
  const ContextCut cut{groups.context->size(), groups.context->rank(), options.length};
  return {options.sequences, cut.local_length(),
          groups.sequence_parallel ? groups.tensor->size() : 1};
}

}  // namespace

// ---- what the stages of a rank share

StageScratch::StageScratch(Backend& backend, Arena& arena, const ParameterStore& store,
                           const ModelConfig& config, const ModelGroups& groups,
                           const StageOptions& options)
    : config_(config),
      options_(options),
      size_(largest_pass(options, groups)),
      context_{.backend = &backend,
               .store = &store,
               .local = local_config(config, groups.tensor->size()),
               .tensor = TensorGroup(*groups.tensor, groups.sequence_parallel),
               .tables = {}} {
  const DType dtype = store.dtype();
  const ModelConfig& local = context_.local;
  context_.tables = allocate_position_tables(arena, local, dtype,
                                             std::max(options.max_positions, options.length));
  if (groups.context->size() > 1) {
    ring_.emplace(backend, arena, *groups.context,
                  RingAttentionSizes{.sequences = size_.sequences,
                                     .length = size_.length,
                                     .heads = local.heads,
                                     .kv_heads = local.kv_heads,
                                     .head_dim = local.head_dim},
                  dtype, options.training, context_.tables.slopes);
    context_.ring = &*ring_;
  }
  shared_ = allocate_shared_stash(arena, local, dtype, size_, options.recompute);
  workspace_ = allocate_workspace(arena, local, dtype, size_, options.training);
  losses_ = arena.allocate(Region::Activations, "losses", accumulator_of(dtype), {size_.tokens()});
}

void StageScratch::prepare() {
  fill_position_tables(*context_.backend, context_.tables, config_,
                       context_.tensor.rank() * context_.local.heads);
  if (ring_) ring_->prepare();
}

// ---- a stage

bool offloads(const StageScratch& scratch, const StagePart& part, int block) {
  const StageOptions& options = scratch.options();
  const int layers = part.last_layer - part.first_layer;
  return options.training && options.offload_inputs && block > 0 && block + 1 < layers &&
         scratch.recompute_of(part.first_layer + block) == Recompute::Full;
}

StageMemory allocate_stage_memory(const StageScratch& scratch, Arena& arena, int inputs,
                                  const std::vector<StagePart>& parts) {
  const ModelConfig& local = scratch.context().local;
  const DType dtype = scratch.context().store->dtype();
  const bool training = scratch.options().training;
  StageMemory memory;
  for (int i = 0; i < inputs; ++i)
    memory.inputs.push_back(arena.allocate(Region::Activations, "block inputs", dtype,
                                           {scratch.size().rows(), local.hidden_size}));
  for (const StagePart& part : parts) {
    // Without a backward one stash does for all blocks.
    const int blocks = training ? part.last_layer - part.first_layer : 1;
    std::vector<BlockStash>& stash = memory.stashes.emplace_back();
    std::vector<Tensor>& away = memory.host_inputs.emplace_back(blocks);
    for (int block = 0; block < blocks; ++block) {
      const bool goes = offloads(scratch, part, block);
      stash.push_back(allocate_stash(
          arena, local, dtype, scratch.size(),
          training ? scratch.recompute_of(part.first_layer + block) : Recompute::None,
          scratch.shared(), block > 0 && !goes));
      if (goes)
        away[static_cast<std::size_t>(block)] =
            arena.allocate(Region::Activations, "block inputs", dtype,
                           {scratch.size().rows(), local.hidden_size}, Side::Host);
    }
  }
  return memory;
}

namespace {

int buffers_of(const std::vector<int>& slots) {
  return slots.empty() ? 0 : 1 + *std::max_element(slots.begin(), slots.end());
}

std::size_t slot_of(const std::vector<int>& slots, int number) {
  return static_cast<std::size_t>(slots[static_cast<std::size_t>(number)]);
}

}  // namespace

Stage::Stage(const StageScratch& scratch, Arena& arena, const StagePart& part,
             const StageMemory& memory, const StageSlots& slots, BucketHooks* hooks)
    : scratch_(&scratch), part_(part), hooks_(hooks), memory_(memory), slots_(slots) {
  const BlockContext& context = scratch.context();
  Backend& backend = *context.backend;
  const ParameterStore& store = *context.store;
  const StageOptions& options = scratch.options();
  const DType dtype = store.dtype();
  if (part.embedding) embedding_.emplace(backend, store, scratch.config(), context.tensor);
  for (int layer = part.first_layer; layer < part.last_layer; ++layer)
    blocks_.emplace_back(context, layer);
  for (int i = 0; embedding_ && i < buffers_of(slots.embeddings); ++i)
    embeddings_.push_back(embedding_->allocate_stash(arena, scratch.size()));
  if (options.training && options.offload_inputs && layers() > 2)
    offload_.emplace(backend, arena, dtype,
                     Shape{scratch.size().rows(), context.local.hidden_size});
  kept_.resize(static_cast<std::size_t>(buffers_of(slots.weights)));
  for (auto& blocks : kept_)
    for (int block = 0; block < layers(); ++block)
      blocks.push_back(
          allocate_kept(arena, context.local, dtype, scratch.size(), scratch.workspace()));
  if (part.head) {
    const std::int64_t tokens = scratch.size().tokens();
    const std::int64_t columns =
        (scratch.config().vocab_size + context.tensor.size() - 1) / context.tensor.size();
    const std::int64_t chunk =
        options.classifier_chunk > 0
            ? options.classifier_chunk
            : Head::default_chunk(backend.classifier_elements(), columns, tokens);
    head_.emplace(backend, arena, store, scratch.config(), context.tensor, scratch.size(), chunk);
  }
  find_buckets(store.set());
}

void Stage::find_buckets(const ParameterSet& set) {
  const auto add = [&](std::vector<int>& buckets, const std::string& name) {
    if (name.empty()) return;
    const int bucket = set[set.index(name)].bucket;
    if (std::find(buckets.begin(), buckets.end(), bucket) == buckets.end())
      buckets.push_back(bucket);
  };
  const OuterNames names = outer_names(scratch_->config());
  if (part_.embedding)
    for (const auto& name : {names.embedding, names.positions, names.embedding_norm_weight})
      add(embedding_buckets_, name);
  if (part_.head) {
    add(head_buckets_, names.final_norm_weight);
    if (!tied_here()) add(head_buckets_, names.head.empty() ? names.embedding : names.head);
  }
  for (int layer = part_.first_layer; layer < part_.last_layer; ++layer)
    block_buckets_.push_back(
        set[set.index(block_names(scratch_->config(), layer).norm1_weight)].bucket);
}

Tensor Stage::input(const MicroBatch& batch, int number) const {
  return memory_.inputs[slot_of(slots_.inputs, number)].rows(0, scratch_->size(batch).rows());
}

const EmbeddingStash& Stage::embedding_stash(int number) const {
  return embeddings_[slot_of(slots_.embeddings, number)];
}

BlockStash Stage::stash(const MicroBatch& batch, int number, int block) const {
  const auto& blocks = memory_.stashes[slot_of(slots_.stashes, number)];
  const bool one = blocks.size() == 1;
  BlockStash stash = resize_stash(blocks[static_cast<std::size_t>(one ? 0 : block)],
                                  scratch_->context().local, scratch_->size(batch));
  if (one || block == 0) stash.input = input(batch, number);
  if (offloads(block)) stash.input = offload_->buffer(block).rows(0, scratch_->size(batch).rows());
  return stash;
}

BlockWorkspace Stage::kept(const MicroBatch& batch, int number, int block) const {
  const auto& blocks = kept_[slot_of(slots_.weights, number)];
  return resize_workspace(blocks[static_cast<std::size_t>(block)], scratch_->size(batch));
}

Tensor Stage::host_input(const MicroBatch& batch, int number, int block) const {
  return memory_.host_inputs[slot_of(slots_.stashes, number)][static_cast<std::size_t>(block)].rows(
      0, scratch_->size(batch).rows());
}

void Stage::bring_input(const MicroBatch& batch, int number, int block) {
  if (offloads(block - 1)) offload_->fetch(block - 1, host_input(batch, number, block - 1));
  if (offloads(block)) offload_->receive(block);
}

void Stage::forward(const MicroBatch& batch, int number, Tensor output,
                    std::vector<KvCache>* caches) {
  const BlockWorkspace workspace = resize_workspace(scratch_->workspace(), scratch_->size(batch));
  if (embedding_) {
    told([&](BucketHooks& hooks) {
      for (const int bucket : embedding_buckets_)
        hooks.need_weights(bucket, block_buckets_.front());
    });
    embedding_->forward(input(batch, number), batch, embedding_stash(number), workspace);
    // Where the head is the same matrix, it stays.
    if (!tied_here())
      told([&](BucketHooks& hooks) {
        for (const int bucket : embedding_buckets_) hooks.done_with_weights(bucket);
      });
  }
  for (int block = 0; block < layers(); ++block) {
    const auto b = static_cast<std::size_t>(block);
    const bool last = block + 1 == layers();
    told([&](BucketHooks& hooks) {
      const int next = !last ? block_buckets_[b + 1] : head_ ? head_buckets_.front() : -1;
      hooks.need_weights(block_buckets_[b], next);
    });
    if (offloads(block + 1)) offload_->reclaim(block + 1);
    // A block writes straight into the next one's input. With one stash for all, that is its own
    // input, which it has finished reading by then.
    blocks_[b].forward(last ? output : stash(batch, number, block + 1).input,
                       stash(batch, number, block), workspace, batch,
                       caches == nullptr ? nullptr : &(*caches)[b]);
    if (offloads(block) && !batch.scored_only)
      offload_->send(block, host_input(batch, number, block));
    told([&](BucketHooks& hooks) { hooks.done_with_weights(block_buckets_[b]); });
  }
}

void Stage::loss(const MicroBatch& batch, Tensor output, Tensor gradient, double gradient_scale,
                 Tensor loss_sum) {
  const Tensor losses = scratch_->losses(batch.tokens());
  const bool training = gradient_scale != 0;
  told([&](BucketHooks& hooks) {
    for (const int bucket : head_buckets_) hooks.need_weights(bucket, -1);
    if (training && tied_here())
      for (const int bucket : embedding_buckets_) hooks.need_gradients(bucket, batch.first);
    if (training)
      for (const int bucket : head_buckets_) hooks.need_gradients(bucket, batch.first);
  });
  head_->forward(losses, gradient, output, batch, gradient_scale,
                 resize_workspace(scratch_->workspace(), scratch_->size(batch)));
  told([&](BucketHooks& hooks) {
    for (const int bucket : head_buckets_) {
      if (training) hooks.done_with_gradients(bucket, batch.first, batch.last);
      hooks.done_with_weights(bucket);
    }
    if (!training && tied_here())
      for (const int bucket : embedding_buckets_) hooks.done_with_weights(bucket);
  });
  scratch_->context().backend->sum(loss_sum, losses);
}

void Stage::backward(const MicroBatch& batch, int number, Tensor gradient) {
  const BlockWorkspace workspace = resize_workspace(scratch_->workspace(), scratch_->size(batch));
  for (int block = layers() - 1; block >= 0; --block) {
    const auto b = static_cast<std::size_t>(block);
    const int bucket = block_buckets_[b];
    told([&](BucketHooks& hooks) {
      hooks.need_weights(bucket, block > 0 ? block_buckets_[b - 1] : -1);
      hooks.need_gradients(bucket, batch.first);
    });
    bring_input(batch, number, block);
    blocks_[b].backward(gradient, stash(batch, number, block), workspace, batch,
                        scratch_->recompute_of(part_.first_layer + block));
    told([&](BucketHooks& hooks) {
      hooks.done_with_gradients(bucket, batch.first, batch.last);
      hooks.done_with_weights(bucket);
    });
  }
  backward_embedding(batch, number, gradient);
}

void Stage::backward_input(const MicroBatch& batch, int number, Tensor gradient) {
  for (int block = layers() - 1; block >= 0; --block) {
    const auto b = static_cast<std::size_t>(block);
    const int bucket = block_buckets_[b];
    told([&](BucketHooks& hooks) {
      hooks.need_weights(bucket, block > 0 ? block_buckets_[b - 1] : -1);
      hooks.need_gradients(bucket, batch.first);
    });
    bring_input(batch, number, block);
    blocks_[b].backward_input(gradient, stash(batch, number, block), kept(batch, number, block),
                              batch, scratch_->recompute_of(part_.first_layer + block));
    told([&](BucketHooks& hooks) { hooks.done_with_weights(bucket); });
  }
  backward_embedding(batch, number, gradient);
}

void Stage::backward_weight(const MicroBatch& batch, int number) {
  for (int block = layers() - 1; block >= 0; --block) {
    const auto b = static_cast<std::size_t>(block);
    const int bucket = block_buckets_[b];
    const Recompute recompute = scratch_->recompute_of(part_.first_layer + block);
    const bool rebuilds = recompute != Recompute::None;  // with the weights, once more
    if (rebuilds) told([&](BucketHooks& hooks) { hooks.need_weights(bucket, -1); });
    bring_input(batch, number, block);
    blocks_[b].backward_weight(stash(batch, number, block), kept(batch, number, block), batch,
                               recompute);
    told([&](BucketHooks& hooks) {
      hooks.done_with_gradients(bucket, batch.first, batch.last);
      if (rebuilds) hooks.done_with_weights(bucket);
    });
  }
}

// On the way back an embedding reads no weights but those of its norm.
void Stage::backward_embedding(const MicroBatch& batch, int number, Tensor gradient) {
  if (!embedding_) return;
  const bool needed = scratch_->config().traits().embedding_norm;
  told([&](BucketHooks& hooks) {
    if (tied_here()) return;  // they are all here since the head
    for (const int bucket : embedding_buckets_) {
      if (needed) hooks.need_weights(bucket, -1);
      hooks.need_gradients(bucket, batch.first);
    }
  });
  embedding_->backward(gradient, batch, embedding_stash(number),
                       resize_workspace(scratch_->workspace(), scratch_->size(batch)));
  told([&](BucketHooks& hooks) {
    for (const int bucket : embedding_buckets_) {
      hooks.done_with_gradients(bucket, batch.first, batch.last);
      if (tied_here() || needed) hooks.done_with_weights(bucket);
    }
  });
}

}  // namespace kintsugi
