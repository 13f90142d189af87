#include "parallel/copy_sums.h"

#include <algorithm>

namespace kintsugi {
namespace {

constexpr std::int64_t kLarge = std::int64_t{1} << 16;  // elements worth a message of their own

// What this rank owns of the gradients that are summed like this.
std::vector<Tensor> owned_pieces(const Sharding& sharding, GradientSum kind) {
  std::vector<Tensor> pieces;
  for (const Parameter& parameter : sharding.set().parameters()) {
    if (parameter.sum != kind) continue;
    const Sharding::Range owned = sharding.owned(parameter.bucket);
    const std::int64_t begin = std::max(owned.begin, parameter.offset),
                       end = std::min(owned.end, parameter.offset + parameter.shape.elements());
    if (begin < end)
      pieces.push_back(
          sharding.owned_gradients(parameter.bucket).rows(begin - owned.begin, end - begin));
  }
  return pieces;
}

}  // namespace

CopySums::CopySums(Backend& backend, Arena& arena, Sharding& sharding, const Groups& groups)
    : backend_(&backend) {
  const DType wide = accumulator_of(sharding.store().dtype());
  for (const auto& [kind, group] :
       {std::pair{GradientSum::Tp, groups.tp.get()}, std::pair{GradientSum::Kv, groups.kv.get()},
        std::pair{GradientSum::Tied, groups.tied.get()}}) {
    Family family{.kind = kind, .group = group};
    std::int64_t elements = 0;
    for (const Tensor& piece : owned_pieces(sharding, kind)) {
      const bool large = piece.elements() >= kLarge;
      (large ? family.large : family.small).push_back(piece);
      if (!large) elements += piece.elements();
    }
    if (elements > 0)
      family.packed =
          arena.allocate(Region::Communication, "gradients of copies", wide, {elements});
    if (elements > 0 || !family.large.empty()) families_.push_back(family);
  }
}

void CopySums::pack(const Family& family, bool back) {
  std::int64_t at = 0;
  for (const Tensor& piece : family.small) {
    const Tensor place = family.packed.rows(at, piece.elements());
    back ? backend_->copy(piece, place) : backend_->copy(place, piece);
    at += piece.elements();
  }
}

void CopySums::run() {
  for (const Family& family : families_) {
    for (const Tensor& piece : family.large) family.group->wait(family.group->all_reduce(piece));
    if (!family.packed) continue;
    pack(family, false);
    family.group->wait(family.group->all_reduce(family.packed));
    pack(family, true);
  }
}

}  // namespace kintsugi
