#include "comm/mpi/collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/collective.h"
#include "comm/mpi/reduction.h"

namespace kintsugi {
namespace {

// MPI counts in int and takes memory of its own for what it sums, so large tensors go in pieces.
constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;
// Of a reduce_scatter that must be copied first.
constexpr std::int64_t kScratchBytes = std::int64_t{8} << 20;

// One of MPI's own collectives, piece by piece. What it sends is MPI's business: counted as a ring.
class MpiCollective : public Exchange {
 public:
  MpiCollective(MpiGroup& group, Collective kind, const Tensor& whole, std::int64_t elements,
                std::int64_t piece)
      : Exchange(group, kCollectiveTag), elements_(elements), piece_(piece) {
    bytes_sent_ =
        static_cast<std::int64_t>(ring_bytes(kind, static_cast<double>(whole.bytes()), group.size));
  }

 protected:
  bool next_round() final {
    if (begin_ >= elements_) return false;
    const std::int64_t count = std::min(piece_, elements_ - begin_);
    start_piece(begin_, count);
    begin_ += count;
    return true;
  }
  virtual void start_piece(std::int64_t begin, std::int64_t count) = 0;

 private:
  std::int64_t elements_, piece_;
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
                      elements_in(kPieceBytes, x.dtype())),
        x_(x),
        op_(op) {}

 protected:
  void start_piece(std::int64_t begin, std::int64_t count) override {
    const Reduction reduction = mpi_reduction(x_.dtype(), op_);
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, at(x_, begin), static_cast<int>(count), reduction.type,
                             reduction.op, group().comm, request()),
              "MPI_Iallreduce");
  }

 private:
  Tensor x_;
  ReduceOp op_;
};

// A piece is the same elements of every rank's part. Where these are not side by side, or MPI would
// have to write where it reads (its MPI_IN_PLACE puts the sum at the start of `full`, which the
// caller keeps), they are copied first.
class ReduceScatter : public MpiCollective {
 public:
  ReduceScatter(MpiGroup& group, Tensor shard, Tensor full)
      : MpiCollective(group, Collective::ReduceScatter, full, shard.elements(),
                      piece_of(group, shard, full)),
        shard_(shard),
        full_(full),
        copies_(needs_copies(shard, full)) {}

 protected:
  void start_piece(std::int64_t begin, std::int64_t count) override {
    const void* source = full_.data();
    if (copies_) source = copied(begin, count);
    const Reduction reduction = mpi_reduction(full_.dtype(), ReduceOp::Sum);
    check_mpi(MPI_Ireduce_scatter_block(source, at(shard_, begin), static_cast<int>(count),
                                        reduction.type, reduction.op, group().comm, request()),
              "MPI_Ireduce_scatter_block");
  }

 private:
  static bool needs_copies(const Tensor& shard, const Tensor& full) {
    const auto *begin = at(full, 0), *end = begin + full.bytes(), *part = at(shard, 0);
    return (part >= begin && part < end) || static_cast<std::int64_t>(full.bytes()) > kPieceBytes;
  }
  static std::int64_t piece_of(const MpiGroup& group, const Tensor& shard, const Tensor& full) {
    if (!needs_copies(shard, full)) return std::max<std::int64_t>(shard.elements(), 1);
    return std::max<std::int64_t>(elements_in(kScratchBytes, full.dtype()) / group.size, 1);
  }
  const void* copied(std::int64_t begin, std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(full_.dtype());
    std::byte* to = group().scratch_of(bytes * static_cast<std::size_t>(group().size));
    for (int rank = 0; rank < group().size; ++rank)
      std::memcpy(to + static_cast<std::size_t>(rank) * bytes,
                  at(full_, rank * shard_.elements() + begin), bytes);
    return to;
  }

  Tensor shard_, full_;
  bool copies_;
};

// In bytes. A piece of every rank's part has gaps on the receiving side, which a type bridges.
class AllGather : public MpiCollective {
 public:
  AllGather(MpiGroup& group, Tensor full, Tensor shard)
      : MpiCollective(group, Collective::AllGather, full, static_cast<std::int64_t>(shard.bytes()),
                      kPieceBytes),
        full_(full),
        shard_(shard) {}

