#include "model/stage.h"

#include <utility>

#include "backend/phase.h"
#include "model/layers/ring_attention.h"
#include "model/layers/ulysses_attention.h"
#include "model/lora.h"
#include "model/shard.h"

namespace kintsugi {

PreferenceLoss::PreferenceLoss(Arena& arena, DType dtype, std::int64_t tokens, int context,
                               const PreferenceOptions& options)
    : options_(options) {
  const auto take = [&](std::int64_t elements) {
    return arena.allocate(Region::Workspace, "preference loss", dtype, {elements});
  };
  sums_ = take(most_sequences(tokens, context));
  weights_ = take(tokens);
}

Tensor PreferenceLoss::weigh(const LayerRun& run, Tensor losses, Tensor totals) const {
  const MicroBatch& batch = run.batch;
  const Tensor weights = weights_.rows(0, batch.tokens());
  run.backend().range_sums(sums_, losses, batch.pair_ranges);
  if (Communicator* group = run.context.context; group != nullptr)
    group->wait(group->all_reduce(sums_));
  run.backend().preference_loss(weights, totals, sums_, batch.pair_reference, batch.pair_ranges,
                                options_);
  return weights;
}

InputOffload::InputOffload(Backend& backend, Arena& arena, DType dtype, Shape shape)
    : backend_(&backend) {
  for (Buffer& buffer : buffers_)
    buffer.tensor = arena.allocate(Region::Activations, "block input staging", dtype, shape);
}

void InputOffload::reclaim(int block) { backend_->wait(std::exchange(at(block).to_host, {})); }

void InputOffload::send(int block, Tensor host) {
  const Tensor from = at(block).tensor.rows(0, host.extent(0));
  at(block).to_host = backend_->to_host(host, from);
}

void InputOffload::fetch(int block, Tensor host) {
  reclaim(block);
  const Tensor to = at(block).tensor.rows(0, host.extent(0));
  at(block).to_device = backend_->to_device(to, host);
}

void InputOffload::receive(int block) { backend_->wait(std::exchange(at(block).to_device, {})); }

namespace {

BatchSize largest_micro_batch(const StageOptions& options, const ModelGroups& groups) {
  const ContextShard shard{groups.context->size(), groups.context->rank(), options.length};
  return {options.sequences, shard.local_length(),
          groups.sequence_parallel ? groups.tensor->size() : 1};
}

}  // namespace

// ---- scratch, shared by the stages of a rank

StageScratch::StageScratch(Backend& backend, Arena& arena, const ParameterStore& store,
                           ModelLayers layers, const ModelGroups& groups,
                           const StageOptions& options)
    : layers_(std::move(layers)),
      options_(options),
      dispatch_(groups.dispatch),
      size_(largest_micro_batch(options, groups)),
      context_{.backend = &backend,
               .store = &store,
               .tensor = TensorGroup(*groups.tensor, groups.sequence_parallel)} {
  const DType dtype = store.dtype();
  if (groups.context->size() > 1) context_.context = groups.context;
  if (groups.experts != nullptr && groups.experts->size() > 1) context_.experts = groups.experts;
  std::vector<Declaration> blocks;  // one of each kind
  for (const int layer : layers_.first) blocks.push_back(declaration(layer));
  context_.tables = allocate_position_tables(arena, blocks, dtype,
                                             std::max(options.max_positions, options.length));
  if (context_.context != nullptr) allocate_attention(arena, blocks, groups.context_method);
  shared_.emplace(arena, blocks, dtype, size_, options.recompute, options.training);
  stream_ = allocate_stream_buffers(arena, model().hidden_size, dtype, size_, options.training);
  allocate_sums(arena, blocks);
  const auto per_token = [&](const char* name) {
    return arena.allocate(Region::Activations, name, accumulator_of(dtype), {size_.tokens()});
  };
  losses_ = per_token("losses");
  if (options.training && options.z_loss > 0) squared_log_z_ = per_token("z-losses");
  if (options.preference)
    preference_.emplace(arena, accumulator_of(dtype), size_.tokens(), groups.context->size(),
                        *options.preference);
}

// All layers share one.
void StageScratch::allocate_attention(Arena& arena, const std::vector<Declaration>& blocks,
                                      ContextMethod method) {
  std::optional<ContextHeads> heads;
  for (const Declaration& block : blocks)
    for (const ContextHeads& one : block.context_heads()) {
      KINTSUGI_CHECK(heads.value_or(one) == one, "attention layers differ in their heads");
      heads = one;
    }
  KINTSUGI_CHECK(heads || method == ContextMethod::Ring, "there is no attention for {}",
                 to_string(method));
  if (!heads) return;
  const ContextAttentionSizes sizes{.sequences = size_.sequences,
                                    .length = size_.length,
                                    .heads = heads->heads,
                                    .kv_heads = heads->kv_heads,
                                    .head_dim = heads->head_dim,
                                    .value_dim = heads->value_dim};
  const auto make = [&]<class T>() {
    attention_ =
        std::make_unique<T>(*context_.backend, arena, *context_.context, sizes,
                            context_.store->dtype(), options_.training, context_.tables.slopes);
  };
  if (method == ContextMethod::Ring)
    make.operator()<RingAttention>();
  else
    make.operator()<UlyssesAttention>();
  context_.attention = attention_.get();
}

void StageScratch::allocate_sums(Arena& arena, const std::vector<Declaration>& blocks) {
  LayerSums& sums = context_.sums;
  for (const Declaration& block : blocks)
    for (const SumSpec& sum : block.sums())
      if (std::ranges::find(sums.specs, sum.name, &SumSpec::name) == sums.specs.end())
        sums.specs.push_back(sum);
  if (!sums.specs.empty())
    sums.values = arena.allocate(Region::Workspace, "scalars",
                                 accumulator_of(context_.store->dtype()), {std::ssize(sums.specs)});
}

Declaration StageScratch::declaration(int layer) const {
  Declaration declared(layer_ranks());
  Block(model(), layer).declare(declared);
  return declared;
}

LikelyTokens StageScratch::likely_tokens(std::int64_t tokens) const {
  const DType wide = losses_.dtype();
  const std::size_t column = static_cast<std::size_t>(tokens) * size_of(wide),
                    room = static_cast<std::size_t>(tokens * model().hidden_size) *
                           size_of(stream_.dnormed.dtype());
  KINTSUGI_CHECK(4 * column <= room, "a hidden size of {} has no room for the most likely tokens",
                 model().hidden_size);
  auto* const memory = static_cast<std::byte*>(stream_.dnormed.data());
  return {.logits = Tensor(memory + column, wide, {tokens}),
          .log_sum = Tensor(memory + 2 * column, wide, {tokens}),
          .ids = Tensor(memory + 3 * column, DType::I32, {tokens})};
}

void StageScratch::prepare() {
  fill_position_tables(*context_.backend, context_.tables, layer_ranks());
}

// ---- a stage

bool offloads(const StageScratch& scratch, const StageLayers& range, int block) {
  const StageOptions& options = scratch.options();
  const int layers = range.last_layer - range.first_layer;
  return options.training && options.offload_inputs && block > 0 && block + 1 < layers &&
         scratch.recompute_of(range.first_layer + block) == Recompute::Full;
}

StageMemory allocate_stage_memory(const StageScratch& scratch, Arena& arena, int inputs,
                                  const std::vector<StageLayers>& ranges) {
  const DType dtype = scratch.context().store->dtype();
  const bool training = scratch.options().training;
  const auto take_input = [&](Side side) {
    return arena.allocate(Region::Activations, "block inputs", dtype,
                          {scratch.size().rows(), scratch.model().hidden_size}, side);
  };
  StageMemory memory;
  for (int i = 0; i < inputs; ++i) memory.inputs.push_back(take_input(Side::Device));
  for (const StageLayers& range : ranges) {
    std::vector<BlockMemory>& blocks = memory.blocks.emplace_back();
    std::vector<Tensor>& host_inputs = memory.host_inputs.emplace_back();
    for (int layer = range.first_layer; layer < range.last_layer; ++layer) {
      const int block = layer - range.first_layer;
      const bool offloaded = offloads(scratch, range, block);
      blocks.push_back(scratch.shared().allocate_block(arena, scratch.declaration(layer),
                                                       scratch.recompute_of(layer)));
      // The first block's input is that of the stage. Without training, all blocks use that one.
      if (training && block > 0 && !offloaded) blocks.back().input = take_input(Side::Device);
      host_inputs.push_back(offloaded ? take_input(Side::Host) : Tensor());
    }
  }
  return memory;
}

namespace {

int buffers_of(const std::vector<int>& slots) {
  return slots.empty() ? 0 : 1 + *std::ranges::max_element(slots);
}

// Names the operations of a part of the model in a trace.
Phase part_phase(const StageScratch& scratch, const char* part) {
  return Phase(*scratch.context().backend, [part] { return part; });
}
Phase layer_phase(const StageScratch& scratch, int layer) {
  return Phase(*scratch.context().backend, [layer] { return fmt::format("layer {}", layer); });
}

std::size_t at(int index) { return static_cast<std::size_t>(index); }
std::size_t slot_of(const std::vector<int>& slots, int number) { return at(slots[at(number)]); }

}  // namespace

Stage::Stage(const StageScratch& scratch, Arena& arena, const StageLayers& range,
             const StageMemory& memory, const StageSlots& slots, BucketHooks* hooks)
    : scratch_(&scratch), range_(range), hooks_(hooks), memory_(memory), slots_(slots) {
  const LayerContext& context = scratch.context();
  const ModelSpec& model = scratch.model();
  const StageOptions& options = scratch.options();
  const ParameterSet& set = context.store->set();
  const auto declared = [&](auto& layer) {
    Declaration declaration(scratch.layer_ranks(), 0, &set);
    layer.declare(declaration);
    return declaration;
  };
  if (range.embedding) {
    embedding_.emplace(model);
    const Declaration embedding = declared(*embedding_);
    embedding_->bind(set);
    embedding_buckets_ = embedding.buckets();
    for (int i = 0; i < buffers_of(slots.embeddings); ++i)
      embeddings_.push_back(scratch.shared().allocate_own(arena, embedding));
  }
  std::vector<Declaration> blocks;
  for (int layer = range.first_layer; layer < range.last_layer; ++layer) {
    blocks_.emplace_back(model, layer);
    blocks.push_back(declared(blocks_.back()));
    block_buckets_.push_back(blocks.back().buckets());
    workspace_.push_back(scratch.shared().workspace(blocks.back()));
  }
  if (options.training && options.offload_inputs && layers() > 2)
    offload_.emplace(*context.backend, arena, context.store->dtype(),
                     Shape{scratch.size().rows(), model.hidden_size});
  kept_.resize(static_cast<std::size_t>(buffers_of(slots.weights)));
  for (auto& kept : kept_)
    for (std::size_t block = 0; block < blocks.size(); ++block)
      kept.push_back(scratch.shared().allocate_kept(arena, blocks[block], blocks_[block].branches(),
                                                    model.hidden_size));
  if (!range.head) return;
  head_.emplace(model);
  for (const int bucket : declared(*head_).buckets())
    if (!tied_in_stage() ||
        std::ranges::find(embedding_buckets_, bucket) == embedding_buckets_.end())
      head_buckets_.push_back(bucket);
  const std::int64_t tokens = scratch.size().tokens(), tp = context.tensor.size();
  const std::int64_t columns = (model.head.vocab_size + tp - 1) / tp;
  head_->allocate(
      arena, context, scratch.size(),
      options.classifier_chunk > 0
          ? options.classifier_chunk
          : Head::default_chunk(context.backend->classifier_elements(), columns, tokens));
}

void Stage::use(const StageSlots& slots) {
  KINTSUGI_CHECK(
      at(buffers_of(slots.inputs)) <= memory_.inputs.size() &&
          at(buffers_of(slots.stashes)) <= memory_.blocks.size() &&
          (!range_.embedding || at(buffers_of(slots.embeddings)) <= embeddings_.size()) &&
          at(buffers_of(slots.weights)) <= kept_.size(),
      "{} micro-batches need more buffers than were planned", slots.inputs.size());
  slots_ = slots;
}

Tensor Stage::input(const MicroBatch& batch, int number) const {
  return memory_.inputs[slot_of(slots_.inputs, number)].rows(0, scratch_->size(batch).rows());
}

Tensor Stage::block_input(const MicroBatch& batch, int number, int block) const {
  const std::int64_t rows = scratch_->size(batch).rows();
  if (offloads(block)) return offload_->buffer(block).rows(0, rows);
  const Tensor own = memory_.blocks[slot_of(slots_.stashes, number)][at(block)].input;
  return own ? own.rows(0, rows) : input(batch, number);
}

LayerRun Stage::block_run(const MicroBatch& batch, int number, int block, bool halved) const {
  LayerRun run = scratch_->run(batch);
  run.saved_memory = memory_.blocks[slot_of(slots_.stashes, number)][at(block)].saved;
  run.workspace_memory = workspace_[at(block)];
  run.recompute = scratch_->recompute_of(range_.first_layer + block);
  if (halved) {
    const KeptMemory& kept = kept_[slot_of(slots_.weights, number)][at(block)];
    run.workspace_memory = kept.workspace;
    run.kept_gradients = kept.gradients;
  }
  return run;
}

LayerRun Stage::embedding_run(const MicroBatch& batch, int number) const {
  LayerRun run = scratch_->run(batch);
  run.saved_memory = embeddings_[slot_of(slots_.embeddings, number)].saved;
  return run;
}

Tensor Stage::host_input(const MicroBatch& batch, int number, int block) const {
  return memory_.host_inputs[slot_of(slots_.stashes, number)][at(block)].rows(
      0, scratch_->size(batch).rows());
}

void Stage::fetch_input(const MicroBatch& batch, int number, int block) {
  if (block > last_backward() && offloads(block - 1))
    offload_->fetch(block - 1, host_input(batch, number, block - 1));
  if (offloads(block)) offload_->receive(block);
}

void Stage::forward(const MicroBatch& batch, int number, Tensor output,
                    const std::vector<LayerCache>* caches) {
  if (embedding_) {
    call_hooks([&](BucketHooks& hooks) {
      hooks.need_all_weights(embedding_buckets_, block_buckets_.front());
    });
    {
      const Phase phase = part_phase(*scratch_, "embedding");
      embedding_->forward(embedding_run(batch, number), input(batch, number));
    }
    // A tied head needs the same matrix later.
    if (!tied_in_stage())
      call_hooks([&](BucketHooks& hooks) { hooks.done_with_all_weights(embedding_buckets_); });
  }
  for (int block = 0; block < layers(); ++block) {
    const bool last = block + 1 == layers();
    const BucketHooks::Buckets& buckets = block_buckets_[at(block)];
    call_hooks([&](BucketHooks& hooks) {
      hooks.need_all_weights(buckets, last ? head_buckets_ : block_buckets_[at(block + 1)]);
    });
    if (offloads(block + 1)) offload_->reclaim(block + 1);
    LayerRun run = block_run(batch, number, block);
    if (caches != nullptr) run.cache = &(*caches)[at(block)];
    // A block writes directly into the next block's input. If all blocks share one input, this is
    // the block's own input, which it no longer reads by then.
    {
      const Phase phase = layer_phase(*scratch_, range_.first_layer + block);
      blocks_[at(block)].forward(run, last ? output : block_input(batch, number, block + 1),
                                 block_input(batch, number, block));
    }
    if (offloads(block) && !batch.scored_only)
      offload_->send(block, host_input(batch, number, block));
    call_hooks([&](BucketHooks& hooks) { hooks.done_with_all_weights(buckets); });
  }
}

void Stage::loss(const MicroBatch& batch, Tensor output, Tensor gradient, Tensor loss_sum) {
  const bool training = batch.gradient_scale != 0;
  call_hooks([&](BucketHooks& hooks) {
    hooks.need_all_weights(head_buckets_);
    if (training && tied_in_stage()) hooks.need_all_gradients(embedding_buckets_, batch.first);
    if (training) hooks.need_all_gradients(head_buckets_, batch.first);
  });
  const auto compute = batch.pair_ranges ? &Stage::pair_loss : &Stage::token_loss;
  {
    const Phase phase = part_phase(*scratch_, "head");
    (this->*compute)(batch, output, gradient, loss_sum);
  }
  call_hooks([&](BucketHooks& hooks) {
    if (training) hooks.done_with_all_gradients(head_buckets_, batch.first, batch.last);
    hooks.done_with_all_weights(head_buckets_);
    if (!training && tied_in_stage()) hooks.done_with_all_weights(embedding_buckets_);
  });
}

void Stage::token_loss(const MicroBatch& batch, Tensor output, Tensor gradient, Tensor loss_sum) {
  const Tensor losses = scratch_->losses(batch.tokens());
  CrossEntropyOptions options{.gradient_scale = batch.gradient_scale, .weights = batch.weights};
  if (batch.gradient_scale != 0) options.z_loss = scratch_->options().z_loss;
  if (options.z_loss > 0) options.squared_log_z = scratch_->squared_log_z(batch.tokens());
  if (batch.scored_only) options.smallest_losses = scratch_->smallest_losses(batch.tokens());
  head_->forward(scratch_->run(batch), losses, gradient, output, options,
                 batch.predicts ? scratch_->likely_tokens(batch.tokens()) : LikelyTokens{});
  Backend& backend = *scratch_->context().backend;
  backend.sum(loss_sum.rows(0, 1), losses);
  if (options.squared_log_z) backend.sum(loss_sum.rows(1, 1), options.squared_log_z);
}

void Stage::pair_loss(const MicroBatch& batch, Tensor output, Tensor gradient, Tensor totals) {
  const LayerRun run = scratch_->run(batch);
  const Tensor losses = scratch_->losses(batch.tokens());
  head_->forward(run, losses, {}, output, {});
  const Tensor weights = scratch_->preference().weigh(run, losses, totals);
  if (batch.gradient_scale != 0)
    head_->forward(run, losses, gradient, output,
                   {.gradient_scale = batch.gradient_scale, .weights = weights});
}

void Stage::backward(const MicroBatch& batch, int number, Tensor gradient) {
  backward_blocks(batch, number, gradient, false);
  backward_embedding(batch, number, gradient);
}

void Stage::backward_input(const MicroBatch& batch, int number, Tensor gradient) {
  backward_blocks(batch, number, gradient, true);
  backward_embedding(batch, number, gradient);
}

// `halved`: the gradients of matrices are left to backward_weight().
void Stage::backward_blocks(const MicroBatch& batch, int number, Tensor gradient, bool halved) {
  const int last = last_backward();
  for (int block = layers() - 1; block >= last; --block) {
    const BucketHooks::Buckets& buckets = block_buckets_[at(block)];
    call_hooks([&](BucketHooks& hooks) {
      hooks.need_all_weights(buckets,
                             block > last ? block_buckets_[at(block - 1)] : BucketHooks::kNone);
      hooks.need_all_gradients(buckets, batch.first);
    });
    fetch_input(batch, number, block);
    {
      const Phase phase = layer_phase(*scratch_, range_.first_layer + block);
      blocks_[at(block)].backward(block_run(batch, number, block, halved), gradient,
                                  block_input(batch, number, block));
    }
    call_hooks([&](BucketHooks& hooks) {
      if (!halved) hooks.done_with_all_gradients(buckets, batch.first, batch.last);
      hooks.done_with_all_weights(buckets);
    });
  }
}

void Stage::backward_weight(const MicroBatch& batch, int number) {
  for (int block = layers() - 1; block >= last_backward(); --block) {
    const BucketHooks::Buckets& buckets = block_buckets_[at(block)];
    const LayerRun run = block_run(batch, number, block, true);
    const bool recomputes = run.recompute != Recompute::None;  // which needs the weights again
    if (recomputes) call_hooks([&](BucketHooks& hooks) { hooks.need_all_weights(buckets); });
    fetch_input(batch, number, block);
    {
      const Phase phase = layer_phase(*scratch_, range_.first_layer + block);
      blocks_[at(block)].backward_weight(run, block_input(batch, number, block));
    }
    call_hooks([&](BucketHooks& hooks) {
      hooks.done_with_all_gradients(buckets, batch.first, batch.last);
      if (recomputes) hooks.done_with_all_weights(buckets);
    });
  }
}

// The embedding's backward reads only the weights of its norm.
void Stage::backward_embedding(const MicroBatch& batch, int number, Tensor gradient) {
  if (!embedding_) return;
  if (scratch_->layers().first_trained >= 0) {  // nothing of the embedding is trained
    if (tied_in_stage())
      call_hooks([&](BucketHooks& hooks) { hooks.done_with_all_weights(embedding_buckets_); });
    return;
  }
  const bool needed = embedding_->has_norm();
  call_hooks([&](BucketHooks& hooks) {
    if (tied_in_stage()) return;  // Stage::loss has requested them
    if (needed) hooks.need_all_weights(embedding_buckets_);
    hooks.need_all_gradients(embedding_buckets_, batch.first);
  });
  {
    const Phase phase = part_phase(*scratch_, "embedding");
    embedding_->backward(embedding_run(batch, number), gradient);
  }
  call_hooks([&](BucketHooks& hooks) {
    hooks.done_with_all_gradients(embedding_buckets_, batch.first, batch.last);
    if (tied_in_stage() || needed) hooks.done_with_all_weights(embedding_buckets_);
  });
}

}  // namespace kintsugi
