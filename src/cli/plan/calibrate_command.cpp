#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/plan/training_load.h"
#include "comm/socket.h"
#include "core/error.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/statistics.h"
#include "core/table.h"
#include "core/units.h"
#include "energy/power/power_sweep.h"
#include "launch/accept/judge.h"
#include "train/config/keys.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

// kintsugi calibrate --power.
struct CalibratePowerOptions {
  std::string model;
  std::int64_t batch = 1, length = 0;  // sequences per step; 0: the model's positions, at most 4096
  std::vector<double> limits_w = {};
  std::vector<int> clocks_mhz = {};
  double seconds = 10;
  bool as_is = false, as_json = false;
};

void print(const PowerSweep& sweep, const CalibratePowerOptions& options, std::int64_t length,
           const std::string& device, const std::string& source) {
  if (options.as_json) {
    const nlohmann::ordered_json points = to_table(sweep).json();
    const auto point_json = [&](const SweepPoint* point) -> nlohmann::ordered_json {
      if (point == nullptr) return nullptr;
      return points[static_cast<std::size_t>(point - sweep.points.data())];
    };
    fmt::print("{}", json_lines({{"device", device},
                                 {"model", options.model},
                                 {"batch", options.batch},
                                 {"length", length},
                                 {"meter", source},
                                 {"points", points},
                                 {"optimum", point_json(sweep.optimum())},
                                 {"within_5_percent", point_json(sweep.fast_optimum())},
                                 {"not_done", Cell::or_missing(sweep.not_done).value}}));
    return;
  }
  fmt::print("{}: {}, {} x {} tokens per step, energy from {}\n{}", device, options.model,
             options.batch, length, source, to_table(sweep).text());
  if (!sweep.not_done.empty()) fmt::print("not done: {}\n", sweep.not_done);
}

void calibrate_power(const CalibratePowerOptions& options, DeviceChoice device,
                     const std::string& precision, std::int64_t threads) {
  ModelConfig model = resolve_model(options.model);
  const std::int64_t length =
      options.length > 0 ? options.length : std::min<std::int64_t>(model.max_positions, 4096);
  model.max_positions = std::max(model.max_positions, length);
  const std::unique_ptr<Backend> backend = make_backend(device, threads);
  const std::string pci = backend->device().pci;
  const DType dtype = !precision.empty() ? parse_precision(precision)
                      : pci.empty()      ? DType::F32
                                         : DType::BF16;
  const DeviceMeters meters = meters_of(pci);
  if (meters.used.empty())
    user_error("--power needs an energy meter of {}, and there is none: {}",
               pci.empty() ? "this node" : "GPU " + pci, meters.why);
  // Before the limits are changed, so that Ctrl-C and errors restore them on the way out.
  const StopSignals signals;
  const auto control = pci.empty()
                           ? std::make_shared<PowerControl>(
                                 std::string("the power of a CPU cannot be set from here"))
                           : std::make_shared<PowerControl>(MeterSearch{.gpus = std::vector{pci}});
  before_second_interrupt([weak = std::weak_ptr(control)] {
    if (const auto held = weak.lock()) held->restore();
  });
  TrainingLoad workload(*backend, model, dtype, options.batch, length);
  const auto now_s = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
  std::optional<Progress> progress(std::in_place, "measure", 0, "settings");
  const PowerSweep sweep = sweep_power(*control, meters.used,
                                       {.limits_w = options.limits_w,
                                        .clocks_mhz = options.clocks_mhz,
                                        .as_is = options.as_is,
                                        .seconds = options.seconds},
                                       {.step = [&] { return workload.step(); },
                                        .now_s = now_s,
                                        .stop = [] { return StopSignals::received() != nullptr; },
                                        .progress = progress->callback()});
  progress.reset();
  if (!sweep.points.empty() || !sweep.stopped)
    print(sweep, options, length, backend->description(), meters.source);
  if (sweep.stopped)
    failure("stopped by {}: the former power settings are restored", StopSignals::received());
}

