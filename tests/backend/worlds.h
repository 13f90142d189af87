#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace kintsugi {

// A world that the operation tests run in, with the precisions it computes in.
struct World {
  std::string name;
  std::vector<DType> precisions;
  std::function<std::unique_ptr<Backend>()> make;
};

// The worlds present. Another one adds itself from its own file, before main(), when its device is
// there:
//   static const bool added = (worlds().push_back({"cuda", {…}, make_cuda_backend}), true);
inline std::vector<World>& worlds() {
  static std::vector<World> all = {{"cpu", {DType::F64, DType::F32, DType::BF16, DType::F16}, [] {
                                      return make_cpu_backend();
                                    }}};
  return all;
}

// One world in one precision: the parameter of every operation test.
struct Setting {
  World world;
  DType type;
};

inline std::vector<Setting> settings(const std::vector<DType>& only = {DType::F64, DType::F32,
                                                                       DType::BF16, DType::F16}) {
  std::vector<Setting> result;
  for (const World& world : worlds())
    for (const DType type : world.precisions)
      if (std::find(only.begin(), only.end(), type) != only.end()) result.push_back({world, type});
  return result;
}

inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.world.name << " " << to_string(setting.type);
}

}  // namespace kintsugi
