#include <algorithm>

#include "comm/mpi/exchange.h"
#include "comm/reduce.h"

namespace kintsugi {
namespace {

// Scratch size: larger reductions take several rounds.
// Up to this size an all-reduce is an all-gather and a local reduction, which needs few messages.
constexpr std::int64_t kSmallBytes = std::int64_t{16} << 10;

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // in elements
  std::int64_t count() const { return end - begin; }
};

// The elements that each rank reduces.
std::vector<Range> equal_ranges(std::int64_t elements, int size) {
  std::vector<Range> ranges;
  for (std::int64_t r = 0; r < size; ++r)
    ranges.push_back({r * (elements / size) + std::min(r, elements % size),
                      (r + 1) * (elements / size) + std::min(r + 1, elements % size)});
  return ranges;
}

class PeerExchange : public Exchange {
 public:
  explicit PeerExchange(MpiGroup& group) : Exchange(group, kCollectiveTag) {}

 protected:
  // Every rank starts with a different peer, so that no rank receives all messages at once.
  void for_each_peer(auto&& function) {
    const int size = group().size;
    for (int step = 1; step < size; ++step)
      function((group().rank + step) % size, (group().rank + size - step) % size);
  }

  // Sends this rank's range of x to all ranks and receives their ranges.
  void gather_ranges(Tensor x, const std::vector<Range>& ranges) {
    const std::int64_t width = size_of(x.dtype());
    auto* data = static_cast<std::byte*>(x.data());
    const Range& own = ranges[group().rank];
    for_each_peer([&](int to, int from) {
      const Range& theirs = ranges[from];
      receive(data + theirs.begin * width, theirs.count() * width, from);
      send(data + own.begin * width, own.count() * width, to);
    });
  }
};

// destination = the reduction over all ranks of this rank's range of source.
class OrderedReduceScatter : public PeerExchange {
 public:
  OrderedReduceScatter(MpiGroup& group, void* destination, Tensor source, std::vector<Range> ranges,
                       ReduceOp op)
      : PeerExchange(group),
        destination_(static_cast<std::byte*>(destination)),
        source_(source),
        ranges_(std::move(ranges)),
        op_(op),
        width_(size_of(source.dtype())) {
    for (const Range& range : ranges_) longest_ = std::max(longest_, range.count());
    block_ = std::clamp<std::int64_t>(kScratchBytes / (group.size * width_), 1024, longest_ + 1024);
  }

 protected:
  bool next_round() override {
    if (begin_ >= 0) reduce_block();
    begin_ = begin_ < 0 ? 0 : begin_ + block_;
    if (begin_ >= longest_) return false;
    group().scratch_of(static_cast<std::size_t>(group().size * slot_bytes()));
    for_each_peer([&](int to, int from) {
      const Range own = block_of(group().rank), theirs = block_of(to);
      receive(slot(from), own.count() * width_, from);
      send(at(theirs.begin), theirs.count() * width_, to);
    });
    return true;
  }

 private:
  std::int64_t slot_bytes() const { return std::min(block_, longest_) * width_; }
  std::byte* slot(int rank) { return group().scratch.data() + rank * slot_bytes(); }
  std::byte* at(std::int64_t element) {
    return static_cast<std::byte*>(source_.data()) + element * width_;
  }
  Range block_of(int rank) const {
    const Range& range = ranges_[rank];
    const std::int64_t begin = std::min(range.begin + begin_, range.end);
    return {begin, std::min(begin + block_, range.end)};
  }

  void reduce_block() {
    const Range own = block_of(group().rank);
    if (own.count() <= 0) return;
    std::vector<const void*> addends;
    for (int rank = 0; rank < group().size; ++rank)
      addends.push_back(rank == group().rank ? at(own.begin) : slot(rank));
    reduce_parts(destination_ + begin_ * width_, addends, own.count(), source_.dtype(), op_);
  }

  std::byte* destination_;
  Tensor source_;
  std::vector<Range> ranges_;
  ReduceOp op_;
  std::int64_t width_;
  std::int64_t longest_ = 0;
  std::int64_t block_ = 0;
  std::int64_t begin_ = -1;  // of this round's block, relative to every range
};

class OrderedAllReduce : public OrderedReduceScatter {
 public:
  OrderedAllReduce(MpiGroup& group, Tensor x, std::vector<Range> ranges, ReduceOp op)
      : OrderedReduceScatter(
            group,
            static_cast<std::byte*>(x.data()) +
                ranges[group.rank].begin * static_cast<std::int64_t>(size_of(x.dtype())),
            x, ranges, op),
        x_(x),
        ranges_(std::move(ranges)) {}

 protected:
  bool next_round() override {
    if (gathering_) return false;
    if (OrderedReduceScatter::next_round()) return true;
    gathering_ = true;
    gather_ranges(x_, ranges_);
    return true;
  }

 private:
  Tensor x_;
  std::vector<Range> ranges_;
  bool gathering_ = false;
};

// For small tensors: every rank gathers all inputs and reduces them.
class SmallAllReduce : public Exchange {
 public:
  SmallAllReduce(MpiGroup& group, Tensor x, ReduceOp op)
      : Exchange(group, kCollectiveTag), x_(x), op_(op) {
    bytes_sent_ = static_cast<std::int64_t>(x.bytes()) * (group.size - 1);
  }

 protected:
  bool next_round() override {
    const std::size_t bytes = x_.bytes();
    std::byte* all = group().scratch_of(bytes * static_cast<std::size_t>(group().size));
    if (!gathered_) {
      gathered_ = true;
      const int count = static_cast<int>(bytes);
      check_mpi(
          MPI_Iallgather(x_.data(), count, MPI_BYTE, all, count, MPI_BYTE, group().comm, request()),
          "MPI_Iallgather");
      return true;
    }
    std::vector<const void*> parts;
    for (int rank = 0; rank < group().size; ++rank)
      parts.push_back(all + static_cast<std::size_t>(rank) * bytes);
    reduce_parts(x_.data(), parts, x_.elements(), x_.dtype(), op_);
    return false;
  }

 private:
  Tensor x_;
  ReduceOp op_;
  bool gathered_ = false;
};

}  // namespace

std::shared_ptr<Operation> make_ordered_all_reduce(MpiGroup& group, Tensor x, ReduceOp op) {
  if (static_cast<std::int64_t>(x.bytes()) <= kSmallBytes)
    return std::make_shared<SmallAllReduce>(group, x, op);
  return std::make_shared<OrderedAllReduce>(group, x, equal_ranges(x.elements(), group.size), op);
}

std::shared_ptr<Operation> make_ordered_reduce_scatter(MpiGroup& group, Tensor shard, Tensor full) {
  return std::make_shared<OrderedReduceScatter>(
      group, shard.data(), full, equal_ranges(full.elements(), group.size), ReduceOp::Sum);
}

}  // namespace kintsugi
