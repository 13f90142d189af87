#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"

namespace kintsugi {

// kintsugi calibrate --power.
struct CalibratePowerOptions {
  std::string model;
  std::int64_t batch = 1, length = 0;  // sequences per step; 0: the model's positions, at most 4096
  std::vector<double> limits_w = {};
  std::vector<int> clocks_mhz = {};
  double seconds = 10;
  bool as_is = false, as_json = false;
};

void calibrate_power(const CalibratePowerOptions& options, DeviceChoice device,
                     const std::string& precision, std::int64_t threads);

}  // namespace kintsugi
