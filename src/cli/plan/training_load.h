#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "energy/meters/find_meters.h"
#include "plan/machines/calibration.h"
#include "train/engine.h"

namespace kintsugi {

// Training steps of a model on one device, with random tokens.
class TrainingLoad {
 public:
  TrainingLoad(Backend& backend, const ModelConfig& model, DType precision, std::int64_t batch,
               std::int64_t length);
  std::int64_t step();  // returns its tokens
  // One step as the sim backend counts it.
  OperationTrace counted();

 private:
  Engine engine_;
  std::vector<std::int32_t> ids_, targets_;
  std::int64_t step_ = 0;
};

// The meters of the GPU, or of the node or its CPUs where the CPU computes.
struct DeviceMeters {
  FoundMeters found = {};
  std::vector<Meter*> used = {};
  std::string source = {};  // "nvml gpu0 (counter)"
  std::string why = {};     // there are none
};
DeviceMeters meters_of(const std::string& pci);

// What kintsugi calibrate trains: a micro-batch of some layers of a model.
struct CalibrationModel {
  std::string name = {};
  std::int64_t layers = 0, batch = 1, length = 0, vocabulary = 0;  // 0: the model's
  bool fp8 = false;
};
// Shapes of layers as in training: heads of 64 and 128, both norms and activations, retention.
std::vector<CalibrationModel> calibration_models(bool processor);
// The given model with as many tokens as those have.
CalibrationModel calibration_model(const std::string& name, bool processor);

struct CalibrationLoad {
  DType precision = DType::F32;
  double seconds = 4;    // of steps before those that are measured, and half as long of those
  Machine machine = {};  // to find batches that fit
};
// Fills `training`; false: not even one sequence fits into the memory.
bool measure_training(Backend& backend, Trace& trace, const CalibrationModel& model,
                      const CalibrationLoad& load, MeasuredTraining& training);
// Of the shortest kernel, with the gap to the next one.
double shortest_kernel_s(Backend& backend);

}  // namespace kintsugi
