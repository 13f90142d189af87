#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "core/error.h"
#include "core/shared_library.h"
#include "energy/meters/find_meters.h"
#include "energy/meters/sysfs.h"

namespace kintsugi {
namespace {

using AmdHandle = void*;

// ROCm's AMD SMI, initialized for GPUs while the object exists.
class AmdSmi {
 public:
  explicit AmdSmi(const std::filesystem::path& root)
      : library_(root,
                 {.files = {"libamd_smi.so"}, .folders = {"opt/rocm/lib", "opt/rocm/lib64"}}) {
    constexpr std::uint64_t gpus = 1U << 1;
    check("amdsmi_init", library_.call("amdsmi_init", gpus));
    // Since version 25 (ROCm 6.4) the power structure begins with a 64-bit field. The first number
    // of the version was the year before, and is the major version since.
    std::array<std::uint32_t, 16> version{};
    new_power_ = library_.call("amdsmi_get_lib_version", version.data()) == 0 && version[0] >= 25;
  }
  ~AmdSmi() { library_.call("amdsmi_shut_down"); }
  AmdSmi(const AmdSmi&) = delete;
  AmdSmi& operator=(const AmdSmi&) = delete;

  std::vector<AmdHandle> processors() const {
    std::vector<AmdHandle> all;
    for (AmdHandle socket : list("amdsmi_get_socket_handles"))
      for (AmdHandle processor : list("amdsmi_get_processor_handles", socket))
        all.push_back(processor);
    return all;
  }

  std::string pci(AmdHandle gpu) const {
    std::uint64_t bits = 0;  // function 3, device 5, bus 8, domain 48
    check("amdsmi_get_gpu_device_bdf", library_.call("amdsmi_get_gpu_device_bdf", gpu, &bits));
    return pci_address(static_cast<unsigned>(bits >> 16), static_cast<unsigned>(bits >> 8 & 0xff),
                       static_cast<unsigned>(bits >> 3 & 0x1f), static_cast<unsigned>(bits & 7));
  }

  struct Energy {
    double joules, time_s;
  };
  Energy energy(AmdHandle gpu) const {
    std::uint64_t count = 0, time_ns = 0;
    float unit_uj = 0;
    check("amdsmi_get_energy_count",
          library_.call("amdsmi_get_energy_count", gpu, &count, &unit_uj, &time_ns));
    return {static_cast<double>(count) * static_cast<double>(unit_uj) * 1e-6,
            static_cast<double>(time_ns) * 1e-9};
  }

  std::optional<double> watts(AmdHandle gpu) const {
    std::array<std::uint32_t, 128> info;  // larger than the structure of any version
    info.fill(0xffffffff);
    if (library_.call("amdsmi_get_power_info", gpu, info.data()) != 0) return std::nullopt;
    // The present power, else the average: a GPU has one of them, the other is 0 or all ones.
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
      if (const std::uint32_t value = info[i + (new_power_ ? 2 : 0)]; value > 0 && value < 0xffff)
        return value;
    return std::nullopt;
  }

 private:
  void check(const char* function, std::optional<int> code) const {
    if (!code) failure("this library has no {}", function);
    if (*code == 0) return;
    const char* words = nullptr;
    library_.call("amdsmi_status_code_to_string", *code, &words);
    failure("{}: {}", function, words != nullptr ? words : fmt::format("error {}", *code));
  }
  template <class... Of>
  std::vector<AmdHandle> list(const char* function, Of... of) const {
    std::uint32_t count = 0;
    check(function, library_.call(function, of..., &count, static_cast<AmdHandle*>(nullptr)));
    std::vector<AmdHandle> handles(std::min<std::uint32_t>(count, 1024));
    count = static_cast<std::uint32_t>(handles.size());
    if (count > 0) check(function, library_.call(function, of..., &count, handles.data()));
    handles.resize(std::min<std::size_t>(count, handles.size()));
    return handles;
  }

  SharedLibrary library_;
  bool new_power_ = false;
};

class AmdSmiMeter : public Meter {
 public:
  AmdSmiMeter(MeterIdentity identity, std::shared_ptr<const AmdSmi> smi, AmdHandle gpu)
      : Meter(std::move(identity)), smi_(std::move(smi)), gpu_(gpu) {}

