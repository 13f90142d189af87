#include "model/layers/fp8_matmuls.h"

#include "core/error.h"

namespace kintsugi {
namespace {

TensorSpec quantized_columns(std::string_view label, std::int64_t width) {
  return {.label = label,
          .per = Per::Whole,
          .dropped_by = Recompute::Selective,
          .one_at_a_time = true,
          .bytes = [=](const BatchSize& size, DType, bool) {
            return quantized_bytes(width, size.tokens());
          }};
}

TensorSpec maxima_spec(std::string_view label, std::int64_t width) {
  return {.label = label,
          .per = Per::Whole,
          .one_at_a_time = true,
          .bytes = [=](const BatchSize& size, DType, bool) {
            return (size.tokens() + width) * static_cast<std::int64_t>(sizeof(std::int32_t));
          }};
}

}  // namespace

TensorSpec quantized_rows(std::string_view label, std::int64_t width, std::int64_t most) {
  return {.label = label,
          .per = Per::Whole,
          .one_at_a_time = true,
          .bytes = [=](const BatchSize& size, DType, bool) {
            return quantized_bytes(most * size.tokens(), width);
          }};
}

// ---- W
void Fp8Weight::declare(Declaration& d, int weight, Shape shape, bool in_out) {
  weight_ = weight;
  shape_ = shape;
  in_out_ = in_out;
  const int first = shape.rank() - 2;
  on_ = spec_ && shape[first] % kFp8Multiple == 0 && shape[first + 1] % kFp8Multiple == 0;
  if (on_) d.use_fp8(weight, first == 0 ? 1 : shape[0]);
}

QuantizeOptions Fp8Weight::options(const Maxima& maxima) const {
  return {.power_of_two = spec_->power_of_two, .one_scale = spec_->one_scale, .maxima = maxima};
}

QuantizeOptions Fp8Weight::counted(const LayerRun& run, Operand operand,
                                   const Maxima& maxima) const {
  QuantizeOptions result = options(maxima);
  if (const Tensor& all = run.batch.fp8_statistics; all && !run.repeats)  // (sites, operands, 4)
    result.statistics = all.select(0, spec_->site).select(0, static_cast<int>(operand));
  return result;
}

Tensor Fp8Weight::rounded(const LayerRun& run) const {
  const Tensor weight = run.store().weight(weight_, shape_);
  if (!run.store().is_unrounded(weight_)) return weight;
  const Tensor rounded = run.store().rounded(weight_, shape_);
  run.backend().copy(rounded, weight);
  return rounded;
}

// An unrounded W is rounded before it is quantized, so that all ZeRO stages have the same fp8
// numbers.
void Fp8Weight::quantize(const LayerRun& run, Quantized rows, Quantized columns,
                         QuantizeOptions options) const {
  options.through_bf16 = run.store().is_unrounded(weight_);
  run.backend().quantize(rows, columns, run.store().weight(weight_, shape_), options);
}

// W is quantized once per step, in the forward of the first micro-batch, and in every forward of an
// evaluation, if the store has memory for each matrix. Otherwise its maxima are found then, and it
// is quantized at every use.
Quantized Fp8Weight::for_forward(const LayerRun& run) const {
  const QuantizedWeight w = run.store().quantized(weight_, shape_, spec_->one_scale);
  const bool changed = !run.repeats && (run.batch.first || !run.batch.training);
  const QuantizeOptions options = counted(run, Operand::Weight, w.maxima);
  if (w.kept) {
    if (changed) quantize(run, w.rows, w.columns, options);
  } else {
    if (changed && w.maxima)
      run.backend().find_maxima(w.maxima, run.store().weight(weight_, shape_),
                                run.store().is_unrounded(weight_));
    quantize(run, in_out_ ? Quantized() : w.rows, in_out_ ? w.columns : Quantized(), options);
  }
  return in_out_ ? w.columns : w.rows;
}

Quantized Fp8Weight::for_backward(const LayerRun& run) const {
  const QuantizedWeight w = run.store().quantized(weight_, shape_, spec_->one_scale);
  if (!w.kept)
    quantize(run, in_out_ ? w.rows : Quantized(), in_out_ ? Quantized() : w.columns,
             options(w.maxima));
  return in_out_ ? w.rows : w.columns;
}

// ---- the matmuls of a Linear
void Fp8Matmuls::declare(Declaration& d, int weight, Shape shape, bool in_out, bool reads_x) {
  in_out_ = in_out;
  outputs_ = shape[in_out ? 1 : 0];
  inputs_ = shape[in_out ? 0 : 1];
  weight_.declare(d, weight, shape, in_out);
  if (!weight_.on()) return;
  weight_gradient_ = spec().wgrad && d.is_trained(weight);
  // If rows are split over ranks, x is all-gathered again in the backward, in half of the memory.
  keeps_input_ = spec().wgrad && !reads_x && !d.ranks().splits_rows();
  x_rows_ = d.workspace(quantized_rows("fp8 inputs", inputs_));
  TensorSpec gradient = quantized_rows("fp8 gradients", outputs_);
  gradient.training = true;
  dy_rows_ = d.workspace(gradient);
  // The memory does not depend on what is trained, so that all layers declare the same.
  if (!spec().wgrad) return;
  TensorSpec inputs = quantized_columns("fp8 inputs, transposed", inputs_);
  if (keeps_input_) kept_x_columns_ = d.saved(inputs);
  TensorSpec columns = quantized_columns("fp8 gradients, transposed", outputs_);
  columns.training = columns.read_by_weights = inputs.training = true;
  columns.one_at_a_time = false;
  dy_columns_ = d.workspace(columns);
  if (!keeps_input_) x_columns_ = d.workspace(inputs);
}

void Fp8Matmuls::take_input_maxima(Declaration& d, std::string_view label) {
  if (weight_.on() && !spec().one_scale) input_maxima_ = d.workspace(maxima_spec(label, inputs_));
}

void Fp8Matmuls::take_gradient_maxima(Declaration& d) {
  if (!weight_.on() || spec().one_scale) return;
  TensorSpec maxima = maxima_spec("gradient maxima", outputs_);
  maxima.training = true;
  gradient_maxima_ = d.workspace(maxima);
}

Maxima Fp8Matmuls::maxima(const LayerRun& run, Workspace memory, std::int64_t width) const {
  if (memory.index < 0) return {};
  const std::int64_t tokens = run.size.tokens();
  const Tensor all(run[memory].data(), DType::I32, {tokens + width});
  return {.rows = all.rows(0, tokens), .columns = all.rows(tokens, width)};
}

Quantized Fp8Matmuls::view(const Tensor& memory, std::int64_t rows, std::int64_t columns) const {
  return quantized_in(memory, rows, columns, spec().one_scale);
}

Quantized Fp8Matmuls::transposed_input(const LayerRun& run) const {
  return view(keeps_input_ ? run[kept_x_columns_] : run[x_columns_], inputs_, run.size.tokens());
}

void Fp8Matmuls::forward(const LayerRun& run, Tensor y, Tensor x, MatmulOptions options) const {
  const Quantized rows = view(run[x_rows_], run.size.tokens(), inputs_);
  run.backend().quantize(rows, keeps(run) ? transposed_input(run) : Quantized(), x,
                         weight_.counted(run, Operand::Input, input_maxima(run)));
  options.transpose_b = false;
  options.fast_accumulation = spec().fast_forward;
  run.backend().matmul_fp8(y, rows, weight_.for_forward(run), options);
}

void Fp8Matmuls::backward_input(const LayerRun& run, Tensor dx, Tensor dy,
                                MatmulOptions options) const {
  const Quantized rows = view(run[dy_rows_], run.size.tokens(), outputs_);
  run.backend().quantize(rows, weight_gradient_ ? transposed_gradient(run) : Quantized(), dy,
                         weight_.counted(run, Operand::Gradient, gradient_maxima(run)));
  options.transpose_b = false;
  options.fast_accumulation = spec().fast_backward;
  run.backend().matmul_fp8(dx, rows, weight_.for_backward(run), options);
}

void Fp8Matmuls::backward_weight(const LayerRun& run, Tensor gradient, Tensor x) const {
  KINTSUGI_CHECK(run.size.length % kFp8Multiple == 0, "sequences of {} tokens in fp8",
                 run.size.length);
  const Quantized inputs = transposed_input(run), gradients = transposed_gradient(run);
  // The maxima are those of the last x that was written: of this one only if it was recomputed.
  if (!keeps(run))
    run.backend().quantize(
        {}, inputs, x,
        weight_.options(run.recompute == Recompute::None ? Maxima() : input_maxima(run)));
  run.backend().matmul_fp8(
      gradient, in_out_ ? inputs : gradients, in_out_ ? gradients : inputs,
      {.accumulate = run.accumulates(), .fast_accumulation = spec().fast_backward});
}

}  // namespace kintsugi
