#include "backend/retention.h"

#include "backend/operation_fixture.h"
#include "backend/sim/sim_backend.h"

namespace kintsugi {
namespace {

struct RetentionCase {
  std::int64_t batch, length, heads, k_dim, v_dim, chunk;
  std::int64_t first_position = 0;
  bool state = false;   // with an initial state and a gradient of the final state
  bool packed = false;  // q, k, v and a gate are columns of one projection
  bool longer = false;  // sequences are the first tokens of longer buffers
};

std::string describe(const RetentionCase& c) {
  return fmt::format("batch {} length {} heads {} dims {}/{} chunk {} first {} state {} packed {}",
                     c.batch, c.length, c.heads, c.k_dim, c.v_dim, c.chunk, c.first_position,
                     c.state, c.packed);
}

struct Inputs {
  Values q, k, v, dout, state, dstate;
  Values decays;
  double scale = 1;
};

struct Outputs {
  Values out, dq, dk, dv;
  Values state, dstate;  // after the last token; before the first
};

// The parallel form from the definition: each output from all keys up to it, and its gradient.
Outputs reference(const RetentionCase& c, const Inputs& x) {
  Outputs r;
  r.dq = r.dk = Values(x.q.size(), 0.0);
  r.out = r.dv = Values(x.v.size(), 0.0);
  r.state = r.dstate = Values(x.state.size(), 0.0);
  const auto key = static_cast<std::size_t>(c.k_dim), value = static_cast<std::size_t>(c.v_dim);
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const double g = x.decays[static_cast<std::size_t>(h)];
      const auto power = [&](std::int64_t n) { return std::pow(g, static_cast<double>(n)); };
      const auto row = [&](std::int64_t token) {
        return static_cast<std::size_t>((b * c.length + token) * c.heads + h);
      };
      const double *S = &x.state[static_cast<std::size_t>(b * c.heads + h) * key * value],
                   *dS = &x.dstate[static_cast<std::size_t>(b * c.heads + h) * key * value];
      double* S_out = &r.state[static_cast<std::size_t>(b * c.heads + h) * key * value];
      double* dS_in = &r.dstate[static_cast<std::size_t>(b * c.heads + h) * key * value];
      for (std::size_t i = 0; i < key * value; ++i) {
        S_out[i] = power(c.length) * S[i];
        dS_in[i] = power(c.length) * dS[i];
      }
      double squares = 0;  // the square of the norm: the sum of the powers so far
      for (std::int64_t n = 0; n < c.first_position; ++n) squares = g * squares + 1;
      for (std::int64_t n = 0; n < c.length; ++n) {
        squares = g * squares + 1;
        const double norm = std::sqrt(squares);
        const double *q = &x.q[row(n) * key], *dout = &x.dout[row(n) * value];
        double *dq = &r.dq[row(n) * key], *out = &r.out[row(n) * value];
        for (std::int64_t m = 0; m <= n; ++m) {
          const double *k = &x.k[row(m) * key], *v = &x.v[row(m) * value];
          const double weight = x.scale / norm * power(n - m);
          double score = 0, dscore = 0;
          for (std::size_t i = 0; i < key; ++i) score += weight * q[i] * k[i];
          for (std::size_t j = 0; j < value; ++j) {
            out[j] += score * v[j];
            r.dv[row(m) * value + j] += score * dout[j];
            dscore += weight * dout[j] * v[j];
          }
          for (std::size_t i = 0; i < key; ++i) {
            dq[i] += dscore * k[i];
            r.dk[row(m) * key + i] += dscore * q[i];
          }
        }
        const double from_state = x.scale / norm * power(n + 1), to_state = power(c.length - 1 - n);
        for (std::size_t i = 0; i < key; ++i)
          for (std::size_t j = 0; j < value; ++j) {
            const double k = x.k[row(n) * key + i], v = x.v[row(n) * value + j];
            out[j] += from_state * q[i] * S[i * value + j];
            dq[i] += from_state * dout[j] * S[i * value + j];
            dS_in[i * value + j] += from_state * q[i] * dout[j];
            S_out[i * value + j] += to_state * k * v;
            r.dk[row(n) * key + i] += to_state * v * dS[i * value + j];
            r.dv[row(n) * value + j] += to_state * k * dS[i * value + j];
          }
      }
    }
  return r;
}

class RetentionTest : public OperationTest {
 protected:
  Inputs inputs(const RetentionCase& c) {
    const std::int64_t tokens = c.batch * c.length * c.heads,
                       states = c.batch * c.heads * c.k_dim * c.v_dim;
    Inputs x;
    x.q = activations(tokens * c.k_dim);
    x.k = activations(tokens * c.k_dim);
    x.v = activations(tokens * c.v_dim);
    x.dout = activations(tokens * c.v_dim);
    x.state = x.dstate = Values(static_cast<std::size_t>(states), 0.0);
    if (c.state) {
      x.state = rounded(normal(states, 3.0), accumulator());
      x.dstate = rounded(normal(states), accumulator());
    }
    x.scale = 1 / std::sqrt(static_cast<double>(c.k_dim));
    for (std::int64_t h = 0; h < c.heads; ++h)
      x.decays.push_back(1 - std::exp2(static_cast<double>(-5 - h)));
    return x;
  }

