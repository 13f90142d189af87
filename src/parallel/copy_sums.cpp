#include "parallel/copy_sums.h"

#include <algorithm>

namespace kintsugi {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1}
                                << 16;  // elements from which a gradient is sent on its own

}  // namespace

// The gradients that this rank owns and that are reduced over groups of this kind.
std::vector<CopySums::OwnedGradient> CopySums::owned_gradients(Sharding& sharding, GroupKind kind) {
  std::vector<OwnedGradient> found;
  for (const Parameter& parameter : sharding.set().parameters()) {
    const auto& kinds = parameter.sum_over;
    if (!parameter.trained || std::ranges::find(kinds, kind) == kinds.end()) continue;
    const Sharding::Range owned = sharding.owned(parameter.bucket);
    const std::int64_t begin = std::max(owned.begin, parameter.offset),
                       end = std::min(owned.end, parameter.offset + parameter.shape.elements());
    if (begin >= end) continue;
    OwnedGradient& gradient = found.emplace_back();
    gradient.gradients =
        sharding.owned_gradients(parameter.bucket).rows(begin - owned.begin, end - begin);
    // If a gradient is reduced over several groups, only the last sum is final.
    if (sharding.offload() != nullptr && parameter.counted &&
        kind == *std::ranges::max_element(kinds))
      gradient.squared_norm =
          sharding.offload()->squared_norm(sharding.data_group(parameter.bucket));
  }
  return found;
}

CopySums::CopySums(Backend& backend, Arena& arena, Sharding& sharding, const Groups& groups)
    : backend_(&backend), offload_(sharding.offload()) {
  const DType wide = accumulator_of(sharding.store().dtype());
  std::int64_t largest = 0;
  for (const GroupSpec& spec : group_specs()) {
    GroupGradients group{.group = &groups[spec.kind]};
    std::int64_t elements = 0;
    for (const OwnedGradient& owned : owned_gradients(sharding, spec.kind)) {
      const std::int64_t count = owned.gradients.elements();
      const bool large = count >= kLarge;
      (large ? group.large : group.small).push_back(owned);
      if (large)
        largest = std::max(largest, count);
      else
        elements += count;
    }
    if (elements > 0)
      group.packed = arena.allocate(Region::Communication, "gradients of copies", wide, {elements});
    if (elements > 0 || !group.large.empty()) groups_.push_back(group);
  }
  if (offload_ != nullptr && largest > 0)
    staging_ = arena.allocate(Region::Communication, "gradients of copies", wide, {largest});
}

void CopySums::copy_in(Tensor device, const OwnedGradient& owned) {
  if (offload_ == nullptr) return backend_->copy(device, owned.gradients);
  backend_->wait(backend_->to_device(device, owned.gradients));
}

void CopySums::copy_out(const OwnedGradient& owned, Tensor device) {
  if (offload_ == nullptr) return backend_->copy(owned.gradients, device);
  if (owned.squared_norm) backend_->squared_norm(owned.squared_norm, device);
  backend_->wait(backend_->to_host(owned.gradients, device));
}

void CopySums::reduce_large(const GroupGradients& group) {
  for (const OwnedGradient& owned : group.large) {
    if (offload_ == nullptr) {
      group.group->wait(group.group->all_reduce(owned.gradients));
      continue;
    }
    const Tensor device = staging_.rows(0, owned.gradients.elements());
    copy_in(device, owned);
    group.group->wait(group.group->all_reduce(device));
    copy_out(owned, device);
  }
}

void CopySums::reduce_small(const GroupGradients& group) {
  if (!group.packed) return;
  const auto for_each = [&](const auto& f) {
    std::int64_t offset = 0;
    for (const OwnedGradient& owned : group.small) {
      const std::int64_t count = owned.gradients.elements();
      f(group.packed.rows(offset, count), owned);
      offset += count;
    }
  };
  for_each([&](Tensor device, const OwnedGradient& owned) { copy_in(device, owned); });
  group.group->wait(group.group->all_reduce(group.packed));
  for_each([&](Tensor device, const OwnedGradient& owned) { copy_out(owned, device); });
}

void CopySums::run() {
  for (const GroupGradients& group : groups_) {
    reduce_large(group);
    reduce_small(group);
  }
}

}  // namespace kintsugi
