#include "model/layers/tensor_group.h"

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

}  // namespace kintsugi
