# The NCCL communicators, where CUDA and NCCL are installed; elsewhere src/comm/nccl_missing.cpp replaces them.
# Included after cuda.cmake and mpi.cmake. Sets KINTSUGI_NCCL_FOUND.
option(KINTSUGI_NCCL "Build with NCCL where it is found" ON)
set(KINTSUGI_NCCL_FOUND FALSE)
if(KINTSUGI_NCCL AND KINTSUGI_CUDA_FOUND)
  find_path(NCCL_INCLUDE_DIR NAMES nccl.h HINTS ${KINTSUGI_CUDA_ROOT}/include $ENV{NCCL_HOME}/include)
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
               HINTS ${KINTSUGI_CUDA_ROOT}/lib64 ${KINTSUGI_CUDA_ROOT}/lib $ENV{NCCL_HOME}/lib)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(KINTSUGI_NCCL_FOUND TRUE)
  else()
    kintsugi_cuda_missing("NCCL")
  endif()
endif()

if(KINTSUGI_CUDA_FOUND)
  set(why "NCCL was not found or is off")
else()
  set(why "it needs CUDA")
endif()
kintsugi_feature(NCCL ${KINTSUGI_NCCL_FOUND} "${NCCL_LIBRARY}" "one GPU only: ${why}")

if(NOT KINTSUGI_NCCL_FOUND)
  target_sources(kintsugi_engine PRIVATE ${CMAKE_SOURCE_DIR}/src/comm/nccl_missing.cpp)
  return()
endif()

file(GLOB KINTSUGI_NCCL_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/comm/nccl/*.cpp)
add_library(kintsugi_nccl OBJECT ${KINTSUGI_NCCL_SOURCES})
target_include_directories(kintsugi_nccl PRIVATE ${CMAKE_SOURCE_DIR}/src)
target_include_directories(kintsugi_nccl SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
if(NOT NCCL_INCLUDE_DIR STREQUAL "/usr/include")  # naming that one breaks the order of the C++ library's headers
  target_include_directories(kintsugi_nccl SYSTEM PRIVATE ${NCCL_INCLUDE_DIR})
endif()
target_link_libraries(kintsugi_nccl PRIVATE kintsugi_flags fmt::fmt)
target_sources(kintsugi_engine PRIVATE $<TARGET_OBJECTS:kintsugi_nccl>)
target_link_libraries(kintsugi_engine PRIVATE ${NCCL_LIBRARY})

if(KINTSUGI_TESTS AND KINTSUGI_MPI_FOUND)
  include(${CMAKE_CURRENT_LIST_DIR}/nccl_tests.cmake)
endif()
