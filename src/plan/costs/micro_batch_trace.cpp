#include "plan/costs/micro_batch_trace.h"

#include <algorithm>
#include <numeric>

#include "backend/sim/sim_backend.h"
#include "comm/sim/sim_communicator.h"
#include "model/fp8.h"
#include "model/stage.h"
#include "parallel/layout.h"
#include "plan/costs/routing.h"

namespace kintsugi {

RegionBytes bytes_by_region(const Arena& arena, Side side) {
  RegionBytes bytes;
  for (int i = 0; i < kRegions; ++i)
    bytes[static_cast<std::size_t>(i)] =
        static_cast<std::int64_t>(arena.bytes(static_cast<Region>(i), side));
  return bytes;
}
RegionBytes operator+(const RegionBytes& a, const RegionBytes& b) {
  RegionBytes sum;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}
RegionBytes operator-(const RegionBytes& a, const RegionBytes& b) { return a + (-1) * b; }
RegionBytes operator*(std::int64_t times, const RegionBytes& a) {
  RegionBytes product;
  for (std::size_t i = 0; i < product.size(); ++i) product[i] = times * a[i];
  return product;
}
std::int64_t total(const RegionBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

namespace {

constexpr std::int64_t kMostChunks = 64;  // token chunks of the head that are traced

// Traces one layer of each kind, embedding and head on one rank of the tp and cp groups: of those
// that share experts, the busiest.
class Tracer {
 public:
  Tracer(const PlanJob& job, const ModelLayers& model, const Layout& layout)
      : job_(job),
        model_(model),
        busiest_(busiest_rank(job, layout, layout.micro_batch * job.length / layout.cp)),
        backend_(trace_, job.classifier_elements, busiest_.rows),
        groups_(sim_groups({.tp = layout.tp,
                            .cp = layout.cp,
                            .dp = layout.expert_ranks(),
                            .shard_group = 1,
                            .kv_copies = kv_copies(job.model.kv_heads, layout.tp),
                            .experts = layout.expert_ranks()},
                           {}, trace_)),
        weights_(backend_),
        set_(job.model, model.spec(),
             {.tp = layout.tp,
              .sequence_parallel = layout.sequence_parallel,
              .experts = layout.expert_ranks(),
              .layers = model.first}),
        store_(set_, weights_, job.precision, true),
        model_groups_{.tensor = &groups_[GroupKind::Tp],
                      .context = &groups_[GroupKind::Cp],
                      .experts = &groups_[GroupKind::Experts],
                      .sequence_parallel = layout.sequence_parallel,
                      .dispatch = layout.dispatch,
                      .context_method = layout.context} {
    const bool owns_all = grid_of(layout, job.model).shard() == 1;
    if (owns_all) leave_unrounded();
    store_.allocate_quantized(weights_,
                              (layout.zero == 3 && !owns_all) || !job.model.fp8.keep_weights);
  }

  LayerTraces layer(const Layout& layout, int number) {
    LayerTraces traced{block(layout, Recompute::None, number), {}};
    traced.recomputed = layout.recompute == Recompute::None
                            ? traced.plain
                            : block(layout, layout.recompute, number);
    return traced;
  }

  BlockTrace block(const Layout& layout, Recompute recompute, int layer) {
    Arena arena(backend_);
    const StageScratch scratch = scratch_of(arena, layout, recompute);
    BlockTrace traced;
    traced.stash = added(arena, [&] {
      scratch.shared().allocate_block(arena, scratch.declaration(layer), recompute);
    });
    traced.kept = added(arena, [&] {
      const LayerSpec& spec = model_.spec().layers[static_cast<std::size_t>(layer)];
      scratch.shared().allocate_kept(arena, scratch.declaration(layer),
                                     static_cast<int>(spec.branches.size()),
                                     model_.spec().hidden_size);
    });
    const StageLayers chunk{
        .first_layer = layer, .last_layer = layer + 1, .embedding = false, .head = false};
    StageSlots slots;
    slots.weights = {0};
    Stage stage(scratch, arena, chunk, allocate_stage_memory(scratch, arena, 1, {chunk}), slots,
                nullptr);
    const MicroBatch batch = batch_of(arena, scratch);
    const Tensor stream = stream_of(arena, scratch);
    MicroBatch first = batch;
    first.first = true;
    if (job_.model.fp8.on())
      traced.first_forward = recorded([&] { stage.forward(first, 0, stream); });
    traced.forward = recorded([&] { stage.forward(batch, 0, stream); });
    traced.backward = recorded([&] { stage.backward(batch, 0, stream); });
    traced.backward_input = recorded([&] { stage.backward_input(batch, 0, stream); });
    traced.backward_weight = recorded([&] { stage.backward_weight(batch, 0); });
    return traced;
  }

  void embedding_and_head(const Layout& layout, MicroBatchTrace& traced) {
    Arena arena(backend_);
    traced.scratch = {};
    const StageScratch scratch = scratch_of(arena, layout, layout.recompute);
    traced.scratch = bytes_by_region(arena);
    traced.tokens = scratch.size().tokens();
    const StageMemory memory = allocate_stage_memory(scratch, arena, 1, {});
    const Tensor stream = stream_of(arena, scratch);
    traced.boundary = static_cast<std::int64_t>(stream.bytes());
    const MicroBatch batch = batch_of(arena, scratch);
    const RegionBytes before = bytes_by_region(arena);
    Stage first(scratch, arena,
                {.first_layer = 0, .last_layer = 0, .embedding = true, .head = false}, memory, {},
                nullptr);
    traced.embedding_stash = bytes_by_region(arena) - before;
    traced.embedding_forward = recorded([&] { first.forward(batch, 0, stream); });
    traced.embedding_backward = recorded([&] { first.backward(batch, 0, stream); });
    const RegionBytes middle = bytes_by_region(arena);
    Stage last(scratch, arena,
               {.first_layer = 0, .last_layer = 0, .embedding = false, .head = true}, memory, {},
               nullptr);
    traced.head_memory = bytes_by_region(arena) - middle;
    const Tensor sum =
        arena.allocate(Region::Workspace, "sum", accumulator_of(job_.precision), {4});
    const auto loss_of = [&](std::int64_t chunks) {
      MicroBatch prefix = batch;
      prefix.gradient_scale = 1;
      if (const std::int64_t tokens = chunks * last.head().chunk(); tokens < batch.tokens()) {
        prefix.sequences = 1;
        prefix.length = tokens;
        prefix.ids = prefix.targets = prefix.positions = batch.ids.rows(0, tokens);
      }
      const Tensor rows = stream.rows(0, scratch.size(prefix).rows());
      return recorded([&] { last.loss(prefix, rows, rows, sum); });
    };
    traced.head = loss_of(kMostChunks);
    const double chunks =
        static_cast<double>(batch.tokens()) / static_cast<double>(last.head().chunk());
    if (chunks <= kMostChunks) return;
    traced.head_half = loss_of(kMostChunks / 2);
    traced.head_extra = (chunks - kMostChunks) / (kMostChunks / 2);
  }

 private:
  // As Sharding::is_unrounded.
  void leave_unrounded() {
    for (int i = 0; i < static_cast<int>(set_.buckets().size()); ++i)
      if (const Bucket& bucket = set_.buckets()[static_cast<std::size_t>(i)];
          bucket.fp8 && bucket.trained)
        store_.set_weights(
            i, weights_.allocate(Region::Weights, "weights", accumulator_of(job_.precision),
                                 {bucket.end - bucket.begin}));
  }
  StageScratch scratch_of(Arena& arena, const Layout& layout, Recompute recompute) {
    return StageScratch(backend_, arena, store_, model_, model_groups_,
                        {.sequences = layout.micro_batch,
                         .length = job_.length,
                         .recompute = recompute,
                         .z_loss = job_.z_loss,
                         .preference = job_.preference,
                         .classifier_chunk = job_.classifier_chunk});
  }
  template <class F>
  static RegionBytes added(Arena& arena, const F& allocate) {
    const RegionBytes before = bytes_by_region(arena);
    allocate();
    return bytes_by_region(arena) - before;
  }
  template <class F>
  OperationTrace recorded(const F& calls) {
    trace_ = {};
    calls();
    for (TracedOperation& operation : trace_.operations)  // the dispatcher's
      if (operation.kind == TracedOperation::Kind::Collective &&
          operation.collective == Collective::AllToAll &&
          operation.group == to_string(GroupKind::Experts))
        operation.bytes *= busiest_.visits;
    return std::move(trace_);
  }
  Tensor stream_of(Arena& arena, const StageScratch& scratch) const {
    return arena.allocate(Region::Workspace, "stream", job_.precision,
                          {scratch.size().rows(), job_.model.hidden_size});
  }
  MicroBatch batch_of(Arena& arena, const StageScratch& scratch) const {
    const std::int64_t tokens = scratch.size().tokens();
    const auto numbers = [&] {
      return arena.allocate(Region::Workspace, "numbers", DType::I32, {tokens});
    };
    MicroBatch batch{.sequences = scratch.size().sequences,
                     .length = scratch.size().length,
                     .ids = numbers(),
                     .targets = numbers(),
                     .positions = numbers(),
                     .training = true};
    if (job_.model.balance.counts_last_step())
      batch.expert_loads =
          arena.allocate(Region::Workspace, "expert loads", accumulator_of(job_.precision),
                         {job_.model.layers, job_.model.experts->count});
    if (!job_.preference) return batch;
    const std::int64_t most = PreferenceLoss::most_sequences(tokens, scratch.layer_ranks().context);
    batch.pair_ranges = arena.allocate(Region::Workspace, "pairs", DType::I32, {most, 2});
    batch.pair_reference =
        arena.allocate(Region::Workspace, "pairs", accumulator_of(job_.precision), {most});
    return batch;
  }

  const PlanJob& job_;
  const ModelLayers& model_;
  OperationTrace trace_;
  BusiestRank busiest_;
  SimBackend backend_;
  Groups groups_;
  Arena weights_;
  ParameterSet set_;
  ParameterStore store_;
  ModelGroups model_groups_;
};

}  // namespace

MicroBatchTrace trace_micro_batch(const PlanJob& job, const ModelLayers& model,
                                  const Layout& layout) {
  Tracer tracer(job, model, layout);
  MicroBatchTrace traced;
  for (const int layer : model.first) traced.layers.push_back(tracer.layer(layout, layer));
  tracer.embedding_and_head(layout, traced);
  if (job.model.fp8.on())  // Engine's fp8 statistics
    traced.scratch[static_cast<std::size_t>(Region::Workspace)] +=
        static_cast<std::int64_t>(fp8_sites(model.spec()).size() * 3 * 4 * sizeof(float));
  return traced;
}

}  // namespace kintsugi
