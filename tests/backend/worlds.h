#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"

namespace kintsugi {

// A world that the operation tests run in, with the precisions it computes in.
struct TestWorld {
  std::string name;
  std::vector<DType> precisions;
  std::function<std::unique_ptr<Backend>()> make;
};

// The worlds whose device this machine has.
inline const std::vector<TestWorld>& worlds() {
  static const std::vector<TestWorld> all = [] {
    const std::vector<DType> precisions = {DType::F64, DType::F32, DType::BF16, DType::F16};
    std::vector<TestWorld> present = {{"cpu", precisions, [] { return make_cpu_backend(); }}};
    if (cuda_device_count() > 0)
      present.push_back(
          {"cuda", precisions, [] { return make_cuda_backend({.host = make_cpu_backend()}); }});
    return present;
  }();
  return all;
}

// One world in one precision: the parameter of every operation test.
struct Setting {
  TestWorld world;
  DType type;
};

inline std::vector<Setting> settings(const std::vector<DType>& only = {DType::F64, DType::F32,
                                                                       DType::BF16, DType::F16}) {
  std::vector<Setting> result;
  for (const TestWorld& world : worlds())
    for (const DType type : world.precisions)
      if (std::find(only.begin(), only.end(), type) != only.end()) result.push_back({world, type});
  return result;
}

inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.world.name << " " << to_string(setting.type);
}

}  // namespace kintsugi
