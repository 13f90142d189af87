#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "backend/device.h"
#include "core/shared_library.h"
#include "tensor/dtype.h"

// NVIDIA's NCCL or AMD's RCCL, which has the same functions and numbers. It is loaded at run time,
// so that a build needs neither; these are our declarations of what we use.
namespace kintsugi::nccl {

using Comm = struct CommHandle*;
struct UniqueId {
  std::array<char, 128> bytes;
};
constexpr int kNoColor = -1;  // of a rank that is in no group of a split

enum class Result : int { Success = 0, InProgress = 7 };  // the others are errors
enum class ElementType : int { U8 = 1, I32 = 2, I64 = 4, F16 = 6, F32 = 7, F64 = 8, BF16 = 9 };
enum class Reduction : int { Sum = 0, Max = 2 };

ElementType type_of(DType dtype);

// all_reduce is ncclAllReduce, and so on.
struct Functions {
  Result (*get_version)(int* version) = nullptr;
  const char* (*get_error_string)(Result) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*comm_init_rank)(Comm*, int ranks, UniqueId, int rank) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*comm_abort)(Comm) = nullptr;
  Result (*comm_get_async_error)(Comm, Result*) = nullptr;
  Result (*comm_count)(Comm, int* ranks) = nullptr;
  Result (*comm_user_rank)(Comm, int* rank) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_reduce)(const void* from, void* to, std::size_t count, ElementType, Reduction, Comm,
                       gpu::Stream) = nullptr;
  Result (*reduce_scatter)(const void* from, void* to, std::size_t count, ElementType, Reduction,
                           Comm, gpu::Stream) = nullptr;
  Result (*all_gather)(const void* from, void* to, std::size_t count, ElementType, Comm,
                       gpu::Stream) = nullptr;
  Result (*broadcast)(const void* from, void* to, std::size_t count, ElementType, int root, Comm,
                      gpu::Stream) = nullptr;
  Result (*send)(const void* from, std::size_t count, ElementType, int peer, Comm,
                 gpu::Stream) = nullptr;
  Result (*recv)(void* to, std::size_t count, ElementType, int peer, Comm, gpu::Stream) = nullptr;

  // nullptr in an old library: ncclCommSplit exists since NCCL 2.18 and ROCm 6.0, ncclCommRegister
  // since NCCL 2.19 and ROCm 6.2.
  const char* (*get_last_error)(Comm) = nullptr;
  Result (*comm_split)(Comm, int color, int key, Comm*, void* config) = nullptr;
  Result (*comm_register)(Comm, void* address, std::size_t bytes, void** handle) = nullptr;
  Result (*comm_deregister)(Comm, void* handle) = nullptr;
};

// The library of a platform (gpu::platform()): "NCCL", "RCCL". All messages take the name from
// here.
const std::string& library_name(std::string_view platform);

// Stays loaded until the process ends, since it has threads of its own.
class Library : public Functions {
 public:
  // Throws UserError if it is not installed. `root`: see SharedLibrary.
  explicit Library(std::string_view platform, const std::filesystem::path& root = "/");

  const std::string& name() const { return name_; }  // "NCCL"
  std::string version() const;                       // "2.21.5"
  // What the library says about an error. `comm`: nullptr for any.
  std::string describe(Result status, Comm comm = nullptr) const;
  // Throws Failure with this description.
  void check(Result status, const char* call) const;

 private:
  const std::string name_;
  const SharedLibrary library_;
};

}  // namespace kintsugi::nccl
