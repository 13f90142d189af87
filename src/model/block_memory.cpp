#include "model/block_memory.h"

#include <fmt/core.h>

#include "core/error.h"

namespace kintsugi {

// Calls f(tensor, key) for each tensor. With `sharing`, one_at_a_time tensors of a label have one
// key.
template <class F>
void SharedMemory::for_each(const std::vector<TensorSpec>& specs, bool sharing, const F& f) {
  std::map<std::string_view, int> seen;
  for (const TensorSpec& spec : specs)
    f(spec, Key{spec.label, sharing && spec.one_at_a_time ? 0 : seen[spec.label]++});
}

bool SharedMemory::shares(const TensorSpec& saved, Recompute recompute) const {
  if (!training_ || saved.temporary) return true;
  return recompute != Recompute::None && !saved.kept && saved.dropped_by <= recompute;
}

DType SharedMemory::dtype_of(const TensorSpec& spec) const {
  if (spec.bytes) return DType::U8;
  return spec.wide ? accumulator_of(dtype_) : dtype_;
}

Shape SharedMemory::shape_of(const TensorSpec& spec) const {
  return spec.bytes ? Shape{spec.bytes(size_, dtype_, training_)} : spec.shape(size_);
}

Tensor SharedMemory::view(const Tensor& memory, const TensorSpec& spec) const {
  if (!memory) return memory;
  KINTSUGI_CHECK(shape_of(spec).elements() <= memory.elements(), "{}: {} in memory for {}",
                 spec.label, to_string(shape_of(spec)), to_string(memory.shape()));
  return Tensor(memory.data(), memory.dtype(), shape_of(spec));
}

SharedMemory::SharedMemory(Arena& arena, const std::vector<Declaration>& blocks, DType dtype,
                           const BatchSize& size, Recompute recompute, bool training)
    : dtype_(dtype), size_(size), training_(training) {
  struct Need {
    Key key;
    TensorSpec largest;
  };
  const auto collect = [&](auto&& list) {
    std::vector<Need> needs;  // in order of declaration
    for (const Declaration& block : blocks)
      list(block, [&](const TensorSpec& spec, const Key& key) {
        for (Need& need : needs)
          if (need.key == key) {
            if (shape_of(spec).elements() > shape_of(need.largest).elements()) need.largest = spec;
            return;
          }
        needs.push_back({key, spec});
      });
    return needs;
  };
  const auto saved = collect([&](const Declaration& block, const auto& add) {
    for_each(block.saved(), training, [&](const TensorSpec& spec, const Key& key) {
      if (shares(spec, recompute)) add(spec, key);
    });
  });
  for (const Need& need : saved)
    saved_[need.key] =
        arena.allocate(training ? Region::Workspace : Region::Activations,
                       fmt::format("{}{}", training && !need.largest.temporary ? "recomputed " : "",
                                   need.key.first),
                       dtype_of(need.largest), shape_of(need.largest));
  const auto workspace = collect([&](const Declaration& block, const auto& add) {
    for_each(block.workspace(), true, [&](const TensorSpec& spec, const Key& key) {
      if (training || !spec.training) add(spec, key);
    });
  });
  for (const Need& need : workspace)
    workspace_[need.key] = arena.allocate(Region::Workspace, std::string(need.key.first),
                                          dtype_of(need.largest), shape_of(need.largest));
}

BlockMemory SharedMemory::allocate_block(Arena& arena, const Declaration& block,
                                         Recompute recompute) const {
  BlockMemory memory;
  for_each(block.saved(), training_, [&](const TensorSpec& spec, const Key& key) {
    memory.saved.push_back(shares(spec, recompute) ? view(saved_.at(key), spec)
                                                   : allocate(arena, spec));
  });
  return memory;
}

BlockMemory SharedMemory::allocate_own(Arena& arena, const Declaration& layer) const {
  BlockMemory memory;
  for (const TensorSpec& spec : layer.saved()) memory.saved.push_back(allocate(arena, spec));
  return memory;
}

Tensor SharedMemory::allocate(Arena& arena, const TensorSpec& spec) const {
  return arena.allocate(Region::Activations, std::string(spec.label), dtype_of(spec),
                        shape_of(spec));
}

std::vector<Tensor> SharedMemory::workspace(const Declaration& block) const {
  std::vector<Tensor> tensors;
  for_each(block.workspace(), true, [&](const TensorSpec& spec, const Key& key) {
    const auto found = workspace_.find(key);
    tensors.push_back(found == workspace_.end() ? Tensor() : view(found->second, spec));
  });
  return tensors;
}

KeptMemory SharedMemory::allocate_kept(Arena& arena, const Declaration& block, int branches,
                                       std::int64_t hidden) const {
  const auto take = [&](std::string_view label, DType dtype, const Shape& shape) {
    return arena.allocate(Region::Activations, fmt::format("kept {}", label), dtype, shape);
  };
  KeptMemory kept{.workspace = workspace(block), .gradients = {}};
  for (std::size_t i = 0; i < kept.workspace.size(); ++i)
    if (const TensorSpec& spec = block.workspace()[i]; spec.read_by_weights)
      kept.workspace[i] = take(spec.label, dtype_of(spec), shape_of(spec));
  for (int i = 0; i < branches; ++i)
    kept.gradients.push_back(take("gradient of branches", dtype_, {size_.rows(), hidden}));
  return kept;
}

}  // namespace kintsugi
