#pragma once

#include <cstdint>
#include <string_view>

namespace kintsugi {

// Who computes the update of a state in host memory. Auto: whoever is faster in the first steps;
// all ranks together.
enum class UpdatePlace : std::uint8_t { Auto, Device, Host };
std::string_view to_string(UpdatePlace place);

struct StateOffload {
  bool on = false;         // the optimizer's state lies in host memory
  bool gradients = false;  // and so do gradients, but for a layer or two
  UpdatePlace update = UpdatePlace::Auto;
  std::int64_t piece = std::int64_t{1} << 22;  // elements of the state that travel together
};

}  // namespace kintsugi
