// Grouped matmuls of experts on one GPU: TFLOP/s of each matmul of a layer, in bf16 and in fp8 with
// the quantization of its operands, for rows that are spread evenly over the experts and as an
// untrained router spreads them.
//   build/bench_experts [--hidden 2048] [--size 1024] [--experts 64] [--rows 65536]
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/gpu_backend.h"
#include "tensor/arena.h"

using namespace kintsugi;

namespace {

struct Layer {
  std::int64_t hidden = 2048, size = 1024, experts = 64, rows = 65536, choices = 8;
};

// Rows of each expert: all alike, or with the spread of random choices.
std::vector<std::int32_t> offsets_of(const Layer& layer, bool even) {
  std::mt19937 random(1);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(layer.experts));
  for (std::int64_t row = 0; row < layer.rows; ++row)
    ++counts[static_cast<std::size_t>(even ? row % layer.experts
                                           : static_cast<std::int64_t>(random()) % layer.experts)];
  std::vector<std::int32_t> offsets = {0};
  for (const std::int64_t count : counts)
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(count));
  return offsets;
}

class Bench {
 public:
  explicit Bench(const Layer& layer) : layer_(layer) {
    GpuOptions options;
    options.host = make_cpu_backend();
    options.time_operations = true;
    options.graphs = false;
    backend_ = make_gpu_backend(options);
    arena_ = std::make_unique<Arena>(*backend_);
    const std::int64_t tokens = layer.rows / layer.choices;
    x_ = random({tokens, layer.hidden});
    rows_of_hidden_ = random({layer.rows, layer.hidden});
    rows_of_up_ = random({layer.rows, 2 * layer.size});
    rows_of_size_ = random({layer.rows, layer.size});
    up_ = random({layer.experts, 2 * layer.size, layer.hidden});
    down_ = random({layer.experts, layer.hidden, layer.size});
    dup_ = memory(DType::F32, up_.shape());
    ddown_ = memory(DType::F32, down_.shape());
    fp8_up_ = Stack(*this, up_);
    fp8_down_ = Stack(*this, down_);
    fp8_x_ = quantized(tokens, layer.hidden);
    fp8_rows_of_up_ = quantized(layer.rows, 2 * layer.size);
    fp8_rows_of_size_ = quantized(layer.rows, layer.size);
  }

  void run(bool even) {
    const std::vector<std::int32_t> offsets = offsets_of(layer_, even);
    std::vector<std::int32_t> rows(static_cast<std::size_t>(layer_.rows));
    std::iota(rows.begin(), rows.end(), 0);
    std::mt19937 random(2);
    std::shuffle(rows.begin(), rows.end(), random);
    for (std::size_t e = 0; e + 1 < offsets.size(); ++e)
      std::sort(rows.begin() + offsets[e], rows.begin() + offsets[e + 1]);
    const ExpertRows on_device{
        .rows = upload(rows), .offsets = upload(offsets), .choices = layer_.choices};
    Backend& b = *backend_;
    fmt::print("{} rows of {} experts, {}, hidden {}, size {}\n", layer_.rows, layer_.experts,
               even ? "even" : "random", layer_.hidden, layer_.size);
    const double up = 2.0 * static_cast<double>(layer_.rows * 2 * layer_.size * layer_.hidden);
    time("one matrix for all rows", up,
         [&] { b.matmul(rows_of_up_, rows_of_hidden_, up_.select(0, 0), {.transpose_b = true}); });
    time("up", up, [&] {
      b.grouped_matmul(rows_of_up_, x_, up_, on_device, {.transpose_b = true, .tokens_a = true});
    });
    time("down", up / 2, [&] {
      b.grouped_matmul(rows_of_hidden_, rows_of_size_, down_, on_device, {.transpose_b = true});
    });
    time("gradient of activations", up / 2,
         [&] { b.grouped_matmul(rows_of_size_, x_, down_, on_device, {.tokens_a = true}); });
    time("gradient of inputs", up,
         [&] { b.grouped_matmul(rows_of_hidden_, rows_of_up_, up_, on_device, {}); });
    if (const std::string why = b.why_no_fp8(false); why.empty())
      run_fp8(on_device, up);
    else
      fmt::print("  no fp8: {}\n", why);
    for (const bool accumulate : {false, true}) {
      time(accumulate ? "gradient of up, added" : "gradient of up", up, [&] {
        b.grouped_weight_gradient(dup_, rows_of_up_, x_, on_device,
                                  {.tokens_b = true, .accumulate = accumulate});
      });
      time(accumulate ? "gradient of down, added" : "gradient of down", up / 2, [&] {
        b.grouped_weight_gradient(ddown_, x_, rows_of_size_, on_device,
                                  {.tokens_a = true, .accumulate = accumulate});
      });
    }
  }

