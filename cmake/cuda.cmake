# The CUDA backend, where a CUDA toolkit and cuDNN are installed; elsewhere src/backend/gpu_missing.cpp replaces it
# (hip.cmake). Included once kintsugi_engine exists. Sets KINTSUGI_CUDA_FOUND.
set(KINTSUGI_CUDA ON CACHE STRING "The CUDA backend: ON (where a toolkit is found), OFF or REQUIRED")
set(KINTSUGI_CUDA_ARCHITECTURES "90a-real;80-virtual" CACHE STRING
    "GPUs to compile for: machine code for Hopper, and PTX that newer drivers compile for the others")
set(KINTSUGI_CUDA_FOUND FALSE)
set(KINTSUGI_CUDA_MISSING "it is off")
get_filename_component(KINTSUGI_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

function(kintsugi_cuda_missing what)
  if(KINTSUGI_CUDA STREQUAL "REQUIRED")
    message(FATAL_ERROR "The CUDA backend needs ${what}, which was not found: set CUDA_HOME or CMAKE_PREFIX_PATH to where it is "
                        "installed (docs/install.md), or configure with -DKINTSUGI_CUDA=OFF")
  endif()
  set(KINTSUGI_CUDA_MISSING "${what} was not found" PARENT_SCOPE)
endfunction()

if(KINTSUGI_SANITIZE)
  set(KINTSUGI_CUDA_MISSING "the sanitizers' flags are not for nvcc")
elseif(KINTSUGI_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(KINTSUGI_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
    if(KINTSUGI_NVCC)
      set(CMAKE_CUDA_COMPILER ${KINTSUGI_NVCC})
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    get_filename_component(KINTSUGI_CUDA_ROOT ${CMAKE_CUDA_COMPILER} DIRECTORY)
    get_filename_component(KINTSUGI_CUDA_ROOT ${KINTSUGI_CUDA_ROOT} DIRECTORY)
    find_path(CUDNN_INCLUDE_DIR NAMES cudnn.h HINTS ${KINTSUGI_CUDA_ROOT}/include)
    find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${KINTSUGI_CUDA_ROOT}/lib64)
    if(CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY)
      set(KINTSUGI_CUDA_FOUND TRUE)
    else()
      kintsugi_cuda_missing("cuDNN 9")
    endif()
  else()
    kintsugi_cuda_missing("nvcc")
  endif()
endif()

if(NOT KINTSUGI_CUDA_FOUND)
  kintsugi_feature("CUDA, cuDNN" FALSE "" "no training on NVIDIA's GPUs: ${KINTSUGI_CUDA_MISSING}")
  return()
endif()

set(CMAKE_CUDA_ARCHITECTURES ${KINTSUGI_CUDA_ARCHITECTURES})
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc speaks C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
find_package(CUDAToolkit REQUIRED)
kintsugi_feature("CUDA, cuDNN" TRUE "nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${KINTSUGI_CUDA_ARCHITECTURES}, ${CUDNN_LIBRARY}" "")
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${KINTSUGI_LAUNCHER})
endif()

file(GLOB KINTSUGI_CUDA_SOURCES CONFIGURE_DEPENDS ${KINTSUGI_ROOT}/src/backend/gpu/kernels/*.cu ${KINTSUGI_ROOT}/src/backend/gpu/kernels/*/*.cu
     ${KINTSUGI_ROOT}/src/backend/gpu/*.cpp ${KINTSUGI_ROOT}/src/backend/gpu/cuda/*.cpp)
# CUPTI records profiles. Its library is loaded when one is requested.
find_path(CUPTI_INCLUDE_DIR NAMES cupti.h HINTS ${KINTSUGI_CUDA_ROOT}/include ${KINTSUGI_CUDA_ROOT}/extras/CUPTI/include)
if(CUPTI_INCLUDE_DIR)
  list(FILTER KINTSUGI_CUDA_SOURCES EXCLUDE REGEX "activity_missing")
else()
  list(FILTER KINTSUGI_CUDA_SOURCES EXCLUDE REGEX "cuda/activity\\.cpp")
endif()
kintsugi_feature(CUPTI "${CUPTI_INCLUDE_DIR}" "${CUPTI_INCLUDE_DIR}" "profiles of GPUs show operations, no kernels: cupti.h was not found")
add_library(kintsugi_cuda OBJECT ${KINTSUGI_CUDA_SOURCES})
target_include_directories(kintsugi_cuda PRIVATE ${KINTSUGI_ROOT}/src)
target_include_directories(kintsugi_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
if(NOT CUDNN_INCLUDE_DIR STREQUAL "/usr/include")  # naming that one breaks the order of the C++ library's headers
  target_include_directories(kintsugi_cuda SYSTEM PRIVATE ${CUDNN_INCLUDE_DIR})
endif()
if(CUPTI_INCLUDE_DIR)
  target_include_directories(kintsugi_cuda SYSTEM PRIVATE ${CUPTI_INCLUDE_DIR})
endif()
set_target_properties(kintsugi_cuda PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF)
# Philox and std::array are constexpr and run on the device too; fmt believes nvcc to know no constexpr at all.
target_compile_definitions(kintsugi_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
if(KINTSUGI_CUDA_ARCHITECTURES MATCHES "90a")  # kernels with instructions that only Hopper has
  target_compile_definitions(kintsugi_cuda PRIVATE KINTSUGI_HOPPER_CODE)
endif()
target_compile_options(kintsugi_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall,-Wextra>)
target_link_libraries(kintsugi_cuda PRIVATE kintsugi_flags fmt::fmt)

target_sources(kintsugi_engine PRIVATE $<TARGET_OBJECTS:kintsugi_cuda>)
# libcudnn.so loads its parts when they are first needed.
target_link_libraries(kintsugi_engine PRIVATE CUDA::cudart_static CUDA::cublasLt ${CUDNN_LIBRARY})

if(KINTSUGI_BENCH)
  # cuDNN against the portable kernel and float64: errors and TFLOP/s by shape.
  add_executable(attention_check ${KINTSUGI_ROOT}/tests/gpu/attention_check.cpp)
  target_include_directories(attention_check SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR})
  target_link_libraries(attention_check PRIVATE kintsugi_engine CUDA::cudart_static)
endif()