struct CalibrateOptions {
  std::string machine, output, device = "auto", precision;
  std::vector<std::string> models = {};
  std::int64_t threads = 0;
  double effort = 0;
  bool measure_power = false, overwrite = false;
  CalibratePowerOptions power = {};

  DeviceChoice choice() const { return YamlScalar<DeviceChoice>::parse(device); }
};

// Replaces the processor of the built-in description by that of this host.
Machine this_host(Machine machine, Backend& backend, std::int64_t threads) {
  machine.name = host_name();
  machine.gpu.name = backend.description();
  machine.gpu.vendor = GpuVendor::None;
  machine.gpu.memory_gb = static_cast<double>(backend.available_bytes()) / 1e9;
  machine.gpu.multiprocessors =
      threads > 0 ? threads : static_cast<std::int64_t>(std::thread::hardware_concurrency());
  // A CPU computes in fp32 for all precisions.
  const double peak = backend.peak_flops(DType::F32).flops_per_s / 1e12;
  machine.gpu.bf16_tflops = machine.gpu.fp16_tflops = machine.gpu.fp32_tflops = peak;
  return machine;
}

// Keys that were measured, by section.
using MeasuredKeys = std::map<std::string, std::set<std::string>>;

// Writes behind these keys how their values were found.
std::string with_sources(const std::string& yaml, const MeasuredKeys& measured,
                         const std::string& source) {
  std::string text, section;
  std::istringstream lines(yaml);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find_first_not_of(' '), end = line.find(':');
    const std::string key = line.substr(begin, end - begin);
    if (begin == 0) section = key;
    const auto keys = measured.find(section);
    const bool found = begin == 2 && keys != measured.end() && keys->second.contains(key);
    text += found ? fmt::format("{:<34} # {}\n", line, source) : line + "\n";
  }
  return text;
}

// Kept alive until the job has handled an error: pending collectives may still use this memory.
struct CalibrationParts {
  Trace trace;
  std::unique_ptr<Backend> backend;
  DeviceWorld devices;
};

// Measures collectives of all ranks, and of those of the first node if there are several; fits the
// links of the machine to them. All ranks call it. Returns a table.
std::string measure_links(Job& job, CalibrationParts& parts, Machine& machine, MeasuredKeys& keys) {
  const int ranks = job.world().size(), local = job.world().local_size();
  parts.devices = make_device_world(job.world(), *parts.backend, {.allow_sockets = true},
                                    [&job](const RankFailure& failure) { job.abort(failure); });
  World& world = parts.devices.gpus ? *parts.devices.gpus : job.world();
  ProbeLoad load;
  if (!parts.backend->device().pci.empty()) load.bytes = {64 << 10, 1 << 20, 16 << 20, 256 << 20};
  std::vector<Grid> grids = {{.dp = ranks}};
  if (local > 1 && local < ranks && ranks % local == 0)
    grids.insert(grids.begin(), {.tp = local, .dp = ranks / local});
  machine.node.gpus = std::max<std::int64_t>(machine.node.gpus, local);
  machine.nodes = std::max<std::int64_t>(machine.nodes, (ranks + local - 1) / local);
  Machine launched = machine;  // with the ranks of this launch on each node, and links between them
  launched.node.gpus = local;
  launched.node.module_gpus = 1;
  std::string text;
  for (const GroupFacts& group :
       measure_groups(job.world(), world, *parts.backend, grids, load, steady_seconds)) {
    const auto size = static_cast<int>(group.expected.size());
    const bool inside = size <= local;
    if (group.rates.empty() || (size != local && size != ranks) ||
        (inside && size <= machine.node.module_gpus))
      continue;
    const std::vector<double> ratios = fit_links(launched, {.size = size}, group.rates);
    std::vector<double> errors, messages;
    for (std::size_t i = 0; i < ratios.size(); ++i)
      if (is_message(group.rates[i].kind))
        messages.push_back(1 / ratios[i]);
      else
        errors.push_back(std::abs(ratios[i] - 1));
    keys[inside ? "node" : "network"].insert({inside ? "link_gb_s" : "gb_s", "latency_us"});
    text += fmt::format(
        "\nlinks {}: {:.4g} GB/s, {:.3g} us per hop; error of {} collectives: median {:.1f} %, "
        "90 % {:.1f} %; messages to the next rank take {:.2f} to {:.2f} times as long as "
        "modelled\n",
        inside ? "inside a node" : "between nodes",
        inside ? launched.node.link_gb_s : launched.network.gb_s,
        inside ? launched.node.latency_us : launched.network.latency_us, errors.size(),
        100 * median(errors), 100 * quantile(errors, 0.9), std::ranges::min(messages),
        std::ranges::max(messages));
  }
  machine.node.link_gb_s = launched.node.link_gb_s;
  machine.node.latency_us = launched.node.latency_us;
  machine.network = launched.network;
  return text;
}