  struct Operands {
    Tensor q, k, v, out;
  };
  // Laid out as in a layer, not written yet.
  Operands operands(const RetentionCase& c) {
    const std::int64_t keys = c.heads * c.k_dim, values = c.heads * c.v_dim;
    const std::int64_t all = c.length + (c.longer ? 3 : 0);
    const auto split = [&](Tensor x, std::int64_t dim) {
      return x.part(1, 0, c.length).split_last(dim);
    };
    const Tensor out = split(buffer(type(), {c.batch, all, values}), c.v_dim);
    if (!c.packed)
      return {split(buffer(type(), {c.batch, all, keys}), c.k_dim),
              split(buffer(type(), {c.batch, all, keys}), c.k_dim),
              split(buffer(type(), {c.batch, all, values}), c.v_dim), out};
    const Tensor joined = buffer(type(), {c.batch, all, 2 * keys + 2 * values});
    return {split(joined.part(2, 0, keys), c.k_dim), split(joined.part(2, keys, keys), c.k_dim),
            split(joined.part(2, 2 * keys, values), c.v_dim), out};
  }
  Tensor workspace(const RetentionCase& c, bool backward) {
    return out(DType::U8,
               {static_cast<std::int64_t>(retention_workspace_bytes(
                   type(), {c.batch, c.length, c.heads, c.k_dim, c.v_dim, c.chunk}, backward))});
  }
  RetentionOptions options(const RetentionCase& c, const Inputs& x) {
    return {.scale = x.scale,
            .decays = in(x.decays, DType::F32, {c.heads}),
            .first_position = c.first_position,
            .chunk = c.chunk};
  }
  Shape state_shape(const RetentionCase& c) const { return {c.batch, c.heads, c.k_dim, c.v_dim}; }

  Bound bound(const Values& expected, const RetentionCase& c) const {
    const double rounds = narrow() ? 4 : 16 + 4 * std::sqrt(static_cast<double>(c.length));
    return {rounds, type(), {std::max(1.0, largest(expected))}};  // sums may cancel
  }

