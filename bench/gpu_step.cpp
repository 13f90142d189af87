// Training steps on one GPU: tokens/s, MFU in both conventions, memory and energy per token, one
// JSON line per call.
//   build/bench_gpu_step llama-1b --micro 4 --length 4096 [--layers 8] [--accumulate 4] [--moments
//   bf16] [--offload optimizer,gradients,activations --update device|host|auto] [--fp8 rowwise] …
//   With --compare-fp8: first without fp8, then with it, and the ratio.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/gpu_backend.h"
#include "energy/meters/find_meters.h"
#include "model/metrics.h"
#include "train/engine.h"

using namespace kintsugi;

namespace {

// "optimizer", "gradients", "activations", into what they switch on.
void choose_offload(const std::vector<std::string>& parts, const std::string& update,
                    EngineOptions& options) {
  for (const std::string& part : parts) {
    if (part == "optimizer")
      options.offload.on = true;
    else if (part == "gradients")
      options.offload.gradients = true;
    else if (part == "activations" && options.layout.recompute == Recompute::Full)
      options.offload_inputs = true;
    else
      user_error("--offload {}: optimizer, gradients, or activations with --recompute full", part);
  }
  options.offload.update = update == "device" ? UpdateLocation::Device
                           : update == "host" ? UpdateLocation::Host
                                              : UpdateLocation::Auto;
}

// What went over the link since `before`, per step, and how fast while it went.
std::string link_figures(const Backend::LinkTotals& before, const Backend::LinkTotals& after,
                         std::int64_t steps) {
  const auto one = [&](const char* name, const Backend::TransferTotals& from,
                       const Backend::TransferTotals& to) {
    const double bytes = static_cast<double>(to.bytes - from.bytes), busy = to.busy_s - from.busy_s;
    return fmt::format(
        "\"{0}_gb_per_step\": {1:.3f}, \"{0}_gb_per_s\": {2:.1f}, "
        "\"{0}_busy_ms\": {3:.1f}",
        name, bytes / static_cast<double>(steps) * 1e-9, busy > 0 ? bytes / busy * 1e-9 : 0.0,
        1e3 * busy / static_cast<double>(steps));
  };
  return one("to_device", before.to_device, after.to_device) + ", " +
         one("to_host", before.to_host, after.to_host);
}

// Milliseconds per step by operation, from events around it and from the spans of a profile.
void print_breakdown(const std::vector<OperationTime>& by_events,
                     const std::vector<TraceSpan>& spans, std::int64_t steps) {
  std::map<std::string, double> profiled;
  for (const TraceSpan& span : spans)
    if (span.kind == SpanKind::Operation) profiled[span.name] += 1e3 * (span.end_s - span.begin_s);
  double total = 0, total_profiled = 0;
  const auto per_step = [&](double ms) { return ms / static_cast<double>(steps); };
  for (const OperationTime& time : by_events) {
    const double ms = per_step(time.milliseconds), other = per_step(profiled[time.name]);
    total += ms;
    total_profiled += other;
    fmt::print("{:>10.3f} ms {:>10.3f} ms profiled {:>7.2f} % {:>6} calls  {}\n", ms, other,
               100 * (other / ms - 1), time.calls / steps, time.name);
  }
  fmt::print("{:>10.3f} ms {:>10.3f} ms profiled {:>7.2f} % in operations\n", total, total_profiled,
             100 * (total_profiled / total - 1));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times training steps on one GPU");
  std::vector<std::string> offload;
  std::string update = "auto";
  std::string model_name, recompute = "none", moments = "fp32", precision = "bf16", cache, fp8;
  std::int64_t micro = 4, length = 1024, layers = 0, accumulate = 1, steps = 10, warmup = 4,
               vocabulary = 0, chunk = 0, lora = 0;
  bool deterministic = false, no_graphs = false, breakdown = false, stochastic = false,
       even = false, muon = false, ahead = false, compare = false, keep_weights = true;
  app.add_option("model", model_name)->required();
  app.add_option("--micro", micro);
  app.add_option("--length", length);
  app.add_option("--layers", layers, "instead of the preset's");
  app.add_option("--vocabulary", vocabulary, "instead of the preset's");
  app.add_option("--accumulate", accumulate, "micro-batches per step");
  app.add_option("--steps", steps);
  app.add_option("--warmup", warmup);
  app.add_option("--recompute", recompute);
  app.add_option("--moments", moments);
  app.add_option("--lora", lora, "train adapters of this rank on all linear layers");
  app.add_flag("--muon", muon, "update hidden matrices with Muon");
  app.add_option("--precision", precision);
  app.add_option("--fp8", fp8, "recipe of fp8 matmuls")
      ->check(CLI::IsMember({"rowwise", "tensorwise"}));
  app.add_flag("!--no-keep-weights", keep_weights, "quantize weights to fp8 at every use");
  app.add_flag("--compare-fp8", compare, "without fp8, then with it (default: rowwise)");
  app.add_flag("--stochastic-rounding", stochastic, "of bf16 moments");
  app.add_option("--chunk", chunk, "tokens of logits at a time; 0: chosen");
  app.add_option("--matmul-cache", cache);
  app.add_option("--offload", offload, "optimizer,gradients,activations")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--update", update)->check(CLI::IsMember({"auto", "device", "host"}));
  app.add_flag("--even-experts", even, "every expert has as many tokens");
  app.add_flag("--deterministic", deterministic);
  app.add_flag("--no-graphs", no_graphs);
  app.add_flag("--ahead", ahead, "queue all steps, wait for the last: what waiting for each costs");
  app.add_flag("--breakdown", breakdown,
               "device time by operation, without graphs: from events, and from a profile of as "
               "many steps");
  CLI11_PARSE(app, argc, argv);
  // Prints the figures of one recipe ("": no fp8) and returns tokens/s.
  const auto measure = [&](const std::string& recipe) {
    ModelConfig model = resolve_model(model_name);
    if (model.experts)
      model.balance = {.loss = 0.01, .z_loss = 0.001, .even = even};  // as train.balance
    if (!recipe.empty())
      model.fp8.recipe = recipe == "rowwise" ? Fp8Recipe::Rowwise : Fp8Recipe::Tensorwise;
    model.fp8.keep_weights = keep_weights;
    if (layers > 0) model.layers = layers;
    if (vocabulary > 0) model.vocab_size = vocabulary;
    model.max_positions = std::max(model.max_positions, length);
    if (lora > 0)
      model.lora = {.r = lora, .alpha = 2.0 * static_cast<double>(lora), .targets = {"all-linear"}};
    GpuOptions cuda;
    cuda.deterministic = deterministic;
    if (no_graphs || breakdown) cuda.graphs = false;
    cuda.time_operations = breakdown;
    Trace trace;
    if (breakdown) cuda.trace = &trace;
    cuda.matmul_cache = cache;
    cuda.host = make_cpu_backend();
    const auto backend = make_gpu_backend(cuda);
    if (model.fp8.on())
      if (const std::string why = backend->why_no_fp8(recipe == "tensorwise"); !why.empty())
        user_error("--fp8 {}: {}", recipe, why);
    EngineOptions options{.model = model,
                          .precision = parse_precision(precision),
                          .layout = {.micro_batch = micro, .recompute = parse_recompute(recompute)},
                          .length = length,
                          .classifier_chunk = chunk,
                          .optimizer = {.kind = muon ? OptimizerKind::Muon : OptimizerKind::AdamW,
                                        .moments = parse_precision(moments),
                                        .stochastic_rounding = stochastic}};
    choose_offload(offload, update, options);
    if (options.offload.on && options.offload.update == UpdateLocation::Auto)
      warmup = std::max<std::int64_t>(warmup, 5);  // the trial is not what is measured
    const std::size_t before = backend->available_bytes();
    Engine engine(*backend, *backend, options);
    const std::size_t allocated = before - backend->available_bytes();
    engine.initialize(1);
    std::mt19937 random(1);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(micro * length * accumulate)),
        targets(ids.size());
    for (auto& id : ids)
      id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(model.vocab_size));
    std::rotate_copy(ids.begin(), ids.begin() + 1, ids.end(), targets.begin());
    std::int64_t step = 0;
    double loss = 0;
    const auto run = [&] { loss = engine.step({ids, targets}, {.step = ++step, .lr = 1e-4}).loss; };
    for (std::int64_t i = 0; i < warmup; ++i) run();
    backend->take_operation_times();
    const Backend::LinkTotals link = backend->link_totals();
    FoundMeters found;
    add_nvml({.gpus = std::vector{gpu_devices().at(0).pci}}, found);
    const auto joules = [&] {
      return found.meters.empty() ? std::nullopt : found.meters[0]->read().joules;
    };
    const auto energy = joules();
    std::vector<double> times;
    if (ahead) {
      const auto start = std::chrono::steady_clock::now();
      for (std::int64_t i = 0; i < steps; ++i)
        engine.begin_step(
            {ids, targets},
            {.step = ++step, .lr = 1e-4, .targets = engine.targets_of({ids, targets})});
      loss = engine.finish_step().sums.front() / engine.targets_of({ids, targets});
      times.assign(1,
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                       static_cast<double>(steps));
    } else {
      for (std::int64_t i = 0; i < steps; ++i) {
        const auto start = std::chrono::steady_clock::now();
        run();
        times.push_back(
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
    }
    const double tokens = static_cast<double>(ids.size() * static_cast<std::size_t>(steps));
    std::sort(times.begin(), times.end());
    const double rate = static_cast<double>(ids.size()) / times[times.size() / 2];
    const TrainingFlops flops = training_flops_per_token(model, length);
    const double peak = backend->peak_flops(options.precision).flops_per_s;
    const auto after = joules();
    const std::size_t peak_bytes = before - backend->available_bytes();
    fmt::print(
        "{{\"model\": \"{}\", \"fp8\": \"{}\", \"layers\": {}, \"micro\": {}, \"length\": {}, "
        "\"accumulate\": {}, "
        "\"moments\": \"{}\", \"lora\": {}, "
        "\"recompute\": \"{}\", \"step_ms\": {:.3f}, \"tokens_per_s\": {:.0f}, \"mfu\": {:.4f}, "
        "\"mfu_full\": {:.4f}, "
        "\"planned_gib\": {:.2f}, \"allocated_gib\": {:.2f}, \"backend_gib\": {:.2f}, "
        "\"peak_gib\": {:.2f}, \"host_gib\": {:.2f}, \"update\": \"{}\", {}, "
        "\"j_per_token\": {}, \"loss\": {:.4f}}}\n",
        model_name, recipe.empty() ? "none" : recipe, model.layers, micro, length, accumulate,
        moments, lora, recompute, 1e3 * times[times.size() / 2], rate, rate * flops.causal() / peak,
        rate * flops.full() / peak, static_cast<double>(engine.arena().total_bytes()) / 0x1p30,
        static_cast<double>(allocated) / 0x1p30, static_cast<double>(backend->own_bytes()) / 0x1p30,
        static_cast<double>(peak_bytes) / 0x1p30,
        static_cast<double>(engine.arena().total_bytes(Side::Host)) / 0x1p30,
        to_string(engine.optimizer().update_location()),
        link_figures(link, backend->link_totals(), steps),
        energy && after ? fmt::format("{:.6f}", (*after - *energy) / tokens) : "null", loss);
    if (breakdown) {
      const std::vector<OperationTime> times_by_events = backend->take_operation_times();
      trace.begin();
      for (std::int64_t i = 0; i < steps; ++i) run();
      trace.end();
      print_breakdown(times_by_events, trace.take(), steps);
    }
    return rate;
  };
  try {
    if (!compare) {
      measure(fp8);
      return 0;
    }
    const std::string recipe = fp8.empty() ? "rowwise" : fp8;
    const double without = measure(""), with = measure(recipe);
    fmt::print("{{\"{}_over_{}\": {:.3f}}}\n", recipe, precision, with / without);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
