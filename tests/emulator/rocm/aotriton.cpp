// A stand-in for libaotriton_v2: attention in double precision, one query after the other, behind
// the interface of the library, with what is peculiar to each release.
//
// Environment:
//   KINTSUGI_STAND_IN_AOTRITON        the release, "0.13" by default; unknown ones understand no
//                                     version of the parameters that this program has
//   KINTSUGI_STAND_IN_AOTRITON_FAULT  what is wrong with it: "scale" (of the scores), "base" (of
//                                     the log-sum-exp), "atomics" (the sum of dq by atomics),
//                                     "kernels" (it has none for this GPU)
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "tensor/dtype.h"

struct ihipStream_t;
extern "C" int hipLaunchHostFunc(void* stream, void (*function)(void*), void* data);

namespace aotriton {

template <class Handle>
class StreamTemplate {
 public:
  Handle native() const { return stream_; }

 private:
  Handle stream_;
};
using Stream = StreamTemplate<ihipStream_t*>;

namespace v3::flash {
struct attn_fwd_params;
struct attn_bwd_params;
struct attn_options;

__attribute__((visibility("default"))) int attn_fwd(const attn_fwd_params& params, int version,
                                                    Stream stream, const attn_options* options);
__attribute__((visibility("default"))) int attn_bwd(const attn_bwd_params& params, int version,
                                                    Stream stream, const attn_options* options);
}  // namespace v3::flash
}  // namespace aotriton

namespace {

using kintsugi::DType;

constexpr int kSuccess = 0, kInvalidValue = 1, kInvalidSymbol = 13, kNoBinary = 209;

// ---- what the releases have in memory

template <std::size_t kRank>
struct Tensor {
  char* base;
  std::array<std::uint64_t, kRank> sizes, strides;
  std::int32_t dtype;
};
struct Scalar {
  char* base;
  std::int32_t dtype;
};
struct Lengths {
  Tensor<1> queries, keys;
};

struct ForwardBegin {
  Tensor<4> q, k, v, bias;
  Tensor<2> alibi;
  float scale;
  Tensor<2> lse;
  Tensor<4> out;
  Lengths ends;
  std::int32_t max_queries, max_keys;
};
struct ForwardEnd {
  float dropout;
  Scalar seed, offset;
  std::uint64_t offset2;
  Scalar seed_out, offset_out;
  Tensor<4> encoded;
  Scalar counter;
  std::int8_t causal, varlen;
  std::int32_t left, right;
};
struct Forward10 {
  ForwardBegin begin;
  ForwardEnd end;
};
struct Forward12 {
  ForwardBegin begin;
  Lengths strides;
  ForwardEnd end;
};
static_assert(sizeof(Forward10) == 768 && sizeof(Forward12) == 832);

struct BackwardBegin {
  Tensor<4> q, k, v, bias;
  float scale;
  Tensor<4> out, dout, dk, dv, dq, dbias;
  Tensor<2> lse;
};
struct BackwardMiddle {
  Lengths ends;
  std::int32_t max_queries, max_keys;
};
struct BackwardEnd {
  float dropout;
  Scalar seed, offset;
  std::uint64_t offset2;
  std::int8_t causal, varlen;
  std::int32_t left, right;
};
template <std::size_t kRank>
struct Lazy11 {
  void* cookie;
  Tensor<kRank> (*acquire)(void* cookie);
  void (*dispose)(void* cookie);
};
template <std::size_t kRank>
struct Lazy12 {
  void* cookie;
  Tensor<kRank> (*acquire)(Lazy12* self);
  void (*dispose)(Lazy12* self);
  Tensor<kRank> eager;
};
struct Backward10 {
  BackwardBegin begin;
  Tensor<2> delta;
  BackwardMiddle middle;
  BackwardEnd end;
};
struct Backward11 {
  BackwardBegin begin;
  Lazy11<2> delta;
  BackwardMiddle middle;
  BackwardEnd end;
  Lazy11<4> dq_sum;
};
struct Backward12 {
  BackwardBegin begin;
  Lazy12<2> delta;
  BackwardMiddle middle;
  Lengths strides;
  BackwardEnd end;
  Lazy12<4> dq_sum;
};
static_assert(sizeof(Backward10) == 1040 && sizeof(Backward11) == 1040 &&
              sizeof(Backward12) == 1232);

struct Options11 {
  std::int32_t backend;
};
struct Options12 {
  std::int32_t backend;
  bool deterministic;
};

// ---- settings

std::string setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}
bool has_fault(const char* name) { return setting("KINTSUGI_STAND_IN_AOTRITON_FAULT", "") == name; }

enum class Release : std::uint8_t { V10, V11, V12, Unknown };
Release release() {
  const std::string name = setting("KINTSUGI_STAND_IN_AOTRITON", "0.13");
  if (name == "0.10") return Release::V10;
  if (name == "0.11") return Release::V11;
  return name == "0.12" || name == "0.13" ? Release::V12 : Release::Unknown;
}

