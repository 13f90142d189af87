#include "core/error.h"

#include <string_view>

namespace kintsugi::detail {

void check_failed(const char* expression, const char* file, int line, const std::string& message) {
  std::string_view place = file;
  if (const auto at = place.find("/src/"); at != std::string_view::npos)
    place.remove_prefix(at + 1);
  throw Failure(fmt::format("{} [{} is false at {}:{}]", message, expression, place, line));
}

}  // namespace kintsugi::detail
