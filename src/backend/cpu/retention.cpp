// Retention in its chunkwise form. For a head with decay g, row factors r_i = scale / norm_i and
// the state S before a chunk of C tokens (i, j = 0 … C-1):
//   out = (Q K^T * D) V + diag(r_i g^(i+1)) Q S,  D_ij = r_i g^(i-j) for j <= i, 0 elsewhere
//   state after the chunk = g^C S + (diag(g^(C-1-j)) K)^T V
// Three loops: the sums of all chunks, a scan over them, the outputs of all chunks. Tasks of a loop
// share no data, so that results do not depend on the number of threads.
#include "backend/retention.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_backend_impl.h"
#include "backend/cpu/tiles.h"

namespace kintsugi {
namespace {

constexpr std::int64_t kRows =
    64;  // rows of scores at a time; columns right of their diagonal are skipped
constexpr std::int64_t kScanBlock = 4096;  // elements of a state

double decay_of(const RetentionOptions& options, std::int64_t head) {
  return static_cast<double>(options.decays.as<float>()[head]);
}

// scale / norm of token `i` of this call
double row_factor(const RetentionOptions& options, double decay, std::int64_t i) {
  const auto tokens = static_cast<double>(options.first_position + i + 1);
  // 1 - g^tokens would lose the digits of decays close to 1.
  return options.scale * std::sqrt((decay - 1) / std::expm1(tokens * std::log1p(decay - 1)));
}

// Allocates consecutive buffers from a block of memory.
template <class A>
struct BumpAllocator {
  A* take(std::int64_t elements) { return std::exchange(next, next + elements); }
  A* next;
};

// A chunk of one head of one sequence, with its decay factors.
template <class A>
struct Chunk {
  static std::int64_t elements(std::int64_t chunk) { return 4 * chunk + 1; }

  Chunk(const RetentionSizes& n, const RetentionOptions& options, std::int64_t task,
        BumpAllocator<A>& memory)
      : head(task / n.chunks() / n.batch),
        sequence(task / n.chunks() % n.batch),
        index(task % n.chunks()),
        slot(task % (n.chunks() * n.batch)),
        first(index * n.chunk_tokens()),
        tokens(std::min(n.chunk_tokens(), n.length - first)),
        powers(memory.take(tokens + 1)),
        rows(memory.take(tokens)),
        from_state(memory.take(tokens)),
        to_state(memory.take(tokens)) {
    const double decay = decay_of(options, head);
    for (std::int64_t i = 0; i <= tokens; ++i)
      powers[i] = static_cast<A>(std::pow(decay, static_cast<double>(i)));
    for (std::int64_t i = 0; i < tokens; ++i) {
      rows[i] = static_cast<A>(row_factor(options, decay, first + i));
      from_state[i] = rows[i] * powers[i + 1];
      to_state[i] = powers[tokens - 1 - i];
    }
  }

  // Multiplies `count` rows of scores, (count, columns), from row0 on by D.
  void apply_decay(A* scores, std::int64_t row0, std::int64_t count, std::int64_t columns) const {
    for (std::int64_t i = 0; i < count; ++i) {
      A* s = scores + i * columns;
      const std::int64_t last = row0 + i;
      for (std::int64_t j = 0; j <= last; ++j) s[j] *= rows[last] * powers[last - j];
      std::fill(s + last + 1, s + columns, A(0));
    }
  }

  std::int64_t head, sequence, index, slot, first, tokens;
  A *powers, *rows;          // g^n, and scale / norm
  A *from_state, *to_state;  // r_i g^(i+1) and g^(tokens-1-i)
};

template <class T, class A>
Tile<A> load_scaled(const HeadView<T>& head, std::int64_t first, std::int64_t rows,
                    std::int64_t dim, const A* factors, A* buffer) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      buffer[i * dim + j] = factors[i] * static_cast<A>(head.row(first + i)[j]);
  return {buffer, dim};
}

template <class T, class A>
void store_tile(const HeadView<T>& head, std::int64_t first, std::int64_t rows, std::int64_t dim,
                const A* values) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      head.row(first + i)[j] = static_cast<T>(values[i * dim + j]);
}

