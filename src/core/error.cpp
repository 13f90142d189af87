#include "core/error.h"

#include <string_view>

namespace kintsugi::detail {

void check_failed(const char* expression, const char* file, int line, const std::string& message) {
  std::string_view path = file;
  if (const auto at = path.find("/src/"); at != std::string_view::npos) path.remove_prefix(at + 1);
  throw Failure(fmt::format("{} [{} is false at {}:{}]", message, expression, path, line));
}

}  // namespace kintsugi::detail