std::vector<MeasuredTraining> train_all(const CalibrateOptions& options, Job& job,
                                        CalibrationParts& parts, const Machine& machine,
                                        DType precision) {
  const bool processor = parts.backend->device().pci.empty();
  std::vector<CalibrationModel> models;
  for (const std::string& name : options.models)
    models.push_back(calibration_model(name, processor));
  if (models.empty()) models = calibration_models(processor);
  std::erase_if(models, [&](const CalibrationModel& model) {
    return model.fp8 && (precision != DType::BF16 || machine.gpu.fp8_tflops == 0 ||
                         !parts.backend->why_no_fp8(false).empty());
  });
  const CalibrationLoad load{precision,
                             options.effort > 0 ? options.effort
                             : processor        ? 0.5
                                                : 4,
                             machine};
  std::vector<MeasuredTraining> trained;
  std::optional<Progress> progress;
  if (job.world().rank() == 0) progress.emplace("calibrate", std::ssize(models), "models");
  for (const CalibrationModel& model : models) {
    job.control().barrier();  // neighbours share power and cooling
    if (MeasuredTraining training;
        measure_training(*parts.backend, parts.trace, model, load, training))
      trained.push_back(std::move(training));
    else
      log_warning("{} is left out: one sequence does not fit into the memory", model.name);
    if (progress) progress->add(1);
  }
  if (trained.empty()) user_error("there is not enough memory for any model: choose --models");
  return trained;
}

void calibrate(const CalibrateOptions& options, Job& job, CalibrationParts& parts) {
  const OutputRule rule{options.overwrite, {options.machine}};
  const std::int64_t threads = threads_for(options.threads, job.world());
  Machine base;
  job.together([&] {
    if (!options.output.empty() && job.world().rank() == 0)
      check_output_file("--output", options.output, rule);
    parts.backend =
        make_backend(options.choice(), threads, {}, job.world().local_rank(), &parts.trace);
    const bool processor = parts.backend->device().pci.empty();
    base = load_machine(!options.machine.empty() ? options.machine : processor ? "laptop" : "h200");
    if (processor && options.machine.empty()) base = this_host(base, *parts.backend, threads);
  });
  const DType precision = !options.precision.empty()            ? parse_precision(options.precision)
                          : parts.backend->device().pci.empty() ? DType::F32
                                                                : DType::BF16;
  const double shortest_s = shortest_kernel_s(*parts.backend);
  const std::vector<MeasuredTraining> trained = train_all(options, job, parts, base, precision);
  Machine machine = calibrated(base, trained, shortest_s);
  MeasuredKeys keys = {
      {"gpu",
       {"gemm_efficiency", "attention_efficiency", "memory_efficiency", "launch_us", "speeds"}}};
  if (trained.front().watts > 0) keys["gpu"].insert("active_w");
  std::string links;
  if (job.world().size() > 1) links = measure_links(job, parts, machine, keys);
  if (job.world().rank() > 0) return;
  fmt::print("{}: {}\n{}{}", parts.backend->description(), to_string(precision),
             calibration_table(machine, trained), links);
  fmt::print(
      "gemm_efficiency {:.3f} of {:.4g} TFLOP/s, attention_efficiency {:.3f}, memory_efficiency "
      "{:.3f} of {:.4g} GB/s, launch_us {:.2f}, active_w {:.0f}\n",
      machine.gpu.gemm_efficiency, machine.gpu.tflops(precision), machine.gpu.attention_efficiency,
      machine.gpu.memory_efficiency, machine.gpu.memory_gb_s, machine.gpu.launch_us,
      machine.gpu.busy_w());
  if (options.output.empty()) return;
  const std::string source =
      fmt::format("measured {}: kintsugi calibrate",
                  iso_time(static_cast<double>(std::time(nullptr))).substr(0, 10));
  write_output_file("--output", options.output, rule,
                    fmt::format("# {}, with what kintsugi calibrate measured in {} on {}.\n{}",
                                base.name, to_string(precision), parts.backend->description(),
                                with_sources(to_yaml(machine), keys, source)));
}

