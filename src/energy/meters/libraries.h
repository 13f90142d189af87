#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/shared_library.h"

namespace kintsugi {

// NVIDIA's management library, initialized while the object exists. It is loaded at run time and
// needs no header. Thread-safe.
class Nvml {
 public:
  using Device = void*;
  // The codes of NVML that mean something here.
  static constexpr int kSuccess = 0, kNotSupported = 3, kNoPermission = 4, kTooSmall = 7;

  explicit Nvml(const std::filesystem::path& root);  // Failure with the reason in one line
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // One GPU of the node, or why it cannot be used.
  struct Gpu {
    Device device = nullptr;
    std::string pci = {}, name = {};
    std::string problem = {};  // empty: none
  };
  // With addresses: exactly those, in their order. NVML ignores CUDA_VISIBLE_DEVICES, therefore no
  // CUDA index is used. Otherwise all GPUs, in NVML's order.
  std::vector<Gpu> gpus(const std::optional<std::vector<std::string>>& addresses) const;
  bool has_mig(Device device) const;  // the GPU is divided into instances

  template <class... Args>
  std::optional<int> call(const char* function, Args... args) const {
    return library_.call(function, args...);
  }
  // What the answer of `function` means, in words.
  std::string error_text(const char* function, std::optional<int> code) const;
  // The value of a GPU; empty if it has none. `why` becomes the reason.
  template <class Value>
  std::optional<Value> value(const char* function, Device device, std::string* why) const {
    Value result = 0;
    const std::optional<int> code = call(function, device, &result);
    if (code == kSuccess) return result;
    if (why != nullptr) *why = error_text(function, code);
    return std::nullopt;
  }

 private:
  Gpu describe(Device device) const;

  SharedLibrary library_;
};

// The connection of this process to the daemon of EAR (Energy Aware Runtime) on its node. A process
// has one, which meters and control share. Thread-safe.
class Ear {
 public:
  // The connection below this root, made if there is none. Failure with the reason in one line.
  static std::shared_ptr<Ear> connect(const std::filesystem::path& root);
  explicit Ear(const std::filesystem::path& root);
  ~Ear();
  Ear(const Ear&) = delete;
  Ear& operator=(const Ear&) = delete;

  struct Energy {
    double joules, time_s;  // of the node, and the daemon's clock
  };
  Energy energy() const;
  // Limits the clock of a GPU, by the daemon's (NVML's) number. Returns false if it was refused.
  bool set_gpu_clock(int gpu, double mhz) const;

 private:
  mutable std::mutex mutex_;
  SharedLibrary library_;
};

}  // namespace kintsugi
