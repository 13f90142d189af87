#include "support/collective_cases.h"

#include <cmath>
#include <vector>

namespace kintsugi {
namespace {

const DType kTypes[] = {DType::F64, DType::F32, DType::BF16, DType::F16,
                        DType::I64, DType::I32, DType::U8};

// Access to elements of any type; small integers are exact in all of them.
class Buffer {
 public:
  Buffer(DType dtype, std::int64_t n) : dtype_(dtype), bytes_(n * size_of(dtype) + 1), n_(n) {}
  Tensor tensor() { return {bytes_.data(), dtype_, {n_}}; }
  Tensor part(std::int64_t begin, std::int64_t count) { return tensor().rows(begin, count); }

  void set(std::int64_t i, int value) {
    void* at = bytes_.data() + i * size_of(dtype_);
    switch (dtype_) {
      case DType::F64:
        *static_cast<double*>(at) = value;
        break;
      case DType::F32:
        *static_cast<float*>(at) = static_cast<float>(value);
        break;
      case DType::BF16:
        *static_cast<bf16*>(at) = bf16(static_cast<float>(value));
        break;
      case DType::F16:
        *static_cast<f16*>(at) = f16(static_cast<float>(value));
        break;
      case DType::I64:
        *static_cast<std::int64_t*>(at) = value;
        break;
      case DType::I32:
        *static_cast<std::int32_t*>(at) = value;
        break;
      case DType::U8:
        *static_cast<std::uint8_t*>(at) = static_cast<std::uint8_t>(value);
        break;
      case DType::F8:
        *static_cast<f8*>(at) = f8(static_cast<float>(value));
        break;
    }
  }
  double get(std::int64_t i) const {
    const void* at = bytes_.data() + i * size_of(dtype_);
    switch (dtype_) {
      case DType::F64:
        return *static_cast<const double*>(at);
      case DType::F32:
        return *static_cast<const float*>(at);
      case DType::BF16:
        return static_cast<float>(*static_cast<const bf16*>(at));
      case DType::F16:
        return static_cast<float>(*static_cast<const f16*>(at));
      case DType::I64:
        return static_cast<double>(*static_cast<const std::int64_t*>(at));
      case DType::I32:
        return *static_cast<const std::int32_t*>(at);
      case DType::U8:
        return *static_cast<const std::uint8_t*>(at);
      case DType::F8:
        return static_cast<float>(*static_cast<const f8*>(at));
    }
    return 0;
  }
  void expect(std::int64_t i, int value, const char* what) const {
    if (get(i) != value)
      failure("{} of {} {}: element {} is {}, not {}", what, n_, to_string(dtype_), i, get(i),
              value);
  }

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
  std::int64_t n_;
};

// Rank r contributes 1 + r + i % 5 at element i: sums stay below 256 for up to 16 ranks.
int contribution(int rank, std::int64_t i) { return 1 + rank + static_cast<int>(i % 5); }
int sum_over(int size, std::int64_t i) {
  return size * (1 + static_cast<int>(i % 5)) + size * (size - 1) / 2;
}

void fill(Buffer& buffer, std::int64_t n, int rank) {
  for (std::int64_t i = 0; i < n; ++i) buffer.set(i, contribution(rank, i));
}

void check_reductions(Communicator& group, DType dtype, std::int64_t n) {
  const int rank = group.rank(), size = group.size();
  Buffer sum(dtype, n), max(dtype, n);
  fill(sum, n, rank);
  fill(max, n, rank);
  const auto first = group.all_reduce(sum.tensor());
  const auto second = group.all_reduce(max.tensor(), ReduceOp::Max);
  group.wait(second);  // in any order
  group.wait(first);
  for (std::int64_t i = 0; i < n; ++i) {
    sum.expect(i, sum_over(size, i), "all_reduce");
    max.expect(i, contribution(size - 1, i), "all_reduce max");
  }
  Buffer full(dtype, n * size), in_place(dtype, n * size), shard(dtype, n);
  fill(full, n * size, rank);
  fill(in_place, n * size, rank);
  const auto out = group.reduce_scatter(shard.tensor(), full.tensor());
  const auto in = group.reduce_scatter(in_place.part(rank * n, n), in_place.tensor());
  group.wait(out);
  group.wait(in);
  for (std::int64_t i = 0; i < n; ++i) {
    shard.expect(i, sum_over(size, rank * n + i), "reduce_scatter");
    in_place.expect(rank * n + i, sum_over(size, rank * n + i), "reduce_scatter in place");
    full.expect(rank * n + i, contribution(rank, rank * n + i), "source of reduce_scatter");
  }
}

void check_copies(Communicator& group, DType dtype, std::int64_t n) {
  const int rank = group.rank(), size = group.size();
  Buffer full(dtype, n * size), in_place(dtype, n * size), shard(dtype, n);
  for (std::int64_t i = 0; i < n; ++i) {
    shard.set(i, contribution(rank, rank * n + i));
    in_place.set(rank * n + i, contribution(rank, rank * n + i));
  }
  const auto out = group.all_gather(full.tensor(), shard.tensor());
  const auto in = group.all_gather(in_place.tensor(), in_place.part(rank * n, n));
  group.wait(out);
  group.wait(in);
  for (int r = 0; r < size; ++r)
    for (std::int64_t i = r * n; i < (r + 1) * n; ++i) {
      full.expect(i, contribution(r, i), "all_gather");
      in_place.expect(i, contribution(r, i), "all_gather in place");
    }
  for (const int root : {0, size - 1}) {
    Buffer x(dtype, n);
    fill(x, n, rank);
    group.wait(group.broadcast(x.tensor(), root));
    for (std::int64_t i = 0; i < n; ++i) x.expect(i, contribution(root, i), "broadcast");
  }
}

// Rank r sends (r + q) % 3 * n + r elements to rank q: some pairs of ranks exchange nothing.
void check_exchanges(Communicator& group, DType dtype, std::int64_t n) {
  const int size = group.size(), rank = group.rank();
  const auto count = [&](int from, int to) { return (from + to) % 3 * n + from; };
  ExchangeCounts counts;
  std::int64_t sent = 0, received = 0;
  for (int other = 0; other < size; ++other) {
    counts.sent.push_back(count(rank, other));
    counts.received.push_back(count(other, rank));
    sent += counts.sent.back();
    received += counts.received.back();
  }
  Buffer from(dtype, sent), to(dtype, received);
  std::int64_t at = 0;
  for (int other = 0; other < size; ++other)
    for (std::int64_t i = 0; i < count(rank, other); ++i)
      from.set(at++, contribution(rank, i + other));
  group.wait(group.all_to_all(to.tensor(), from.tensor(), counts));
  at = 0;
  for (int other = 0; other < size; ++other)
    for (std::int64_t i = 0; i < count(other, rank); ++i)
      to.expect(at++, contribution(other, i + rank), "all_to_all");
}

// Every rank sends n elements to each rank.
void check_equal_exchange(Communicator& group, DType dtype, std::int64_t n) {
  const int size = group.size(), rank = group.rank();
  Buffer from(dtype, n * size), to(dtype, n * size);
  for (std::int64_t i = 0; i < n * size; ++i) from.set(i, contribution(rank, i));
  group.wait(group.all_to_all(to.tensor(), from.tensor()));
  for (int other = 0; other < size; ++other)
    for (std::int64_t i = 0; i < n; ++i)
      to.expect(other * n + i, contribution(other, rank * n + i), "an all_to_all of equal parts");
}

// Every rank sends twice to the next rank before it receives twice from the previous one: send must
// not block, and messages must keep their order.
void check_messages(Communicator& group, DType dtype, std::int64_t n) {
  const int size = group.size(), rank = group.rank();
  if (size == 1) return;
  const int right = (rank + 1) % size, left = (rank + size - 1) % size;
  Buffer a(dtype, n), b(dtype, n + 1), c(dtype, n), d(dtype, n + 1);
  fill(a, n, rank);
  fill(b, n + 1, rank + 1);
  const auto send_a = group.send(a.tensor(), right), send_b = group.send(b.tensor(), right);
  const auto receive_a = group.receive(c.tensor(), left),
             receive_b = group.receive(d.tensor(), left);
  for (const auto work : {receive_b, receive_a, send_a, send_b}) group.wait(work);
  for (std::int64_t i = 0; i < n; ++i) c.expect(i, contribution(left, i), "receive");
  for (std::int64_t i = 0; i < n + 1; ++i) d.expect(i, contribution(left + 1, i), "second receive");
}

}  // namespace

void check_collectives(Communicator& group) {
  for (const DType dtype : kTypes)
    for (const std::int64_t n : {0, 1, 2, 5, 17, 1000, 4099}) {
      check_reductions(group, dtype, n);
      check_copies(group, dtype, n);
      check_exchanges(group, dtype, n);
      check_equal_exchange(group, dtype, n);
      check_messages(group, dtype, n);
    }
  group.barrier();
}

}  // namespace kintsugi
