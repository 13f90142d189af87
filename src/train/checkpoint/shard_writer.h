#pragma once

#include <exception>
#include <string>
#include <vector>

#include "train/checkpoint/files.h"
#include "train/checkpoint/saved_tensors.h"
#include "train/engine.h"

namespace kintsugi {

// Writes one rank's shards to the files of whole tensors. A shard of columns would be thousands of
// short ranges, so the ranks of a tensor group all-gather their shards and write whole rows in
// turns.
class ShardWriter {
 public:
  // Allocates all memory it will need. `device` is where the tensors are; without one, they are in
  // host memory and complete, and the writer may be used in another thread than the engine.
  ShardWriter(Engine& engine, Backend* device);

  // Writes elements `range` of the parameter buffer, which are in `bucket`, to the tensors of a
  // kind, rounded to its dtype. Collective over the tensor group, with the same range. Errors are
  // kept for finish(), so that no rank waits for one that has failed.
  void put(CheckpointWriter& writer, const SavedKind& kind, int bucket, Sharding::Range range,
           Tensor elements);
  // Waits until everything is written, or throws the first error.
  void finish();

 private:
  struct Target {
    CheckpointWriter& writer;
    std::string name;
    const Parameter& parameter;
    DType dtype;
  };
  // These write elements of this rank's shard, from index `first` on.
  void put_ranges(const Target& target, std::int64_t first, const Tensor& elements);
  void put_rows(const Target& target, std::int64_t first, const Tensor& elements);
  void put_rounded(const Target& target, std::int64_t global, const Tensor& elements);
  // Copies at most kExchanged elements or a row to shard_ and rounds them.
  void fetch(const Tensor& elements, DType dtype);
  // Joins elements [begin, end) of all ranks' shards into whole rows and writes them.
  void join_rows(const Target& target, std::int64_t begin, std::int64_t end);
  template <class F>
  void guarded(const F& work);  // keeps the first error; does nothing after that

  Engine& engine_;
  Backend* device_;
  WriteQueue queue_;
  int turn_ = 0;  // of the tensor group
  std::vector<std::byte> shard_, all_shards_, joined_;
  std::exception_ptr error_;
};

}  // namespace kintsugi