// The state that a chunk needs: `given`, the call's argument, for chunk given_at; a slot of the
// scan for the others. nullptr if the state is zero.
template <class T, class A>
const A* state_of(const Chunk<A>& chunk, const RetentionSizes& n, const Tensor& given,
                  std::int64_t given_at, const Tensor& slots, A* buffer) {
  const std::int64_t size = n.k_dim * n.v_dim;
  if (chunk.index == given_at)
    return given ? given.as<A>() + (chunk.sequence * n.heads + chunk.head) * size : nullptr;
  const T* from = slots.as<T>() + (chunk.head * n.batch * n.chunks() + chunk.slot) * size;
  if constexpr (std::is_same_v<T, A>) {
    return from;
  } else {
    for (std::int64_t i = 0; i < size; ++i) buffer[i] = static_cast<A>(from[i]);
    return buffer;
  }
}

// The chunk's slot = (factors * x)^T y over its tokens.
template <class T, class A>
void sum_chunk(const Tensor& slots, const Chunk<A>& chunk, const RetentionSizes& n, const Tensor& x,
               const A* factors, const Tensor& y, BumpAllocator<A> memory) {
  const std::int64_t size = n.k_dim * n.v_dim;
  A* const sum = memory.take(size);
  const Tile<A> left =
      load_scaled<T, A>(HeadView<T>(x, chunk.sequence, chunk.head), chunk.first, chunk.tokens,
                        n.k_dim, factors, memory.take(chunk.tokens * n.k_dim));
  const Tile<A> right = load_tile<T, A>(HeadView<T>(y, chunk.sequence, chunk.head), chunk.first,
                                        chunk.tokens, n.v_dim, memory.take(chunk.tokens * n.v_dim));
  tile_matmul(sum, n.v_dim, n.k_dim, n.v_dim, chunk.tokens, left, true, right, false, A(1), A(0));
  T* to = slots.as<T>() + (chunk.head * n.batch * n.chunks() + chunk.slot) * size;
  for (std::int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(sum[i]);
}

// Turns the sums of the chunks into the states between them, for elements [begin, end) of one head
// of one sequence: each slot gets the state before its chunk, starting from `given`.
template <class T, class A>
void scan_chunks(T* slots, const A* given, const RetentionSizes& n, double decay, bool reverse,
                 std::int64_t begin, std::int64_t end) {
  A running[kScanBlock];
  const std::int64_t size = n.k_dim * n.v_dim, chunks = n.chunks();
  for (std::int64_t i = begin; i < end; ++i) running[i - begin] = given ? given[i] : A(0);
  for (std::int64_t step = 0; step < chunks; ++step) {
    const std::int64_t chunk = reverse ? chunks - 1 - step : step;
    const std::int64_t tokens = std::min(n.chunk_tokens(), n.length - chunk * n.chunk_tokens());
    const A factor = static_cast<A>(std::pow(decay, static_cast<double>(tokens)));
    T* slot = slots + chunk * size;
    for (std::int64_t i = begin; i < end; ++i) {
      // The last chunk's own sum is part of no other chunk's state and was not computed.
      const A sum = step + 1 < chunks ? static_cast<A>(slot[i]) : A(0);
      slot[i] = static_cast<T>(running[i - begin]);
      running[i - begin] = factor * running[i - begin] + sum;
    }
  }
}

template <class T, class A>
void forward_chunk(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                   const Tensor& given, const RetentionWorkspace& workspace,
                   const RetentionSizes& n, const Chunk<A>& chunk, BumpAllocator<A> memory) {
  const std::int64_t tokens = chunk.tokens;
  const HeadView<T> query(q, chunk.sequence, chunk.head), key(k, chunk.sequence, chunk.head),
      value(v, chunk.sequence, chunk.head);
  A* const result = memory.take(tokens * n.v_dim);
  A* const scores = memory.take(kRows * tokens);
  A* const buffer_q = memory.take(tokens * n.k_dim);
  const A* state =
      state_of<T, A>(chunk, n, given, 0, workspace.states, memory.take(n.k_dim * n.v_dim));
  if (state == nullptr)
    std::fill(result, result + tokens * n.v_dim, A(0));
  else
    tile_matmul(result, n.v_dim, tokens, n.v_dim, n.k_dim,
                load_scaled<T, A>(query, chunk.first, tokens, n.k_dim, chunk.from_state, buffer_q),
                false, {state, n.v_dim}, false, A(1), A(0));
  const Tile<A> tile_q = load_tile<T, A>(query, chunk.first, tokens, n.k_dim, buffer_q);
  const Tile<A> tile_k =
      load_tile<T, A>(key, chunk.first, tokens, n.k_dim, memory.take(tokens * n.k_dim));
  const Tile<A> tile_v =
      load_tile<T, A>(value, chunk.first, tokens, n.v_dim, memory.take(tokens * n.v_dim));
  for (std::int64_t row0 = 0; row0 < tokens; row0 += kRows) {
    const std::int64_t rows = std::min(kRows, tokens - row0), columns = row0 + rows;
    tile_matmul(scores, columns, rows, columns, n.k_dim,
                {tile_q.data + row0 * tile_q.ld, tile_q.ld}, false, tile_k, true, A(1), A(0));
    chunk.apply_decay(scores, row0, rows, columns);
    tile_matmul(result + row0 * n.v_dim, n.v_dim, rows, n.v_dim, columns, {scores, columns}, false,
                tile_v, false, A(1), A(1));
  }
  store_tile<T, A>(HeadView<T>(out, chunk.sequence, chunk.head), chunk.first, tokens, n.v_dim,
                   result);
}

// The gradients of one chunk, in accumulator precision.
template <class A>
struct Gradients {
  A *dq, *dk;  // (tokens, k_dim)
  A* dv;       // (tokens, v_dim)
};

// The gradients through the states:
// dq = from_state dO S^T, dk = to_state V dS^T, dv = to_state K dS.
template <class T, class A>
void state_gradients(const Gradients<A>& to, const Chunk<A>& chunk, const RetentionSizes& n,
                     const HeadView<T>& dout, const HeadView<T>& k, const HeadView<T>& v,
                     const A* state, const A* dstate, A* buffer) {
  const std::int64_t tokens = chunk.tokens, first = chunk.first;
  std::fill(to.dq, to.dq + tokens * n.k_dim, A(0));
  std::fill(to.dk, to.dk + tokens * n.k_dim, A(0));
  std::fill(to.dv, to.dv + tokens * n.v_dim, A(0));
  if (state != nullptr)
    tile_matmul(to.dq, n.k_dim, tokens, n.k_dim, n.v_dim,
                load_scaled<T, A>(dout, first, tokens, n.v_dim, chunk.from_state, buffer), false,
                {state, n.v_dim}, true, A(1), A(0));
  if (dstate == nullptr) return;
  tile_matmul(to.dk, n.k_dim, tokens, n.k_dim, n.v_dim,
              load_scaled<T, A>(v, first, tokens, n.v_dim, chunk.to_state, buffer), false,
              {dstate, n.v_dim}, true, A(1), A(0));
  tile_matmul(to.dv, n.v_dim, tokens, n.v_dim, n.k_dim,
              load_scaled<T, A>(k, first, tokens, n.k_dim, chunk.to_state, buffer), false,
              {dstate, n.v_dim}, false, A(1), A(0));
}

// Adds the gradients through the scores inside the chunk.
template <class A>
void score_gradients(const Gradients<A>& to, const Chunk<A>& chunk, const RetentionSizes& n,
                     const Tile<A>& dout, const Tile<A>& q, const Tile<A>& k, const Tile<A>& v,
                     A* scores, A* dscores) {
  for (std::int64_t row0 = 0; row0 < chunk.tokens; row0 += kRows) {
    const std::int64_t rows = std::min(kRows, chunk.tokens - row0), columns = row0 + rows;
    const Tile<A> q_rows = {q.data + row0 * q.ld, q.ld},
                  dout_rows = {dout.data + row0 * dout.ld, dout.ld};
    tile_matmul(scores, columns, rows, columns, n.k_dim, q_rows, false, k, true, A(1), A(0));
    tile_matmul(dscores, columns, rows, columns, n.v_dim, dout_rows, false, v, true, A(1), A(0));
    chunk.apply_decay(scores, row0, rows, columns);
    chunk.apply_decay(dscores, row0, rows, columns);
    tile_matmul(to.dq + row0 * n.k_dim, n.k_dim, rows, n.k_dim, columns, {dscores, columns}, false,
                k, false, A(1), A(1));
    tile_matmul(to.dk, n.k_dim, columns, n.k_dim, rows, {dscores, columns}, true, q_rows, false,
                A(1), A(1));
    tile_matmul(to.dv, n.v_dim, columns, n.v_dim, rows, {scores, columns}, true, dout_rows, false,
                A(1), A(1));
  }
}

}  // namespace

