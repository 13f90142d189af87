#include "model/declaration.h"

#include <algorithm>

#include "core/error.h"
#include "core/units.h"

namespace kintsugi {

std::string_view to_string(Recompute recompute) {
  return enum_name(recompute, {"none", "selective", "full"});
}

Recompute parse_recompute(std::string_view text) {
  for (const Recompute mode : {Recompute::None, Recompute::Selective, Recompute::Full})
    if (text == to_string(mode)) return mode;
  user_error("'{}' is not a recompute mode: none, selective or full", text);
}

std::string_view to_string(Dispatch dispatch) {
  return enum_name(dispatch, {"all-gather", "all-to-all"});
}

Dispatch parse_dispatch(std::string_view text) {
  for (const Dispatch way : {Dispatch::AllGather, Dispatch::AllToAll})
    if (text == to_string(way)) return way;
  user_error("'{}' is not a way to dispatch tokens: all-gather or all-to-all", text);
}

Shape TensorSpec::shape(const BatchSize& size) const {
  if (per == Per::Whole) return {width};
  const std::int64_t rows = per == Per::Row        ? size.rows()
                            : per == Per::Sequence ? size.sequences
                                                   : most * size.tokens();
  return width == 0 ? Shape{rows} : Shape{rows, width};
}

int Declaration::matrix(std::string name, std::int64_t outputs, std::int64_t inputs,
                        const Options& o) {
  return add({.name = std::move(name),
              .global = o.in_out ? Shape{inputs, outputs} : Shape{outputs, inputs},
              .shard = {.dimension = (o.shard.along == Shard::Along::Outputs) == o.in_out ? 1 : 0},
              .matrices = {.dimension = o.in_out ? 1 : 0, .count = o.matrices, .turn = o.turn},
              .decay = true,
              .overwritten = true,
              .flops = 2.0 * static_cast<double>(outputs * inputs)},
             o);
}

int Declaration::stack(const std::vector<std::string>& names, std::int64_t outputs,
                       std::int64_t inputs, double used, const Options& o) {
  const bool whole = o.shard.along == Shard::Along::Matrices;
  const int parts = whole ? ranks_.experts : 1, all = static_cast<int>(names.size()),
            count = all / parts, before = whole ? count * ranks_.experts_rank : 0;
  KINTSUGI_CHECK(!whole || all % (parts * ranks_.tensor) == 0, "{} matrices on {} x {} ranks", all,
                 parts, ranks_.tensor);
  Options one = o;
  if (parts > 1) one.data = {GroupKind::ExpertsShard, GroupKind::ExpertsReplica};
  // What other data ranks compute of this one's tokens counts here.
  flops_.linear += 2.0 * used * static_cast<double>((all - count) * outputs * inputs);
  int first = -1;
  for (int i = 0; i < count; ++i) {
    const int owner = i / std::max(1, count / ranks_.tensor);
    one.packed = i > 0;
    const int id = add({.name = names[static_cast<std::size_t>(before + i)],
                        .global = {outputs, inputs},
                        .shard = {.dimension = o.shard.along == Shard::Along::Inputs ? 1 : 0,
                                  .owner = whole && ranks_.tensor > 1 ? owner : -1},
                        .decay = true,
                        .overwritten = true,
                        .used = used,
                        .flops = 2.0 * used * static_cast<double>(outputs * inputs)},
                       one);
    if (first < 0 && (!whole || owner == ranks_.tensor_rank)) first = id;
  }
  return first;
}

int Declaration::vector(std::string name, std::int64_t extent, const Options& o) {
  return add({.name = std::move(name), .global = {extent}, .shard = {.dimension = 0}}, o);
}

int Declaration::table(std::string name, std::int64_t rows, std::int64_t width, const Options& o) {
  return add(
      {.name = std::move(name), .global = {rows, width}, .shard = {.dimension = 0}, .decay = true},
      o);
}

int Declaration::add(Parameter parameter, const Options& options) {
  const Shard& shard = options.shard;
  parameter.group = options.group;
  parameter.init = options.init;
  parameter.data = options.data;
  parameter.packed = options.packed;
  parameter.hidden = options.hidden;
  parameter.wide = options.wide;
  flops_.linear += parameter.flops;
  parameter.shard.parts = shard.parts;
  if (shard.along == Shard::Along::None) parameter.shard.dimension = -1;
  if (ranks_.tensor > 1) {
    parameter.shard.ranks = ranks_.tensor;
    if (shard.copies > 1) {
      parameter.shard.copies = shard.copies;
      parameter.sum_over = {GroupKind::Kv};
      parameter.counted = ranks_.tensor_rank % shard.copies == 0;
    }
    if (shard.along == Shard::Along::None) {
      if (ranks_.sequence_parallel || shard.partial) parameter.sum_over = {GroupKind::Tp};
      parameter.counted = parameter.counted && ranks_.tensor_rank == 0;
    }
  }
  parameter.shape = parameter.shard.local(parameter.global, ranks_.tensor_rank);
  ids_.push_back(set_ != nullptr ? set_->index(parameter.name)
                                 : static_cast<int>(parameters_.size()));
  parameters_.push_back(std::move(parameter));
  return ids_.back();
}

void Declaration::use_fp8(int matrix, std::int64_t stacked) {
  auto i = static_cast<std::size_t>(std::ranges::find(ids_, matrix) - ids_.begin());
  parameters_[i].stacked = stacked;
  while (parameters_[i].packed) --i;
  do {
    parameters_[i++].fp8 = true;
  } while (i < ids_.size() && parameters_[i].packed);
}

bool Declaration::is_trained(int parameter) const {
  return set_ == nullptr || (*set_)[parameter].trained;
}

Saved Declaration::saved(const TensorSpec& spec) {
  saved_.push_back(spec);
  return {static_cast<int>(saved_.size()) - 1, spec.per, spec.most};
}

Workspace Declaration::workspace(const TensorSpec& spec) {
  workspace_.push_back(spec);
  return {static_cast<int>(workspace_.size()) - 1, spec.per, spec.most};
}

std::vector<int> Declaration::buckets() const {
  std::vector<int> found;
  for (const int id : ids_)
    if (const int bucket = (*set_)[id].bucket; std::ranges::find(found, bucket) == found.end())
      found.push_back(bucket);
  return found;
}

}  // namespace kintsugi
