#include "model/layers/adapters.h"

#include <cmath>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {

Init adapter_init(std::int64_t inputs) {
  return {InitKind::Uniform, 1.0 / std::sqrt(static_cast<double>(inputs))};
}

void Adapters::declare(Declaration& d, const Sizes& sizes,
                       const std::vector<Declaration::Shard>& shards) {
  using Shard = Declaration::Shard;
  if (!any()) return;
  matrices_.clear();
  const bool by_outputs = shards[0].along != Shard::Along::Inputs;
  whole_inputs_ = sizes.whole_inputs;
  first_input_ = by_outputs ? 0 : d.ranks().tensor_rank * sizes.inputs;
  std::int64_t rows = 0, first = 0;
  for (std::size_t i = 0; i < spec_.names.size(); ++i) {
    if (!spec_.names[i].empty()) {
      const int a =
          d.matrix(spec_.names[i] + kAdapterA, spec_.r, sizes.whole_inputs,
                   {.group = ParameterGroup::Adapter,
                    .init = adapter_init(sizes.whole_inputs),
                    .shard = by_outputs ? Shard{.partial = true} : Shard{Shard::Along::Inputs},
                    .packed = rows > 0});
      if (rows == 0) a_ = a;
      rows += spec_.r;
      matrices_.push_back({.first = first, .outputs = sizes.outputs[i]});
    }
    first += sizes.outputs[i];
  }
  a_shape_ = {rows, sizes.inputs};
  std::size_t next = 0;
  for (std::size_t i = 0; i < spec_.names.size(); ++i)
    if (!spec_.names[i].empty())
      matrices_[next++].b = d.matrix(spec_.names[i] + kAdapterB, sizes.whole_outputs[i], spec_.r,
                                     {.group = ParameterGroup::Adapter,
                                      .init = {InitKind::Zeros},
                                      .shard = by_outputs ? shards[i] : Shard{.partial = true}});
  // Small, and a full recomputation does not compute a block's last matmul again.
  low_ = d.saved({.label = "adapters", .width = rows, .kept = true});
  dlow_ = d.workspace(
      {.label = "gradient of adapters", .width = rows, .training = true, .read_by_weights = true});
  if (spec_.dropout > 0) dropped_ = d.workspace({.label = "adapter inputs", .width = sizes.inputs});
}

DropoutOptions Adapters::dropout(const LayerRun& run) const {
  return {.probability = spec_.dropout,
          .key = run.batch.dropout_key(hash64(run.store().set()[a_].name)),
          .first_row = run.batch.first_token,
          .rows = run.batch.token_rows,
          .first_column = first_input_,
          .width = whole_inputs_};
}

Tensor Adapters::input(const LayerRun& run, Tensor x) const {
  if (!drops(run)) return x;
  run.backend().dropout(run[dropped_], x, dropout(run));
  return run[dropped_];
}

// Calls f(matrix, columns of y, columns of low) for each adapter.
void Adapters::for_each(Tensor low, Tensor y, const auto& f) const {
  for (std::size_t i = 0; i < matrices_.size(); ++i)
    f(matrices_[i], y.part(1, matrices_[i].first, matrices_[i].outputs),
      low.part(1, static_cast<std::int64_t>(i) * spec_.r, spec_.r));
}

void Adapters::forward(const LayerRun& run, Tensor y, Tensor x, Tensor residual) const {
  Backend& backend = run.backend();
  backend.matmul(run[low_], input(run, x), a(run), {.transpose_b = true});
  if (matrices_.size() < spec_.names.size()) {
    KINTSUGI_CHECK(!residual, "adapters of some of {} matrices with a residual",
                   spec_.names.size());
    backend.fill(y, 0.0);
  }
  for_each(run[low_], y, [&](const Matrix& matrix, Tensor columns, Tensor low) {
    backend.matmul(
        columns, low, run.store().weight(matrix.b),
        {.transpose_b = true,
         .residual = residual ? residual.part(1, matrix.first, matrix.outputs) : Tensor(),
         .scale = spec_.scale});
  });
}

void Adapters::backward_input(const LayerRun& run, Tensor dx, Tensor dy) const {
  for_each(run[dlow_], dy, [&](const Matrix& matrix, Tensor columns, Tensor dlow) {
    run.backend().matmul(dlow, columns, run.store().weight(matrix.b), {.scale = spec_.scale});
  });
  run.backend().matmul(dx, run[dlow_], a(run));
  if (drops(run)) run.backend().dropout(dx, dx, dropout(run));
}

void Adapters::backward_weight(const LayerRun& run, Tensor dy, Tensor x) const {
  run.backend().matmul(run.store().gradient(a_, a_shape_), run[dlow_], input(run, x),
                       {.transpose_a = true, .accumulate = run.accumulates()});
  for_each(run[low_], dy, [&](const Matrix& matrix, Tensor columns, Tensor low) {
    run.backend().matmul(
        run.store().gradient(matrix.b), columns, low,
        {.transpose_a = true, .accumulate = run.accumulates(), .scale = spec_.scale});
  });
}

}  // namespace kintsugi