void add_power_options(CLI::App& command, CalibrateOptions& options) {
  const AddOption add(command);
  CLI::Option* const power = add("--power", options.measure_power,
                                 "Train a model at several power limits and print tokens/s, W and "
                                 "J/token of each. The former limit is restored");
  const auto with_power = [&](auto&&... option) { return add(option...)->needs(power); };
  CalibratePowerOptions& o = options.power;
  with_power("--model", o.model, "Preset, YAML file or config.json of the model to train");
  with_power("--batch", o.batch, "Sequences per step (default: 1)",
             whole_number(between(1, 65536)));
  with_power("--length", o.length, "Tokens per sequence (default: the model's, at most 4096)",
             whole_number(between(1, 1 << 20)));
  with_power("--power-limits", o.limits_w,
             "Watts to try, separated by commas (default: six from the highest to the lowest)",
             real_number(between(1, 1e5)))
      ->delimiter(',');
  with_power("--clocks", o.clocks_mhz, "GPU clocks in MHz to try, separated by commas",
             whole_number(between(1, 100000)))
      ->delimiter(',');
  with_power("--seconds", o.seconds, "Seconds to measure each setting (default: 10)",
             real_number(between(2, 3600)));
  with_power("--as-is", o.as_is, "Change nothing: measure at the present power limit only");
  with_power("--json", o.as_json, "Print JSON");
  for (const char* other : {"--machine", "--output", "--overwrite", "--models", "--effort"})
    power->excludes(command.get_option(other));
  command.get_option("--as-is")->excludes("--power-limits")->excludes("--clocks");
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "calibrate", "Measure this device and write a machine description for kintsugi plan");
  const AddOption add(*command);
  const auto options = std::make_shared<CalibrateOptions>();
  add("--machine", options->machine,
      "Name or YAML file of the machine for all values that are not measured (default: this host "
      "on cpu, h200 on GPUs)");
  add("--output", options->output, "Write the machine description to this YAML file");
  add_overwrite_option(*command, options->overwrite);
  add("--device", options->device, "auto (the default), cpu, cuda or hip",
      CLI::IsMember({"auto", "cpu", "cuda", "hip"}));
  add("--precision", options->precision,
      "Precision to measure (default: fp32 on cpu, bf16 on GPUs)");
  add("--models", options->models,
      "Presets, YAML files or config.json of the models to train, separated by commas: a few "
      "layers of each (default: some that have the shapes of most models)")
      ->delimiter(',');
  add("--threads", options->threads, "CPU threads (default: all cores)",
      whole_number(between(0, 1024)));
  add("--effort", options->effort,
      "Seconds to train each model before it is measured (default: 0.5 on cpu, 4 on GPUs)",
      real_number(between(0.001, 600)));
  add_power_options(*command, *options);
  command->footer(
      "Examples:\n"
      "  kintsugi calibrate --output mine.yaml\n"
      "  kintsugi calibrate --power --model llama-1b --batch 4 --power-limits 700,600,500,400\n"
      "  kintsugi plan --model llama-tiny --machine mine.yaml --gpus 1 --batch 16");
  command->callback([options] {
    if (!options->measure_power) {
      prepare_gpu_profile();
      Job job;
      CalibrationParts parts;
      return job.run([&] { calibrate(*options, job, parts); });
    }
    if (options->power.model.empty()) user_error("--power needs --model, for example llama-1b");
    calibrate_power(options->power, options->choice(), options->precision, options->threads);
  });
}

}  // namespace kintsugi
