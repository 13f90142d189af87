#pragma once

// Compares attention of sharded sequences, around a ring and by Ulysses, with attention of whole
// sequences on one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/layers/ring_attention.h"
#include "model/layers/ulysses_attention.h"
#include "model/shard.h"
#include "support/thread_world.h"

namespace kintsugi::contexts {

using Values = std::vector<double>;
using Ids = std::vector<std::int32_t>;

struct ContextCase {
  int ranks = 2;
  std::int64_t sequences = 1, length = 0, heads = 2, kv_heads = 2, dim = 8, value_dim = dim;
  bool alibi = false, documents = false;
  std::int64_t window = 0;
  std::int64_t most_sequences = 0;  // 0: as many as there are
  bool adjacent = true;             // the heads of q, k and v; otherwise as in BLOOM
  ContextMethod method = ContextMethod::Ring;

  std::int64_t tokens() const { return sequences * length; }
  std::int64_t width() const { return (heads + kv_heads) * dim + kv_heads * value_dim; }
  std::int64_t outputs() const { return heads * value_dim; }
};

inline std::string describe(const ContextCase& c) {
  return fmt::format(
      "{}, {} ranks, {} x {} tokens, heads {}/{} of {} and {}, alibi {}, documents {}, window {}",
      to_string(c.method), c.ranks, c.sequences, c.length, c.heads, c.kv_heads, c.dim, c.value_dim,
      c.alibi, c.documents, c.window);
}

// A tensor in host memory that starts as NaN.
struct Host {
  Host(DType dtype, Shape shape)
      : bytes(static_cast<std::size_t>(shape.elements()) * size_of(dtype), std::byte{0xFF}),
        tensor(bytes.data(), dtype, shape) {}
  Host(Host&&) = default;  // the bytes stay where they are
  double get(std::int64_t i) const {
    return visit_float(tensor.dtype(), [&]<class T>() -> double {
      return static_cast<double>(static_cast<Accumulator<T>>(tensor.as<T>()[i]));
    });
  }
  void set(std::int64_t i, double value) const {
    visit_float(tensor.dtype(), [&]<class T>() {
      tensor.as<T>()[i] = static_cast<T>(static_cast<Accumulator<T>>(value));
    });
  }
  std::vector<std::byte> bytes;
  Tensor tensor;
};

struct Inputs {
  Values qkv, dout;  // (sequences, length, …), rounded to the precision of the run
  Ids starts;
  std::vector<float> slopes;
};

struct Outputs {
  Values out, lse, dqkv;
};

inline Inputs make_inputs(const ContextCase& c, DType dtype) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  const auto draw = [&](std::int64_t count) {
    const Host rounded(dtype, {count});
    Values values;
    for (std::int64_t i = 0; i < count; ++i) {
      rounded.set(i, normal(random));
      values.push_back(rounded.get(i));
    }
    return values;
  };
  Inputs x{draw(c.tokens() * c.width()), draw(c.tokens() * c.outputs()), {}, {}};
  for (std::int64_t h = 0; c.alibi && h < c.heads; ++h)
    x.slopes.push_back(0.3f / static_cast<float>(h + 1));
  // Documents that end inside chunks, short and long ones.
  for (std::int64_t s = 0; c.documents && s < c.sequences; ++s)
    for (std::int64_t start = 0, token = 0; token < c.length; ++token) {
      if (token - start == 3 + 7 * ((token + s) % 3)) start = token;
      x.starts.push_back(static_cast<std::int32_t>(start));
    }
  return x;
}

struct Heads {
  Tensor q, k, v;
};
// Splits rows of [q | k | v] or, unless heads are adjacent, q0 k0 v0 q1 k1 v1 …, as in the
// attention layer.
inline Heads split(const Tensor& rows, const ContextCase& c, std::int64_t length) {
  if (!c.adjacent) {
    const Tensor triples = rows.split_last(3 * c.dim);
    const auto part = [&](std::int64_t i) {
      return triples.part(2, i * c.dim, c.dim).split_first(length);
    };
    return {part(0), part(1), part(2)};
  }
  const std::int64_t q = c.heads * c.dim, k = c.kv_heads * c.dim;
  return {
      rows.part(1, 0, q).split_last(c.dim).split_first(length),
      rows.part(1, q, k).split_last(c.dim).split_first(length),
      rows.part(1, q + k, c.kv_heads * c.value_dim).split_last(c.value_dim).split_first(length)};
}

inline Values values_of(const Host& host) {
  Values values;
  for (std::int64_t i = 0; i < host.tensor.elements(); ++i) values.push_back(host.get(i));
  return values;
}

inline Host host_of(const Values& values, Shape shape) {
  Host host(DType::F64, shape);
  for (std::size_t i = 0; i < values.size(); ++i) host.set(static_cast<std::int64_t>(i), values[i]);
  return host;
}

