// The planner's memory against the engine's arena.
#include "plan/costs/memory.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/cpu/cpu_backend.h"
#include "backend/sim/sim_backend.h"
#include "comm/sim/sim_communicator.h"
#include "parallel/layout.h"
#include "plan/search/planner.h"
#include "train/engine.h"

namespace kintsugi {
namespace {

template <class T>
T one_of(std::mt19937& random, std::initializer_list<T> values) {
  return *(values.begin() + random() % values.size());
}

PlanJob random_job(std::mt19937& random) {
  PlanJob job;
  job.model.family = one_of(random, {Family::Llama, Family::Gpt2, Family::Bloom, Family::Qwen3});
  job.model.vocab_size = 1000 + static_cast<std::int64_t>(random() % 50);
  job.model.hidden_size = 64;
  job.model.heads = 8;
  job.model.kv_heads = job.model.family == Family::Llama || job.model.family == Family::Qwen3
                           ? one_of<std::int64_t>(random, {2, 4, 8})
                           : 8;
  job.model.layers = 4 + static_cast<std::int64_t>(random() % 9);
  job.model.max_positions = 128;
  job.model.tied = random() % 2 == 0;
  job.model.complete_and_check();
  job.length = 128;
  job.batch = 48;
  job.precision = one_of(random, {DType::BF16, DType::F32, DType::F16});
  job.documents = random() % 3 == 0;
  job.reduce_in_bf16 = random() % 4 == 0;
  job.optimizer.moments = random() % 4 == 0 ? DType::BF16 : DType::F32;
  job.classifier_elements = 20'000;
  if (random() % 3 == 0) job.classifier_chunk = 48;
  std::mt19937 recipes(static_cast<unsigned>(job.model.vocab_size));
  if (recipes() % 3 == 0) job.z_loss = 1e-5;
  job.skip_step = recipes() % 3 == 0;
  if (recipes() % 3 == 0) job.optimizer.ema.decay = 0.99;
  if (recipes() % 4 == 0) job.optimizer.kind = OptimizerKind::Muon;
  if (job.z_loss == 0 && recipes() % 3 == 0) job.preference = PreferenceOptions{};
  return job;
}

Layout random_layout(std::mt19937& random) {
  Layout layout;
  layout.tp = one_of(random, {1, 1, 2, 4});
  layout.cp = one_of(random, {1, 1, 2});
  layout.pp = one_of(random, {1, 2, 3, 4});
  layout.dp = one_of(random, {1, 2, 3, 4});
  layout.micro_batch = one_of<std::int64_t>(random, {1, 2, 3});
  if (layout.pp > 1)
    layout.schedule = one_of(random, {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward,
                                      PipelineKind::Interleaved, PipelineKind::ZeroBubbleH1});
  if (layout.schedule == PipelineKind::Interleaved) layout.chunks = 2;
  layout.zero = one_of(random, {0, 1, 2, 3});
  if (layout.zero > 0 && layout.cp * layout.dp % 2 == 0 && random() % 2 == 0)
    layout.shard_group = 2;
  layout.sequence_parallel = layout.tp > 1 && random() % 2 == 0;
  layout.recompute = one_of(random, {Recompute::None, Recompute::Selective, Recompute::Full});
  if (layout.recompute != Recompute::None) layout.recompute_every = one_of(random, {1, 2, 3});
  if (layout.cp > 1) layout.context = one_of(random, {ContextMethod::Ring, ContextMethod::Ulysses});
  return layout;
}

EngineOptions engine_options(const PlanJob& job, const Layout& layout,
                             const StateOffload& offload = {}) {
  return {.model = job.model,
          .precision = job.precision,
          .layout = layout,
          .batch = job.batch,
          .length = job.length,
          .classifier_chunk = job.classifier_chunk,
          .z_loss = job.z_loss,
          .preference = job.preference,
          .skip_step = job.skip_step,
          .optimizer = job.optimizer,
          .offload = offload,
          .documents = job.documents,
          .reduce_in_bf16 = job.reduce_in_bf16};
}

void expect_memory_of_engine(const PlanJob& job, const Layout& layout,
                             const StateOffload& offload = {}) {
  const ModelLayers model(job.model);
  const MicroBatchTrace pass = trace_micro_batch(job, model, layout);
  const auto slots =
      layout.pp == 1
          ? pipeline_micro_batches({})
          : pipeline_micro_batches({layout.schedule, layout.pp,
                                    static_cast<int>(micro_batches_per_step(layout, job.batch)),
                                    layout.chunks});
  const auto split = balanced_split(job.model, layout.pp * layout.chunks);
  for (int stage = 0; stage < layout.pp; ++stage) {
    const Coordinates coordinates{.pp = stage};
    OperationTrace trace;
    SimBackend backend(trace, job.classifier_elements);
    PlanningAllocator memory;
    const Groups groups = planned_groups(grid_of(layout, job.model), coordinates);
    const Engine engine(backend, memory, engine_options(job, layout, offload), groups);
    const auto parts = stage_layers(split, layout.pp, stage);
    const StateTrace state =
        trace_state(job, model, layout, stage_contents(model, parts), coordinates, {}, offload);
    EXPECT_EQ(total(state.host), static_cast<std::int64_t>(engine.arena().total_bytes(Side::Host)));
    EXPECT_EQ(
        rank_memory(job, model, layout, pass, state, parts, slots[static_cast<std::size_t>(stage)]),
        bytes_by_region(engine.arena()))
        << to_string(layout) << ", stage " << stage << " of " << job.model.layers << " layers, "
        << to_string(job.model.family) << (job.model.freeze.empty() ? "" : ", frozen layers")
        << (job.model.fp8.on() ? ", fp8" : "")
        << (job.optimizer.kind == OptimizerKind::Muon ? ", Muon" : "")
        << (job.preference ? ", pairs" : "") << (offload.on ? ", state offloaded" : "")
        << (offload.gradients ? ", gradients offloaded" : "");
  }
}

bool fits(const Layout& layout, const PlanJob& job) {
  try {
    fit_layout(layout, workload_of(job), layout.ranks());
    return true;
  } catch (const UserError&) {
    return false;
  }
}

TEST(PlanMemory, IsTheEnginesByteForByte) {
  std::mt19937 random(7);
  int layouts = 0, pipelines = 0;
  for (int attempt = 0; layouts < 60 && attempt < 2000; ++attempt) {
    const PlanJob job = random_job(random);
    const Layout layout = random_layout(random);
    if (!fits(layout, job)) continue;
    ++layouts;
    pipelines += layout.pp > 1 ? 1 : 0;
    expect_memory_of_engine(job, layout);
  }
  EXPECT_EQ(layouts, 60);
  EXPECT_GT(pipelines, 20);
}

TEST(PlanMemory, WithOffload) {
  std::mt19937 random(9);
  int layouts = 0;
  for (int attempt = 0; layouts < 30 && attempt < 2000; ++attempt) {
    const PlanJob job = random_job(random);
    const Layout layout = random_layout(random);
    StateOffload offload{.on = random() % 4 > 0, .update = UpdateLocation::Device};
    offload.gradients = !offload.on || random() % 2 == 0;
    if (layout.schedule == PipelineKind::ZeroBubbleH1) offload.gradients = false;
    if (!fits(layout, job)) continue;
    ++layouts;
    expect_memory_of_engine(job, layout, offload);
  }
  EXPECT_EQ(layouts, 30);
}

// Windows in two of three layers, two layers frozen, and fp8 in all but the last.
TEST(PlanMemory, OfLayersOfSeveralKinds) {
  std::mt19937 random(8);
  int layouts = 0;
  for (int attempt = 0; layouts < 20 && attempt < 1000; ++attempt) {
    PlanJob job = random_job(random);
    job.model.family = Family::Olmo3;
    job.model.layers = 9;
    job.model.kv_heads = 8;
    job.model.sliding_window = 32;
    job.model.layer_types = {LayerType::Sliding, LayerType::Full, LayerType::Sliding};
    if (attempt % 2 == 0) job.model.freeze = {"model.layers.4.*", "model.layers.8.*"};
    if (attempt % 3 == 0) {
      job.precision = DType::BF16;
      job.model.fp8 = {.recipe = Fp8Recipe::Rowwise, .bf16_layers = {.first = 0, .last = 1}};
    }
    job.model.complete_and_check();
    const Layout layout = random_layout(random);
    if (!fits(layout, job)) continue;
    ++layouts;
    expect_memory_of_engine(job, layout);
  }
  EXPECT_EQ(layouts, 20);
}

// Each way to balance experts has its own counts.
TEST(PlanMemory, OfExperts) {
  std::mt19937 random(9);
  int layouts = 0;
  for (int attempt = 0; layouts < 24 && attempt < 1000; ++attempt) {
    PlanJob job = random_job(random);
    job.preference.reset();
    job.model.family = Family::Dots1;
    job.model.kv_heads = 8;
    job.model.experts = ExpertsConfig{.count = 8, .chosen = 2, .size = 16, .shared = 1};
    job.model.balance = {.loss = attempt % 3 == 0 ? 0 : 0.01,
                         .scope = attempt % 2 == 0 ? BalanceScope::Batch : BalanceScope::Sequence,
                         .bias_speed = attempt % 5 == 0 ? 0 : 0.001,
                         .capacity = attempt % 4 == 0 ? 1.5 : 0};
    job.model.complete_and_check();
    const Layout layout = random_layout(random);
    if (!fits(layout, job)) continue;
    ++layouts;
    expect_memory_of_engine(job, layout);
  }
  EXPECT_EQ(layouts, 24);
}

// The memory of a real engine on the CPU equals the plan.
TEST(PlanMemory, IsThatOfARealRun) {
  std::mt19937 random(19);
  const auto backend = make_cpu_backend(1);
  for (int round = 0; round < 8; ++round) {
    PlanJob job = random_job(random);
    job.classifier_elements = backend->classifier_elements();
    Layout layout{.micro_batch = 2,
                  .recompute = one_of(random, {Recompute::None, Recompute::Full})};
    Engine engine(*backend, *backend, engine_options(job, layout));
    const ModelLayers model(job.model);
    const auto whole = stage_layers({static_cast<int>(job.model.layers)}, 1, 0);
    const RegionBytes planned =
        rank_memory(job, model, layout, trace_micro_batch(job, model, layout),
                    trace_state(job, model, layout, stage_contents(model, whole)), whole,
                    pipeline_micro_batches({})[0]);
    EXPECT_EQ(planned, bytes_by_region(engine.arena()));
    Planner planner(job, load_machine("laptop"));
    EXPECT_EQ(total(planner.memory(layout)[0]),
              static_cast<std::int64_t>(engine.arena().total_bytes()));
  }
}

// pipeline_micro_batches computes long schedules from short ones.
TEST(PlanMemory, SlotsOfLongSchedules) {
  const auto expect_held = [](const PipelineShape& shape) {
    PipelineSchedule schedule;
    try {
      schedule = make_pipeline_schedule(shape);
    } catch (const UserError&) {
      return;
    }
    const auto planned = pipeline_micro_batches(shape);
    for (int rank = 0; rank < shape.stages; ++rank)
      EXPECT_EQ(planned[static_cast<std::size_t>(rank)], held_micro_batches(schedule, rank))
          << to_string(shape.kind) << " " << shape.stages << " x " << shape.micro_batches << ", "
          << shape.chunks << " chunks, rank " << rank;
  };
  for (const int stages : {2, 3, 5, 8})
    for (const int micro_batches : {1, 2, 7, 15, 16, 24, 30, 48, 75, 120}) {
      for (const PipelineKind kind :
           {PipelineKind::GPipe, PipelineKind::OneForwardOneBackward, PipelineKind::ZeroBubbleH1})
        expect_held({kind, stages, micro_batches, 1});
      for (const int chunks : {2, 3, 4})
        expect_held({PipelineKind::Interleaved, stages, micro_batches, chunks});
    }
}

TEST(SimWorld, GroupsAreThoseOfTheGrid) {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    Grid grid{.tp = one_of(random, {1, 2, 4}),
              .cp = one_of(random, {1, 2}),
              .dp = one_of(random, {1, 2, 4}),
              .pp = one_of(random, {1, 2, 3})};
    if (grid.data() % 2 == 0 && random() % 2 == 0) grid.shard_group = 2;
    grid.kv_copies = grid.tp > 1 ? 2 : 1;
    const Coordinates coordinates =
        coordinates_of(grid, static_cast<int>(random() % static_cast<unsigned>(grid.world())));
    OperationTrace trace;
    const Groups sim = sim_groups(grid, coordinates, trace);
    for (const GroupSpec& spec : group_specs()) {
      const Communicator& group = sim[spec.kind];
      const std::vector<int> members = group_members(grid, spec.kind, rank_of(grid, coordinates));
      EXPECT_EQ(group.name(), spec.name);
      ASSERT_EQ(group.size(), static_cast<int>(members.size())) << spec.name;
      EXPECT_EQ(members[static_cast<std::size_t>(group.rank())], rank_of(grid, coordinates))
          << spec.name;
    }
  }
}

}  // namespace
}  // namespace kintsugi