template <class T>
void CpuBackend::sum_and_scan(const Tensor& slots, const Tensor& x, const Tensor& y,
                              const Tensor& given, const RetentionSizes& n,
                              const RetentionOptions& options, bool reverse) {
  using A = Accumulator<T>;
  const std::int64_t chunks = n.chunks(), size = n.k_dim * n.v_dim;
  if (chunks == 1) return;
  pool_.run(n.heads * n.batch * chunks, [&](std::int64_t task, int thread) {
    if (task % chunks == (reverse ? 0 : chunks - 1)) return;  // part of no other chunk's state
    BumpAllocator<A> memory{scratch<A>(thread)};
    const Chunk<A> chunk(n, options, task, memory);
    sum_chunk<T, A>(slots, chunk, n, x, reverse ? chunk.from_state : chunk.to_state, y, memory);
  });
  const std::int64_t blocks = (size + kScanBlock - 1) / kScanBlock;
  pool_.run(n.heads * n.batch * blocks, [&](std::int64_t task, int) {
    const std::int64_t row = task / blocks, head = row / n.batch, sequence = row % n.batch;
    const std::int64_t begin = task % blocks * kScanBlock;
    const A* start = given ? given.as<A>() + (sequence * n.heads + head) * size : nullptr;
    scan_chunks<T, A>(slots.as<T>() + row * chunks * size, start, n, decay_of(options, head),
                      reverse, begin, std::min(size, begin + kScanBlock));
  });
}

