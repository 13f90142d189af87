#include "model/layers/expert_linear.h"

#include "core/error.h"
#include "model/layers/adapters.h"

namespace kintsugi {

void ExpertLinear::declare(Declaration& d, double used, std::int64_t visitors, std::int64_t most) {
  const auto own = experts_ / (d.ranks().tensor * d.ranks().experts),
             each = static_cast<std::int64_t>(spec_.weights.size()) / experts_;
  weight_ = d.stack(spec_.weights, outputs(), spec_.inputs, used,
                    {.group = ParameterGroup::Experts,
                     .init = spec_.init.front(),
                     .shard = {.along = Declaration::Shard::Along::Matrices},
                     .hidden = true});
  shape_ = {own, each * outputs(), spec_.inputs};
  if (spec_.adapters.any()) declare_adapters(d, used, most);
  fp8_.declare(d, weight_, shape_);
  if (!fp8_.on()) return;
  const bool tokens_x = tokens_ == Tokens::Input;
  x_rows_ = d.workspace(quantized_rows("fp8 inputs", shape_[2], tokens_x ? visitors : most));
  TensorSpec gradient = quantized_rows("fp8 gradients", shape_[1], tokens_x ? most : visitors);
  gradient.training = true;
  dy_rows_ = d.workspace(gradient);
}

void ExpertLinear::declare_adapters(Declaration& d, double used, std::int64_t most) {
  const std::int64_t r = spec_.adapters.r, own = shape_[0];
  const std::size_t each = spec_.weights.size() / static_cast<std::size_t>(experts_);
  adapted_.clear();
  std::vector<std::string> a, b;
  for (std::size_t i = 0; i < spec_.adapters.names.size(); ++i) {
    const std::string& name = spec_.adapters.names[i];
    if (name.empty()) continue;
    a.push_back(name + kAdapterA);
    b.push_back(name + kAdapterB);
    if (i < each) adapted_.push_back(static_cast<std::int64_t>(i));
  }
  const auto adapters = static_cast<std::int64_t>(adapted_.size());
  KINTSUGI_CHECK(std::ssize(a) == adapters * experts_, "{} adapters of {} experts", a.size(),
                 experts_);
  const auto options = [](const Init& init) {
    return Declaration::Options{.group = ParameterGroup::Adapter,
                                .init = init,
                                .shard = {.along = Declaration::Shard::Along::Matrices}};
  };
  a_ = d.stack(a, r, spec_.inputs, used, options(adapter_init(spec_.inputs)));
  b_ = d.stack(b, outputs(), r, used, options({InitKind::Zeros}));
  a_shape_ = {own, adapters * r, spec_.inputs};
  b_shape_ = {own, adapters, outputs(), r};
  low_ = d.saved(
      {.label = "expert adapters", .per = Per::Bounded, .width = adapters * r, .most = most});
  dlow_ = d.workspace({.label = "gradient of expert adapters",
                       .per = Per::Bounded,
                       .width = adapters * r,
                       .most = most,
                       .training = true,
                       .read_by_weights = true});
}

void ExpertLinear::for_each_adapter(Tensor y, Tensor low, const auto& f) const {
  const std::int64_t r = spec_.adapters.r;
  for (std::size_t i = 0; i < adapted_.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    f(index, y.part(1, adapted_[i] * outputs(), outputs()), low.part(1, index * r, r));
  }
}

void ExpertLinear::read(const LayerRun& run, Tensor x, const ExpertRows& rows) const {
  if (adapts())
    run.backend().grouped_matmul(
        run[low_], x, a(run), rows,
        {.transpose_b = true, .tokens_a = tokens_ == Tokens::Input, .scale = spec_.adapters.scale});
}

// Of the rows of experts, only those that are used.
Quantized ExpertLinear::quantized(const LayerRun& run, Fp8Weight::Operand operand, Tensor x,
                                  bool of_tokens, const ExpertRows& rows) const {
  const Workspace memory = operand == Fp8Weight::Operand::Input ? x_rows_ : dy_rows_;
  const Quantized result = quantized_in(run[memory], x.extent(0), x.extent(1), false);
  QuantizeOptions options = fp8_.counted(run, operand, {});
  if (!of_tokens) options.used = rows;
  run.backend().quantize(result, {}, x, options);
  return result;
}

// As in Linear, adapters come first, and the matmul with W adds to them.
void ExpertLinear::forward(const LayerRun& run, Tensor y, Tensor x, const ExpertRows& rows) const {
  if (adapts()) {
    if (shape_[1] > std::ssize(adapted_) * outputs()) run.backend().fill(y, 0.0);
    const Tensor b = run.store().weight(b_, b_shape_);
    for_each_adapter(y, run[low_], [&](std::int64_t i, Tensor columns, Tensor low) {
      run.backend().grouped_matmul(columns, low, b.select(1, i), rows, {.transpose_b = true});
    });
  }
  GroupedOptions options{.tokens_a = tokens_ == Tokens::Input, .accumulate = adapts()};
  if (fp8_.is_used(run)) {
    options.fast_accumulation = fp8_.spec().fast_forward;
    const Quantized in = quantized(run, Fp8Weight::Operand::Input, x, options.tokens_a, rows);
    return run.backend().grouped_matmul_fp8(y, in, fp8_.for_forward(run), rows, options);
  }
  options.transpose_b = true;
  run.backend().grouped_matmul(y, x, weight(run), rows, options);
}

void ExpertLinear::backward_input(const LayerRun& run, Tensor dx, Tensor dy,
                                  const ExpertRows& rows) const {
  const bool tokens = tokens_ == Tokens::Output;
  if (adapts()) {
    const Tensor b = run.store().weight(b_, b_shape_);
    for_each_adapter(dy, run[dlow_], [&](std::int64_t i, Tensor columns, Tensor dlow) {
      run.backend().grouped_matmul(dlow, columns, b.select(1, i), rows,
                                   {.tokens_a = tokens, .scale = spec_.adapters.scale});
    });
    run.backend().grouped_matmul(dx, run[dlow_], a(run), rows, {});
  }
  GroupedOptions options{.tokens_a = tokens, .accumulate = adapts()};
  if (!fp8_.is_used(run)) return run.backend().grouped_matmul(dx, dy, weight(run), rows, options);
  options.fast_accumulation = fp8_.spec().fast_backward;
  const Quantized in = quantized(run, Fp8Weight::Operand::Gradient, dy, tokens, rows);
  run.backend().grouped_matmul_fp8(dx, in, fp8_.for_backward(run), rows, options);
}

bool ExpertLinear::is_trained(const LayerRun& run) const {
  return adapts() || run.store().gradient(weight_, shape_);
}

void ExpertLinear::backward_weight(const LayerRun& run, Tensor dy, Tensor x,
                                   const ExpertRows& rows) const {
  const bool tokens_x = tokens_ == Tokens::Input, tokens_dy = !tokens_x;
  const GroupedOptions options{
      .tokens_a = tokens_dy, .tokens_b = tokens_x, .accumulate = run.accumulates()};
  if (const Tensor gradient = run.store().gradient(weight_, shape_))
    run.backend().grouped_weight_gradient(gradient, dy, x, rows, options);
  if (!adapts()) return;
  run.backend().grouped_weight_gradient(run.store().gradient(a_, a_shape_), run[dlow_], x, rows,
                                        {.tokens_b = tokens_x, .accumulate = run.accumulates()});
  const Tensor gradient = run.store().gradient(b_, b_shape_);
  for_each_adapter(dy, run[low_], [&](std::int64_t i, Tensor columns, Tensor low) {
    run.backend().grouped_weight_gradient(gradient.select(1, i), columns, low, rows,
                                          {.tokens_a = tokens_dy, .accumulate = run.accumulates()});
  });
}

}  // namespace kintsugi
