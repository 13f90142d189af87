#pragma once

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/micro_batch.h"

namespace kintsugi {

// The ranks over which the matrices of a layer are sharded (tensor parallelism). Every rank has all
// rows of the residual stream or, with sequence parallelism (`splits_rows`), an equal part of them.
class TensorGroup {
 public:
  TensorGroup(Communicator& group, bool splits_rows)
      : group_(&group), splits_rows_(splits_rows && group.size() > 1) {}

  int size() const { return group_->size(); }
  int rank() const { return group_->rank(); }
  bool is_split() const { return size() > 1; }
  bool splits_rows() const { return splits_rows_; }
  Communicator& group() const { return *group_; }

  // The number of rows that this rank has, and the rows themselves.
  std::int64_t own_rows(std::int64_t rows) const { return splits_rows_ ? rows / size() : rows; }
  Tensor own(const Tensor& all) const {
    return splits_rows_ ? all.rows(rank() * own_rows(all.extent(0)), own_rows(all.extent(0))) : all;
  }

  // If rows are split, all-gathers `own` into `buffer` and returns that; otherwise returns `own`.
  Tensor all_rows(Tensor own, Tensor buffer) const;

  // Sums `partial` (all rows) over the ranks into `own`: a reduce-scatter if rows are split,
  // otherwise an all-reduce in place (`own` is `partial`). Neither may be used before finish().
  Communicator::Work start_sum(Tensor own, Tensor partial) const;
  void finish(Communicator::Work work) const { group_->wait(work); }
  void sum(Tensor own, Tensor partial) const { finish(start_sum(own, partial)); }

  // Options for dropout on this rank's rows.
  DropoutOptions dropout(const MicroBatch& batch, std::uint64_t site) const;

 private:
  Communicator* group_;
  bool splits_rows_;
};

}  // namespace kintsugi
