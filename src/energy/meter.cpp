#include "energy/meter.h"

namespace kintsugi {

std::string_view to_string(EnergyLevel level) {
  constexpr std::array<std::string_view, 4> words = {"gpu", "cpu", "memory", "node"};
  return words[static_cast<std::size_t>(level)];
}

std::string_view to_string(MeterKind kind) {
  constexpr std::array<std::string_view, 3> words = {"counter", "power", "estimate"};
  return words[static_cast<std::size_t>(kind)];
}

}  // namespace kintsugi