// ---- elements

bool is_16_bit(std::int32_t dtype) { return dtype == 2 || dtype == 3; }

// In 16 bits, with rows that kernels can load 16 bytes of at a time.
bool is_usable(const Tensor<4>& x, std::int32_t dtype) {
  bool usable = x.base != nullptr && x.dtype == dtype && is_16_bit(dtype) && x.strides[3] == 1 &&
                reinterpret_cast<std::uintptr_t>(x.base) % 16 == 0 && x.sizes[3] <= 256;
  for (std::size_t i = 0; i < 3; ++i) usable &= x.sizes[i] == 1 || x.strides[i] % 8 == 0;
  return usable;
}

class Elements {
 public:
  Elements() = default;
  explicit Elements(const Tensor<4>& x)
      : x_(x),
        type_(x.dtype == 1   ? DType::F32
              : x.dtype == 2 ? DType::F16
                             : DType::BF16) {}

  std::int64_t size(std::size_t i) const { return static_cast<std::int64_t>(x_.sizes[i]); }
  double get(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    double value = 0;
    kintsugi::visit_float(type_, [&]<class T>() {
      value = static_cast<double>(static_cast<kintsugi::Accumulator<T>>(
          reinterpret_cast<const T*>(x_.base)[at(b, h, i, d)]));
    });
    return value;
  }
  void set(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d, double value) const {
    kintsugi::visit_float(type_, [&]<class T>() {
      reinterpret_cast<T*>(x_.base)[at(b, h, i, d)] =
          static_cast<T>(static_cast<kintsugi::Accumulator<T>>(value));
    });
  }

 private:
  std::uint64_t at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    const auto u = [](std::int64_t x) { return static_cast<std::uint64_t>(x); };
    return u(b) * x_.strides[0] + u(h) * x_.strides[1] + u(i) * x_.strides[2] + u(d);
  }
  Tensor<4> x_ = {};
  DType type_ = DType::F32;
};

// ---- attention

struct Problem {
  Elements q, k, v, out;
  double scale = 1, lse_unit = 1;  // a log-sum-exp is stored in this unit
  float* lse = nullptr;            // (batch * heads, queries)
  bool masked = false;
  std::int64_t left = 0, right = 0;
  std::int32_t* counter = nullptr;
  Elements dout, dq, dk, dv, dq_sum;  // of a backward; dq_sum only where it is used
  float* delta = nullptr;             // (batch * heads, queries)
  bool sums_dq = false, wrong_sum = false;

  std::int64_t kv_head(std::int64_t h) const { return h * k.size(1) / q.size(1); }
  bool sees(std::int64_t i, std::int64_t j) const {
    return !masked || (j <= i + right && j >= i - left);
  }
  double score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t d = 0; d < q.size(3); ++d)
      sum += q.get(b, h, i, d) * k.get(b, kv_head(h), j, d);
    return scale * sum;
  }
  std::size_t row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return static_cast<std::size_t>((b * q.size(1) + h) * q.size(2) + i);
  }
};

void forward_row(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i) {
  std::vector<double> scores(static_cast<std::size_t>(p.k.size(2)),
                             -std::numeric_limits<double>::infinity());
  double largest = -std::numeric_limits<double>::infinity(), total = 0;
  for (std::int64_t j = 0; j < p.k.size(2); ++j)
    if (p.sees(i, j))
      largest = std::max(largest, scores[static_cast<std::size_t>(j)] = p.score(b, h, i, j));
  for (double& score : scores) total += score = std::exp(score - largest);
  for (std::int64_t d = 0; d < p.q.size(3); ++d) {
    double sum = 0;
    for (std::int64_t j = 0; j < p.k.size(2); ++j)
      if (p.sees(i, j)) sum += scores[static_cast<std::size_t>(j)] * p.v.get(b, p.kv_head(h), j, d);
    p.out.set(b, h, i, d, sum / total);
  }
  if (p.lse != nullptr)
    p.lse[p.row(b, h, i)] = static_cast<float>((largest + std::log(total)) / p.lse_unit);
}

// Blocks of causal kernels take their tiles, which are queries here, by counting.
void forward(const Problem& p) {
  const std::int64_t queries = p.q.size(2), tiles = p.q.size(0) * p.q.size(1) * queries;
  std::int32_t own = 0;
  std::int32_t& next = p.masked ? *p.counter : own;
  for (std::int64_t tile = next++; tile >= 0 && tile < tiles; tile = next++)
    forward_row(p, tile / queries / p.q.size(1), tile / queries % p.q.size(1), tile % queries);
}