  MeterReading read() override {
    MeterReading reading{.watts = smi_->watts(gpu_)};
    if (identity().kind == MeterKind::Counter) {
      const AmdSmi::Energy energy = smi_->energy(gpu_);
      reading.joules = energy.joules;
      if (energy.time_s > 0) reading.time_s = energy.time_s;
    } else if (!reading.watts) {
      failure("{}: AMD SMI reports no power", identity().detail);
    }
    return reading;
  }

 private:
  std::shared_ptr<const AmdSmi> smi_;
  AmdHandle gpu_;
};

// What AMD SMI reports of one GPU.
struct Reported {
  AmdHandle gpu = nullptr;
  std::string pci = {};
  std::optional<MeterKind> kind = {};  // empty: nothing
  std::string why = {};                // it reports nothing
};

// A counter that is 0 counts nothing: the GPU is the second die of a module, or has power only.
Reported reported_by(const AmdSmi& smi, AmdHandle gpu) {
  Reported one{.gpu = gpu, .pci = smi.pci(gpu), .why = "its counter and its power are 0"};
  try {
    if (smi.energy(gpu).joules > 0) one.kind = MeterKind::Counter;
  } catch (const Failure& error) {
    one.why = error.what();
  }
  if (!one.kind && smi.watts(gpu)) one.kind = MeterKind::Power;
  return one;
}

// In the order of their addresses the two dies of a module are neighbours.
std::vector<Reported> all_reported(const AmdSmi& smi) {
  std::vector<Reported> all;
  for (AmdHandle gpu : smi.processors()) all.push_back(reported_by(smi, gpu));
  std::sort(all.begin(), all.end(),
            [](const Reported& a, const Reported& b) { return a.pci < b.pci; });
  return all;
}

std::vector<std::string> wanted_addresses(const MeterSearch& search, const AmdSmi& smi) {
  std::vector<std::string> addresses;
  if (search.gpus)
    for (const std::string& gpu : *search.gpus) addresses.push_back(pci_address(gpu));
  else
    for (AmdHandle gpu : smi.processors()) addresses.push_back(smi.pci(gpu));
  return addresses;
}

}  // namespace

void add_amdsmi(const MeterSearch& search, FoundMeters& found) {
  if (search.rccl)
    return found.missing.push_back(
        {"amdsmi", "not used beside RCCL, which loads ROCm SMI: the two fail together"});
  try {
    const auto smi = std::make_shared<const AmdSmi>(search.root);
    const std::vector<Reported> all = all_reported(*smi);
    const std::vector<std::string> wanted = wanted_addresses(search, *smi);
    if (all.empty()) found.missing.push_back({"amdsmi", "AMD SMI finds no GPU"});
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const std::string scope = fmt::format("gpu{}", i), &pci = wanted[i];
      const auto one =
          std::find_if(all.begin(), all.end(), [&](const Reported& gpu) { return gpu.pci == pci; });
      if (one == all.end()) {
        found.missing.push_back(
            {"amdsmi", fmt::format("{}: AMD SMI does not know this GPU", pci), scope});
      } else if (one->kind) {
        found.meters.push_back(
            std::make_unique<AmdSmiMeter>(MeterIdentity{.source = "amdsmi",
                                                        .scope = scope,
                                                        .level = EnergyLevel::Gpu,
                                                        .kind = *one->kind,
                                                        .detail = fmt::format("AMD GPU {}", pci)},
                                          smi, one->gpu));
      } else if (one != all.begin() && std::prev(one)->kind &&
                 may_be_a_die(search.root / "sys/bus/pci/devices" / pci)) {
        const std::string& first = std::prev(one)->pci;
        const auto at = std::find(wanted.begin(), wanted.end(), first);
        found.missing.push_back(second_die(
            scope,
            at == wanted.end() ? std::nullopt
                               : std::optional(static_cast<std::size_t>(at - wanted.begin())),
            first));
      } else {
        found.missing.push_back({"amdsmi", fmt::format("{}: {}", pci, one->why), scope});
      }
    }
  } catch (const Failure& error) {
    found.missing.push_back({"amdsmi", error.what()});
  }
}

}  // namespace kintsugi
