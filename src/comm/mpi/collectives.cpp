#include "comm/mpi/collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/reduce.h"

namespace kintsugi {
namespace {

// A sum larger than this goes round by round through a scratch of this size.
constexpr std::int64_t kScratchBytes = std::int64_t{8} << 20;
// Up to here an all-reduce sends everything to everyone, which saves the second step.
constexpr std::int64_t kSmallBytes = std::int64_t{16} << 10;

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;  // in elements
  std::int64_t count() const { return end - begin; }
};

// Which elements of a tensor each rank sums.
std::vector<Range> equal_parts(std::int64_t elements, int size) {
  std::vector<Range> parts;
  for (std::int64_t r = 0; r < size; ++r)
    parts.push_back({r * (elements / size) + std::min(r, elements % size),
                     (r + 1) * (elements / size) + std::min(r + 1, elements % size)});
  return parts;
}

class Collective : public Exchange {
 public:
  explicit Collective(MpiGroup& group) : Exchange(group, kCollectiveTag) {}

 protected:
  // Everyone starts with another peer, so that nobody is flooded.
  template <class F>
  void for_each_peer(F&& function) {
    const int size = group().size;
    for (int step = 1; step < size; ++step)
      function((group().rank + step) % size, (group().rank + size - step) % size);
  }

  // Sends this rank's part of x to all, and receives theirs.
  void gather_parts(Tensor x, const std::vector<Range>& parts) {
    const std::int64_t width = size_of(x.dtype());
    auto* data = static_cast<std::byte*>(x.data());
    const Range& own = parts[group().rank];
    for_each_peer([&](int to, int from) {
      const Range& theirs = parts[from];
      receive(data + theirs.begin * width, theirs.count() * width, from);
      send(data + own.begin * width, own.count() * width, to);
    });
  }
};

// destination = the sum over ranks of this rank's part of source.
class ReduceParts : public Collective {
 public:
  ReduceParts(MpiGroup& group, void* destination, Tensor source, std::vector<Range> parts,
              ReduceOp op)
      : Collective(group),
        destination_(static_cast<std::byte*>(destination)),
        source_(source),
        parts_(std::move(parts)),
        op_(op),
        width_(size_of(source.dtype())) {
    for (const Range& part : parts_) longest_ = std::max(longest_, part.count());
    piece_ = std::clamp<std::int64_t>(kScratchBytes / (group.size * width_), 1024, longest_ + 1024);
  }

 protected:
  bool next_round() override {
    if (begin_ >= 0) add_up();
    begin_ = begin_ < 0 ? 0 : begin_ + piece_;
    if (begin_ >= longest_) return false;
    const std::size_t slots = static_cast<std::size_t>(group().size) * slot_bytes();
    if (group().scratch.size() < slots) group().scratch.resize(slots);
    for_each_peer([&](int to, int from) {
      const Range own = piece_of(group().rank), theirs = piece_of(to);
      receive(slot(from), own.count() * width_, from);
      send(at(theirs.begin), theirs.count() * width_, to);
    });
    return true;
  }

 private:
  std::int64_t slot_bytes() const { return std::min(piece_, longest_) * width_; }
  std::byte* slot(int rank) { return group().scratch.data() + rank * slot_bytes(); }
  std::byte* at(std::int64_t element) {
    return static_cast<std::byte*>(source_.data()) + element * width_;
  }
  Range piece_of(int rank) const {
    const Range& part = parts_[rank];
    const std::int64_t begin = std::min(part.begin + begin_, part.end);
    return {begin, std::min(begin + piece_, part.end)};
  }

  void add_up() {
    const Range own = piece_of(group().rank);
    if (own.count() <= 0) return;
    std::vector<const void*> addends;
    for (int rank = 0; rank < group().size; ++rank)
      addends.push_back(rank == group().rank ? at(own.begin) : slot(rank));
    reduce_parts(destination_ + begin_ * width_, addends, own.count(), source_.dtype(), op_);
  }

  std::byte* destination_;
  Tensor source_;
  std::vector<Range> parts_;
  ReduceOp op_;
  std::int64_t width_;
  std::int64_t longest_ = 0;
  std::int64_t piece_ = 0;
  std::int64_t begin_ = -1;  // of the round's piece, in every part
};

class AllReduce : public ReduceParts {
 public:
  AllReduce(MpiGroup& group, Tensor x, std::vector<Range> parts, ReduceOp op)
      : ReduceParts(group,
                    static_cast<std::byte*>(x.data()) +
                        parts[group.rank].begin * static_cast<std::int64_t>(size_of(x.dtype())),
                    x, parts, op),
        x_(x),
        parts_(std::move(parts)) {}

 protected:
  bool next_round() override {
    if (gathering_) return false;
    if (ReduceParts::next_round()) return true;
    gathering_ = true;
    gather_parts(x_, parts_);
    return true;
  }

 private:
  Tensor x_;
  std::vector<Range> parts_;
  bool gathering_ = false;
};

class AllGather : public Collective {
 public:
  AllGather(MpiGroup& group, Tensor full, Tensor shard)
      : Collective(group), full_(full), shard_(shard) {}

 protected:
  bool next_round() override {
    if (begun_) return false;
    begun_ = true;
    auto* own = static_cast<std::byte*>(full_.data()) + group().rank * shard_.bytes();
    if (own != shard_.data() && shard_.bytes() > 0) std::memcpy(own, shard_.data(), shard_.bytes());
    gather_parts(full_, equal_parts(full_.elements(), group().size));
    return true;
  }

 private:
  Tensor full_, shard_;
  bool begun_ = false;
};

// Down a binomial tree.
class Broadcast : public Collective {
 public:
  Broadcast(MpiGroup& group, Tensor x, int root) : Collective(group), x_(x), root_(root) {}

 protected:
  bool next_round() override {
    const int size = group().size, place = (group().rank - root_ + size) % size;
    const int parent_bit = place == 0 ? size : place & -place;
    const auto bytes = static_cast<std::int64_t>(x_.bytes());
    if (++round_ == 1) {
      if (place != 0) receive(x_.data(), bytes, (place - parent_bit + root_) % size);
    } else if (round_ == 2) {
      for (int bit = 1; bit < parent_bit && place + bit < size; bit *= 2)
        send(x_.data(), bytes, (place + bit + root_) % size);
    }
    return round_ <= 2;
  }

 private:
  Tensor x_;
  int root_;
  int round_ = 0;
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

class Barrier : public Collective {
 public:
  explicit Barrier(MpiGroup& group) : Collective(group), seen_(group.size) {}

 protected:
  bool next_round() override {
    if (begun_) return false;
    begun_ = true;
    gather_parts(Tensor(seen_.data(), DType::U8, {group().size}),
                 equal_parts(group().size, group().size));
    return true;
  }

 private:
  std::vector<std::uint8_t> seen_;
  bool begun_ = false;
};

}  // namespace

std::shared_ptr<Operation> make_all_reduce(MpiGroup& group, Tensor x, ReduceOp op) {
  const std::int64_t elements = x.elements();
  if (static_cast<std::int64_t>(x.bytes()) <= kSmallBytes)
    return std::make_shared<ReduceParts>(group, x.data(), x,
                                         std::vector<Range>(group.size, {0, elements}), op);
  return std::make_shared<AllReduce>(group, x, equal_parts(elements, group.size), op);
}

std::shared_ptr<Operation> make_reduce_scatter(MpiGroup& group, Tensor shard, Tensor full) {
  return std::make_shared<ReduceParts>(group, shard.data(), full,
                                       equal_parts(full.elements(), group.size), ReduceOp::Sum);
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
