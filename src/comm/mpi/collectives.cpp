
#include <algorithm>
#include <cstring>

#include "comm/mpi/exchange.h"
#include "core/collective.h"

namespace kintsugi {
namespace {

// MPI counts in int and allocates memory for reductions, so large tensors are processed in blocks.
constexpr std::int64_t kBlockBytes = std::int64_t{64} << 20;

// Runs an MPI collective block by block. The bytes it sends are unknown and counted as for a ring.
class MpiCollective : public Exchange {
 public:
  MpiCollective(MpiGroup& group, Collective kind, const Tensor& whole, std::int64_t elements,
                std::int64_t block)
      : Exchange(group, kCollectiveTag), elements_(elements), block_(block) {
    bytes_sent_ =
        static_cast<std::int64_t>(ring_bytes(kind, static_cast<double>(whole.bytes()), group.size));
  }

 protected:
  bool next_round() final {
    if (begin_ >= elements_) return false;
    const std::int64_t count = std::min(block_, elements_ - begin_);
    start_block(begin_, count);
    begin_ += count;
    return true;
  }
  virtual void start_block(std::int64_t begin, std::int64_t count) = 0;

 private:
  std::int64_t elements_, block_;
  std::int64_t begin_ = 0;
};

std::byte* at(const Tensor& x, std::int64_t element) {
  return static_cast<std::byte*>(x.data()) + element * size_of(x.dtype());
}

std::int64_t elements_in(std::int64_t bytes, DType dtype) {
  return std::max<std::int64_t>(bytes / size_of(dtype), 1);
}

class AllReduce : public MpiCollective {
 public:
  AllReduce(MpiGroup& group, Tensor x, ReduceOp op)
      : MpiCollective(group, Collective::AllReduce, x, x.elements(),
                      elements_in(kBlockBytes, x.dtype())),
        x_(x),
        op_(op) {}

 protected:
  void start_block(std::int64_t begin, std::int64_t count) override {
    const Reduction reduction = mpi_reduction(x_.dtype(), op_);
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, at(x_, begin), static_cast<int>(count), reduction.type,
                             reduction.op, group().comm, request()),
              "MPI_Iallreduce");
  }

 private:
  Tensor x_;
  ReduceOp op_;
};

// A block is the same range of every rank's shard. The ranges are copied to scratch if they
// are not adjacent in `full`, or if MPI would write where it reads (with MPI_IN_PLACE, MPI writes
// the result to the start of `full`, which must not change).
class ReduceScatter : public MpiCollective {
 public:
  ReduceScatter(MpiGroup& group, Tensor shard, Tensor full)
      : MpiCollective(group, Collective::ReduceScatter, full, shard.elements(),
                      block_size(group, shard, full)),
        shard_(shard),
        full_(full),
        copy_first_(needs_copy(shard, full)) {}

 protected:
  void start_block(std::int64_t begin, std::int64_t count) override {
    const void* source = full_.data();
    if (copy_first_) source = copy_to_scratch(begin, count);
    const Reduction reduction = mpi_reduction(full_.dtype(), ReduceOp::Sum);
    check_mpi(MPI_Ireduce_scatter_block(source, at(shard_, begin), static_cast<int>(count),
                                        reduction.type, reduction.op, group().comm, request()),
              "MPI_Ireduce_scatter_block");
  }

 private:
  static bool needs_copy(const Tensor& shard, const Tensor& full) {
    const auto *begin = at(full, 0), *end = begin + full.bytes(), *part = at(shard, 0);
    return (part >= begin && part < end) || static_cast<std::int64_t>(full.bytes()) > kBlockBytes;
  }
  static std::int64_t block_size(const MpiGroup& group, const Tensor& shard, const Tensor& full) {
    if (!needs_copy(shard, full)) return std::max<std::int64_t>(shard.elements(), 1);
    return std::max<std::int64_t>(elements_in(kScratchBytes, full.dtype()) / group.size, 1);
  }
  const void* copy_to_scratch(std::int64_t begin, std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(full_.dtype());
    std::byte* to = group().scratch_of(bytes * static_cast<std::size_t>(group().size));
    for (int rank = 0; rank < group().size; ++rank)
      std::memcpy(to + static_cast<std::size_t>(rank) * bytes,
                  at(full_, rank * shard_.elements() + begin), bytes);
    return to;
  }

  Tensor shard_, full_;
  bool copy_first_;
};

// Counts bytes. The blocks of the ranks are not adjacent in `full`, so a datatype with a stride is
// used.
class AllGather : public MpiCollective {
 public:
  AllGather(MpiGroup& group, Tensor full, Tensor shard)
      : MpiCollective(group, Collective::AllGather, full, static_cast<std::int64_t>(shard.bytes()),
                      kBlockBytes),
        full_(full),
        shard_(shard) {}