void backward_head(const Problem& p, std::int64_t b, std::int64_t h, std::vector<double>& dk,
                   std::vector<double>& dv) {
  const std::int64_t dim = p.q.size(3), kv = p.kv_head(h);
  for (std::int64_t i = 0; i < p.q.size(2); ++i) {
    std::vector<double> dq(static_cast<std::size_t>(dim));
    double delta = 0;
    for (std::int64_t d = 0; d < dim; ++d) delta += p.out.get(b, h, i, d) * p.dout.get(b, h, i, d);
    p.delta[p.row(b, h, i)] = static_cast<float>(delta);
    const double lse = static_cast<double>(p.lse[p.row(b, h, i)]) * p.lse_unit;
    for (std::int64_t j = 0; j < p.k.size(2); ++j) {
      if (!p.sees(i, j)) continue;
      const double probability = std::exp(p.score(b, h, i, j) - lse);
      double slope = 0;
      for (std::int64_t d = 0; d < dim; ++d) slope += p.dout.get(b, h, i, d) * p.v.get(b, kv, j, d);
      slope = p.scale * probability * (slope - delta);
      for (std::int64_t d = 0; d < dim; ++d) {
        dq[static_cast<std::size_t>(d)] += slope * p.k.get(b, kv, j, d);
        dk[static_cast<std::size_t>(j * dim + d)] += slope * p.q.get(b, h, i, d);
        dv[static_cast<std::size_t>(j * dim + d)] += probability * p.dout.get(b, h, i, d);
      }
    }
    for (std::int64_t d = 0; d < dim; ++d) {
      double value = dq[static_cast<std::size_t>(d)];
      if (p.sums_dq) {  // atomics add to what is there
        value += p.dq_sum.get(b, h, i, d) + (p.wrong_sum ? 1 : 0);
        p.dq_sum.set(b, h, i, d, value);
      }
      p.dq.set(b, h, i, d, value);
    }
  }
}

void backward(const Problem& p) {
  const std::int64_t dim = p.q.size(3), keys = p.k.size(2), group = p.q.size(1) / p.k.size(1);
  for (std::int64_t b = 0; b < p.q.size(0); ++b)
    for (std::int64_t kv = 0; kv < p.k.size(1); ++kv) {
      std::vector<double> dk(static_cast<std::size_t>(keys * dim)), dv = dk;
      for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) backward_head(p, b, h, dk, dv);
      for (std::int64_t j = 0; j < keys; ++j)
        for (std::int64_t d = 0; d < dim; ++d) {
          p.dk.set(b, kv, j, d, dk[static_cast<std::size_t>(j * dim + d)]);
          p.dv.set(b, kv, j, d, dv[static_cast<std::size_t>(j * dim + d)]);
        }
    }
}

// ---- calls

bool same_sizes(const Tensor<4>& a, const Tensor<4>& b) { return a.sizes == b.sizes; }

// What this program never uses must be empty.
bool is_plain(const Lengths& ends, float dropout, std::int8_t varlen) {
  return ends.queries.base == nullptr && ends.keys.base == nullptr && dropout == 0 && varlen == 0;
}

bool is_lse(const Tensor<2>& x, const Tensor<4>& q) {
  return x.base != nullptr && x.dtype == 1 && x.sizes[0] == q.sizes[0] * q.sizes[1] &&
         x.sizes[1] == q.sizes[2] && x.strides[0] == x.sizes[1] && x.strides[1] == 1 &&
         reinterpret_cast<std::uintptr_t>(x.base) % 16 == 0;
}

template <class Begin, class End>
bool fill(Problem& p, const Begin& begin, const End& end, const Lengths& ends) {
  const std::int32_t dtype = begin.q.dtype;
  if (!is_usable(begin.q, dtype) || !is_usable(begin.k, dtype) || !is_usable(begin.v, dtype) ||
      !is_usable(begin.out, dtype) || !same_sizes(begin.q, begin.out) ||
      !same_sizes(begin.k, begin.v) || begin.q.sizes[0] != begin.k.sizes[0] ||
      begin.q.sizes[3] != begin.k.sizes[3] || begin.q.sizes[1] % begin.k.sizes[1] != 0 ||
      begin.bias.base != nullptr || !is_plain(ends, end.dropout, end.varlen) ||
      !is_lse(begin.lse, begin.q) || (end.causal != 0 && end.causal != 3))
    return false;
  p.q = Elements(begin.q);
  p.k = Elements(begin.k);
  p.v = Elements(begin.v);
  p.out = Elements(begin.out);
  p.scale = static_cast<double>(begin.scale) * (has_fault("scale") ? 1.1 : 1);
  p.lse_unit = (release() == Release::V10) != has_fault("base") ? std::log(2.0) : 1;
  p.lse = reinterpret_cast<float*>(begin.lse.base);
  p.masked = end.causal == 3;
  constexpr std::int32_t kTopLeft = -2147483647, kBottomRight = -2147483646;
  const std::int32_t right = release() == Release::V10 ? end.left : end.right;
  p.left = end.left == kTopLeft || end.left == kBottomRight ? p.q.size(2) : end.left;
  p.right = right == kTopLeft ? 0 : right == kBottomRight ? p.k.size(2) - p.q.size(2) : right;
  return true;
}