void CpuBackend::do_retention_forward(Tensor out, Tensor q, Tensor k, Tensor v, Tensor state,
                                      Tensor workspace, const RetentionOptions& options) {
  const RetentionSizes n = retention_sizes(k, v, options);
  visit_float(v.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t chunk_size = n.chunk_tokens();
    const RetentionWorkspace buffers =
        n.chunks() > 1 ? RetentionWorkspace(workspace, v.dtype(), n, false) : RetentionWorkspace();
    reserve_scratch<A>(Chunk<A>::elements(chunk_size) + kRows * chunk_size +
                       2 * chunk_size * n.k_dim + 2 * chunk_size * n.v_dim + n.k_dim * n.v_dim);
    sum_and_scan<T>(buffers.states, k, v, state, n, options, false);
    pool_.run(n.heads * n.batch * n.chunks(), [&](std::int64_t task, int thread) {
      BumpAllocator<A> memory{scratch<A>(thread)};
      const Chunk<A> chunk(n, options, task, memory);
      forward_chunk<T, A>(out, q, k, v, state, buffers, n, chunk, memory);
    });
  });
}

void CpuBackend::do_retention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor q,
                                       Tensor k, Tensor v, Tensor state, Tensor dstate,
                                       Tensor workspace, const RetentionOptions& options) {
  const RetentionSizes n = retention_sizes(k, v, options);
  visit_float(v.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t chunk_size = n.chunk_tokens(), widest = std::max(n.k_dim, n.v_dim);
    const RetentionWorkspace buffers(workspace, v.dtype(), n, true);
    reserve_scratch<A>(Chunk<A>::elements(chunk_size) + 2 * kRows * chunk_size +
                       4 * chunk_size * n.k_dim + 3 * chunk_size * n.v_dim + chunk_size * widest +
                       2 * n.k_dim * n.v_dim);
    sum_and_scan<T>(buffers.states, k, v, state, n, options, false);
    sum_and_scan<T>(buffers.dstates, q, dout, dstate, n, options, true);
    pool_.run(n.heads * n.batch * n.chunks(), [&](std::int64_t task, int thread) {
      BumpAllocator<A> memory{scratch<A>(thread)};
      const Chunk<A> chunk(n, options, task, memory);
      const std::int64_t tokens = chunk.tokens, first = chunk.first;
      const auto head = [&](const Tensor& x) { return HeadView<T>(x, chunk.sequence, chunk.head); };
      const auto tile = [&](const Tensor& x, std::int64_t dim) {
        return load_tile<T, A>(head(x), first, tokens, dim, memory.take(tokens * dim));
      };
      const std::int64_t size = n.k_dim * n.v_dim;
      const Gradients<A> to = {memory.take(tokens * n.k_dim), memory.take(tokens * n.k_dim),
                               memory.take(tokens * n.v_dim)};
      state_gradients<T, A>(
          to, chunk, n, head(dout), head(k), head(v),
          state_of<T, A>(chunk, n, state, 0, buffers.states, memory.take(size)),
          state_of<T, A>(chunk, n, dstate, n.chunks() - 1, buffers.dstates, memory.take(size)),
          memory.take(tokens * widest));
      score_gradients<A>(to, chunk, n, tile(dout, n.v_dim), tile(q, n.k_dim), tile(k, n.k_dim),
                         tile(v, n.v_dim), memory.take(kRows * tokens),
                         memory.take(kRows * tokens));
      store_tile<T, A>(head(dq), first, tokens, n.k_dim, to.dq);
      store_tile<T, A>(head(dk), first, tokens, n.k_dim, to.dk);
      store_tile<T, A>(head(dv), first, tokens, n.v_dim, to.dv);
    });
  });
}

