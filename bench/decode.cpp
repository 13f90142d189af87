// Times the decoding step of a llama on one GPU, built from the backend's operations with random
// weights, as a CUDA graph: milliseconds per step against the time of reading the weights and the
// key-value cache once, and microseconds of each kind of operation.
//   build/bench_decode llama-1b --batch 1,8,64 --keys 768
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/gpu_backend.h"
#include "model/config.h"
#include "tensor/arena.h"

using namespace kintsugi;

namespace {

constexpr std::int64_t kPageTokens = 16;

struct Sizes {
  std::int64_t layers, hidden, heads, kv_heads, dim, ffn, vocabulary;
};

struct Layer {
  Tensor norm, qkv, out, mlp_norm, gate_up, down;
  Tensor keys, values;  // (pages, tokens per page, kv_heads, dim)
};

// One decoding step of `batch` sequences that see `keys` keys each.
class Decoder {
 public:
  Decoder(Backend& backend, const Sizes& sizes, std::int64_t batch, std::int64_t keys)
      : backend_(backend), n_(sizes), batch_(batch), keys_(keys), arena_(backend) {
    embedding_ = weight(n_.vocabulary, n_.hidden);
    final_norm_ = ones(n_.hidden);
    const std::int64_t pages = (keys + kPageTokens - 1) / kPageTokens;
    for (std::int64_t i = 0; i < n_.layers; ++i) {
      const Shape cache{batch * pages, kPageTokens, n_.kv_heads, n_.dim};
      layers_.push_back({ones(n_.hidden), weight((n_.heads + 2 * n_.kv_heads) * n_.dim, n_.hidden),
                         weight(n_.hidden, n_.heads * n_.dim), ones(n_.hidden),
                         weight(2 * n_.ffn, n_.hidden), weight(n_.hidden, n_.ffn),
                         random(cache, 1.0), random(cache, 1.0)});
    }
    x_ = tensor({batch, n_.hidden}), normed_ = tensor({batch, n_.hidden});
    qkv_ = tensor({batch, (n_.heads + 2 * n_.kv_heads) * n_.dim});
    attended_ = tensor({batch, n_.heads * n_.dim});
    gate_up_ = tensor({batch, 2 * n_.ffn}), activated_ = tensor({batch, n_.ffn});
    logits_ = tensor({batch, n_.vocabulary});
    rstd_ = tensor({batch}, DType::F32), log_sum_ = tensor({batch}, DType::F32);
    best_ = tensor({batch, 1}, DType::F32), best_id_ = tensor({batch, 1}, DType::I32);
    table_ = random({keys, n_.dim}, 0.7, DType::F32);
    set_indices(pages);
    backend.synchronize();  // the weights are constant from now on
  }

  double weight_bytes() const {
    double bytes = static_cast<double>(embedding_.bytes());
    for (const Layer& l : layers_)
      bytes +=
          static_cast<double>(l.qkv.bytes() + l.out.bytes() + l.gate_up.bytes() + l.down.bytes());
    return bytes;
  }
  double cache_bytes() const {
    return static_cast<double>(n_.layers * batch_ * keys_ * n_.kv_heads * n_.dim) * 2 * 2;
  }

  // The kinds of operation of a step: their bytes and calls.
  struct Kind {
    std::string name;
    double bytes;
    std::function<void()> calls;
    std::int64_t count;
  };
  std::vector<Kind> kinds() {
    const auto all = [this](auto call) {
      return [this, call] {
        for (const Layer& layer : layers_) (this->*call)(layer);
      };
    };
    const auto bytes = [this](Tensor Layer::*w) {
      return static_cast<double>(((layers_[0]).*w).bytes());
    };
    return {{"norm", 0, all(&Decoder::norm), n_.layers},
            {"qkv", bytes(&Layer::qkv), all(&Decoder::qkv), n_.layers},
            {"rope_store", 0, all(&Decoder::rope_store), n_.layers},
            {"attention", cache_bytes() / static_cast<double>(n_.layers), all(&Decoder::attention),
             n_.layers},
            {"out", bytes(&Layer::out), all(&Decoder::out), n_.layers},
            {"gate_up", bytes(&Layer::gate_up), all(&Decoder::gate_up), n_.layers},
            {"down", bytes(&Layer::down), all(&Decoder::down), n_.layers},
            {"embedding", 0, [this] { embed(); }, 1},
            {"head", static_cast<double>(embedding_.bytes()), [this] { head(); }, 1},
            {"read_logits", static_cast<double>(logits_.bytes()), [this] { read(); }, 1}};
  }

