#include "energy/meters/find_meters.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "energy/meters/pci.h"

namespace kintsugi {
namespace {

class ConstantPower : public Meter {
 public:
  ConstantPower(MeterIdentity identity, double watts) : Meter(std::move(identity)), watts_(watts) {}
  MeterReading read() override { return {.watts = watts_}; }

 private:
  double watts_;
};

// The watts that the user gave for the whole node.
void add_estimate(const MeterSearch& search, FoundMeters& found) {
  if (!(search.node_w > 0))
    return found.missing.push_back(
        {"estimate", "no watts are given for a node (energy.node_w, kintsugi energy --node-w)"});
  found.meters.push_back(std::make_unique<ConstantPower>(
      MeterIdentity{.source = "estimate",
                    .scope = "node",
                    .level = EnergyLevel::Node,
                    .kind = MeterKind::Estimate,
                    .detail = fmt::format("{:g} W per node, as given", search.node_w)},
      search.node_w));
}

using AddMeters = void (*)(const MeterSearch&, FoundMeters&);
struct MeterSource {
  const char* name;
  AddMeters add;
  AddMeters otherwise = nullptr;  // also called; it looks at what `add` has found
  bool only_gpus = false;
};
// The order of the meters in a list; choose_meters decides which of them are used.
constexpr MeterSource kMeterSources[] = {
    {"pm_counters", add_pm_counters},             //
    {"nvml", add_nvml, nullptr, true},            //
    {"amdsmi", add_amdsmi, add_amd_sysfs, true},  // the files only without the library
    {"rapl", add_rapl},                           //
    {"hwmon", add_hwmon},                         //
    {"ear", add_ear},                             //
    {"slurm", add_slurm},                         //
    {"estimate", add_estimate},                   //
};

// One source in a thread of its own: a library may never answer.
struct SourceSearch {
  std::mutex mutex = {};
  std::condition_variable changed = {};
  bool done = false;
  FoundMeters found = {};
};

FoundMeters search_source(const MeterSource& source, const MeterSearch& search) {
  FoundMeters found;
  if (source.only_gpus && search.without_gpus()) {
    found.missing.push_back({source.name, kNoGpuInUse});
    return found;
  }
  for (const AddMeters add : {source.add, source.otherwise}) try {
      if (add != nullptr) add(search, found);
    } catch (const std::exception& error) {
      found.missing.push_back({source.name, error.what()});
    }
  return found;
}

std::shared_ptr<SourceSearch> start_search(const MeterSource& source, const MeterSearch& search) {
  auto state = std::make_shared<SourceSearch>();
  std::thread([state, &source, search] {
    FoundMeters found = search_source(source, search);
    const std::lock_guard lock(state->mutex);
    state->found = std::move(found);
    state->done = true;
    state->changed.notify_all();
  }).detach();
  return state;
}

}  // namespace

FoundMeters find_meters(const MeterSearch& search, double limit_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  std::vector<std::shared_ptr<SourceSearch>> searches;
  for (const MeterSource& source : kMeterSources) searches.push_back(start_search(source, search));
  FoundMeters found;
  found.node_gpus = count_gpus(search.root);
  for (std::size_t i = 0; i < searches.size(); ++i) {
    SourceSearch& one = *searches[i];
    std::unique_lock lock(one.mutex);
    if (!one.changed.wait_until(lock, deadline, [&] { return one.done; })) {
      found.missing.push_back({kMeterSources[i].name, fmt::format("no answer in {:g} s", limit_s)});
      continue;
    }
    std::ranges::move(one.found.meters, std::back_inserter(found.meters));
    std::ranges::move(one.found.missing, std::back_inserter(found.missing));
  }
  return found;
}

}  // namespace kintsugi
