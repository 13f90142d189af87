#include "model/layers/layer_run.h"

#include <algorithm>

#include "core/error.h"

namespace kintsugi {

Tensor TensorGroup::all_rows(Tensor own, Tensor buffer) const {
  if (!splits_rows_) return own;
  group_->wait(group_->all_gather(buffer, own));
  return buffer;
}

Communicator::Work TensorGroup::start_sum(Tensor own, Tensor partial) const {
  if (!is_split()) return {};
  return splits_rows_ ? group_->reduce_scatter(own, partial) : group_->all_reduce(partial);
}

DropoutOptions TensorGroup::dropout(const MicroBatch& batch, std::uint64_t site) const {
  DropoutOptions options{
      .probability = batch.dropout, .key = batch.dropout_key(site), .first_row = batch.first_token};
  if (batch.token_rows)
    options.rows = own(batch.token_rows);
  else if (splits_rows_)
    options.first_row += rank() * own_rows(batch.tokens());
  return options;
}

Tensor LayerSums::operator[](std::string_view name) const {
  const auto found = std::ranges::find(specs, name, &SumSpec::name);
  KINTSUGI_CHECK(found != specs.end(), "no layer has declared the sum {}", name);
  return values.rows(found - specs.begin(), 1);
}

StreamBuffers allocate_stream_buffers(Arena& arena, std::int64_t hidden, DType dtype,
                                      const BatchSize& size, bool training) {
  const auto take = [&](const char* name, std::int64_t rows) {
    return arena.allocate(Region::Workspace, name, dtype, {rows, hidden});
  };
  const bool split = size.row_parts > 1;
  StreamBuffers s;
  s.branch = take("branch", size.tokens());
  s.own_branch = split ? take("branch, own rows", size.rows()) : s.branch;
  if (split) s.gathered = take("norm outputs of all ranks", size.tokens());
  if (!training) return s;
  s.dnormed = take("gradient of norm outputs", size.tokens());
  s.own_dnormed = split ? take("gradient of norm outputs, own rows", size.rows()) : s.dnormed;
  return s;
}

StreamBuffers StreamBuffers::first(const BatchSize& size) const {
  const auto tokens = [&](const Tensor& x) { return x ? x.rows(0, size.tokens()) : x; };
  const auto rows = [&](const Tensor& x) { return x ? x.rows(0, size.rows()) : x; };
  return {.branch = tokens(branch),
          .own_branch = rows(own_branch),
          .gathered = tokens(gathered),
          .dnormed = tokens(dnormed),
          .own_dnormed = rows(own_dnormed)};
}

}  // namespace kintsugi
