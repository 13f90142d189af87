#include "comm/nccl/library.h"

#include "core/error.h"

namespace kintsugi::nccl {
namespace {

struct Product {
  std::string name;
  LibraryNames files;
  std::string package;  // what to install
};

const Product& product_of(std::string_view platform) {
  static const Product nccl = {.name = "NCCL",
                               .files = {.files = {"libnccl.so.2"},
                                         .folders = {"usr/local/cuda/lib64", "usr/local/cuda/lib"},
                                         .stays_loaded = true},
                               .package = "libnccl2 from NVIDIA's repository"};
  static const Product rccl = {.name = "RCCL",
                               .files = {.files = {"librccl.so.1"},
                                         .folders = {"opt/rocm/lib", "opt/rocm/lib64"},
                                         .stays_loaded = true},
                               .package = "rccl from AMD's ROCm repository"};
  return platform == "hip" ? rccl : nccl;
}

SharedLibrary load(const Product& product, const std::filesystem::path& root) {
  try {
    return SharedLibrary(root, product.files);
  } catch (const Failure& error) {
    user_error(
        "several ranks with GPUs need {}, but {}: install {}, or add the folder of the library to "
        "LD_LIBRARY_PATH",
        product.name, error.what(), product.package);
  }
}

}  // namespace

ElementType type_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return ElementType::F64;
    case DType::F32:
      return ElementType::F32;
    case DType::BF16:
      return ElementType::BF16;
    case DType::F16:
      return ElementType::F16;
    case DType::I64:
      return ElementType::I64;
    case DType::I32:
      return ElementType::I32;
    case DType::U8:
    case DType::F8:  // is sent, never reduced
      return ElementType::U8;
  }
  return ElementType::U8;
}

const std::string& library_name(std::string_view platform) { return product_of(platform).name; }

Library::Library(std::string_view platform, const std::filesystem::path& root)
    : name_(library_name(platform)), library_(load(product_of(platform), root)) {
  const auto find = [this]<class Function>(Function*& function, const char* symbol) {
    function = library_.find<Function>(symbol);
  };
  const auto require = [&](auto& function, const char* symbol) {
    find(function, symbol);
    if (function == nullptr)
      user_error("this {} is too old: {} has no {}", name_, library_.name(), symbol);
  };
  require(get_version, "ncclGetVersion");
  require(get_error_string, "ncclGetErrorString");
  require(get_unique_id, "ncclGetUniqueId");
  require(comm_init_rank, "ncclCommInitRank");
  require(comm_destroy, "ncclCommDestroy");
  require(comm_abort, "ncclCommAbort");
  require(comm_get_async_error, "ncclCommGetAsyncError");
  require(comm_count, "ncclCommCount");
  require(comm_user_rank, "ncclCommUserRank");
  require(group_start, "ncclGroupStart");
  require(group_end, "ncclGroupEnd");
  require(all_reduce, "ncclAllReduce");
  require(reduce_scatter, "ncclReduceScatter");
  require(all_gather, "ncclAllGather");
  require(broadcast, "ncclBroadcast");
  require(send, "ncclSend");
  require(recv, "ncclRecv");
  find(get_last_error, "ncclGetLastError");
  find(comm_split, "ncclCommSplit");
  find(comm_register, "ncclCommRegister");
  find(comm_deregister, "ncclCommDeregister");
}

std::string Library::version() const {
  int version = 0;
  if (get_version(&version) != Result::Success) return "of unknown version";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string Library::describe(Result status, Comm comm) const {
  const char* detail = get_last_error == nullptr ? nullptr : get_last_error(comm);
  const bool more = detail != nullptr && *detail != '\0';
  return fmt::format("{}{}{}", get_error_string(status), more ? ": " : "", more ? detail : "");
}

void Library::check(Result status, const char* call) const {
  if (status != Result::Success) failure("{} failed: {}", call, describe(status));
}

}  // namespace kintsugi::nccl
