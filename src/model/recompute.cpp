#include "model/recompute.h"

#include "core/error.h"

namespace kintsugi {

std::string_view to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::None:
      return "none";
    case Recompute::Selective:
      return "selective";
    case Recompute::Full:
      return "full";
  }
  return "?";
}

Recompute parse_recompute(std::string_view text) {
  for (const Recompute mode : {Recompute::None, Recompute::Selective, Recompute::Full})
    if (text == to_string(mode)) return mode;
  user_error("'{}' is not a recompute mode: none, selective or full", text);
}

}  // namespace kintsugi
