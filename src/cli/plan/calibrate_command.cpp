#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <thread>

#include "cli/backends.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan/calibrate_power.h"
#include "comm/socket.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "plan/machines/calibration.h"

namespace kintsugi {
namespace {

struct CalibrateOptions {
  std::string machine, output, device = "auto", precision;
  std::int64_t size = 0, threads = 0;
  double effort = 0.2;
  bool measure_power = false, overwrite = false;
  CalibratePowerOptions power = {};

  DeviceChoice choice() const {
    return device == "cpu"    ? DeviceChoice::Cpu
           : device == "cuda" ? DeviceChoice::Cuda
                              : DeviceChoice::Auto;
  }
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
  const auto only_with_power = [&](CLI::Option* option) { return option->needs(power); };
  only_with_power(command.add_option("--model", options.power.model,
                                     "Preset, YAML file or config.json of the model to train"));
  only_with_power(
      command.add_option("--batch", options.power.batch, "Sequences per step (default: 1)"))
      ->transform(whole_number(between(1, 65536)));
  only_with_power(command.add_option("--length", options.power.length,
                                     "Tokens per sequence (default: the model's, at most 4096)"))
      ->transform(whole_number(between(1, 1 << 20)));
  only_with_power(
      command.add_option(
          "--power-limits", options.power.limits_w,
          "Watts to try, separated by commas (default: six from the highest to the lowest)"))
      ->delimiter(',')
      ->transform(real_number(between(1, 1e5)));
  only_with_power(command.add_option("--clocks", options.power.clocks_mhz,
                                     "GPU clocks in MHz to try, separated by commas"))
      ->delimiter(',')
      ->transform(whole_number(between(1, 100000)));
  only_with_power(command.add_option("--seconds", options.power.seconds,
                                     "Seconds to measure each setting (default: 10)"))
      ->transform(real_number(between(2, 3600)));
  only_with_power(command.add_flag("--as-is", options.power.as_is,
                                   "Change nothing: measure at the present power limit only"));
  only_with_power(command.add_flag("--json", options.power.as_json, "Print JSON"));
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
      "on cpu, h200 on cuda)");
  add("--output", options->output, "Write the machine description to this YAML file");
  add_overwrite_option(*command, options->overwrite);
  add("--device", options->device, "auto (the default), cpu or cuda",
      CLI::IsMember({"auto", "cpu", "cuda"}));
  add("--precision", options->precision,
      "Precision to measure (default: fp32 on cpu, bf16 on cuda)");
  add("--size", options->size, "Largest matrix dimension (default: 1024 on cpu, 8192 on cuda)",
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
