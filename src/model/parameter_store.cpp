#include "model/parameter_store.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {
namespace {

// The fp8 copies of a matrix (outputs, inputs), or of a stack of them.
struct QuantizedSize {
  explicit QuantizedSize(const Shape& shape)
      : outputs(shape[shape.rank() - 2]),
        inputs(shape[shape.rank() - 1]),
        rows(shape.elements() / inputs),
        columns(shape.elements() / outputs) {}
  std::int64_t bytes_of_rows() const { return quantized_bytes(rows, inputs); }
  std::int64_t bytes_of_columns() const { return quantized_bytes(columns, outputs); }
  std::int64_t outputs, inputs;  // of a matrix
  std::int64_t rows, columns;    // of all
};

}  // namespace

ParameterStore::ParameterStore(const ParameterSet& set, DType dtype)
    : set_(&set), dtype_(dtype), memory_(set.buckets().size()) {}

ParameterStore::ParameterStore(const ParameterSet& set, Arena& arena, DType dtype,
                               bool with_gradients)
    : ParameterStore(set, dtype) {
  weights_ = arena.allocate(Region::Weights, "weights", dtype, {set.buffer_elements()});
  if (with_gradients)
    gradients_ = arena.allocate(Region::Gradients, "gradients", accumulator_of(dtype),
                                {set.buffer_elements()});
  for (std::size_t i = 0; i < memory_.size(); ++i) {
    const Bucket& bucket = set.buckets()[i];
    memory_[i].weights = bucket.wide && accumulator_of(dtype) != dtype
                             ? arena.allocate(Region::Weights, "weights", accumulator_of(dtype),
                                              {bucket.end - bucket.begin})
                             : weights_.rows(bucket.begin, bucket.end - bucket.begin);
    if (with_gradients)
      memory_[i].gradients = gradients_.rows(bucket.begin, bucket.end - bucket.begin);
  }
}

Tensor ParameterStore::weight(int first, Shape shape) const {
  const int bucket = (*set_)[first].bucket;
  KINTSUGI_CHECK(bucket_weights(bucket), "the weights of {} are not in memory",
                 (*set_)[first].name);
  return view(bucket_weights(bucket), first, shape);
}

Tensor ParameterStore::gradient(int first, Shape shape) const {
  return view(bucket_gradients((*set_)[first].bucket), first, shape);
}

void ParameterStore::allocate_quantized(Arena& arena, bool one_buffer) {
  std::int64_t largest = 0;
  const auto& parameters = set_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].fp8 || parameters[i].packed) continue;
    // The first one is the first of which this rank has anything.
    std::size_t first = i;
    Shape shape = parameters[i].shape;
    for (std::size_t next = i + 1; next < parameters.size() && parameters[next].packed; ++next) {
      if (shape[0] == 0) first = next;
      shape[0] += parameters[next].shape[0];
    }
    const auto id = static_cast<int>(first);
    const QuantizedSize size(
        {parameters[first].stacked, shape[0] / parameters[first].stacked, shape[1]});
    largest = std::max({largest, size.bytes_of_rows(), size.bytes_of_columns()});
    if (is_unrounded(id))  // space for rounded()
      largest = std::max(largest, shape.elements() * static_cast<std::int64_t>(size_of(dtype_)));
    if (one_buffer)
      maxima_[id] =
          arena.allocate(Region::Workspace, "fp8 maxima", DType::I32, {size.rows + size.columns});
    else
      quantized_[id] = arena.allocate(Region::Weights, "fp8 weights", DType::U8,
                                      {size.bytes_of_rows() + size.bytes_of_columns()});
  }
  if (one_buffer && largest > 0)
    one_quantized_ = arena.allocate(Region::Workspace, "fp8 weights", DType::U8, {largest});
}

const Tensor& ParameterStore::quantized_memory(int first) const {
  const auto found = quantized_.find(first);
  const Tensor& memory = found != quantized_.end() ? found->second : one_quantized_;
  KINTSUGI_CHECK(memory, "{} has no memory in fp8", (*set_)[first].name);
  return memory;
}

Tensor ParameterStore::rounded(int first, Shape shape) const {
  const Tensor rounded(quantized_memory(first).data(), dtype_, shape);
  KINTSUGI_CHECK(rounded.bytes() <= quantized_memory(first).bytes(), "no memory for {} in {}",
                 (*set_)[first].name, to_string(dtype_));
  return rounded;
}

QuantizedWeight ParameterStore::quantized(int first, Shape shape, bool one_scale) const {
  const bool kept = quantized_.contains(first);
  const Tensor& memory = quantized_memory(first);
  const QuantizedSize size(shape);
  const std::int64_t bytes = size.bytes_of_rows();
  Maxima maxima;
  if (!kept && !one_scale)
    maxima = {maxima_.at(first).rows(0, size.rows),
              maxima_.at(first).rows(size.rows, size.columns)};
  return {.rows = quantized_in(memory, size.rows, size.inputs, one_scale),
          .columns = quantized_in(kept ? memory.rows(bytes, memory.extent(0) - bytes) : memory,
                                  size.columns, size.outputs, one_scale),
          .maxima = maxima,
          .kept = kept};
}

Tensor ParameterStore::view(Tensor flat, int index, Shape shape) const {
  if (!flat) return {};  // it has no gradients
  // The shape must cover this parameter and, if it is larger, whole packed ones that follow.
  std::int64_t covered = (*set_)[index].shape.elements();
  const auto& parameters = set_->parameters();
  for (std::size_t next = index + 1; covered < shape.elements() && next < parameters.size();
       ++next) {
    KINTSUGI_CHECK(parameters[next].packed, "{} is not stored directly after {}",
                   parameters[next].name, (*set_)[index].name);
    covered += parameters[next].shape.elements();
  }
  KINTSUGI_CHECK(covered == shape.elements(), "{} has {} elements, but shape {} is requested",
                 (*set_)[index].name, covered, to_string(shape));
  const std::int64_t offset =
      (*set_)[index].offset - set_->buckets()[at((*set_)[index].bucket)].begin;
  auto* begin = static_cast<std::byte*>(flat.data()) +
                static_cast<std::size_t>(offset) * size_of(flat.dtype());
  return Tensor(begin, flat.dtype(), shape);
}

}  // namespace kintsugi
