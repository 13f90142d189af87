// A training step in the CPU world: tokens/s and the share of the step that BLAS has, for a few
// models.
//   build/bench_step [seconds per model]
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/metrics.h"
#include "train/engine.h"

using namespace kintsugi;

namespace {

struct Case {
  const char* name;
  Family family;
  std::int64_t hidden, layers, heads, ffn, sequences, length;
  DType precision;
};

const Case kCases[] = {
    // The shape of the PyTorch peer: 0.84 M parameters, batches of 16 x 128.
    {"gpt2 d128 (PyTorch peer's shape)", Family::Gpt2, 128, 4, 4, 512, 16, 128, DType::F32},
    {"llama d128 (demo)", Family::Llama, 128, 4, 4, 384, 8, 256, DType::F32},
    {"llama d512", Family::Llama, 512, 4, 8, 1408, 4, 256, DType::F32},
    {"gpt2 d768", Family::Gpt2, 768, 2, 12, 3072, 2, 512, DType::F32},
    {"llama d512 bf16", Family::Llama, 512, 4, 8, 1408, 4, 256, DType::BF16},
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void run(const Case& c, double seconds) {
  ModelConfig model{.family = c.family,
                    .vocab_size = 256,
                    .hidden_size = c.hidden,
                    .layers = c.layers,
                    .heads = c.heads,
                    .ffn_size = c.ffn,
                    .max_positions = c.length,
                    .rope_scaling = {}};
  model.complete_and_check();
  const auto backend = make_cpu_backend();
  Engine engine(*backend, *backend,
                {.model = model,
                 .precision = c.precision,
                 .layout = {.micro_batch = c.sequences},
                 .length = c.length});
  engine.initialize(1);
  const std::int64_t tokens = c.sequences * c.length;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens)), targets(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * 31 % 256);
    targets[i] = static_cast<std::int32_t>((i + 1) * 31 % 256);
  }
  std::int64_t steps = 0;
  const auto step = [&] { engine.step({ids, targets}, {.step = ++steps, .lr = 1e-3}); };
  step();
  const Backend::Peak peak = backend->peak_flops(c.precision);
  count_blas_time(true);
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t timed = 0;
  while (seconds_since(begin) < seconds) {
    step();
    ++timed;
  }
  const double elapsed = seconds_since(begin);
  // BLAS seconds are summed over threads.
  const double share =
      take_blas_seconds() / (elapsed * std::max(1u, std::thread::hardware_concurrency()));
  count_blas_time(false);
  const double rate = static_cast<double>(timed * tokens) / elapsed;
  const double mfu = rate * training_flops_per_token(model, c.length).causal() / peak.flops_per_s;
  fmt::print("{:<34}{:>12}{:>12.0f}{:>10.1f} %{:>10.1f} %\n", c.name,
             count_parameters(ParameterSet(model)).total, rate, 100 * share, 100 * mfu);
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 4.0;
  fmt::print("{:<34}{:>12}{:>12}{:>12}{:>12}\n", "model", "parameters", "tokens/s", "in BLAS",
             "of matmul");
  for (const Case& c : kCases) run(c, seconds);
}
