#include "support/paths.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "backend/gpu/gpu_backend.h"

namespace kintsugi {
namespace {

// The tests of the program expect processor cores: several ranks cannot share a GPU, and starting
// CUDA takes seconds. CUDA reads the variable once, so tests in this process keep their GPU.
void hide_gpus_from_children() {
  static const bool hidden = [] {
    if (testing::UnitTest::GetInstance()->test_to_run_count() > 1) gpu_device_count();
    return setenv("CUDA_VISIBLE_DEVICES", "", 1) == 0;
  }();
  static_cast<void>(hidden);
}

}  // namespace

std::string source_directory() { return KINTSUGI_SOURCE; }
std::string test_data_directory() { return KINTSUGI_SOURCE "/tests/data"; }
std::string kintsugi_binary() {
  hide_gpus_from_children();
  const char* other = std::getenv("KINTSUGI_BINARY");
  return other != nullptr && *other != '\0' ? other : KINTSUGI_BINARY;
}
std::string built_program(const std::string& name) {
  const auto path = std::filesystem::path(KINTSUGI_BINARY).parent_path() / name;
  return std::filesystem::exists(path) ? path.string() : "";
}

std::string fake_library(const std::string& name) {
  return KINTSUGI_FAKES "/libfake_" + name + ".so";
}

std::string rocm_stand_in(const std::string& file) { return KINTSUGI_ROCM "/" + file; }

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace kintsugi
