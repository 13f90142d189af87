// A step in the steady state allocates nothing. The test counts every malloc of the process,
// including those of libraries, so it is skipped with sanitizers, which replace malloc.
#include <gtest/gtest.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#include <atomic>
#include <cstdlib>

#include "data/sampling/batch_loader.h"
#include "support/small_run.h"
#include "train/engine_options.h"

extern "C" void* __libc_malloc(std::size_t bytes);
extern "C" void* __libc_calloc(std::size_t count, std::size_t bytes);
extern "C" void* __libc_realloc(void* address, std::size_t bytes);

namespace {
std::atomic<long> allocations{0};
}

extern "C" void* malloc(std::size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}
extern "C" void* calloc(std::size_t count, std::size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, bytes);
}
extern "C" void* realloc(void* address, std::size_t bytes) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(address, bytes);
}

namespace kintsugi {
namespace {

TEST(Allocation, TheCounterCounts) {
  const long before = allocations;
  void* volatile address = std::malloc(100);
  std::free(address);
  EXPECT_GT(allocations, before);
}

TEST(Allocation, ASteadyStepAllocatesNothing) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(100));
  for (const char* precision : {"fp32", "bf16"})
    for (const char* more :
         {"layout: {recompute: none}\n", "layout: {recompute: full}\n",
          "offload: {optimizer: true, update: device}\n",
          "offload: {optimizer: true, gradients: true, update: device}\n",
          "layout: {recompute: full}\noffload: {optimizer: true, activations: true, update: "
          "host}\n"}) {
      const RunConfig config = parse_run_config(
          small_config(corpus, directory / "run",
                       fmt::format("steps: 5, dropout: 0.1, precision: {}", precision), more),
          "test.yaml", {"model.layers=4"});
      const auto backend = make_cpu_backend(2);
      Engine engine(*backend, *backend, engine_options(config));
      engine.initialize(1);
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(6 * 24), 65);
      const auto step = [&](std::int64_t number) {
        engine.step({ids, ids},
                    {.step = number, .lr = 1e-3, .dropout = config.train.dropout, .seed = 1});
      };
      step(1);
      step(2);
      const long before = allocations;
      step(3);
      step(4);
      EXPECT_EQ(allocations - before, 0) << precision << " " << more;
    }
}

// Includes the thread that prefetches batches.
TEST(Allocation, ReadingBatchesAllocatesNothing) {
  const TemporaryDirectory directory;
  const std::string corpus = directory.write("corpus.txt", small_corpus(100));
  for (const char* more : {"document_mask: false", "document_mask: true, boundary_loss: false",
                           "order: megatron, split: '1'"}) {
    RunConfig config = parse_run_config(
        small_config(corpus, directory / "run", "steps: 5, eval_every: 0"), "test.yaml",
        {fmt::format("data={{train: [{{path: {}}}], sequence_length: 24, {}}}", corpus, more)});
    const RunData data(config);
    BatchLoader loader(data.order(), data.sample_options(),
                       {.schedule = config.batches(), .batches = 5, .depth = 1});
    const auto backend = make_cpu_backend(2);
    Engine engine(*backend, *backend, engine_options(config));
    engine.initialize(1);
    const auto step = [&](std::int64_t number) {
      const SampleBatch& batch = loader.next();
      engine.begin_step({batch.ids, batch.targets, batch.positions, batch.document_start},
                        {.step = number, .lr = 1e-3, .seed = 1, .targets = 100});
      loader.release();
      engine.finish_step();
    };
    step(1);
    step(2);
    const long before = allocations;
    step(3);
    step(4);
    EXPECT_EQ(allocations - before, 0) << more;
  }
}

}  // namespace
}  // namespace kintsugi

#endif