 private:
  // The matrices of all experts in both orientations.
  struct Stack {
    Stack() = default;
    Stack(Bench& bench, const Tensor& matrices)
        : rows(bench.quantized(matrices.extent(0) * matrices.extent(1), matrices.extent(2))),
          columns(bench.quantized(matrices.extent(0) * matrices.extent(2), matrices.extent(1))) {}
    Quantized rows, columns;
  };

  // As a step does: the forward with fast accumulation, the backward without.
  void run_fp8(const ExpertRows& rows, double up) {
    Backend& b = *backend_;
    const QuantizeOptions used{.used = rows};
    time("quantize weights of up", 0, [&] { b.quantize(fp8_up_.rows, fp8_up_.columns, up_, {}); });
    b.quantize(fp8_down_.rows, fp8_down_.columns, down_, {});
    time("quantize tokens", 0, [&] { b.quantize(fp8_x_, {}, x_, {}); });
    time("quantize activations", 0,
         [&] { b.quantize(fp8_rows_of_size_, {}, rows_of_size_, used); });
    time("quantize their gradients", 0,
         [&] { b.quantize(fp8_rows_of_up_, {}, rows_of_up_, used); });
    for (const bool fast : {true, false}) {
      const auto multiply = [&](const char* name, double flops, const Tensor& c, const Quantized& x,
                                const Quantized& w, bool tokens) {
        time(fmt::format("{}, fp8{}", name, fast ? " fast" : "").c_str(), flops, [&] {
          b.grouped_matmul_fp8(c, x, w, rows, {.tokens_a = tokens, .fast_accumulation = fast});
        });
      };
      multiply("up", up, rows_of_up_, fp8_x_, fp8_up_.rows, true);
      multiply("down", up / 2, rows_of_hidden_, fp8_rows_of_size_, fp8_down_.rows, false);
      multiply("gradient of activations", up / 2, rows_of_size_, fp8_x_, fp8_down_.columns, true);
      multiply("gradient of inputs", up, rows_of_hidden_, fp8_rows_of_up_, fp8_up_.columns, false);
    }
  }

  Quantized quantized(std::int64_t rows, std::int64_t columns) {
    return quantized_in(memory(DType::U8, {quantized_bytes(rows, columns)}), rows, columns, false);
  }
  Tensor memory(DType dtype, const Shape& shape) {
    return arena_->allocate(Region::Workspace, "bench", dtype, shape);
  }
  Tensor random(const Shape& shape) {
    const Tensor x = memory(DType::BF16, shape);
    const std::int64_t width = shape[shape.rank() - 1];
    backend_->draw(Tensor(x.data(), x.dtype(), {x.elements() / width, width}),
                   {.key = ++key_, .row_stride = width});
    return x;
  }
  Tensor upload(const std::vector<std::int32_t>& numbers) {
    const Tensor x = memory(DType::I32, {static_cast<std::int64_t>(numbers.size())});
    backend_->upload(x, numbers.data());
    return x;
  }
  // The median of ten times.
  template <class F>
  void time(const char* name, double flops, F&& f) {
    std::vector<double> times;
    for (int i = 0; i < 13; ++i) {
      f();
      const std::vector<OperationTime> taken = backend_->take_operation_times();
      if (i >= 3) times.push_back(taken.at(0).milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + 5, times.end());
    fmt::print("  {:<33} {:8.3f} ms {:7.1f} TFLOP/s\n", name, times[5], flops / times[5] * 1e-9);
  }

  Layer layer_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Arena> arena_;
  std::uint64_t key_ = 0;
  Tensor x_, rows_of_hidden_, rows_of_up_, rows_of_size_, up_, down_, dup_, ddown_;
  Stack fp8_up_, fp8_down_;
  Quantized fp8_x_, fp8_rows_of_up_, fp8_rows_of_size_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the grouped matmuls of a layer of experts on one GPU");
  Layer layer;
  app.add_option("--hidden", layer.hidden);
  app.add_option("--size", layer.size, "width of an expert");
  app.add_option("--experts", layer.experts);
  app.add_option("--rows", layer.rows, "choices of all tokens");
  app.add_option("--choices", layer.choices, "of a token");
  CLI11_PARSE(app, argc, argv);
  try {
    Bench bench(layer);
    for (const bool even : {true, false}) bench.run(even);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
