#include "backend/gpu/libraries.h"

#include <fmt/format.h>
#include <link.h>

#include <set>
#include <string_view>
#include <utility>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/hip/api.h"
#include "backend/gpu/hip/libraries.h"
#include "core/error.h"

namespace kintsugi {

std::string gpu_library_versions() {
  const gpu::hip::Api* const api = gpu::hip::find_api();
  if (api == nullptr) return "ROCm, which was not found here";
  return fmt::format("ROCm {}.{}", api->major, api->minor);
}

namespace gpu {
namespace {

// The files of HIP's runtime that this process has loaded.
std::set<std::string> loaded_runtimes() {
  std::set<std::string> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        const std::string_view file = info->dlpi_name;
        if (file.find("/libamdhip64.so") != std::string_view::npos)
          static_cast<std::set<std::string>*>(result)->emplace(file);
        return 0;
      },
      &files);
  return files;
}

}  // namespace

std::string mixed_runtimes() {
  const std::set<std::string> files = loaded_runtimes();
  if (files.size() < 2) return "";
  return fmt::format("{}, {}", *files.begin(), *files.rbegin());
}

std::vector<std::unique_ptr<MatmulLibrary>> matmul_libraries(const MatmulSettings&) {
  std::vector<std::unique_ptr<MatmulLibrary>> libraries;
  std::string why_no_hipblaslt, why_no_rocblas;
  auto hipblaslt = open_hipblaslt(why_no_hipblaslt), rocblas = open_rocblas(why_no_rocblas);
  if (const std::string files = mixed_runtimes(); !files.empty())
    user_error("the libraries of two releases of ROCm are mixed ({}): load one module of ROCm",
               files);
  // It alone has every form.
  if (!rocblas)
    user_error(
        "matmuls need rocBLAS: {}; load the module of ROCm or add its lib to "
        "LD_LIBRARY_PATH",
        why_no_rocblas);
  if (hipblaslt) libraries.push_back(std::move(hipblaslt));
  libraries.push_back(std::move(rocblas));
  return libraries;
}

std::string why_no_fp8(const Device& device, const Traits& traits, bool) {
  return fmt::format("{} ({}) has no fp8 of the kind that this program trains in (E4M3 of OCP)",
                     device.name, traits.architecture);
}

}  // namespace gpu
}  // namespace kintsugi
