#include "parallel/copy_sums.h"

#include <algorithm>

namespace kintsugi {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1} << 16;  // elements worth a message of their own

}  // namespace

// What this rank owns of the gradients that are summed over such groups.
std::vector<CopySums::Piece> CopySums::owned_pieces(Sharding& sharding, GroupKind kind) {
  std::vector<Piece> pieces;
  for (const Parameter& parameter : sharding.set().parameters()) {
    const auto& kinds = parameter.sum_over;
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) continue;
    const Sharding::Range owned = sharding.owned(parameter.bucket);
    const std::int64_t begin = std::max(owned.begin, parameter.offset),
                       end = std::min(owned.end, parameter.offset + parameter.shape.elements());
    if (begin >= end) continue;
    Piece& piece = pieces.emplace_back();
    piece.gradients =
        sharding.owned_gradients(parameter.bucket).rows(begin - owned.begin, end - begin);
    // Only the last of several sums is final.
    if (sharding.offload() != nullptr && parameter.counted &&
        kind == *std::max_element(kinds.begin(), kinds.end()))
      piece.squared_norm = sharding.offload()->squared_norm(sharding.data_group(parameter.bucket));
  }
  return pieces;
}

CopySums::CopySums(Backend& backend, Arena& arena, Sharding& sharding, const Groups& groups)
    : backend_(&backend), offload_(sharding.offload()) {
  const DType wide = accumulator_of(sharding.store().dtype());
  std::int64_t largest = 0;
  for (const GroupSpec& spec : group_specs()) {
    Family family{.group = &groups[spec.kind]};
    std::int64_t elements = 0;
    for (const Piece& piece : owned_pieces(sharding, spec.kind)) {
      const std::int64_t count = piece.gradients.elements();
      const bool large = count >= kLarge;
      (large ? family.large : family.small).push_back(piece);
      if (large)
        largest = std::max(largest, count);
      else
        elements += count;
    }
    if (elements > 0)
      family.packed =
          arena.allocate(Region::Communication, "gradients of copies", wide, {elements});
    if (elements > 0 || !family.large.empty()) families_.push_back(family);
  }
  if (offload_ != nullptr && largest > 0)
    staging_ = arena.allocate(Region::Communication, "gradients of copies", wide, {largest});
}

void CopySums::bring(Tensor here, const Piece& piece) {
  if (offload_ == nullptr) return backend_->copy(here, piece.gradients);
  backend_->wait(backend_->to_device(here, piece.gradients));
}

void CopySums::put_back(const Piece& piece, Tensor here) {
  if (offload_ == nullptr) return backend_->copy(piece.gradients, here);
  if (piece.squared_norm) backend_->squared_norm(piece.squared_norm, here);
  backend_->wait(backend_->to_host(piece.gradients, here));
}

void CopySums::sum_large(const Family& family) {
  for (const Piece& piece : family.large) {
    if (offload_ == nullptr) {
      family.group->wait(family.group->all_reduce(piece.gradients));
      continue;
    }
    const Tensor here = staging_.rows(0, piece.gradients.elements());
    bring(here, piece);
    family.group->wait(family.group->all_reduce(here));
    put_back(piece, here);
  }
}

void CopySums::sum_small(const Family& family) {
  if (!family.packed) return;
  const auto for_each = [&](const auto& f) {
    std::int64_t at = 0;
    for (const Piece& piece : family.small) {
      const std::int64_t count = piece.gradients.elements();
      f(family.packed.rows(at, count), piece);
      at += count;
    }
  };
  for_each([&](Tensor here, const Piece& piece) { bring(here, piece); });
  family.group->wait(family.group->all_reduce(family.packed));
  for_each([&](Tensor here, const Piece& piece) { put_back(piece, here); });
}

void CopySums::run() {
  for (const Family& family : families_) {
    sum_large(family);
    sum_small(family);
  }
}

}  // namespace kintsugi
