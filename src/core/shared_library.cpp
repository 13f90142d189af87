#include "core/shared_library.h"

#include <dlfcn.h>
#include <link.h>

#include "core/error.h"

namespace kintsugi {
namespace {

#if defined(__aarch64__)
constexpr const char* kLibraryTriple = "usr/lib/aarch64-linux-gnu";
#else
constexpr const char* kLibraryTriple = "usr/lib/x86_64-linux-gnu";
#endif

}  // namespace

SharedLibrary::SharedLibrary(const std::filesystem::path& root, const LibraryNames& names) {
  const bool system = root == "/";
  std::vector<std::string> folders = names.folders;
  if (!system)
    for (const char* usual : {kLibraryTriple, "usr/lib64", "usr/lib", "lib64", "lib"})
      folders.emplace_back(usual);
  std::string why;
  for (const std::string& file : names.files) {
    if (system && load(file, names.stays_loaded, why)) return;
    for (const std::string& folder : folders) {
      const std::filesystem::path path = root / folder / file;
      std::error_code ignored;
      if (std::filesystem::exists(path, ignored) && load(path, names.stays_loaded, why)) return;
    }
  }
  if (why.empty()) failure("{} is not installed", names.files.front());
  failure("cannot load {}: {}", names.files.front(), why);
}

SharedLibrary::~SharedLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

bool SharedLibrary::load(const std::filesystem::path& file, bool stays, std::string& why) {
  handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | (stays ? RTLD_NODELETE : 0));
  if (handle_ != nullptr) {
    name_ = file.filename().string();
    return true;
  }
  const char* const text = dlerror();
  const std::string reason = text != nullptr ? text : "unknown error";
  // Of the file itself, not of a library that it needs.
  const bool absent = reason.starts_with(file.string() + ":") &&
                      reason.find("No such file or directory") != std::string::npos;
  if (!absent) why = reason;
  return false;
}

std::filesystem::path SharedLibrary::path() const {
  link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return {};
  return map->l_name;
}

void* SharedLibrary::symbol(const char* function) const { return dlsym(handle_, function); }

}  // namespace kintsugi
