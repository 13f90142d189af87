#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "core/shared_library.h"

// HIP's runtime, as declared here and opened when the first GPU is looked for: one binary works
// with ROCm 5.2 to 7, whose libraries have different names, and starts where there is none.
namespace kintsugi::gpu::hip {

struct Dim3 {
  unsigned x, y, z;
};

inline constexpr int kSuccess = 0, kOutOfMemory = 2, kNotReady = 600;

// The functions that every supported release has. Streams, events and graphs are void*, error codes
// and enumerations int.
#define KINTSUGI_HIP_FUNCTIONS(f)                                                                  \
  f(hipGetErrorString, const char*(int)) f(hipGetErrorName, const char*(int)) f(                   \
      hipGetLastError, int()) f(hipRuntimeGetVersion,                                              \
                                int(int*)) f(hipGetDeviceCount, int(int*)) f(hipDeviceGetName,     \
                                                                             int(char*, int, int)) \
      f(hipDeviceGetUuid, int(void*, int)) f(hipDeviceGetPCIBusId, int(char*, int, int)) f(        \
          hipDeviceTotalMem, int(std::size_t*, int)) f(hipDeviceGetAttribute, int(int*, int, int)) \
          f(hipSetDevice, int(int)) f(hipDeviceSynchronize, int()) f(                              \
              hipMemGetInfo,                                                                       \
              int(std::size_t*,                                                                    \
                  std::size_t*)) f(hipMalloc,                                                      \
                                   int(void**, std::size_t)) f(hipFree, int(void*))                \
              f(hipHostMalloc, int(void**, std::size_t, unsigned)) f(hipHostFree, int(void*)) f(   \
                  hipHostRegister,                                                                 \
                  int(void*, std::size_t,                                                          \
                      unsigned)) f(hipHostUnregister,                                              \
                                   int(void*)) f(hipPointerGetAttributes, int(void*, const void*)) \
                  f(hipMemcpyAsync, int(void*, const void*, std::size_t, int, void*)) f(           \
                      hipMemcpy2DAsync,                                                            \
                      int(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t,  \
                          int, void*)) f(hipMemsetAsync, int(void*, int, std::size_t, void*))      \
                      f(hipDeviceGetStreamPriorityRange,                                           \
                        int(int*,                                                                  \
                            int*)) f(hipStreamCreateWithPriority,                                  \
                                     int(void**, unsigned,                                         \
                                         int)) f(hipStreamDestroy,                                 \
                                                 int(void*)) f(hipStreamSynchronize, int(void*))   \
                          f(hipStreamWaitEvent, int(void*, void*, unsigned)) f(                    \
                              hipEventCreateWithFlags,                                             \
                              int(void**, unsigned)) f(hipEventDestroy, int(void*))                \
                              f(hipEventRecord, int(void*, void*)) f(hipEventQuery, int(void*)) f( \
                                  hipEventSynchronize, int(void*))                                 \
                                  f(hipEventElapsedTime, int(float*, void*, void*)) f(             \
                                      hipStreamIsCapturing,                                        \
                                      int(void*, int*)) f(hipStreamBeginCapture, int(void*, int))  \
                                      f(hipStreamEndCapture, int(void*, void**)) f(                \
                                          hipGraphInstantiate,                                     \
                                          int(void**, void*, void**, char*, std::size_t))          \
                                          f(hipGraphDestroy, int(void*)) f(hipGraphLaunch,         \
                                                                           int(void*, void*))      \
                                              f(hipGraphExecDestroy, int(void*)) f(                \
                                                  hipLaunchKernel,                                 \
                                                  int(const void*, Dim3, Dim3, void**,             \
                                                      std::size_t, void*))                         \
                                                  f(hipOccupancyMaxActiveBlocksPerMultiprocessor,  \
                                                    int(int*, const void*, int, std::size_t))      \
                                                      f(__hipRegisterFatBinary,                    \
                                                        void**(const void*))                       \
                                                          f(__hipRegisterFunction,                 \
                                                            void(void**, const void*, char*,       \
                                                                 const char*, unsigned, void*,     \
                                                                 void*, void*, void*, int*))

struct Api {
#define KINTSUGI_DECLARE(name, ...) std::add_pointer_t<__VA_ARGS__> name = nullptr;
  KINTSUGI_HIP_FUNCTIONS(KINTSUGI_DECLARE)
#undef KINTSUGI_DECLARE
  int major = 0, minor = 0;  // of the release
  std::string file;          // "libamdhip64.so.6"
  // hipGetDevicePropertiesR0600, or hipGetDeviceProperties of ROCm 5: of their structures only the
  // name of the architecture is read, at this offset.
  int (*properties)(void*, int) = nullptr;
  std::size_t architecture_offset = 0;
};

// The runtime of this process; nullptr: it could not be opened, for which why_not_open() has the
// reason.
const Api* find_api() noexcept;
const std::string& why_not_open();
const Api& api();  // Failure if it could not be opened

// Where the libraries of ROCm are looked for, beside the system's folders.
LibraryNames rocm_library(std::vector<std::string> files);

// Tells the runtime of the kernels in this program (registration.cpp).
void register_kernels(const Api& api);

}  // namespace kintsugi::gpu::hip
