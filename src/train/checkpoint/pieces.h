#pragma once

#include <exception>
#include <string>
#include <vector>

#include "train/checkpoint/files.h"
#include "train/engine.h"

namespace kintsugi {

// Puts one rank's pieces of whole tensors in their places. A rank's share of a matrix that is cut
// along its columns would be thousands of short pieces; the ranks of its tensor group exchange
// theirs first and write whole rows in turns.
class PieceWriter {
 public:
  explicit PieceWriter(Engine& engine);  // takes all the memory it will need

  // Elements `range` of the engine's numbering, in `bucket`, of the tensors `prefix` + name. All
  // ranks of a tensor group call it with the same range. What goes wrong is kept for the end, so
  // that nobody waits for a rank that has given up.
  void put(CheckpointWriter& writer, const std::string& prefix, int bucket, Sharding::Range range,
           Tensor elements);
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Target {
    CheckpointWriter& writer;
    std::string name;
    const Parameter& parameter;
  };
  // Elements first … of this rank's share.
  void put_runs(const Target& target, std::int64_t first, const Tensor& elements);
  void put_rows(const Target& target, std::int64_t first, const Tensor& elements);
  // Writes the rows [begin, end) that the ranks' shares make together.
  void join_rows(const Target& target, std::int64_t begin, std::int64_t end, DType dtype);
  Tensor download(const Tensor& elements);
  template <class F>
  void guarded(const F& work);  // keeps what goes wrong; does nothing after that

  Engine& engine_;
  int turn_ = 0;  // of the tensor group
  std::vector<std::byte> mine_, everybodys_, joined_;
  std::exception_ptr error_;
};

}  // namespace kintsugi