  void check(const RetentionCase& c) {
    SCOPED_TRACE(describe(c));
    const Inputs x = inputs(c);
    const Outputs expected = reference(c, x);
    const Operands from = operands(c), gradient = operands(c);
    write(from.q, x.q);
    write(from.k, x.k);
    write(from.v, x.v);
    write(gradient.out, x.dout);
    for (const Tensor& x : {from.out, gradient.q, gradient.k, gradient.v}) allow(x);
    const RetentionOptions o = options(c, x);
    Tensor state, dstate;
    if (c.state) {
      state = in(x.state, accumulator(), state_shape(c));
      dstate = in(x.dstate, accumulator(), state_shape(c));
    }
    backend().retention_forward(from.out, from.q, from.k, from.v, state, workspace(c, false), o);
    backend().retention_backward(gradient.q, gradient.k, gradient.v, gradient.out, from.q, from.k,
                                 from.v, state, dstate, workspace(c, true), o);
    const Tensor after = inout(x.state, accumulator(), state_shape(c)),
                 before = inout(x.dstate, accumulator(), state_shape(c));
    backend().retention_state(after, from.k, from.v, workspace(c, false), o);
    backend().retention_state_backward(before, from.q, gradient.out, workspace(c, false), o);

    const auto compare = [&](const char* what, Tensor actual, const Values& values, DType stored) {
      expect_close(what, read(actual), values, stored, bound(values, c));
    };
    compare("out", from.out, expected.out, type());
    compare("dq", gradient.q, expected.dq, type());
    compare("dk", gradient.k, expected.dk, type());
    compare("dv", gradient.v, expected.dv, type());
    compare("state", after, expected.state, accumulator());
    compare("dstate", before, expected.dstate, accumulator());
    finish();
  }
};
KINTSUGI_ON_EACH_BACKEND(RetentionTest);

TEST_P(RetentionTest, LengthsAndChunks) {
  for (const std::int64_t length : {1, 2, 16, 37, 130})
    for (const std::int64_t chunk : {1, 16, 50, 0}) check({2, length, 3, 8, 12, chunk});
  check({1, 300, 2, 24, 40, 0});
}

TEST_P(RetentionTest, OddSizes) {
  check({1, 33, 1, 1, 1, 8});
  check({3, 19, 2, 7, 5, 6, 4, true});
  check({2, 65, 5, 20, 33, 64, 0, false, true});
  check({1, 96, 2, 64, 48, 32});
}

TEST_P(RetentionTest, StatesInAndOut) {
  for (const std::int64_t chunk : {8, 24, 0}) {
    check({2, 40, 3, 8, 16, chunk, 0, true});
    check({1, 48, 2, 16, 8, chunk, 1000, true});
    check({2, 1, 2, 8, 16, chunk, 7, true});
  }
}

TEST_P(RetentionTest, ViewsOfAProjection) {
  check({2, 64, 4, 16, 24, 16, 0, false, true});
  check({2, 70, 4, 16, 24, 16, 5, true, true});
  check({2, 64, 2, 8, 8, 32, 0, true, true, true});
  check({3, 37, 2, 8, 8, 16, 0, false, false, true});
}

// A strong decay: its powers underflow inside a chunk.
TEST_P(RetentionTest, StrongDecay) {
  const RetentionCase c = {1, 400, 2, 8, 8, 128, 0, true};
  Inputs x = inputs(c);
  x.decays = {0.0078125, 0.5};
  const Operands from = operands(c);
  write(from.q, x.q);
  write(from.k, x.k);
  write(from.v, x.v);
  backend().retention_forward(allow(from.out), from.q, from.k, from.v,
                              in(x.state, accumulator(), state_shape(c)), workspace(c, false),
                              options(c, x));
  const Values expected = reference(c, x).out;
  expect_close("out", read(from.out), expected, type(), bound(expected, c));
}

// A sequence in two calls gives the same outputs and gradients as in one call.
TEST_P(RetentionTest, TwoCallsAreOne) {
  const RetentionCase c = {2, 61, 3, 8, 12, 16};
  const std::int64_t split = 27;
  const Inputs x = inputs(c);
  const Outputs expected = reference(c, x);
  const Operands all = operands(c), gradient = operands(c);
  write(all.q, x.q);
  write(all.k, x.k);
  write(all.v, x.v);
  write(gradient.out, x.dout);
  for (const Tensor& x : {all.out, gradient.q, gradient.k, gradient.v}) allow(x);
  const auto half = [&](const Operands& o, std::int64_t begin, std::int64_t count) {
    return Operands{o.q.part(1, begin, count), o.k.part(1, begin, count), o.v.part(1, begin, count),
                    o.out.part(1, begin, count)};
  };
  const Operands first = half(all, 0, split), second = half(all, split, c.length - split);
  const Operands dfirst = half(gradient, 0, split),
                 dsecond = half(gradient, split, c.length - split);
  RetentionOptions o = options(c, x), later = o;
  later.first_position = split;
  const Tensor work = workspace(c, true);
  const Tensor state = inout(x.state, accumulator(), state_shape(c)),
               dstate = inout(x.state, accumulator(), state_shape(c));  // both zero
  backend().retention_forward(first.out, first.q, first.k, first.v, {}, work, o);
  backend().retention_state(state, first.k, first.v, work, o);
  backend().retention_forward(second.out, second.q, second.k, second.v, state, work, later);
  backend().retention_backward(dsecond.q, dsecond.k, dsecond.v, dsecond.out, second.q, second.k,
                               second.v, state, {}, work, later);
  backend().retention_state_backward(dstate, second.q, dsecond.out, work, later);
  backend().retention_backward(dfirst.q, dfirst.k, dfirst.v, dfirst.out, first.q, first.k, first.v,
                               {}, dstate, work, o);
  expect_close("out", read(all.out), expected.out, type(), bound(expected.out, c));
  expect_close("dq", read(gradient.q), expected.dq, type(), bound(expected.dq, c));
  expect_close("dk", read(gradient.k), expected.dk, type(), bound(expected.dk, c));
  expect_close("dv", read(gradient.v), expected.dv, type(), bound(expected.dv, c));
}

// Generation: one token at a time, without a workspace.
TEST_P(RetentionTest, TokenByToken) {
  const RetentionCase c = {2, 23, 3, 16, 40, 0};
  const Inputs x = inputs(c);
  const Operands all = operands(c);
  write(all.q, x.q);
  write(all.k, x.k);
  write(all.v, x.v);
  allow(all.out);
  RetentionOptions o = options(c, x);
  const Tensor state = inout(x.state, accumulator(), state_shape(c));
  for (std::int64_t n = 0; n < c.length; ++n) {
    const auto token = [&](const Tensor& x) { return x.part(1, n, 1); };
    o.first_position = n;
    backend().retention_forward(token(all.out), token(all.q), token(all.k), token(all.v),
                                n == 0 ? Tensor() : state, {}, o);
    backend().retention_state(state, token(all.k), token(all.v), {}, o);
  }
  const Outputs expected = reference(c, x);
  expect_close("out", read(all.out), expected.out, type(), bound(expected.out, c));
  expect_close("state", read(state), expected.state, accumulator(),
               {64, accumulator(), {largest(expected.state)}});
}

class RetentionGradientTest : public RetentionTest {};
KINTSUGI_ON_EACH_BACKEND(RetentionGradientTest, {DType::F64});

// The backward operations against finite differences of the forward, along a random direction of
// each input.
TEST_P(RetentionGradientTest, Slopes) {
  const RetentionCase c = {2, 21, 2, 5, 6, 8, 3, true};
  const Inputs x = inputs(c);
  const Operands from = operands(c), gradient = operands(c);
  write(from.q, x.q);
  write(from.k, x.k);
  write(from.v, x.v);
  write(gradient.out, x.dout);
  for (const Tensor& x : {from.out, gradient.q, gradient.k, gradient.v}) allow(x);
  const RetentionOptions o = options(c, x);
  const Tensor state = in(x.state, type(), state_shape(c)),
               dstate = inout(x.dstate, type(), state_shape(c)),
               after = out(type(), state_shape(c)), work = workspace(c, true);
  backend().retention_backward(gradient.q, gradient.k, gradient.v, gradient.out, from.q, from.k,
                               from.v, state, dstate, work, o);
  backend().retention_state_backward(dstate, from.q, gradient.out, work, o);

  Values cotangent = x.dout;  // of the outputs, then of the final state
  cotangent.insert(cotangent.end(), x.dstate.begin(), x.dstate.end());
  const auto check = [&](const char* what, Tensor operand, const Values& at, Tensor slope) {
    const auto moved = [&](const Values& values) {
      write(operand, values);
      backend().retention_forward(from.out, from.q, from.k, from.v, state, work, o);
      backend().copy(after, state);
      backend().retention_state(after, from.k, from.v, work, o);
      Values result = read(from.out);
      const Values last = read(after);
      result.insert(result.end(), last.begin(), last.end());
      return result;
    };
    const Values direction = normal(operand.elements());
    EXPECT_NEAR(slope_along(moved, at, direction, cotangent), dot(read(slope), direction), 1e-8)
        << what;
    write(operand, at);
  };
  check("q", from.q, x.q, gradient.q);
  check("k", from.k, x.k, gradient.k);
  check("v", from.v, x.v, gradient.v);
  check("state", state, x.state, dstate);
}

TEST_P(RetentionGradientTest, ChunkSizesAgree) {
  const RetentionCase c = {1, 150, 3, 16, 20, 0};
  const Inputs x = inputs(c);
  const Operands from = operands(c);
  write(from.q, x.q);
  write(from.k, x.k);
  write(from.v, x.v);
  allow(from.out);
  const auto with_chunk = [&](std::int64_t chunk) {
    RetentionCase other = c;
    other.chunk = chunk;
    backend().retention_forward(from.out, from.q, from.k, from.v, {}, workspace(other, false),
                                options(other, x));
    return read(from.out);
  };
  const Values whole = with_chunk(150);
  for (const std::int64_t chunk : {1, 7, 50, 64}) {
    const Values chunked = with_chunk(chunk);
    for (std::size_t i = 0; i < whole.size(); ++i)
      EXPECT_NEAR(chunked[i], whole[i], 1e-12) << chunk;
  }
}

TEST(RetentionWorkspaceTest, RefusesLessThanItsSize) {
  const RetentionSizes n = {1, 64, 2, 8, 8, 16};
  const std::size_t bytes = retention_workspace_bytes(DType::F32, n, true);
  EXPECT_LT(retention_workspace_bytes(DType::F32, n, false), bytes);
  EXPECT_LT(retention_workspace_bytes(DType::BF16, n, true), bytes);
  OperationTrace trace;
  SimBackend backend(trace);
  const auto tensor = [&](DType type, Shape shape) {
    return Tensor(backend.allocate(static_cast<std::size_t>(shape.elements())), type, shape);
  };
  const Tensor x = tensor(DType::F32, {1, 64, 2, 8});
  const auto run = [&](std::size_t size) {
    backend.retention_backward(x, x, x, x, x, x, x, {}, {},
                               tensor(DType::U8, {static_cast<std::int64_t>(size)}),
                               {.decays = tensor(DType::F32, {2}), .chunk = 16});
  };
  EXPECT_NO_THROW(run(bytes));
  EXPECT_THROW(run(bytes - 1), Failure);
}

// Four matmuls in the forward and ten in the backward, each once per chunk.
TEST(RetentionSimTest, CountsMatmuls) {
  OperationTrace trace;
  SimBackend backend(trace);
  const auto tensor = [&](Shape shape) {
    return Tensor(backend.allocate(static_cast<std::size_t>(shape.elements()) * 2), DType::BF16,
                  shape);
  };
  const Tensor q = tensor({2, 512, 4, 64}), v = tensor({2, 512, 4, 96});
  const RetentionOptions o = {.decays = Tensor(backend.allocate(16), DType::F32, {4}),
                              .chunk = 128};
  const Tensor workspace = tensor({1 << 25});
  backend.retention_forward(v, q, q, v, {}, workspace, o);
  const double tokens = 2 * 512 * 4;
  EXPECT_DOUBLE_EQ(trace.flops(), 2 * tokens * (2 * 64 * 96 + 128 * 64 + 128 * 96));
  EXPECT_EQ(trace.operations.back().kind, TracedOperation::Kind::Memory);
  trace.operations.clear();
  backend.retention_backward(q, q, v, v, q, q, v, {}, {}, workspace, o);
  EXPECT_DOUBLE_EQ(trace.flops(), 2 * tokens * (5 * 64 * 96 + 3 * 128 * 64 + 2 * 128 * 96));
}

// One token each of sequences at different positions. Slot 2 and the skipped token's slot stay.
TEST_P(RetentionTest, OneTokenOfEachSequence) {
  const std::int64_t tokens = 4, heads = 3, slots_count = 5;
  for (const auto& [k_dim, v_dim] : {std::pair<std::int64_t, std::int64_t>{4, 6}, {16, 136}}) {
    SCOPED_TRACE(fmt::format("k_dim {} v_dim {}", k_dim, v_dim));
    const Ids slots = {3, -1, 0, 4}, positions = {0, 5, 1, 1000};
    const Values q = activations(tokens * heads * k_dim), k = activations(tokens * heads * k_dim),
                 v = activations(tokens * heads * v_dim);
    const std::int64_t size = k_dim * v_dim;
    Values states = rounded(normal(slots_count * heads * size), accumulator());
    const Values decays = rounded({0.96875, 0.5, 0.998046875}, DType::F32);
    const double scale = 0.25;
    const Tensor packed = buffer(type(), {tokens, heads * (2 * k_dim + v_dim)});
    const Tensor query = packed.part(1, 0, heads * k_dim).split_last(k_dim),
                 key = packed.part(1, heads * k_dim, heads * k_dim).split_last(k_dim),
                 value = packed.part(1, 2 * heads * k_dim, heads * v_dim).split_last(v_dim);
    write(query, q);
    write(key, k);
    write(value, v);
    const Tensor to = buffer(type(), {tokens, heads, v_dim});
    const Tensor state = in(states, accumulator(), {slots_count, heads, k_dim, v_dim});
    Values expected, magnitude;
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (slots[static_cast<std::size_t>(t)] < 0) continue;
      const std::int64_t slot = slots[static_cast<std::size_t>(t)];
      const double position = positions[static_cast<std::size_t>(t)];
      allow(to.rows(t, 1));
      allow(state.rows(slot, 1));
      for (std::int64_t h = 0; h < heads; ++h) {
        const double g = decays[static_cast<std::size_t>(h)],
                     norm = std::sqrt((1 - std::pow(g, position + 1)) / (1 - g));
        for (std::int64_t j = 0; j < v_dim; ++j) {
          double sum = 0, terms = 0;
          for (std::int64_t i = 0; i < k_dim; ++i) {
            double& s = states[static_cast<std::size_t>((slot * heads + h) * size + i * v_dim + j)];
            const auto at = static_cast<std::size_t>((t * heads + h) * k_dim + i);
            s = (position == 0 ? 0.0 : g * s) +
                k[at] * v[static_cast<std::size_t>((t * heads + h) * v_dim + j)];
            sum += q[at] * s;
            terms += std::abs(q[at] * s);
          }
          expected.push_back(scale / norm * sum);
          magnitude.push_back(scale / norm * terms);
        }
      }
    }
    backend().retention_step(to, state, query, key, value, in(slots, {tokens}),
                             in(positions, {tokens}),
                             {.scale = scale, .decays = in(decays, DType::F32, {heads})});
    Values found = read(to.rows(0, 1)), rest = read(to.rows(2, 2));
    found.insert(found.end(), rest.begin(), rest.end());
    expect_close("out", found, expected, type(), {16, accumulator(), magnitude});
    expect_close("states", read(state), states, accumulator(), {4, accumulator()});
    finish();
  }
}

}  // namespace
}  // namespace kintsugi
