#include "cli/worlds.h"

#include <cstdlib>
#include <filesystem>

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"

namespace kintsugi {
namespace {

// $XDG_CACHE_HOME/kintsugi or ~/.cache/kintsugi; empty, and so no file, where neither can be had.
std::string default_matmul_cache() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::filesystem::path directory;
  if (cache != nullptr && *cache != '\0')
    directory = std::filesystem::path(cache) / "kintsugi";
  else if (home != nullptr && *home != '\0')
    directory = std::filesystem::path(home) / ".cache" / "kintsugi";
  std::error_code error;
  if (directory.empty() || (!std::filesystem::create_directories(directory, error) && error))
    return "";
  return (directory / "matmul.txt").string();
}

}  // namespace

std::unique_ptr<Backend> make_backend(DeviceChoice device, std::int64_t threads,
                                      const CudaConfig& cuda) {
  if (device == DeviceChoice::Cuda || (device == DeviceChoice::Auto && cuda_device_count() > 0))
    return make_cuda_backend(
        {.device = static_cast<int>(cuda.device),
         .deterministic = cuda.deterministic,
         .tf32 = cuda.tf32,
         .graphs = cuda.graphs,
         .matmul_cache = cuda.matmul_cache == "auto" ? default_matmul_cache() : cuda.matmul_cache});
  return make_cpu_backend(static_cast<int>(threads));
}

}  // namespace kintsugi
