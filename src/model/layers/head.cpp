#include "model/layers/head.h"

#include <algorithm>

namespace kintsugi {

Head::Head(const ModelSpec& model)
    : spec_(model.head), hidden_(model.hidden_size), norm_(model.head.norm) {}

void Head::declare(Declaration& d) {
  norm_.declare(d, hidden_);
  weight_ = d.matrix(spec_.table, spec_.vocab_size, hidden_,
                     {.group = ParameterGroup::Head,
                      .init = spec_.init,
                      .shard = {.along = spec_.classifies ? Declaration::Shard::Along::None
                                                          : Declaration::Shard::Along::Outputs}});
}

void Head::allocate(Arena& arena, const LayerContext& context, const BatchSize& size,
                    std::int64_t chunk_tokens) {
  const ParameterSet& set = context.store->set();
  rows_ = set.rows(weight_);
  const DType dtype = context.store->dtype(), wide = accumulator_of(dtype);
  const std::int64_t chunk =
      spec_.classifies ? size.tokens() : std::min(chunk_tokens, size.tokens());
  // Rows start at multiples of 64 elements for any vocabulary: with 50257 columns most rows would
  // be unaligned.
  const std::int64_t columns = set[weight_].shape[0], padded = (columns + 63) / 64 * 64;
  logits_ = arena.allocate(Region::Workspace, "logits chunk", dtype, {chunk, padded})
                .part(1, 0, rows_.size());
  const int ranks = context.tensor.size();
  if (is_sharded(context.tensor))
    partials_ = arena.allocate(Region::Communication, "cross-entropy", wide, {ranks * chunk * 3});
  const auto statistic = [&] {
    return arena.allocate(Region::Activations, "norm statistics", wide, {size.rows()});
  };
  if (norm_.has_mean()) statistics_.mean = statistic();
  statistics_.rstd = statistic();
}

std::int64_t Head::default_chunk(std::int64_t elements, std::int64_t vocabulary,
                                 std::int64_t max_tokens) {
  const std::int64_t most = std::max<std::int64_t>(128, elements / vocabulary);
  const std::int64_t chunks = (max_tokens + most - 1) / most;  // of equal size, rounded up to 128
  return std::min(max_tokens, ((max_tokens + chunks - 1) / chunks + 127) / 128 * 128);
}

void Head::forward(const LayerRun& run, Tensor losses, Tensor gradient, Tensor x,
                   const CrossEntropyOptions& options, const LikelyTokens& likely) const {
  Backend& backend = run.backend();
  const StreamBuffers& stream = run.stream;
  const std::int64_t tokens = run.batch.tokens(), chunk = logits_.extent(0);
  const Tensor weight = run.store().weight(weight_).rows(0, rows_.size());
  const NormStatistics statistics = statistics_.first(x.extent(0));
  norm_.forward(run, stream.own_branch, statistics, x);
  const Tensor normed = run.all_rows(stream.own_branch);
  const bool trains = options.gradient_scale != 0;
  const Tensor dweight = trains ? run.store().gradient(weight_) : Tensor();
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, tokens - first);
    const Tensor logits = logits_.rows(0, count), rows = normed.rows(first, count);
    backend.matmul(logits, rows, weight, {.transpose_b = true});
    if (likely.ids)
      backend.read_logits(likely.logits.rows(first, count).view({count, 1}),
                          likely.ids.rows(first, count).view({count, 1}),
                          likely.log_sum.rows(first, count), {}, logits, {}, rows_.begin);
    CrossEntropyOptions of_chunk = options;
    for (Tensor* vector : {&of_chunk.weights, &of_chunk.squared_log_z, &of_chunk.smallest_losses})
      if (*vector) *vector = vector->rows(first, count);
    cross_entropy(run, losses.rows(first, count), logits, run.batch.targets.rows(first, count),
                  of_chunk);
    if (!trains) continue;
    if (spec_.classifies) {  // a rank has all columns, so that its own rows are enough
      const Tensor own = run.tensor().own(logits);
      backend.matmul(stream.own_dnormed, own, weight);
      if (dweight)
        backend.matmul(dweight, own, stream.own_branch,
                       {.transpose_a = true, .accumulate = run.accumulates()});
      continue;
    }
    backend.matmul(stream.dnormed.rows(first, count), logits, weight);
    if (dweight)
      backend.matmul(dweight.rows(0, rows_.size()), logits, rows,
                     {.transpose_a = true, .accumulate = run.accumulates() || first > 0});
  }
  if (!trains) return;
  if (!spec_.classifies) run.tensor().sum(stream.own_dnormed, stream.dnormed);
  norm_.backward(run, gradient, stream.own_dnormed, x, statistics);
}

void Head::cross_entropy(const LayerRun& run, Tensor losses, Tensor logits, Tensor targets,
                         const CrossEntropyOptions& options) const {
  Backend& backend = run.backend();
  const TensorGroup& tensor = run.tensor();
  if (!is_sharded(tensor)) return backend.cross_entropy(losses, logits, targets, options);
  const std::int64_t count = logits.extent(0);
  const Tensor all = partials_.rows(0, tensor.size() * count * 3).view({tensor.size(), count, 3});
  const Tensor own = all.rows(tensor.rank(), 1).view({count, 3});
  backend.cross_entropy_partial(own, logits, targets, rows_.begin);
  tensor.finish(tensor.group().all_gather(all, own));
  backend.cross_entropy_merged(losses, logits, targets, all, rows_.begin, options);
}

Tensor Head::hidden_states(const LayerRun& run, Tensor x) const {
  const Tensor normed = run.stream.own_branch.rows(0, x.extent(0));
  norm_.forward(run, normed, statistics_.first(x.extent(0)), x);
  return normed;
}

Tensor Head::logits(const LayerRun& run, Tensor x) const {
  const Tensor normed = hidden_states(run, x), logits = logits_.rows(0, x.extent(0));
  MatmulOptions options = run.generation_options();
  options.transpose_b = true;
  run.backend().matmul(logits, normed, run.store().weight(weight_).rows(0, rows_.size()), options);
  return logits;
}

}  // namespace kintsugi
