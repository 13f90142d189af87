#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "core/shared_library.h"

namespace kintsugi {

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
