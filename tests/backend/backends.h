#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/gpu_backend.h"

namespace kintsugi {

// A backend that the operation tests run on, with the precisions it computes in.
struct TestBackend {
  std::string name;
  std::vector<DType> precisions;
  std::function<std::unique_ptr<Backend>()> make;
  std::string variant = {};  // of those with one name
};

// Whether the GPU is emulated (tests/emulator). Tests then take smaller sizes: a thread of a kernel
// takes about a microsecond.
inline bool is_emulated() {
  static const bool emulated = [] {
    if (gpu_platform() != "hip") return gpu_platform() == "emulated";
    const std::vector<Device> devices = gpu_devices();
    return !devices.empty() && devices.front().name.starts_with("emulated");
  }();
  return emulated;
}
inline bool is_brief(std::int64_t elements) { return !is_emulated() || elements <= 70'000; }

// Whether this program can use a GPU of this machine. Asking its driver takes seconds, and this is
// asked wherever tests are listed, which every process of the test program does.
inline bool gpu_is_present() {
  if (is_emulated()) return true;
  if (gpu_platform() == "hip") return std::filesystem::exists("/dev/kfd");
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool hidden = visible != nullptr && (*visible == '\0' || *visible == '-');
  return !gpu_library_versions().empty() && !hidden && std::filesystem::exists("/dev/nvidiactl");
}

// The backends whose device this machine has.
inline const std::vector<TestBackend>& backends() {
  static const std::vector<TestBackend> all = [] {
    const std::vector<DType> precisions = {DType::F64, DType::F32, DType::BF16, DType::F16};
    std::vector<TestBackend> present = {{"cpu", precisions, [] { return make_cpu_backend(); }}};
    // An emulated GPU of AMD has no fp64: its attention needs more than 64 KiB of shared memory.
    const bool without_f64 = is_emulated() && gpu_platform() == "hip";
    if (gpu_is_present())
      present.push_back(
          {gpu_platform(),
           without_f64 ? std::vector{DType::F32, DType::BF16, DType::F16} : precisions,
           [] { return make_gpu_backend({.host = make_cpu_backend()}); }});
    return present;
  }();
  return all;
}

// One backend in one precision: the parameter of every operation test.
struct Setting {
  TestBackend backend;
  DType type;
};

// Both kinds of kernels have tests on an emulated GPU with warpgroups: in fp16 it has none, as GPUs
// before Hopper. tests/emulator/runtime.cpp reads the variable.
inline TestBackend without_warpgroups(TestBackend backend) {
  if (backend.name == "cpu" || !is_emulated()) return backend;
  backend.make = [make = backend.make] {
    setenv("KINTSUGI_EMULATE_NO_WARPGROUPS", "1", 1);
    auto made = make();
    unsetenv("KINTSUGI_EMULATE_NO_WARPGROUPS");
    return made;
  };
  backend.variant = "without warpgroups";
  return backend;
}

inline std::vector<Setting> settings(const std::vector<DType>& only = {DType::F64, DType::F32,
                                                                       DType::BF16, DType::F16}) {
  std::vector<Setting> result;
  for (const TestBackend& backend : backends())
    for (const DType type : backend.precisions)
      if (std::find(only.begin(), only.end(), type) != only.end())
        result.push_back({type == DType::F16 ? without_warpgroups(backend) : backend, type});
  return result;
}

inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.backend.name << " " << to_string(setting.type);
}

}  // namespace kintsugi