 protected:
  void start_block(std::int64_t begin, std::int64_t count) override {
    auto* full = static_cast<std::byte*>(full_.data());
    const auto* shard = static_cast<const std::byte*>(shard_.data());
    const bool in_place = full + group().rank * shard_.bytes() == shard;
    const void* source = in_place ? MPI_IN_PLACE : shard + begin;
    const int bytes = static_cast<int>(count);
    if (shard_.bytes() == static_cast<std::size_t>(count))  // all at once
      return check_mpi(
          MPI_Iallgather(source, bytes, MPI_BYTE, full, bytes, MPI_BYTE, group().comm, request()),
          "MPI_Iallgather");
    MPI_Datatype block = MPI_DATATYPE_NULL, spaced = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(bytes, MPI_BYTE, &block), "MPI_Type_contiguous");
    check_mpi(MPI_Type_create_resized(block, 0, static_cast<MPI_Aint>(shard_.bytes()), &spaced),
              "MPI_Type_create_resized");
    check_mpi(MPI_Type_commit(&spaced), "MPI_Type_commit");
    check_mpi(
        MPI_Iallgather(source, bytes, MPI_BYTE, full + begin, 1, spaced, group().comm, request()),
        "MPI_Iallgather");
    MPI_Type_free(&spaced);  // MPI frees it after the call is complete
    MPI_Type_free(&block);
  }

 private:
  Tensor full_, shard_;
};

class Broadcast : public MpiCollective {
 public:
  Broadcast(MpiGroup& group, Tensor x, int root)
      : MpiCollective(group, Collective::Broadcast, x, static_cast<std::int64_t>(x.bytes()),
                      kBlockBytes),
        x_(x),
        root_(root) {}

 protected:
  void start_block(std::int64_t begin, std::int64_t count) override {
    check_mpi(MPI_Ibcast(static_cast<std::byte*>(x_.data()) + begin, static_cast<int>(count),
                         MPI_BYTE, root_, group().comm, request()),
              "MPI_Ibcast");
  }

 private:
  Tensor x_;
  int root_;
};

// Messages between all pairs of ranks. MPI_Ialltoallv counts in int.
class AllToAll : public Exchange {
 public:
  AllToAll(MpiGroup& group, Tensor received, Tensor sent, const ExchangeCounts& counts)
      : Exchange(group, kCollectiveTag), received_(received), sent_(sent), counts_(counts) {}

 protected:
  bool next_round() override {
    if (started_) return false;
    started_ = true;
    const auto size = static_cast<std::size_t>(group().size);
    std::vector<std::int64_t> from(size), to(size);  // first element of each rank
    for (std::size_t rank = 1; rank < size; ++rank) {
      from[rank] = from[rank - 1] + counts_.received[rank - 1];
      to[rank] = to[rank - 1] + counts_.sent[rank - 1];
    }
    const std::int64_t width = size_of(sent_.dtype());
    for (std::size_t step = 0; step < size; ++step) {
      const std::size_t next = (static_cast<std::size_t>(group().rank) + step) % size,
                        previous = (static_cast<std::size_t>(group().rank) + size - step) % size;
      if (step == 0 && counts_.sent[next] > 0)
        std::memcpy(at(received_, from[next]), at(sent_, to[next]),
                    static_cast<std::size_t>(counts_.sent[next] * width));
      if (step > 0 && counts_.received[previous] > 0)
        receive(at(received_, from[previous]), counts_.received[previous] * width,
                static_cast<int>(previous));
      if (step > 0 && counts_.sent[next] > 0)
        send(at(sent_, to[next]), counts_.sent[next] * width, static_cast<int>(next));
    }
    return true;
  }

 private:
  Tensor received_, sent_;
  ExchangeCounts counts_;
  bool started_ = false;
};

class Message : public Exchange {
 public:
  Message(MpiGroup& group, Tensor x, int peer, bool sends)
      : Exchange(group, kMessageTag), x_(x), peer_(peer), sends_(sends) {}

 protected:
  bool next_round() override {
    if (started_) return false;
    started_ = true;
    const auto bytes = static_cast<std::int64_t>(x_.bytes());
    if (sends_)
      send(x_.data(), bytes, peer_);
    else
      receive(x_.data(), bytes, peer_);
    return true;
  }

 private:
  Tensor x_;
  int peer_;
  bool sends_;
  bool started_ = false;
};

class Barrier : public Exchange {
 public:
  explicit Barrier(MpiGroup& group) : Exchange(group, kCollectiveTag) {}

 protected:
  bool next_round() override {
    if (started_) return false;
    started_ = true;
    check_mpi(MPI_Ibarrier(group().comm, request()), "MPI_Ibarrier");
    return true;
  }

 private:
  bool started_ = false;
};

}  // namespace

std::shared_ptr<Operation> make_operation(MpiGroup& group, const Communicator::Call& call) {
  const Tensor &to = call.destination, &from = call.source;
  switch (call.kind) {
    case Collective::AllReduce:
      if (group.rank_order) return make_ordered_all_reduce(group, to, call.op);
      return std::make_shared<AllReduce>(group, to, call.op);
    case Collective::ReduceScatter:
      if (group.rank_order) return make_ordered_reduce_scatter(group, to, from);
      return std::make_shared<ReduceScatter>(group, to, from);
    case Collective::AllGather:
      return std::make_shared<AllGather>(group, to, from);
    case Collective::Broadcast:
      return std::make_shared<Broadcast>(group, to, call.peer);
    case Collective::AllToAll:
      return std::make_shared<AllToAll>(group, to, from, *call.counts);
    case Collective::Send:
      return std::make_shared<Message>(group, from, call.peer, true);
    case Collective::Receive:
      return std::make_shared<Message>(group, to, call.peer, false);
    case Collective::Barrier:
      return std::make_shared<Barrier>(group);
  }
  failure("no such collective");
}

}  // namespace kintsugi