int queue(aotriton::Stream stream, const Problem& problem, void (*function)(void*)) {
  return hipLaunchHostFunc(stream.native(), function, new Problem(problem));  // kept for graphs
}

template <class Parameters>
int run_forward(const Parameters& in, aotriton::Stream stream) {
  Problem p;
  const bool encodes = in.end.encoded.base != nullptr;
  if (!fill(p, in.begin, in.end, in.begin.ends) || in.begin.alibi.base != nullptr || encodes ||
      (p.masked && in.end.counter.base == nullptr))
    return kInvalidValue;
  p.counter = reinterpret_cast<std::int32_t*>(in.end.counter.base);
  return queue(stream, p, [](void* data) { forward(*static_cast<const Problem*>(data)); });
}

template <std::size_t kRank>
Tensor<kRank> acquired(const Tensor<kRank>& x) {
  return x;
}
template <std::size_t kRank>
Tensor<kRank> acquired(const Lazy11<kRank>& x) {
  return x.acquire != nullptr ? x.acquire(x.cookie) : Tensor<kRank>{};
}
template <std::size_t kRank>
Tensor<kRank> acquired(const Lazy12<kRank>& x) {
  if (x.eager.base != nullptr) return x.eager;
  Lazy12<kRank> copy = x;
  return x.acquire != nullptr ? x.acquire(&copy) : Tensor<kRank>{};
}

template <class Parameters>
int run_backward(const Parameters& in, aotriton::Stream stream, bool may_use_atomics) {
  Problem p;
  const auto &begin = in.begin, &end = in.end;
  const std::int32_t dtype = begin.q.dtype;
  if (!fill(p, begin, end, in.middle.ends) || begin.dbias.base != nullptr ||
      !is_usable(begin.dout, dtype) || !is_usable(begin.dq, dtype) || !is_usable(begin.dk, dtype) ||
      !is_usable(begin.dv, dtype) || !same_sizes(begin.q, begin.dout) ||
      !same_sizes(begin.q, begin.dq) || !same_sizes(begin.k, begin.dk) ||
      !same_sizes(begin.k, begin.dv))
    return kInvalidValue;
  p.dout = Elements(begin.dout);
  p.dq = Elements(begin.dq);
  p.dk = Elements(begin.dk);
  p.dv = Elements(begin.dv);
  const Tensor<2> delta = acquired(in.delta);
  if (!is_lse(delta, begin.q)) return kInvalidValue;
  p.delta = reinterpret_cast<float*>(delta.base);
  if constexpr (requires { in.dq_sum; })
    if (may_use_atomics && p.q.size(1) == p.k.size(1)) {
      const Tensor<4> sum = acquired(in.dq_sum);
      if (sum.base == nullptr || sum.dtype != 1 || sum.sizes != begin.q.sizes ||
          sum.strides[3] != 1 || sum.strides[1] < sum.strides[2])
        return kInvalidValue;
      p.dq_sum = Elements(sum);
      p.sums_dq = true;
      p.wrong_sum = has_fault("atomics");
    }
  return queue(stream, p, [](void* data) { backward(*static_cast<const Problem*>(data)); });
}

template <class T, class From>
const T& as(const From& from) {
  return reinterpret_cast<const T&>(from);
}

}  // namespace

namespace aotriton::v3::flash {

int attn_fwd(const attn_fwd_params& params, int version, Stream stream, const attn_options*) {
  const Release mine = release();
  if (mine == Release::Unknown || version != (mine == Release::V12 ? 3 : 1)) return kInvalidSymbol;
  if (has_fault("kernels")) return kNoBinary;
  return mine == Release::V12 ? run_forward(as<Forward12>(params), stream)
                              : run_forward(as<Forward10>(params), stream);
}

int attn_bwd(const attn_bwd_params& params, int version, Stream stream,
             const attn_options* options) {
  const Release mine = release();
  constexpr int kVersions[] = {1, 3, 6};
  if (mine == Release::Unknown || version != kVersions[static_cast<int>(mine)])
    return kInvalidSymbol;
  if (has_fault("kernels")) return kNoBinary;
  if (mine == Release::V10) return run_backward(as<Backward10>(params), stream, false);
  if (mine == Release::V11)
    return run_backward(as<Backward11>(params), stream,
                        options == nullptr || as<Options11>(*options).backend != 0);
  return run_backward(as<Backward12>(params), stream,
                      options == nullptr || !as<Options12>(*options).deterministic);
}

}  // namespace aotriton::v3::flash
