#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "energy/meters/find_meters.h"

namespace kintsugi {

// The record of a power limit (PowerControl): tmp/kintsugi-power-UID-PCI below the root.
std::filesystem::path power_record_file(const std::filesystem::path& root, const std::string& pci);

// The driver does not let this process change a value. The message names the GPU, who refused it
// and the remedy.
class ControlRefused : public Failure {
 public:
  using Failure::Failure;
};

// Watts or MHz.
struct ControlRange {
  double low = 0, high = 0;
};

// The settings of one GPU. Empty values: the GPU or its driver has no such setting.
class GpuControl {
 public:
  // `pci`: as pci_address() writes it. The name has it too.
  GpuControl(std::string name, std::string pci) : name_(std::move(name)), pci_(std::move(pci)) {}
  virtual ~GpuControl() = default;
  GpuControl(const GpuControl&) = delete;
  GpuControl& operator=(const GpuControl&) = delete;

  const std::string& name() const { return name_; }  // with the PCI address, for messages
  const std::string& pci() const { return pci_; }
  virtual std::optional<double> power_limit_w() const = 0;
  virtual std::optional<ControlRange> power_range_w() const = 0;
  virtual std::vector<int> clocks_mhz() const { return {}; }  // supported ones, the highest first
  // These return the reason if the driver refused it, otherwise "".
  virtual std::string set_power_limit(double watts) = 0;
  virtual std::string lock_clock(int mhz);
  virtual std::string unlock_clock();

 private:
  std::string name_, pci_;
};

// The power limit and the clock of the GPUs of one node, set to one value on all of them. The
// former values are restored by restore() and by the destructor. A limit that a killed process of
// this user left behind (PowerRecord) is restored too. restore() may be called from any thread.
class PowerControl {
 public:
  // The GPUs of `search`. Never throws for what a machine lacks:
  // then there are no GPUs, and problem() says why.
  explicit PowerControl(const MeterSearch& search);
  explicit PowerControl(std::string problem) : problem_(std::move(problem)) {}  // of no GPUs
  ~PowerControl();
  PowerControl(const PowerControl&) = delete;
  PowerControl& operator=(const PowerControl&) = delete;

  std::size_t gpus() const { return gpus_.size(); }
  const std::string& problem() const { return problem_; }

  std::optional<double> power_limit_w() const;        // the lowest of all GPUs
  std::optional<ControlRange> power_range_w() const;  // which every GPU allows
  std::vector<int> clocks_mhz() const;                // which every GPU supports, the highest first

  // UserError for a value that is not allowed, with those that are. Nothing without GPUs.
  void check_power_limit(double watts) const;
  void check_clock(int mhz) const;
  // On all GPUs or on none. These check the value; ControlRefused if the driver refuses it.
  void set_power_limit(double watts);
  void lock_clock(int mhz);
  // Returns what could not be restored, one line; "": everything was.
  std::string restore();

 private:
  struct Held {
    std::unique_ptr<GpuControl> gpu;
    std::filesystem::path record = {};    // of its limit
    std::optional<double> former_w = {};  // of a limit that was changed
    bool locked = false;
  };
  void need_gpus() const;
  std::string set_limit(Held& held, double watts);
  std::string restore_all();

  std::mutex mutex_;  // guards the settings of the GPUs
  std::vector<Held> gpus_;
  std::string problem_;
};

// The GPUs that a driver offers; Failure with the reason if it offers none.
std::vector<std::unique_ptr<GpuControl>> nvml_controls(const MeterSearch& search);
std::vector<std::unique_ptr<GpuControl>> amd_controls(const MeterSearch& search);

}  // namespace kintsugi
