#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "comm/socket.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/table.h"
#include "energy/meters/find_meters.h"
#include "energy/power/power_sweep.h"
#include "plan/machines/calibration.h"
#include "train/config/keys.h"
#include "train/engine.h"
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

// Training steps of a model on one device, with random tokens.
class PowerWorkload {
 public:
  PowerWorkload(Backend& backend, const ModelConfig& model, DType precision, std::int64_t batch,
                std::int64_t length)
      : engine_(backend, backend,
                {.model = model,
                 .precision = precision,
                 .layout = {.micro_batch = batch},
                 .batch = batch,
                 .length = length}),
        ids_(static_cast<std::size_t>(batch * length)),
        targets_(ids_.size()) {
    engine_.initialize(1);
    std::mt19937 random(1);
    for (std::int32_t& id : ids_)
      id = static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(model.vocab_size));
    std::rotate_copy(ids_.begin(), ids_.begin() + 1, ids_.end(), targets_.begin());
  }
  std::int64_t step() {
    engine_.step({ids_, targets_}, {.step = ++step_, .lr = 1e-5});
    return static_cast<std::int64_t>(ids_.size());
  }

 private:
  Engine engine_;
  std::vector<std::int32_t> ids_, targets_;
  std::int64_t step_ = 0;
};

struct DeviceMeters {
  FoundMeters found;
  std::vector<Meter*> used;
  std::string source;  // "nvml gpu0 (counter)"
};

// The meters of the GPU, or of the node or its CPUs where the CPU computes.
DeviceMeters meters_of(const std::string& pci) {
  MeterSearch search{.gpus = std::vector<std::string>()};
  if (!pci.empty()) search.gpus->push_back(pci);
  DeviceMeters meters{.found = find_meters(search), .used = {}, .source = {}};
  const std::vector<EnergyLevel> levels = pci.empty()
                                              ? std::vector{EnergyLevel::Node, EnergyLevel::Cpu}
                                              : std::vector{EnergyLevel::Gpu};
  const ChosenMeters chosen = choose_meters(meters.found, search, find_node_share(search.root));
  std::string why;
  for (const EnergyLevel level : levels) {
    if (!meters.used.empty()) break;
    why += fmt::format("{}{}", why.empty() ? "" : "; ", chosen[level].reason);
    for (const std::size_t index : chosen[level].meters) {
      const MeterIdentity& identity = meters.found.meters[index]->identity();
      meters.used.push_back(meters.found.meters[index].get());
      meters.source += fmt::format("{}{} {} ({})", meters.source.empty() ? "" : ", ",
                                   identity.source, identity.scope, to_string(identity.kind));
    }
  }
  if (!meters.used.empty()) return meters;
  user_error("--power needs an energy meter of {}, and there is none: {}",
             pci.empty() ? "this node" : "GPU " + pci, why);
}

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
  // Before the limits are changed, so that Ctrl-C and errors restore them on the way out.
  const StopSignals signals;
  const auto control = pci.empty()
                           ? std::make_shared<PowerControl>(
                                 std::string("the power of a CPU cannot be set from here"))
                           : std::make_shared<PowerControl>(MeterSearch{.gpus = std::vector{pci}});
  before_second_interrupt([weak = std::weak_ptr(control)] {
    if (const auto held = weak.lock()) held->restore();
  });
  PowerWorkload workload(*backend, model, dtype, options.batch, length);
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
  std::int64_t size = 0, threads = 0;
  double effort = 0.2;
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

void calibrate(const CalibrateOptions& options) {
  const OutputRule rule{options.overwrite, {options.machine}};
  if (!options.output.empty()) check_output_file("--output", options.output, rule);
  const std::unique_ptr<Backend> backend = make_backend(options.choice(), options.threads);
  const bool processor = backend->description().starts_with("cpu");
  const Machine given = load_machine(!options.machine.empty() ? options.machine
                                     : processor              ? "laptop"
                                                              : "h200");
  const Machine base =
      processor && options.machine.empty() ? this_host(given, *backend, options.threads) : given;
  const DType precision = !options.precision.empty() ? parse_precision(options.precision)
                          : processor                ? DType::F32
                                                     : DType::BF16;
  const std::int64_t size = options.size > 0 ? options.size : processor ? 1024 : 8192;
  const auto measured = [&] {
    Progress progress("calibrate", 0, "operations");
    return measure_operations(*backend, precision, size, options.effort, progress.callback());
  }();
  const Machine machine = calibrated(base, measured);
  fmt::print("{}: {}\n{}", backend->description(), to_string(precision),
             calibration_table(machine, measured));
  fmt::print(
      "gemm_efficiency {:.3f} of {:.4g} TFLOP/s, attention_efficiency {:.3f}, memory_efficiency "
      "{:.3f} of {:.4g} GB/s, launch_us {:.2f}\n",
      machine.gpu.gemm_efficiency, machine.gpu.tflops(precision), machine.gpu.attention_efficiency,
      machine.gpu.memory_efficiency, machine.gpu.memory_gb_s, machine.gpu.launch_us);
  if (options.output.empty()) return;
  write_output_file(
      "--output", options.output, rule,
      fmt::format("# {}, with efficiencies measured by kintsugi calibrate in {} on {}.\n{}",
                  base.name, to_string(precision), backend->description(), to_yaml(machine)));
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
  for (const char* other : {"--machine", "--output", "--overwrite", "--size", "--effort"})
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
  add("--size", options->size, "Largest matrix dimension (default: 1024 on cpu, 8192 on GPUs)",
      whole_number(between(64, 65536)));
  add("--threads", options->threads, "CPU threads (default: all cores)",
      whole_number(between(0, 1024)));
  add("--effort", options->effort, "Seconds to measure each operation (default: 0.2)",
      real_number(between(0.001, 60)));
  add_power_options(*command, *options);
  command->footer(
      "Examples:\n"
      "  kintsugi calibrate --output mine.yaml\n"
      "  kintsugi calibrate --power --model llama-1b --batch 4 --power-limits 700,600,500,400\n"
      "  kintsugi plan --model llama-tiny --machine mine.yaml --gpus 1 --batch 16");
  command->callback([options] {
    if (!options->measure_power) return calibrate(*options);
    if (options->power.model.empty()) user_error("--power needs --model, for example llama-1b");
    calibrate_power(options->power, options->choice(), options->precision, options->threads);
  });
}

}  // namespace kintsugi
