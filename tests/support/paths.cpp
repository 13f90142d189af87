#include "support/paths.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

namespace kintsugi {

std::string source_directory() { return KINTSUGI_SOURCE; }
std::string test_data_directory() { return KINTSUGI_SOURCE "/tests/data"; }
std::string kintsugi_binary() {
  const char* other = std::getenv("KINTSUGI_BINARY");
  return other != nullptr && *other != '\0' ? other : KINTSUGI_BINARY;
}
std::string fake_library(const std::string& name) {
  return KINTSUGI_FAKES "/libfake_" + name + ".so";
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kintsugi
