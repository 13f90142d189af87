#include "cli/plan/training_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "backend/sim/sim_backend.h"
#include "core/statistics.h"
#include "plan/search/planner.h"

namespace kintsugi {
namespace {

constexpr int kProfiledSteps = 3;
constexpr int kFewestSteps = 3;  // to choose algorithms and record graphs, and to measure

EngineOptions options_of(const ModelConfig& model, DType precision, std::int64_t batch,
                         std::int64_t length) {
  return {.model = model,
          .precision = precision,
          .layout = {.micro_batch = batch},
          .batch = batch,
          .length = length};
}

// Trains for about so many seconds and returns the time of each step.
std::vector<double> train_for(TrainingLoad& load, double seconds) {
  std::vector<double> times;
  const double begin = Trace::now();
  for (double now = begin; now < begin + seconds || std::ssize(times) < kFewestSteps;) {
    load.step();
    times.push_back(Trace::now() - now);
    now += times.back();
  }
  return times;
}

std::optional<double> joules_of(const DeviceMeters& meters) {
  double sum = 0;
  for (Meter* meter : meters.used) {
    const std::optional<double> joules = meter->read().joules;
    if (!joules) return {};
    sum += *joules;
  }
  return meters.used.empty() ? std::nullopt : std::optional(sum);
}

// With the largest batch, at most that of the model, that fits into the memory. 0: none does.
PlanJob fitting_job(PlanJob job, const Machine& machine, std::size_t available) {
  for (; job.batch > 0; job.batch /= 2)
    if (Planner(job, machine).evaluate({.micro_batch = job.batch}).memory_bytes <
        static_cast<double>(available))
      break;
  return job;
}

}  // namespace

TrainingLoad::TrainingLoad(Backend& backend, const ModelConfig& model, DType precision,
                           std::int64_t batch, std::int64_t length)
    : engine_(backend, backend, options_of(model, precision, batch, length)),
      ids_(static_cast<std::size_t>(batch * length)),
      targets_(ids_.size()) {
  engine_.initialize(1);
  std::mt19937 random(1);
  for (std::int32_t& id : ids_)
    id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(model.vocab_size));
  std::rotate_copy(ids_.begin(), ids_.begin() + 1, ids_.end(), targets_.begin());
}

std::int64_t TrainingLoad::step() {
  engine_.step({ids_, targets_}, {.step = ++step_, .lr = 1e-5});
  return static_cast<std::int64_t>(ids_.size());
}

OperationTrace TrainingLoad::counted() {
  OperationTrace trace;
  const EngineOptions& options = engine_.options();
  SimBackend backend(trace, engine_.backend().classifier_elements());
  Engine engine(backend, backend, options);
  engine.prepare();
  trace = {};
  engine.begin_step({ids_, targets_},
                    {.lr = 1e-5, .targets = static_cast<double>(targets_.size())});
  return trace;
}

DeviceMeters meters_of(const std::string& pci) {
  MeterSearch search{.gpus = std::vector<std::string>()};
  if (!pci.empty()) search.gpus->push_back(pci);
  DeviceMeters meters{.found = find_meters(search)};
  const std::vector<EnergyLevel> levels = pci.empty()
                                              ? std::vector{EnergyLevel::Node, EnergyLevel::Cpu}
                                              : std::vector{EnergyLevel::Gpu};
  const ChosenMeters chosen = choose_meters(meters.found, search, find_node_share(search.root));
  for (const EnergyLevel level : levels) {
    if (!meters.used.empty()) break;
    meters.why += fmt::format("{}{}", meters.why.empty() ? "" : "; ", chosen[level].reason);
    for (const std::size_t index : chosen[level].meters) {
      const MeterIdentity& identity = meters.found.meters[index]->identity();
      meters.used.push_back(meters.found.meters[index].get());
      meters.source += fmt::format("{}{} {} ({})", meters.source.empty() ? "" : ", ",
                                   identity.source, identity.scope, to_string(identity.kind));
    }
  }
  return meters;
}

std::vector<CalibrationModel> calibration_models(bool processor) {
  if (processor)
    return {
        {"llama-1b", 1, 1, 64, 4096}, {"gpt2-124m", 1, 1, 128, 4096}, {"llama-tiny", 4, 4, 256}};
  return {{"llama-8b", 4, 2, 4096},
          {"llama-8b", 4, 2, 4096, 0, true},
          {"llama-1b", 6, 4, 4096},
          {"qwen2.5-7b", 4, 8, 1024},
          {"qwen2.5-7b", 4, 8, 1024, 0, true},
          {"gpt2-1.5b", 8, 16, 1024, 50304},
          {"gpt2-124m", 12, 64, 1024, 50304},
          {"retnet-medium", 6, 4, 8192}};
}

CalibrationModel calibration_model(const std::string& name, bool processor) {
  const ModelConfig model = resolve_model(name);
  const std::int64_t length = std::min<std::int64_t>(model.max_positions, processor ? 256 : 4096);
  return {name, std::min<std::int64_t>(model.layers, processor ? 1 : 4),
          std::max<std::int64_t>(1, (processor ? 256 : 8192) / length), length};
}

bool measure_training(Backend& backend, Trace& trace, const CalibrationModel& model,
                      const CalibrationLoad& load, MeasuredTraining& training) {
  ModelConfig config = resolve_model(model.name);
  if (model.layers > 0) config.layers = model.layers;
  if (model.vocabulary > 0) config.vocab_size = model.vocabulary;
  if (model.fp8) config.fp8.recipe = Fp8Recipe::Rowwise;
  const PlanJob job = fitting_job({.model = config,
                                   .length = model.length,
                                   .batch = model.batch,
                                   .precision = load.precision,
                                   .classifier_elements = backend.classifier_elements()},
                                  load.machine, backend.available_bytes());
  if (job.batch == 0) return false;
  training.job = job;
  training.name = fmt::format("{}, {} layers, {} x {}, {}", model.name, config.layers, job.batch,
                              job.length, precision_word(job));
  TrainingLoad steps(backend, config, job.precision, job.batch, job.length);
  train_for(steps, load.seconds);
  const DeviceMeters meters = meters_of(backend.device().pci);
  const std::optional<double> before = joules_of(meters);
  const double begin = Trace::now();
  training.step_s = median(train_for(steps, load.seconds / 2));
  const double end = Trace::now();
  if (const std::optional<double> after = joules_of(meters); before && after)
    training.watts = (*after - *before) / (end - begin);
  trace.begin();
  for (int i = 0; i < kProfiledSteps; ++i) steps.step();
  backend.synchronize();
  trace.end();
  training.operations =
      measured_operations(trace.take(), steps.counted(), kProfiledSteps, training.step_s);
  return true;
}

double shortest_kernel_s(Backend& backend) {
  constexpr int kCalls = 1000;
  Arena arena(backend);
  const Tensor from = arena.allocate(Region::Workspace, "calibration", DType::F32, {1}),
               to = arena.allocate(Region::Workspace, "calibration", DType::F32, {1});
  backend.fill(from, 0);
  std::vector<double> times;
  for (int batch = 0; batch < 5; ++batch) {
    backend.synchronize();
    const double begin = Trace::now();
    for (int i = 0; i < kCalls; ++i) backend.copy(to, from);
    backend.synchronize();
    times.push_back((Trace::now() - begin) / kCalls);
  }
  return *std::ranges::min_element(times);
}

}  // namespace kintsugi
