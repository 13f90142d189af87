#include "backend/gpu/self_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace kintsugi::gpu {
namespace {

// Rows of 16 bytes in every type. All values and sums are integers below 256, which every type
// holds, whatever the order of the sums.
constexpr std::int64_t kM = 48, kN = 32, kK = 40;

struct Form {
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false, residual = false, bias = false, wide_result = false;
};

int value_of(std::int64_t i, std::int64_t j, int seed) {
  return static_cast<int>((3 * i + 5 * j + i * j / 7 + seed) % 4) - 1;  // -1 to 2
}

// Element (i, j) of a matrix is value_of(i, j, seed).
template <class T>
Tensor make(Backend& backend, Arena& arena, std::int64_t rows, std::int64_t columns, int seed) {
  std::vector<T> values(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      values[static_cast<std::size_t>(i * columns + j)] =
          static_cast<T>(static_cast<Accumulator<T>>(value_of(i, j, seed)));
  const Tensor x =
      arena.allocate(Region::Workspace, "self-check", DTypeOf<T>::value, {rows, columns});
  backend.upload(x, values.data());
  backend.synchronize();
  return x;
}

std::string to_string(const Form& f, DType type) {
  return fmt::format("{}a{} b{}{}{} in {}{}", f.residual ? "2 " : "", f.transpose_a ? "^T" : "",
                     f.transpose_b ? "^T" : "", f.accumulate ? " + c" : "",
                     f.residual ? " - r"
                     : f.bias   ? " + bias"
                                : "",
                     kintsugi::to_string(type), f.wide_result ? " into fp32" : "");
}

template <class T, class C>
std::string wrong(Backend& backend, const Form& f) {
  Arena arena(backend);
  const Tensor a = f.transpose_a ? make<T>(backend, arena, kK, kM, 0)
                                 : make<T>(backend, arena, kM, kK, 0),
               b = f.transpose_b ? make<T>(backend, arena, kN, kK, 1)
                                 : make<T>(backend, arena, kK, kN, 1);
  const Tensor c = make<C>(backend, arena, kM, kN, 2), added = make<C>(backend, arena, kM, kN, 3);
  const Tensor bias = make<C>(backend, arena, 1, kN, 1);
  MatmulOptions options{
      .transpose_a = f.transpose_a, .transpose_b = f.transpose_b, .accumulate = f.accumulate};
  if (f.residual) {
    options.residual = added;
    options.scale = 2;
    options.residual_scale = -1;
  }
  if (f.bias) options.bias = Tensor(bias.data(), bias.dtype(), {kN});
  backend.matmul(c, a, b, options);
  std::vector<C> found(static_cast<std::size_t>(kM * kN));
  backend.download(found.data(), c);
  for (std::int64_t i = 0; i < kM; ++i)
    for (std::int64_t j = 0; j < kN; ++j) {
      int right = 0;
      for (std::int64_t k = 0; k < kK; ++k)
        right += (f.transpose_a ? value_of(k, i, 0) : value_of(i, k, 0)) *
                 (f.transpose_b ? value_of(j, k, 1) : value_of(k, j, 1));
      if (f.residual) right = 2 * right - value_of(i, j, 3);
      if (f.accumulate) right += value_of(i, j, 2);
      if (f.bias) right += value_of(0, j, 1);
      const auto element = static_cast<double>(
          static_cast<Accumulator<C>>(found[static_cast<std::size_t>(i * kN + j)]));
      if (element != right)
        return fmt::format("{}: element ({}, {}) is {}, not {}", to_string(f, DTypeOf<T>::value), i,
                           j, element, right);
    }
  return "";
}

// ---- attention

constexpr std::int64_t kBatch = 2, kTokens = 24, kHeads = 2, kDim = 16;

struct Result {
  const char* name;
  std::vector<double> values;
  double tolerance;  // of the largest value
};

template <class T>
std::vector<double> read(Backend& backend, const Tensor& x) {
  std::vector<T> found(static_cast<std::size_t>(x.elements()));
  backend.download(found.data(), x);
  std::vector<double> values;
  for (const T value : found)
    values.push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
  return values;
}

template <class T>
std::vector<Result> attend(Backend& backend, Attention& attention, AttentionChoice choice,
                           std::int64_t kv_heads, const AttentionOptions& options) {
  Arena arena(backend);
  const auto tensor = [&](std::int64_t heads, int seed) {
    return make<T>(backend, arena, kBatch * kTokens, heads * kDim, seed)
        .view({kBatch, kTokens, heads, kDim});
  };
  const Tensor q = tensor(kHeads, 0), k = tensor(kv_heads, 1), v = tensor(kv_heads, 2),
               dout = tensor(kHeads, 3), out = tensor(kHeads, 0), dq = tensor(kHeads, 0),
               dk = tensor(kv_heads, 0), dv = tensor(kv_heads, 0);
  const Tensor lse =
      make<float>(backend, arena, kBatch * kHeads, kTokens, 0).view({kBatch, kHeads, kTokens});
  const Stream stream = backend.device().stream;
  attention.set_choice(choice);
  attention.forward(out, lse, q, k, v, options, stream);
  attention.backward(dq, dk, dv, dout, out, lse, q, k, v, options, stream);
  constexpr double kNarrow = 0.02, kWide = 1e-3;
  return {{"output", read<T>(backend, out), kNarrow},
          {"log-sum-exp", read<float>(backend, lse), kWide},
          {"dq", read<T>(backend, dq), kNarrow},
          {"dk", read<T>(backend, dk), kNarrow},
          {"dv", read<T>(backend, dv), kNarrow}};
}

std::string difference(const std::vector<Result>& found, const std::vector<Result>& right) {
  for (std::size_t i = 0; i < right.size(); ++i) {
    const std::vector<double>&a = found[i].values, &b = right[i].values;
    double largest = 0;
    for (const double value : b) largest = std::max(largest, std::abs(value));
    for (std::size_t j = 0; j < b.size(); ++j)
      if (!(std::abs(a[j] - b[j]) <= right[i].tolerance * largest))
        return fmt::format("element {} of {} is {:.4g}, not {:.4g}", j, right[i].name, a[j], b[j]);
  }
  return "";
}

// Of the library, where it computes this at all.
template <class T>
AttentionCheck check_one(Backend& backend, Attention& attention, std::int64_t kv_heads,
                         std::int64_t window) {
  const AttentionOptions options{.scale = 0.06, .window = window};
  std::vector<Result> found;
  try {
    found = attend<T>(backend, attention, AttentionChoice::Fused, kv_heads, options);
  } catch (const Failure&) {
    return {};
  }
  const std::string library = attention.last_kernel();
  const auto right = attend<T>(backend, attention, AttentionChoice::Portable, kv_heads, options);
  const std::string what = difference(found, right);
  if (what.empty()) return {.library = library};
  return {.library = library,
          .wrong = fmt::format("{} computes attention in {}{} wrongly: {}", library,
                               kintsugi::to_string(DTypeOf<T>::value),
                               window > 0 ? " with a window" : "", what)};
}

}  // namespace

AttentionCheck check_attention(Backend& backend, Attention& attention) {
  AttentionCheck all;
  for (const DType type : {DType::BF16, DType::F16})
    for (const std::int64_t window : {0, 7})
      visit_float(type, [&]<class T>() {
        // Libraries have other kernels for heads that share keys.
        const std::int64_t kv_heads = type == DType::BF16 ? kHeads : 1;
        const AttentionCheck one = check_one<T>(backend, attention, kv_heads, window);
        if (!one.library.empty()) all.library = one.library;
        if (all.wrong.empty()) all.wrong = one.wrong;
      });
  attention.set_choice(AttentionChoice::Auto);
  if (all.wrong.empty() && !attention.refusals().empty()) all.wrong = attention.refusals().front();
  return all;
}

std::string wrong_matmul(Backend& backend) {
  std::string what;
  const auto check = [&]<class T, class C>(Form form) {
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        form.transpose_a = transpose_a;
        form.transpose_b = transpose_b;
        if (what.empty()) what = wrong<T, C>(backend, form);
      }
  };
  for (const DType type : {DType::BF16, DType::F16, DType::F32})
    visit_float(type, [&]<class T>() {
      check.template operator()<T, T>({});
      check.template operator()<T, T>({.accumulate = true});
      check.template operator()<T, T>({.residual = true});
      check.template operator()<T, T>({.bias = true});
      if constexpr (sizeof(T) == 2)
        check.template operator()<T, float>({.accumulate = true, .wide_result = true});
    });
  return what;
}

}  // namespace kintsugi::gpu
