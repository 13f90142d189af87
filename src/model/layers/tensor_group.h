#pragma once

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/micro_batch.h"

namespace kintsugi {

// The ranks that share the matrices of a layer. Between two matrices that are cut, the residual
// stream is whole: every rank has all its rows or, in sequence parallelism, an equal part of them.
class TensorGroup {
 public:
  TensorGroup(Communicator& group, bool splits_rows)
      : group_(&group), splits_rows_(splits_rows && group.size() > 1) {}

  int size() const { return group_->size(); }
  int rank() const { return group_->rank(); }
  bool is_split() const { return size() > 1; }
  bool splits_rows() const { return splits_rows_; }
  Communicator& group() const { return *group_; }

  // How many of `rows` this rank has, and which.
  std::int64_t own_rows(std::int64_t rows) const { return splits_rows_ ? rows / size() : rows; }
  Tensor own(const Tensor& all) const {
    return splits_rows_ ? all.rows(rank() * own_rows(all.extent(0)), own_rows(all.extent(0))) : all;
  }

  // All rows from everybody's own: `own` itself, or `space` filled with them.
  Tensor all_rows(Tensor own, Tensor space) const;

  // Everybody's `partial` (all rows) summed into `own`, which is `partial` itself where rows are
  // not split. In between, neither is touched.
  Communicator::Work start_sum(Tensor own, Tensor partial) const;
  void finish(Communicator::Work work) const { group_->wait(work); }
  void sum(Tensor own, Tensor partial) const { finish(start_sum(own, partial)); }

  // For a dropout on own rows.
  DropoutOptions dropout(const MicroBatch& batch, std::uint64_t site) const;

 private:
  Communicator* group_;
  bool splits_rows_;
};

}  // namespace kintsugi