 protected:
  void start_piece(std::int64_t begin, std::int64_t count) override {
    auto* full = static_cast<std::byte*>(full_.data());
    const auto* shard = static_cast<const std::byte*>(shard_.data());
    const bool in_place = full + group().rank * shard_.bytes() == shard;
    const void* source = in_place ? MPI_IN_PLACE : shard + begin;
    const int bytes = static_cast<int>(count);
    if (shard_.bytes() == static_cast<std::size_t>(count))  // all at once
      return check_mpi(
          MPI_Iallgather(source, bytes, MPI_BYTE, full, bytes, MPI_BYTE, group().comm, request()),
          "MPI_Iallgather");
    MPI_Datatype piece = MPI_DATATYPE_NULL, spaced = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(bytes, MPI_BYTE, &piece), "MPI_Type_contiguous");
    check_mpi(MPI_Type_create_resized(piece, 0, static_cast<MPI_Aint>(shard_.bytes()), &spaced),
              "MPI_Type_create_resized");
    check_mpi(MPI_Type_commit(&spaced), "MPI_Type_commit");
    check_mpi(
        MPI_Iallgather(source, bytes, MPI_BYTE, full + begin, 1, spaced, group().comm, request()),
        "MPI_Iallgather");
    MPI_Type_free(&spaced);  // by MPI, when the call is done with it
    MPI_Type_free(&piece);
  }

 private:
  Tensor full_, shard_;
};

class Broadcast : public MpiCollective {
 public:
  Broadcast(MpiGroup& group, Tensor x, int root)
      : MpiCollective(group, Collective::Broadcast, x, static_cast<std::int64_t>(x.bytes()),
                      kPieceBytes),
        x_(x),
        root_(root) {}

 protected:
  void start_piece(std::int64_t begin, std::int64_t count) override {
    check_mpi(MPI_Ibcast(static_cast<std::byte*>(x_.data()) + begin, static_cast<int>(count),
                         MPI_BYTE, root_, group().comm, request()),
              "MPI_Ibcast");
  }

 private:
  Tensor x_;
  int root_;
};

class Message : public Exchange {
 public:
  Message(MpiGroup& group, Tensor x, int peer, bool sends)
      : Exchange(group, kMessageTag), x_(x), peer_(peer), sends_(sends) {}

 protected:
  bool next_round() override {
    if (begun_) return false;
    begun_ = true;
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
  bool begun_ = false;
};

class Barrier : public Exchange {
 public:
  explicit Barrier(MpiGroup& group) : Exchange(group, kCollectiveTag) {}

 protected:
  bool next_round() override {
    if (begun_) return false;
    begun_ = true;
    check_mpi(MPI_Ibarrier(group().comm, request()), "MPI_Ibarrier");
    return true;
  }

 private:
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<Operation> make_all_reduce(MpiGroup& group, Tensor x, ReduceOp op) {
  if (group.rank_order) return make_ordered_all_reduce(group, x, op);
  return std::make_shared<AllReduce>(group, x, op);
}

std::shared_ptr<Operation> make_reduce_scatter(MpiGroup& group, Tensor shard, Tensor full) {
  if (group.rank_order) return make_ordered_reduce_scatter(group, shard, full);
  return std::make_shared<ReduceScatter>(group, shard, full);
}

std::shared_ptr<Operation> make_all_gather(MpiGroup& group, Tensor full, Tensor shard) {
  return std::make_shared<AllGather>(group, full, shard);
}

std::shared_ptr<Operation> make_broadcast(MpiGroup& group, Tensor x, int root) {
  return std::make_shared<Broadcast>(group, x, root);
}

std::shared_ptr<Operation> make_send(MpiGroup& group, Tensor x, int to) {
  return std::make_shared<Message>(group, x, to, true);
}

std::shared_ptr<Operation> make_receive(MpiGroup& group, Tensor x, int from) {
  return std::make_shared<Message>(group, x, from, false);
}

std::shared_ptr<Operation> make_barrier(MpiGroup& group) {
  return std::make_shared<Barrier>(group);
}

}  // namespace kintsugi
