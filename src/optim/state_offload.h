#pragma once

#include <cstdint>
#include <string_view>

namespace kintsugi {

// Where offloaded optimizer state is updated. Auto: all ranks measure both in the first steps and
// take the faster one.
enum class UpdateLocation : std::uint8_t { Auto, Device, Host };
std::string_view to_string(UpdateLocation location);

struct StateOffload {
  bool on = false;         // optimizer state is stored in host memory
  bool gradients = false;  // gradients too, except for one or two layers
  UpdateLocation update = UpdateLocation::Auto;
  std::int64_t block_elements = std::int64_t{1} << 22;  // elements of state per transfer
};

}  // namespace kintsugi