template <class F>
void CpuBackend::add_to_state(const Tensor& state, const Tensor& x, const Tensor& y,
                              const RetentionOptions& options, const F& factor) {
  const RetentionSizes n = retention_sizes(x, y, options);
  visit_float(y.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const std::int64_t chunk = n.chunk_tokens(), size = n.k_dim * n.v_dim;
    reserve_scratch<A>(chunk * (1 + n.k_dim + n.v_dim));
    pool_.run(n.batch * n.heads, [&](std::int64_t task, int thread) {
      const std::int64_t head = task % n.heads, sequence = task / n.heads;
      const double decay = decay_of(options, head);
      A* const to = state.as<A>() + task * size;
      const A shrink = static_cast<A>(std::pow(decay, static_cast<double>(n.length)));
      for (std::int64_t i = 0; i < size; ++i) to[i] *= shrink;
      for (std::int64_t first = 0; first < n.length; first += chunk) {
        BumpAllocator<A> memory{scratch<A>(thread)};
        const std::int64_t tokens = std::min(chunk, n.length - first);
        A* const factors = memory.take(tokens);
        for (std::int64_t i = 0; i < tokens; ++i)
          factors[i] = static_cast<A>(factor(decay, first + i));
        const Tile<A> left = load_scaled<T, A>(HeadView<T>(x, sequence, head), first, tokens,
                                               n.k_dim, factors, memory.take(tokens * n.k_dim));
        tile_matmul(to, n.v_dim, n.k_dim, n.v_dim, tokens, left, true,
                    load_tile<T, A>(HeadView<T>(y, sequence, head), first, tokens, n.v_dim,
                                    memory.take(tokens * n.v_dim)),
                    false, A(1), A(1));
      }
    });
  });
}