// Attention of whole sequences on one rank in fp64, by the operation that tests/backend checks.
inline Outputs whole_attention(const ContextCase& c, const Inputs& x, double scale) {
  const auto backend = make_cpu_backend(1);
  const Host qkv = host_of(x.qkv, {c.tokens(), c.width()}), dqkv(DType::F64, qkv.tensor.shape());
  const Host dout = host_of(x.dout, {c.sequences, c.length, c.heads, c.value_dim});
  const Host out(DType::F64, dout.tensor.shape());
  const Host lse(DType::F64, {c.sequences, c.heads, c.length});
  AttentionOptions options{.scale = scale, .window = c.window};
  Inputs copy = x;
  if (c.alibi) options.alibi_slopes = {copy.slopes.data(), DType::F32, {c.heads}};
  if (c.documents)
    options.document_start = {copy.starts.data(), DType::I32, {c.sequences, c.length}};
  const Heads from = split(qkv.tensor, c, c.length), gradient = split(dqkv.tensor, c, c.length);
  backend->attention_forward(out.tensor, lse.tensor, from.q, from.k, from.v, options);
  backend->attention_backward(gradient.q, gradient.k, gradient.v, dout.tensor, out.tensor,
                              lse.tensor, from.q, from.k, from.v, options);
  return {values_of(out), values_of(lse), values_of(dqkv)};
}

// The shard of the problem on one rank.
class LocalProblem {
 public:
  LocalProblem(const ContextCase& c, const Inputs& x, DType dtype, Communicator& group)
      : c_(c),
        shard_{c.ranks, group.rank(), c.length, c.method},
        qkv_(dtype, {c.sequences * local(), c.width()}),
        dqkv_(dtype, qkv_.tensor.shape()),
        out_(dtype, {c.sequences * local(), c.outputs()}),
        dout_(dtype, out_.tensor.shape()),
        lse_(accumulator_of(dtype), {c.sequences, c.heads, local()}),
        slopes_(x.slopes) {
    each_element(c.width(), [&](std::int64_t local, std::int64_t global) {
      qkv_.set(local, x.qkv[static_cast<std::size_t>(global)]);
    });
    each_element(c.outputs(), [&](std::int64_t local, std::int64_t global) {
      dout_.set(local, x.dout[static_cast<std::size_t>(global)]);
    });
    if (!c.documents) return;
    if (c.method == ContextMethod::Ulysses) {
      document_start_ = x.starts;
      return;
    }
    Ids starts(static_cast<std::size_t>(c.sequences * local()));
    each_element(1, [&](std::int64_t local, std::int64_t global) {
      starts[static_cast<std::size_t>(local)] = x.starts[static_cast<std::size_t>(global)];
    });
    document_start_.resize(starts.size() * static_cast<std::size_t>(c.ranks));
    first_visible_keys(document_start_, shard_, starts);
  }

