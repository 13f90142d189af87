#include "support/paths.h"

namespace kintsugi {

std::string source_directory() { return KINTSUGI_SOURCE; }
std::string test_data_directory() { return KINTSUGI_SOURCE "/tests/data"; }
std::string kintsugi_binary() { return KINTSUGI_BINARY; }

}  // namespace kintsugi