void CpuBackend::do_retention_state(Tensor state, Tensor k, Tensor v, Tensor,
                                    const RetentionOptions& options) {
  const std::int64_t last = k.extent(1) - 1;
  add_to_state(state, k, v, options, [&](double decay, std::int64_t i) {
    return std::pow(decay, static_cast<double>(last - i));
  });
}

void CpuBackend::do_retention_decay(Tensor state, std::int64_t tokens,
                                    const RetentionOptions& options) {
  const std::int64_t heads = state.extent(1), size = state.extent(2) * state.extent(3);
  visit_float(state.dtype(), [&]<class T>() {
    pool_.run(state.extent(0) * heads, [&](std::int64_t task, int) {
      const double decay = decay_of(options, task % heads);
      const auto shrink = static_cast<Accumulator<T>>(std::pow(decay, static_cast<double>(tokens)));
      T* const to = state.as<T>() + task * size;
      for (std::int64_t i = 0; i < size; ++i)
        to[i] = static_cast<T>(shrink * static_cast<Accumulator<T>>(to[i]));
    });
  });
}

void CpuBackend::do_retention_state_backward(Tensor dstate, Tensor q, Tensor dout, Tensor,
                                             const RetentionOptions& options) {
  add_to_state(dstate, q, dout, options, [&](double decay, std::int64_t i) {
    return row_factor(options, decay, i) * std::pow(decay, static_cast<double>(i + 1));
  });
}

void CpuBackend::do_retention_step(Tensor out, Tensor states, Tensor q, Tensor k, Tensor v,
                                   Tensor slots, Tensor positions,
                                   const RetentionOptions& options) {
  const std::int64_t tokens = q.extent(0), heads = q.extent(1), k_dim = q.extent(2),
                     v_dim = v.extent(2);
  visit_float(q.dtype(), [&]<class T>() {
    using A = Accumulator<T>;
    const auto at = [](const Tensor& x, std::int64_t token, std::int64_t head) {
      return x.as<T>() + token * x.stride(0) + head * x.stride(1);
    };
    reserve_scratch<A>(v_dim);
    pool_.run(tokens * heads, [&](std::int64_t task, int thread) {
      const std::int64_t token = task / heads, head = task % heads;
      const std::int32_t slot = slots.as<std::int32_t>()[token];
      if (slot < 0) return;
      const std::int64_t position = positions.as<std::int32_t>()[token];
      RetentionOptions here = options;
      here.first_position = position;
      const double decay = decay_of(options, head);
      const A factor = static_cast<A>(row_factor(here, decay, 0)), shrink = static_cast<A>(decay);
      const T *query = at(q, token, head), *key = at(k, token, head), *value = at(v, token, head);
      A* state = states.as<A>() + (slot * heads + head) * k_dim * v_dim;
      A* sum = scratch<A>(thread);
      std::fill(sum, sum + v_dim, A(0));
      for (std::int64_t i = 0; i < k_dim; ++i, state += v_dim) {
        const A with_key = static_cast<A>(key[i]), by = factor * static_cast<A>(query[i]);
        for (std::int64_t j = 0; j < v_dim; ++j) {
          const A before = position == 0 ? A(0) : shrink * state[j];
          state[j] = before + with_key * static_cast<A>(value[j]);
          sum[j] += by * state[j];
        }
      }
      T* to = at(out, token, head);
      for (std::int64_t j = 0; j < v_dim; ++j) to[j] = static_cast<T>(sum[j]);
    });
  });
}

}  // namespace kintsugi
