#include "model/layers/fp8_matmuls.h"

namespace kintsugi {

void Fp8Matmuls::declare(Declaration& d, int weight, Shape shape, bool in_out, bool reads_x) {
  if (!spec_) return;
  weight_ = weight;
  shape_ = shape;
  in_out_ = in_out;
  outputs_ = shape[in_out ? 1 : 0];
  inputs_ = shape[in_out ? 0 : 1];
  on_ = outputs_ % kFp8Multiple == 0 && inputs_ % kFp8Multiple == 0;
  if (!on_) return;
  d.use_fp8(weight);
  weight_gradient_ = spec_->wgrad && d.is_trained(weight);
  // If rows are split over ranks, x is all-gathered again in the backward, in half of the memory.
  keeps_input_ = weight_gradient_ && !reads_x && !d.ranks().splits_rows();
  const auto memory = [](std::string_view label, std::int64_t width, bool transposed) {
    return TensorSpec{.label = label,
                      .per = Per::Whole,
                      .dropped_by = Recompute::Selective,
                      .one_at_a_time = true,
                      .bytes = [=](const BatchSize& size, DType, bool) {
                        return transposed ? quantized_bytes(width, size.tokens())
                                          : quantized_bytes(size.tokens(), width);
                      }};
  };
  x_rows_ = d.workspace(memory("fp8 inputs", inputs_, false));
  TensorSpec gradient = memory("fp8 gradients", outputs_, false);
  gradient.training = true;
  dy_rows_ = d.workspace(gradient);
  if (!weight_gradient_) return;
  TensorSpec columns = memory("fp8 gradients, transposed", outputs_, true);
  columns.training = columns.read_by_weights = true;
  columns.one_at_a_time = false;
  dy_columns_ = d.workspace(columns);
  TensorSpec inputs = memory("fp8 inputs, transposed", inputs_, true);
  inputs.training = !keeps_input_;
  if (keeps_input_)
    kept_x_columns_ = d.saved(inputs);
  else
    x_columns_ = d.workspace(inputs);
}

QuantizeOptions Fp8Matmuls::options(const LayerRun& run, Operand operand) const {
  const Tensor& all = run.batch.fp8_statistics;  // (sites, operands, 4)
  return {.power_of_two = spec_->power_of_two,
          .one_scale = spec_->one_scale,
          .statistics =
              all ? all.select(0, spec_->site).select(0, static_cast<int>(operand)) : Tensor()};
}

Quantized Fp8Matmuls::view(const Tensor& memory, std::int64_t rows, std::int64_t columns) const {
  return quantized_in(memory, rows, columns, spec_->one_scale);
}

Quantized Fp8Matmuls::transposed_input(const LayerRun& run) const {
  return view(keeps_input_ ? run[kept_x_columns_] : run[x_columns_], inputs_, run.size.tokens());
}

// W is quantized once per step, in the forward of the first micro-batch, if the store has memory
// for each matrix; otherwise, and in evaluations, at every use.
Quantized Fp8Matmuls::weight_for_forward(const LayerRun& run) const {
  const QuantizedWeight w = run.store().quantized(weight_, shape_, spec_->one_scale);
  if (!w.kept || run.batch.first || !run.batch.training) {
    const Quantized none;
    run.backend().quantize(w.kept || !in_out_ ? w.rows : none, w.kept || in_out_ ? w.columns : none,
                           run.store().weight(weight_, shape_), options(run, Operand::Weight));
  }
  return in_out_ ? w.columns : w.rows;
}

Quantized Fp8Matmuls::weight_for_backward(const LayerRun& run) const {
  const QuantizedWeight w = run.store().quantized(weight_, shape_, spec_->one_scale);
  const Quantized none;
  if (!w.kept)
    run.backend().quantize(in_out_ ? w.rows : none, in_out_ ? none : w.columns,
                           run.store().weight(weight_, shape_),
                           {.power_of_two = spec_->power_of_two, .one_scale = spec_->one_scale});
  return in_out_ ? w.rows : w.columns;
}

void Fp8Matmuls::forward(const LayerRun& run, Tensor y, Tensor x, MatmulOptions options) const {
  const Quantized rows = view(run[x_rows_], run.size.tokens(), inputs_);
  run.backend().quantize(rows, keeps(run) ? transposed_input(run) : Quantized(), x,
                         this->options(run, Operand::Input));
  options.transpose_b = false;
  options.fast_accumulation = spec_->fast_forward;
  run.backend().matmul_fp8(y, rows, weight_for_forward(run), options);
}

void Fp8Matmuls::backward_input(const LayerRun& run, Tensor dx, Tensor dy,
                                MatmulOptions options) const {
  const Quantized rows = view(run[dy_rows_], run.size.tokens(), outputs_);
  run.backend().quantize(rows, weight_gradient_ ? transposed_gradient(run) : Quantized(), dy,
                         this->options(run, Operand::Gradient));
  options.transpose_b = false;
  options.fast_accumulation = spec_->fast_backward;
  run.backend().matmul_fp8(dx, rows, weight_for_backward(run), options);
}

void Fp8Matmuls::backward_weight(const LayerRun& run, Tensor gradient, Tensor x) const {
  const Quantized inputs = transposed_input(run), gradients = transposed_gradient(run);
  if (!keeps(run))
    run.backend().quantize({}, inputs, x,
                           {.power_of_two = spec_->power_of_two, .one_scale = spec_->one_scale});
  run.backend().matmul_fp8(
      gradient, in_out_ ? inputs : gradients, in_out_ ? gradients : inputs,
      {.accumulate = run.accumulates(), .fast_accumulation = spec_->fast_backward});
}

}  // namespace kintsugi