  void step() {
    embed();
    for (const Layer& layer : layers_) {
      norm(layer), qkv(layer), rope_store(layer), attention(layer), out(layer);
      backend_.rms_norm_forward(normed_, rstd_, x_, layer.mlp_norm, 1e-5);
      gate_up(layer), down(layer);
    }
    backend_.rms_norm_forward(normed_, rstd_, x_, final_norm_, 1e-5);
    head();
    read();
  }

 private:
  Tensor tensor(Shape shape, DType type = DType::BF16) {
    return arena_.allocate(Region::Workspace, "decode", type, shape);
  }
  Tensor random(Shape shape, double deviation, DType type = DType::BF16) {
    const Tensor x = tensor(shape, type);
    Arena temporary(backend_);
    const Tensor wide =
        temporary.allocate(Region::Workspace, "random", DType::F32,
                           {shape.elements() / shape[shape.rank() - 1], shape[shape.rank() - 1]});
    backend_.draw(wide, {.scale = deviation, .key = ++key_, .row_stride = wide.extent(1)});
    backend_.copy(x.view(wide.shape()), wide);
    backend_.synchronize();
    return x;
  }
  Tensor weight(std::int64_t rows, std::int64_t columns) { return random({rows, columns}, 0.02); }
  Tensor ones(std::int64_t size) {
    const Tensor x = tensor({size});
    backend_.fill(x, 1.0);
    return x;
  }
  Tensor ids(const std::vector<std::int32_t>& values, Shape shape) {
    const Tensor x = tensor(shape, DType::I32);
    backend_.upload(x, values.data());
    return x;
  }
  void set_indices(std::int64_t pages) {
    std::vector<std::int32_t> page_ids(static_cast<std::size_t>(batch_ * pages)), tiles, rows;
    std::iota(page_ids.begin(), page_ids.end(), 0);
    const auto last = static_cast<std::int32_t>(keys_ - 1);
    for (std::int32_t i = 0; i < batch_; ++i) {
      tiles.insert(tiles.end(), {i, 1, i, last});
      rows.push_back(static_cast<std::int32_t>(i * pages * kPageTokens) + last);
    }
    const auto batch = static_cast<std::size_t>(batch_);
    pages_ = ids(page_ids, {batch_, pages});
    tiles_ = ids(tiles, {batch_, 4});
    rows_ = ids(rows, {batch_});
    positions_ = ids(std::vector<std::int32_t>(batch, last), {batch_});
    tokens_ = ids(std::vector<std::int32_t>(batch, 17), {batch_});
  }

  Tensor q() const { return qkv_.part(1, 0, n_.heads * n_.dim).split_last(n_.dim); }
  Tensor k() const {
    return qkv_.part(1, n_.heads * n_.dim, n_.kv_heads * n_.dim).split_last(n_.dim);
  }
  Tensor v() const {
    return qkv_.part(1, (n_.heads + n_.kv_heads) * n_.dim, n_.kv_heads * n_.dim).split_last(n_.dim);
  }
  Tensor by_token(const Tensor& cache) const {
    return cache.view({cache.extent(0) * kPageTokens, n_.kv_heads, n_.dim});
  }

