#include "model/slice.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace kintsugi {
namespace {

// What one rank has of one part: `share` places, of which the last may be empty.
struct Share {
  std::int64_t part = 0;   // extent of a part
  std::int64_t share = 0;  // places per part
  std::int64_t begin = 0, end = 0;
};

Share share_of(const TensorCut& cut, std::int64_t extent, int rank) {
  Share s;
  const std::int64_t sharers = cut.ranks / cut.copies, index = rank / cut.copies;
  s.part = extent / cut.parts;
  s.share = (s.part + sharers - 1) / sharers;
  s.begin = std::min(s.part, index * s.share);
  s.end = std::min(s.part, s.begin + s.share);
  return s;
}

}  // namespace

ModelSlice whole_model(const ModelConfig& config) {
  ModelSlice slice;
  slice.layers.resize(static_cast<std::size_t>(config.layers));
  std::iota(slice.layers.begin(), slice.layers.end(), 0);
  return slice;
}

int kv_copies(std::int64_t kv_heads, int tp) {
  return std::max(1, tp / static_cast<int>(kv_heads));
}

Shape TensorCut::local(const Shape& global) const {
  if (dimension < 0) return global;
  Shape shape = global;
  shape[dimension] = parts * share_of(*this, global[dimension], 0).share;
  return shape;
}

void for_each_run(const TensorCut& cut, const Shape& global, int rank, std::int64_t first,
                  std::int64_t last, const std::function<void(const CutRun&)>& use) {
  if (cut.dimension < 0 || cut.ranks == 1) {
    if (first < last) use({first, first, last - first});
    return;
  }
  const Share s = share_of(cut, global[cut.dimension], rank);
  std::int64_t rows = 1, width = 1;  // before and behind the cut dimension
  for (int i = 0; i < cut.dimension; ++i) rows *= global[i];
  for (int i = cut.dimension + 1; i < global.rank(); ++i) width *= global[i];
  const std::int64_t block = s.share * width;  // elements of one part in one row, with padding
  for (std::int64_t at = first / block; at < rows * cut.parts && at * block < last; ++at) {
    const std::int64_t row = at / cut.parts, part = at % cut.parts;
    const std::int64_t here = at * block;
    const std::int64_t there = (row * global[cut.dimension] + part * s.part + s.begin) * width;
    const std::int64_t from = std::max(first, here),
                       to = std::min(last, here + (s.end - s.begin) * width);
    if (from < to) use({from, there + from - here, to - from});
  }
}

RowRange rows_of(const TensorCut& cut, const Shape& global, int rank) {
  if (cut.dimension < 0) return {0, global[0]};
  KINTSUGI_CHECK(cut.dimension == 0 && cut.parts == 1, "rows cut along dimension {} in {} parts",
                 cut.dimension, cut.parts);
  const Share s = share_of(cut, global[0], rank);
  return {s.begin, s.end};
}

}  // namespace kintsugi
