#include "cli/plan/calibrate_power.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "cli/backends.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/table.h"
#include "energy/meters/choose_meters.h"
#include "energy/power/power_sweep.h"
#include "train/engine.h"
#include "train/stop_requests.h"

namespace kintsugi {
namespace {

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

}  // namespace

void calibrate_power(const CalibratePowerOptions& options, DeviceChoice device,
                     const std::string& precision, std::int64_t threads) {
  ModelConfig model = resolve_model(options.model);
  const std::int64_t length =
      options.length > 0 ? options.length : std::min<std::int64_t>(model.max_positions, 4096);
  model.max_positions = std::max(model.max_positions, length);
  const std::unique_ptr<Backend> backend = make_backend(device, threads);
  const std::string pci = cuda_device_of(*backend).pci;
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

}  // namespace kintsugi