  void embed() { backend_.embedding_forward(x_, tokens_, embedding_, false); }
  void norm(const Layer& l) { backend_.rms_norm_forward(normed_, rstd_, x_, l.norm, 1e-5); }
  void qkv(const Layer& l) {
    backend_.matmul(qkv_, normed_, l.qkv, {.transpose_b = true, .constant_b = true});
  }
  void rope_store(const Layer& l) {
    backend_.rope_store(by_token(l.keys), by_token(l.values), q(), k(), v(), rows_, table_,
                        positions_);
  }
  void attention(const Layer& l) {
    backend_.paged_attention(attended_.split_last(n_.dim), q(), l.keys, l.values,
                             {.scale = 1 / std::sqrt(static_cast<double>(n_.dim)),
                              .pages = pages_,
                              .tiles = tiles_,
                              .tile_tokens = 1,
                              .max_keys = keys_});
  }
  void out(const Layer& l) {
    backend_.matmul(x_, attended_, l.out,
                    {.transpose_b = true, .residual = x_, .constant_b = true});
  }
  void gate_up(const Layer& l) {
    backend_.matmul(gate_up_, normed_, l.gate_up,
                    {.transpose_b = true, .swiglu = activated_, .constant_b = true});
  }
  void down(const Layer& l) {
    backend_.matmul(x_, activated_, l.down,
                    {.transpose_b = true, .residual = x_, .constant_b = true});
  }
  void head() {
    backend_.matmul(logits_, normed_, embedding_, {.transpose_b = true, .constant_b = true});
  }
  void read() { backend_.read_logits(best_, best_id_, log_sum_, {}, logits_, {}, 0); }

  Backend& backend_;
  Sizes n_;
  std::int64_t batch_, keys_;
  Arena arena_;
  std::uint64_t key_ = 0;
  Tensor embedding_, final_norm_, table_;
  std::vector<Layer> layers_;
  Tensor x_, normed_, qkv_, attended_, gate_up_, activated_, logits_;
  Tensor rstd_, log_sum_, best_, best_id_;
  Tensor pages_, tiles_, rows_, positions_, tokens_;
};

// Seconds of one replay, the least of several rounds.
double time_of(Backend& backend, std::uint64_t key, const std::function<void()>& calls) {
  for (int i = 0; i < 5; ++i) backend.replay(key, calls);
  backend.synchronize();
  constexpr int kRounds = 5, kRepetitions = 40;
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRepetitions; ++i) backend.replay(key, calls);
    backend.synchronize();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    best = std::min(best, elapsed.count() / kRepetitions);
  }
  return best;
}

void report(Backend& backend, const Sizes& sizes, std::int64_t batch, std::int64_t keys,
            double bandwidth, bool each) {
  static std::uint64_t key = 0;
  Decoder decoder(backend, sizes, batch, keys);
  const double step = time_of(backend, ++key, [&] { decoder.step(); });
  const double limit = (decoder.weight_bytes() + decoder.cache_bytes()) / bandwidth;
  fmt::print(
      "batch {}, {} keys: {:.3f} ms per step, {:.0f} tokens/s; {:.2f} GB at {:.1f} TB/s take "
      "{:.3f} ms: {:.0f} %\n",
      batch, keys, 1e3 * step, static_cast<double>(batch) / step,
      1e-9 * (decoder.weight_bytes() + decoder.cache_bytes()), 1e-12 * bandwidth, 1e3 * limit,
      100 * limit / step);
  if (!each) return;
  for (const Decoder::Kind& kind : decoder.kinds()) {
    const double seconds = time_of(backend, ++key, kind.calls) / static_cast<double>(kind.count);
    fmt::print("  {:<12} {:8.2f} us x {}", kind.name, 1e6 * seconds, kind.count);
    if (kind.bytes > 0)
      fmt::print(", {:7.1f} MB: {:.2f} TB/s", 1e-6 * kind.bytes, 1e-12 * kind.bytes / seconds);
    fmt::print("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times decoding steps on one GPU");
  std::string model_name;
  std::vector<std::int64_t> batches = {1, 8, 64};
  std::int64_t keys = 768;
  double bandwidth = 4.8;
  bool step_only = false;
  app.add_option("model", model_name, "a llama")->required();
  app.add_option("--batch", batches, "sequences")->delimiter(',');
  app.add_option("--keys", keys, "that each sequence sees");
  app.add_option("--bandwidth", bandwidth, "of the memory, in TB/s");
  app.add_flag("--step-only", step_only, "without the times of the operations");
  CLI11_PARSE(app, argc, argv);
  try {
    const ModelConfig model = resolve_model(model_name);
    const Sizes sizes{model.layers,   model.hidden_size, model.heads,     model.kv_heads,
                      model.head_dim, model.ffn_size,    model.vocab_size};
    GpuOptions options;
    options.deterministic = false;  // tunes matmuls
    options.host = make_cpu_backend();
    const auto backend = make_gpu_backend(options);
    for (const std::int64_t batch : batches)
      report(*backend, sizes, batch, keys, 1e12 * bandwidth, !step_only);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
