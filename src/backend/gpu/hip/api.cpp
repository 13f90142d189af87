#include "backend/gpu/hip/api.h"

#include <fmt/format.h>

#include <cstdlib>
#include <memory>

#include "core/error.h"

namespace kintsugi::gpu::hip {
namespace {

constexpr int kOldestMajor = 5, kOldestMinor = 2;

// Of hipDeviceProp_t before ROCm 6.0 and since.
constexpr std::size_t kOldArchitecture = 396, kArchitecture = 1160;

struct Opened {
  std::unique_ptr<SharedLibrary> library;  // stays open: its threads run to the end of the process
  Api api;
  std::string why_not;
};

template <class F>
void find(const SharedLibrary& library, F*& function, const char* name) {
  function = library.find<F>(name);
  if (function == nullptr)
    failure("{} has no function {}: ROCm {}.{} or newer is needed", library.name(), name,
            kOldestMajor, kOldestMinor);
}

void check_version(Api& api) {
  int version = 0;
  if (api.hipRuntimeGetVersion(&version) != kSuccess)
    failure("{} does not tell its version", api.file);
  api.major = version / 10'000'000;
  api.minor = version / 100'000 % 100;
  if (api.major < kOldestMajor || (api.major == kOldestMajor && api.minor < kOldestMinor))
    failure("{} is of ROCm {}.{}, but {}.{} or newer is needed", api.file, api.major, api.minor,
            kOldestMajor, kOldestMinor);
}

void fill(Api& api, const SharedLibrary& library) {
  api.file = library.name();
  find(library, api.hipRuntimeGetVersion, "hipRuntimeGetVersion");
  check_version(api);  // before the others: an old release may lack some
#define KINTSUGI_FIND(name, ...) find(library, api.name, #name);
  KINTSUGI_HIP_FUNCTIONS(KINTSUGI_FIND)
#undef KINTSUGI_FIND
  api.properties = library.find<int(void*, int)>("hipGetDevicePropertiesR0600");
  api.architecture_offset = kArchitecture;
  if (api.properties != nullptr) return;
  find(library, api.properties, "hipGetDeviceProperties");
  api.architecture_offset = kOldArchitecture;
}

Opened open() noexcept {
  Opened opened;
  try {
    opened.library = std::make_unique<SharedLibrary>(
        "/", rocm_library(
                 {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}));
    fill(opened.api, *opened.library);
    register_kernels(opened.api);
  } catch (const std::exception& error) {
    opened.why_not = error.what();
  }
  return opened;
}

const Opened& opened() noexcept {
  static const Opened* const once = new Opened(open());
  return *once;
}

}  // namespace

LibraryNames rocm_library(std::vector<std::string> files) {
  LibraryNames names{.files = std::move(files)};
  if (const char* const root = std::getenv("ROCM_PATH"); root != nullptr && *root == '/')
    names.folders.push_back(fmt::format("{}/lib", root));
  names.folders.emplace_back("opt/rocm/lib");
  return names;
}

const Api* find_api() noexcept { return opened().why_not.empty() ? &opened().api : nullptr; }
const std::string& why_not_open() { return opened().why_not; }

const Api& api() {
  if (find_api() == nullptr) failure("HIP: {}", why_not_open());
  return opened().api;
}

}  // namespace kintsugi::gpu::hip
