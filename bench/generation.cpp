// Times the inference engine on one GPU: prompts of random tokens, greedy continuations, one JSON
// line per batch size. bench/generation.py runs it beside transformers.
//   build/bench_generation MODEL_DIRECTORY --batch 1,64 --prompt 512 --tokens 256
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/gpu_backend.h"
#include "comm/communicator.h"
#include "serve/inference_engine.h"

using namespace kintsugi;

namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Times {
  double prompts_s = 0;  // until every sequence has its first token
  double all_s = 0;
  std::int64_t tokens = 0;  // generated
};

Times generate(InferenceEngine& engine, std::int64_t batch, std::int64_t prompt,
               std::int64_t tokens, std::mt19937& random) {
  std::uniform_int_distribution<std::int32_t> token(
      0, static_cast<std::int32_t>(engine.config().vocab_size) - 1);
  Times times;
  std::int64_t started = 0;
  const Clock::time_point begin = Clock::now();
  for (std::int64_t i = 0; i < batch; ++i) {
    InferenceRequest request;
    request.max_tokens = tokens;
    request.sampling.temperature = 0;
    for (std::int64_t j = 0; j < prompt; ++j) request.prompt.push_back(token(random));
    InferenceListener listener;
    listener.on_token = [&, first = true](const SampledToken&) mutable {
      ++times.tokens;
      if (first && ++started == batch) times.prompts_s = seconds_since(begin);
      first = false;
      return true;
    };
    engine.submit(std::move(request), std::move(listener));
  }
  engine.run();
  times.all_s = seconds_since(begin);
  return times;
}

void report(Backend& backend, const std::string& directory, std::int64_t batch, std::int64_t prompt,
            std::int64_t tokens) {
  LocalCommunicator alone("tensor", &backend);
  InferenceEngine engine(
      backend, alone, directory,
      {.precision = DType::BF16, .max_length = prompt + tokens, .max_sequences = batch});
  std::mt19937 random(1);
  generate(engine, batch, prompt, tokens, random);  // tunes matmuls, records graphs
  const Times t = generate(engine, batch, prompt, tokens, random);
  const double decoded = static_cast<double>(t.tokens - batch);
  fmt::print(
      "{{\"system\": \"kintsugi\", \"batch\": {}, \"prompt\": {}, \"tokens\": {}, "
      "\"prompts_s\": {:.4f}, \"all_s\": {:.4f}, \"decode_tokens_per_s\": {:.1f}, "
      "\"tokens_per_s\": {:.1f}}}\n",
      batch, prompt, t.tokens, t.prompts_s, t.all_s, decoded / (t.all_s - t.prompts_s),
      static_cast<double>(t.tokens) / t.all_s);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times generation on one GPU");
  std::string directory;
  std::vector<std::int64_t> batches = {1, 64};
  std::int64_t prompt = 512, tokens = 256;
  app.add_option("model", directory, "a Hugging Face directory")->required();
  app.add_option("--batch", batches, "sequences at a time")->delimiter(',');
  app.add_option("--prompt", prompt, "tokens of each prompt");
  app.add_option("--tokens", tokens, "to generate after each");
  CLI11_PARSE(app, argc, argv);
  try {
    GpuOptions options;
    options.deterministic = false;  // tunes matmuls
    options.host = make_cpu_backend();
    const auto backend = make_gpu_backend(options);
    for (const std::int64_t batch : batches) report(*backend, directory, batch, prompt, tokens);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