  Tensor slopes() { return c_.alibi ? Tensor(slopes_.data(), DType::F32, {c_.heads}) : Tensor(); }
  ContextAttentionSizes sizes() const {
    return {std::max(c_.sequences, c_.most_sequences),
            local(),
            c_.heads,
            c_.kv_heads,
            c_.dim,
            c_.value_dim};
  }
  void forward(const ContextAttention& attention, double scale) {
    const Heads from = split(qkv_.tensor, c_, local());
    attention.forward(by_sequence(out_), lse_.tensor, from.q, from.k, from.v, scale,
                      document_start(), c_.window);
  }
  void backward(const ContextAttention& attention, double scale) {
    const Heads from = split(qkv_.tensor, c_, local()), gradient = split(dqkv_.tensor, c_, local());
    attention.backward(gradient.q, gradient.k, gradient.v, by_sequence(dout_), by_sequence(out_),
                       lse_.tensor, from.q, from.k, from.v, scale, document_start(), c_.window);
  }
  // Writes the local results into the whole; ranks write different elements.
  void collect(Outputs& whole) const {
    each_element(c_.outputs(), [&](std::int64_t local, std::int64_t global) {
      whole.out[static_cast<std::size_t>(global)] = out_.get(local);
    });
    each_element(c_.width(), [&](std::int64_t local, std::int64_t global) {
      whole.dqkv[static_cast<std::size_t>(global)] = dqkv_.get(local);
    });
    if (c_.method == ContextMethod::Ulysses) return collect_heads(whole);
    for (std::int64_t row = 0; row < c_.sequences * c_.heads; ++row)
      for (std::int64_t i = 0; i < local(); ++i)
        whole.lse[static_cast<std::size_t>(row * c_.length + shard_.position(i))] =
            lse_.get(row * local() + i);
  }
  // The number of queries that see none of another rank's keys, although those precede them.
  std::int64_t blind() const {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < document_start_.size(); ++i) {
      const auto source = static_cast<int>(static_cast<std::int64_t>(i) / (c_.sequences * local()));
      const std::int64_t query = static_cast<std::int64_t>(i) % local();
      if (source < shard_.rank) count += document_start_[i] == local() / 2;
      if (source > shard_.rank && query >= local() / 2) count += document_start_[i] == local();
    }
    return count;
  }

 private:
  std::int64_t local() const { return shard_.local_length(); }
  Tensor by_sequence(const Host& x) const {
    return x.tensor.split_last(c_.value_dim).split_first(local());
  }
  Tensor document_start() {
    if (!c_.documents) return {};
    return c_.method == ContextMethod::Ulysses
               ? Tensor(document_start_.data(), DType::I32, {c_.sequences, c_.length})
               : Tensor(document_start_.data(), DType::I32, {c_.ranks * c_.sequences, local()});
  }
  // The log-sum-exp of this rank's heads.
  void collect_heads(Outputs& whole) const {
    const std::int64_t heads = c_.heads / c_.ranks;
    for (std::int64_t i = 0; i < lse_.tensor.elements(); ++i) {
      const std::int64_t sequence = i / (heads * c_.length), rest = i % (heads * c_.length);
      whole.lse[static_cast<std::size_t>((sequence * c_.heads + shard_.rank * heads) * c_.length +
                                         rest)] = lse_.get(i);
    }
  }
  template <class F>
  void each_element(std::int64_t width, const F& f) const {
    for (std::int64_t s = 0; s < c_.sequences; ++s)
      for (std::int64_t i = 0; i < local(); ++i)
        for (std::int64_t j = 0; j < width; ++j)
          f((s * local() + i) * width + j, (s * c_.length + shard_.position(i)) * width + j);
  }

  ContextCase c_;
  ContextShard shard_;
  Host qkv_, dqkv_, out_, dout_, lse_;
  std::vector<float> slopes_;
  Ids document_start_;
};

inline std::unique_ptr<ContextAttention> make_attention(Backend& backend, Arena& arena,
                                                        Communicator& group, const ContextCase& c,
                                                        LocalProblem& local, DType dtype) {
  if (c.method == ContextMethod::Ulysses)
    return std::make_unique<UlyssesAttention>(backend, arena, group, local.sizes(), dtype, true,
                                              local.slopes());
  return std::make_unique<RingAttention>(backend, arena, group, local.sizes(), dtype, true,
                                         local.slopes());
}

inline Outputs sharded_attention(const ContextCase& c, const Inputs& x, DType dtype, double scale) {
  Outputs found;
  found.out.resize(x.dout.size());
  found.dqkv.resize(x.qkv.size());
  found.lse.resize(static_cast<std::size_t>(c.tokens() * c.heads));
  run_ranks(c.ranks, [&](World& world) {
    const auto backend = make_cpu_backend(1);
    const auto group = world.split("cp", 0, world.rank());
    Arena arena(*backend);
    LocalProblem local(c, x, dtype, *group);
    const auto attention = make_attention(*backend, arena, *group, c, local, dtype);
    for (int repeat = 0; repeat < 2; ++repeat) {  // buffers keep old values in the second
      local.forward(*attention, scale);
      local.backward(*attention, scale);
    }
    if (c.documents && c.method == ContextMethod::Ring) {
      EXPECT_GT(local.blind(), 0);
    }
    local.collect(found);
  });
  return found;
}

inline void expect_near(const char* what, const Values& actual, const Values& expected,
                        double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 1, worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    largest = std::max(largest, std::abs(expected[i]));
    worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
  }
  EXPECT_LE(worst / largest, tolerance) << what;
}

// Tolerances relative to the largest number. fp32: scores of about ten lose four bits, sums of a
// hundred terms as many again: 64 roundings. bf16: a partial result is rounded once, and the sum
// again; gradients start from a rounded `out`: 4 roundings.
inline void check(const ContextCase& c, DType dtype) {
  SCOPED_TRACE(describe(c) + ", " + std::string(to_string(dtype)));
  const double scale = 1.3 / std::sqrt(static_cast<double>(c.dim));
  const Inputs x = make_inputs(c, dtype);
  const Outputs expected = whole_attention(c, x, scale);
  const Outputs found = sharded_attention(c, x, dtype, scale);
  const double tolerance = dtype == DType::F64 ? 1e-12 : 64 * 0x1p-24;
  const double rounded = dtype == DType::BF16 ? 4 * 0x1p-8 : tolerance;
  expect_near("lse", found.lse, expected.lse, tolerance);
  expect_near("out", found.out, expected.out, rounded);
  expect_near("dqkv", found.dqkv, expected.dqkv, rounded);
}

}  // namespace kintsugi::contexts
